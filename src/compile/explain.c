/*
 * explain.c -- remarks for users who compare a plan with a formula, or overlook what it implies.
 *
 *     lora         a preset has no weights, so adapters would be trained on random ones
 *     target       the plan, or the budget, exceeds the memory of the card that it is for
 *     gradients    textbooks count all gradients at the peak; here few exist at the peak
 *     activations  the ZeRO paper counts 12 x hidden per token and layer; backward reads more
 *     checkpoint   sqrt(n) segments assume that a layer saves as much inside as at its border; a
 *                  transformer layer saves far more inside, so every:1 needs less memory
 *
 * Each remark is computed from the plan and shown only if the difference is large enough to notice.
 */
#include "compile/explain.h"

#include "compile/device_rates.h"
#include "plan/timeline.h"

#include <stdio.h>
#include <stdlib.h>

const char *explain_random_base(const struct snug_model *model, const struct snug_recipe *recipe)
{
    if (recipe->lora == 0 || model->weights_folder != NULL || model->family == MODEL_custom)
        return NULL;
    return "the frozen weights of a preset are random, and adapters on them learn little: "
           "give a folder with weights";
}

static bool explain_lora(const struct compile_request *request, struct explanation *e)
{
    const char *words = explain_random_base(request->model, request->recipe);
    if (words == NULL)
        return false;
    e->about = "lora";
    snprintf(e->words, EXPLAIN_WORDS, "%s", words);
    return true;
}

/* A refusal says it where the budget is no more than the card has. */
static bool explain_target(const struct snug_recipe *recipe, const struct compiled_step *s,
                           struct explanation *e)
{
    const char *card;
    char size[TEXT_SIZE_MAX], of_card[TEXT_SIZE_MAX], limit[TEXT_SIZE_MAX];
    int64_t card_bytes = rates_card_memory((enum target)recipe->target, &card);
    int64_t needed = s->plan.arena_bytes + compiled_step_runtime_bytes(s);
    bool is_needed = needed > card_bytes && (recipe->memory == 0 || recipe->memory > card_bytes);
    if (card_bytes == 0 || (!is_needed && recipe->memory <= card_bytes))
        return false;
    e->about = "target";
    text_size(card_bytes, of_card);
    snprintf(limit, sizeof limit, "%gG", (double)card_bytes / (1 << 30));
    if (is_needed)
        snprintf(e->words, EXPLAIN_WORDS,
                 "%s with the runtime do not fit the %s of one %s: --memory %s refuses such a plan",
                 text_size(needed, size), of_card, card, limit);
    else
        snprintf(e->words, EXPLAIN_WORDS, "the budget of %s is more than the %s of one %s",
                 text_size(recipe->memory, size), of_card, card);
    return true;
}

static bool is_far_below(int64_t bytes, int64_t all)
{
    return bytes < all - all / 4;
}

/* The sum over all weight gradients, whether they are alive at the same time or not. */
static int64_t all_gradient_bytes(const struct compiled_step *s)
{
    int64_t bytes = 0;
    for (int id = 0; id < s->prog.n_tensors; id++)
        if (s->prog.tensors[id].role == ROLE_gradient && s->prog.tensors[id].base == TENSOR_NONE &&
            s->prog.tensors[id].whole.n_dims == 0) /* shards are parts of others */
            bytes += tensor_bytes(&s->prog, id);
    return bytes;
}

/* The most bytes of gradients that are alive at once, and at which op; -1 if out of memory. */
static int64_t most_gradient_bytes(const struct compiled_step *s, int *op)
{
    struct timeline_point *points = malloc((size_t)s->prog.n_ops * sizeof *points);
    int64_t most = -1;
    if (points != NULL && plan_timeline(&s->prog, &s->plan, points, NULL) == SNUG_OK)
        for (int i = 0; i < s->prog.n_ops; i++)
            if (points[i].bytes[ROLE_gradient] > most) {
                most = points[i].bytes[ROLE_gradient];
                *op = i;
            }
    free(points);
    return most;
}

static bool explain_gradients(const struct snug_recipe *recipe, const struct compiled_step *s,
                              struct explanation *e, bool *failed)
{
    char now[TEXT_SIZE_MAX], all[TEXT_SIZE_MAX], once[TEXT_SIZE_MAX], index[TEXT_SIZE_MAX + 8];
    int64_t at_peak = s->plan.at_peak[ROLE_gradient], bytes = all_gradient_bytes(s);
    int op = 0;
    if (!is_far_below(at_peak, bytes) || bytes < s->plan.arena_bytes / 50)
        return false;
    int64_t most = most_gradient_bytes(s, &op);
    *failed |= most < 0;
    e->about = "gradients";
    text_size(at_peak, now);
    text_size(bytes, all);
    if (is_far_below(most, bytes))
        snprintf(e->words, EXPLAIN_WORDS,
                 "%s at the peak; all of them are %s, but at most %s are alive at once: %s", now,
                 all, text_size(most, once),
                 recipe->zero > 1 ? "a rank keeps only its shard" : "each is freed after its use");
    else
        snprintf(e->words, EXPLAIN_WORDS,
                 "%s at the peak; their maximum, %s at op %s, comes after activations are freed",
                 now, text_size(most, once), text_count(op, index));
    return true;
}

static bool explain_activations(const struct snug_model *model, const struct snug_recipe *recipe,
                                const struct compiled_step *s, struct explanation *e)
{
    enum { ZERO_PAPER = 12 };
    char formula[TEXT_SIZE_MAX];
    if (!model_is_language(model) || recipe->checkpoint != CHECKPOINT_none || s->n_stages > 1 ||
        recipe->offload != OFFLOAD_none)
        return false;
    double unit = (double)model->decoder.n_layer * (double)model->decoder.n_embd *
                  (double)(s->micro_batch * s->seq) * (double)dtype_bytes(recipe_dtype(recipe));
    double saved = (double)s->plan.at_peak[ROLE_activation] / unit;
    if (saved < 1.1 * ZERO_PAPER)
        return false;
    e->about = "activations";
    snprintf(
        e->words, EXPLAIN_WORDS,
        "%.1f x hidden elements per token and layer, norm and %s outputs included "
        "(--checkpoint cheap recomputes them); the ZeRO paper estimates 12 x hidden, which is %s",
        saved, decoder_has_gate(&model->decoder) ? "SwiGLU" : "GELU",
        text_size((int64_t)(ZERO_PAPER * unit), formula));
    return true;
}

/* Fewer, longer segments save less between them and more inside the one being recomputed. */
static bool explain_checkpoint(const struct compile_request *request, const struct compiled_step *s,
                               struct explanation *e, bool *failed)
{
    const struct snug_recipe *recipe = request->recipe;
    char more[TEXT_SIZE_MAX], total[TEXT_SIZE_MAX];
    bool has_segments = recipe->checkpoint == CHECKPOINT_sqrt ||
                        (recipe->checkpoint == CHECKPOINT_every && recipe->checkpoint_every > 1);
    struct snug_recipe other = *recipe;
    struct compile_request q = *request;
    struct compiled_step every;
    struct text name = {0};
    if (!has_segments)
        return false;
    other.checkpoint = CHECKPOINT_every;
    other.checkpoint_every = 1;
    q.recipe = &other;
    enum snug_status status = compile_step(&q, &every, NULL);
    *failed |= status == SNUG_NO_MEMORY;
    if (status != SNUG_OK)
        return false;
    int64_t bytes = every.plan.arena_bytes, difference = s->plan.arena_bytes - bytes;
    compiled_step_free(&every);
    if (difference < s->plan.arena_bytes / 100)
        return false;
    recipe_checkpoint_name(recipe, &name);
    e->about = "checkpoint";
    snprintf(
        e->words, EXPLAIN_WORDS,
        "every:1 needs %s less (%s): %s saves fewer layer inputs, but recomputing several layers "
        "at a time takes more memory than that frees",
        text_size(difference, more), text_size(bytes, total),
        name.data == NULL ? "this" : name.data);
    text_free(&name);
    return true;
}

int explain_plan(const struct compile_request *request, const struct compiled_step *s,
                 struct explanation out[EXPLAIN_MOST])
{
    const struct snug_recipe *recipe = request->recipe;
    bool failed = false;
    int n = 0;
    n += explain_target(recipe, s, &out[n]);
    if (s->prog.loss == TENSOR_NONE)
        return n;
    n += explain_lora(request, &out[n]);
    n += explain_gradients(recipe, s, &out[n], &failed);
    n += explain_activations(request->model, recipe, s, &out[n]);
    n += explain_checkpoint(request, s, &out[n], &failed);
    return failed ? -1 : n;
}
