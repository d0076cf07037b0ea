/*
 * advice.c -- suggest recipes that need less memory, ordered by how much they change the result.
 *
 * Smaller micro-batches, checkpointing, ZeRO, in-backward updates and offload cost time and keep
 * the result.  Micro-batches, and ZeRO combined with them, sum gradients in another order, so their
 * result is the same up to rounding.  Fewer bits change rounding.  Another optimizer or LoRA
 * changes training, so they come last.  Micro-batches also change training where the model has
 * batch norm (statistics are per micro-batch) or dropout (masks are per micro-batch).
 *
 * `snug plan` tries only flags that act on a large share of the bytes, so a plan with its advice
 * costs a few plans.  The search for a recipe within a budget tries more candidates.  It rejects
 * them by the lower bound of their plan, which takes a fraction of the time, and plans in full only
 * those whose bound fits.
 */
#include "compile/advice.h"

#include "compile/compile_target.h"
#include "optim/optim.h"

#include <stdio.h>
#include <string.h>

enum { CANDIDATES_MOST = 16 };

struct candidate {
    struct snug_recipe recipe;
    struct priced_recipe priced;
};

struct candidates {
    const struct compile_request *request;
    const struct snug_model *model;
    const struct snug_recipe *recipe;
    const struct compiled_step *compiled;
    struct candidate list[CANDIDATES_MOST];
    int n;
    bool no_memory; /* a candidate could not be planned, so the list may be incomplete */
};

/* Plans the request with another recipe.  Fails if it cannot be planned, or if there is no memory
 * to plan it. */
static enum snug_status price(const struct compile_request *request,
                              const struct snug_recipe *recipe, bool estimate,
                              struct priced_recipe *priced)
{
    struct compiled_step s;
    struct compile_request q = *request;
    q.recipe = recipe;
    q.estimate = estimate;
    TRY(compile_step(&q, &s, NULL));
    priced->total_bytes = s.plan.arena_bytes;
    priced->runtime_bytes = compiled_step_runtime_bytes(&s);
    priced->step_seconds = s.plan.step_seconds;
    compiled_step_free(&s);
    return SNUG_OK;
}

static int64_t own_batch(const struct compiled_step *s)
{
    return s->batch / s->n_ranks;
}

/* The largest divisor of a rank's batch that is <= most and < micro_batch, or 0. */
static int64_t smaller_micro_batch(int64_t batch, int64_t micro_batch, int64_t most)
{
    for (int64_t m = most < micro_batch ? most : micro_batch - 1; m >= 1; m--)
        if (batch % m == 0)
            return m;
    return 0;
}

/* Batch norm statistics and dropout masks are computed per micro-batch. */
static bool splits_change_learning(const struct compiled_step *s)
{
    for (int i = 0; i < s->prog.n_ops; i++)
        if (op_has(&s->prog.ops[i], TRAIT_batch_statistics) ||
            op_dropout(&s->prog.ops[i]).dropout > 0)
            return true;
    return false;
}

/* Does `to` sum gradients in another order?  ZeRO 2 and 3 do with several micro-batches, and NCCL
 * chooses its own order. */
static bool reorders_sums(const struct compiled_step *s, const struct snug_recipe *from,
                          const struct snug_recipe *to)
{
    bool splits = to->micro_batch > 0 && to->micro_batch != s->micro_batch;
    return splits || (to->zero != from->zero &&
                      (s->micro_batch < own_batch(s) || compiled_step_is_on_gpu(s)));
}

const char *advice_change_words(const struct priced_recipe *priced)
{
    static const char *const words[] = {[ADVICE_nothing] = "same result",
                                        [ADVICE_rounding] = "changes rounding",
                                        [ADVICE_learning] = "changes training"};
    return priced->changes == ADVICE_nothing && priced->reorders_sums ? "same up to rounding"
                                                                      : words[priced->changes];
}

/* ---- one flag -------------------------------------------------------------------------------- */

static bool needs_less(const struct priced_recipe *priced, int64_t than_bytes)
{
    return priced->total_bytes < than_bytes - than_bytes / 50;
}

/* Adds the recipe with `flags` set, if it can be planned and needs at least 2% less. */
static void consider(struct candidates *c, enum advice_changes changes, const char *flags)
{
    if (c->n == CANDIDATES_MOST)
        return;
    struct candidate *one = &c->list[c->n];
    one->recipe = *c->recipe;
    one->priced = (struct priced_recipe){.changes = changes};
    snprintf(one->priced.flags, sizeof one->priced.flags, "%s", flags);
    enum snug_status status = snug_recipe_set_line(&one->recipe, flags, NULL);
    if (status == SNUG_OK)
        status = price(c->request, &one->recipe, false, &one->priced);
    one->priced.reorders_sums = reorders_sums(c->compiled, c->recipe, &one->recipe);
    c->no_memory |= status == SNUG_NO_MEMORY;
    if (status == SNUG_OK && needs_less(&one->priced, c->compiled->plan.arena_bytes))
        c->n++;
}

static bool is_large(const struct compiled_step *s, int64_t bytes)
{
    return bytes > s->plan.arena_bytes / 5;
}

static void consider_activations(struct candidates *c)
{
    const struct compiled_step *s = c->compiled;
    char flags[64];
    int64_t quarter = smaller_micro_batch(own_batch(s), s->micro_batch, (s->micro_batch + 3) / 4);
    if (!is_large(s, s->plan.at_peak[ROLE_activation] + s->plan.at_peak[ROLE_input]))
        return;
    if (quarter > 0) {
        snprintf(flags, sizeof flags, "--micro-batch %lld", (long long)quarter);
        consider(c, splits_change_learning(s) ? ADVICE_learning : ADVICE_nothing, flags);
    }
    if (c->recipe->checkpoint == CHECKPOINT_none)
        consider(c, ADVICE_nothing, "--checkpoint every:1");
}

/* Only for the larger of states and activations: offload takes the longest to plan. */
static void consider_offload(struct candidates *c)
{
    const int64_t *at_peak = c->compiled->plan.at_peak;
    bool of_states = at_peak[ROLE_optimizer] > at_peak[ROLE_activation];
    if (c->recipe->offload == OFFLOAD_none &&
        is_large(c->compiled, at_peak[of_states ? ROLE_optimizer : ROLE_activation]))
        consider(c, ADVICE_nothing, of_states ? "--offload states" : "--offload activations");
}

static void consider_states(struct candidates *c)
{
    const struct compiled_step *s = c->compiled;
    const int64_t *at_peak = s->plan.at_peak;
    bool has_states = is_large(s, at_peak[ROLE_optimizer]);
    bool shards = s->n_ranks > 1 && c->recipe->parallel == PARALLEL_ddp;
    if (shards && c->recipe->zero < 2)
        consider(c, ADVICE_nothing, "--zero 2");
    if (shards && c->recipe->zero < 3 && is_large(s, at_peak[ROLE_parameter]))
        consider(c, ADVICE_nothing, "--zero 3");
    if (!c->recipe->in_backward && is_large(s, at_peak[ROLE_gradient]))
        consider(c, ADVICE_nothing, "--update in-backward");
    if (has_states && recipe_state_bits(c->recipe) > 8)
        consider(c, ADVICE_rounding, "--state-bits 8");
}

/* Can the matrices below adapters be stored in fewer bits? */
static bool has_wide_base(const struct snug_recipe *recipe)
{
    return recipe->lora > 0 && (recipe->lora_base == 0 || recipe->lora_base == 16);
}

static void consider_base(struct candidates *c)
{
    if (!has_wide_base(c->recipe) ||
        !is_large(c->compiled, c->compiled->plan.at_peak[ROLE_parameter]))
        return;
    consider(c, ADVICE_rounding, "--lora-base 8");
    consider(c, ADVICE_rounding, "--lora-base 4");
}

static void consider_other_learning(struct candidates *c)
{
    if (c->recipe->lora == 0 && model_is_language(c->model))
        consider(c, ADVICE_learning, "--lora 16");
    if (c->recipe->optimizer != &optimizer_sgd && c->recipe->opt[0] == '\0')
        consider(c, ADVICE_learning, "--optimizer sgd");
}

static bool comes_before(const struct priced_recipe *a, const struct priced_recipe *b)
{
    return a->changes != b->changes ? a->changes < b->changes : a->total_bytes < b->total_bytes;
}

static void sort_candidates(struct candidates *c)
{
    for (int i = 1; i < c->n; i++)
        for (int k = i; k > 0 && comes_before(&c->list[k].priced, &c->list[k - 1].priced); k--) {
            struct candidate before = c->list[k - 1];
            c->list[k - 1] = c->list[k];
            c->list[k] = before;
        }
}

int advice_list(const struct compile_request *request, const struct compiled_step *s,
                struct priced_recipe out[ADVICE_MOST])
{
    enum { OF_ONE_KIND = ADVICE_MOST - 1 };
    const struct snug_recipe *recipe = request->recipe;
    struct candidates c = {
        .request = request, .model = request->model, .recipe = recipe, .compiled = s};
    int n = 0, n_alike = 0;
    if (recipe->checkpoint == CHECKPOINT_auto)
        return 0; /* auto fills the budget whatever the other flags are */
    if (s->prog.loss != TENSOR_NONE)
        consider_activations(&c);
    consider_states(&c);
    consider_offload(&c);
    if (recipe->precision == DTYPE_f32)
        consider(&c, ADVICE_rounding, "--precision bf16");
    consider_base(&c);
    if (c.n < OF_ONE_KIND)
        consider_other_learning(&c);
    if (c.no_memory)
        return -1;
    sort_candidates(&c);
    for (int i = 0; i < c.n && n < ADVICE_MOST; i++) {
        const struct priced_recipe *one = &c.list[i].priced;
        n_alike = i > 0 && one->changes == c.list[i - 1].priced.changes ? n_alike + 1 : 1;
        if (n_alike <= OF_ONE_KIND)
            out[n++] = *one;
    }
    return n;
}

/* ---- within a budget ------------------------------------------------------------------------- */

struct nearest {
    struct compile_request request;
    const struct snug_recipe *recipe; /* the user's, which does not fit */
    const struct compiled_step *compiled;
    int64_t limit_bytes;
    bool may_split;              /* may use smaller micro-batches */
    enum advice_changes changes; /* what the recipes tried now change */
    struct snug_recipe smallest; /* the smallest so far, by its lower bound */
    int64_t smallest_bytes;      /* INT64_MAX if none was planned */
    struct priced_recipe *found;
};

enum verdict { NO_PLAN, TOO_LARGE, FITS };

static void add_flag(char flags[192], const char *key, const char *value)
{
    size_t length = strlen(flags);
    snprintf(flags + length, 192 - length, "%s--%s %s", length > 0 ? " " : "", key, value);
}

/* Writes the flags that turn the user's recipe into `other`, and the user's flags that they
 * replace.  False if out of memory. */
static bool write_flags(const struct nearest *n, const struct snug_recipe *other,
                        struct priced_recipe *priced)
{
    static const char *const keys[] = {"micro-batch", "precision", "state-bits", "zero",
                                       "checkpoint",  "update",    "offload",    "lora-base"};
    bool ok = true;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && ok; i++) {
        struct text was = {0}, is = {0};
        recipe_get(n->recipe, keys[i], &was);
        recipe_get(other, keys[i], &is);
        const char *before = was.data == NULL ? "" : was.data;
        ok = !was.failed && !is.failed;
        if (ok && is.length > 0 && strcmp(before, is.data) != 0) {
            add_flag(priced->flags, keys[i], is.data);
            if (recipe_is_given(n->recipe, keys[i]))
                add_flag(priced->replaced, keys[i], before);
        }
        text_free(&was);
        text_free(&is);
    }
    return ok;
}

/* Checks the lower bound first, which takes a fraction of the time of a full plan. */
static enum verdict weigh(struct nearest *n, const struct snug_recipe *other,
                          struct priced_recipe *priced)
{
    *priced = (struct priced_recipe){.changes = n->changes,
                                     .reorders_sums = reorders_sums(n->compiled, n->recipe, other)};
    if (price(&n->request, other, true, priced) != SNUG_OK || !write_flags(n, other, priced))
        return NO_PLAN;
    if (priced_needed(priced) < n->smallest_bytes) {
        n->smallest_bytes = priced_needed(priced);
        n->smallest = *other;
        *n->found = *priced;
    }
    if (priced_needed(priced) > n->limit_bytes)
        return TOO_LARGE;
    if (price(&n->request, other, false, priced) != SNUG_OK)
        return NO_PLAN;
    return priced_needed(priced) <= n->limit_bytes ? FITS : TOO_LARGE;
}

/* Tries the micro-batch of the compiled step, then smaller ones if may_split, until one fits. */
static enum verdict try_micro_batches(struct nearest *n, const struct snug_recipe *recipe,
                                      struct priced_recipe *priced)
{
    const struct compiled_step *s = n->compiled;
    struct snug_recipe other = *recipe;
    enum verdict best = NO_PLAN;
    other.batch = s->batch;
    for (int64_t m = s->micro_batch; m > 0 && best != FITS;
         m = n->may_split ? smaller_micro_batch(own_batch(s), m, (m + 1) / 2) : 0) {
        if (m != s->micro_batch)
            other.micro_batch = m;
        enum verdict one = weigh(n, &other, priced);
        best = one > best ? one : best;
    }
    return best;
}

/* Takes the fastest recipe that fits with one of the flags, or with smaller micro-batches if
 * micro_batches is set.  Times are estimates, so a later flag must be faster by half a percent. */
static bool try_single_flags(struct nearest *n, bool micro_batches, const char *const *flags,
                             int n_flags)
{
    struct priced_recipe one, best;
    bool may_split = n->may_split;
    bool is_any = micro_batches && try_micro_batches(n, n->recipe, &best) == FITS;
    n->may_split = false;
    for (int i = 0; i < n_flags; i++) {
        struct snug_recipe other = *n->recipe;
        if (snug_recipe_set_line(&other, flags[i], NULL) == SNUG_OK &&
            try_micro_batches(n, &other, &one) == FITS &&
            (!is_any || one.step_seconds < 0.995 * best.step_seconds)) {
            best = one;
            is_any = true;
        }
    }
    n->may_split = may_split;
    if (is_any)
        *n->found = best;
    return is_any;
}

enum { STEPS_MOST = 3 };

static bool can_shard(const struct nearest *n, int zero)
{
    return n->compiled->n_ranks > 1 && n->recipe->parallel == PARALLEL_ddp &&
           n->recipe->zero < zero;
}

/* Flags that keep the result and can be combined. */
static int list_steps(const struct nearest *n, const char *steps[STEPS_MOST])
{
    int n_steps = 0;
    if (can_shard(n, 2))
        steps[n_steps++] = "--zero 2";
    if (n->recipe->checkpoint == CHECKPOINT_none)
        steps[n_steps++] = "--checkpoint every:1";
    if (n->recipe->offload == OFFLOAD_none)
        steps[n_steps++] = "--offload states";
    return n_steps;
}

/* The other flags that keep the result.  They are only tried alone: in-backward may run the
 * backward half twice, ZeRO 3 and activation offload move data all through the step. */
static int list_other_flags(const struct nearest *n, const char *flags[STEPS_MOST])
{
    int n_flags = 0;
    if (!n->recipe->in_backward)
        flags[n_flags++] = "--update in-backward";
    if (can_shard(n, 3))
        flags[n_flags++] = "--zero 3";
    if (n->recipe->offload == OFFLOAD_none)
        flags[n_flags++] = "--offload activations";
    return n_flags;
}

/* Adds the combinable flags one after another, leaving out those that cannot be planned. */
static bool try_together(struct nearest *n, const struct snug_recipe *recipe)
{
    const char *steps[STEPS_MOST];
    struct snug_recipe other = *recipe;
    struct priced_recipe priced;
    int n_steps = list_steps(n, steps);
    for (int i = 0; i <= n_steps; i++) {
        struct snug_recipe before = other;
        enum verdict verdict = NO_PLAN;
        if (i == 0 || snug_recipe_set_line(&other, steps[i - 1], NULL) == SNUG_OK)
            verdict = try_micro_batches(n, &other, &priced);
        if (verdict == FITS) {
            *n->found = priced;
            return true;
        }
        if (verdict == NO_PLAN)
            other = before;
    }
    return false;
}

/* Recipes that keep the result: single flags first, then combinations. */
static bool try_same_result(struct nearest *n)
{
    const char *steps[STEPS_MOST], *others[STEPS_MOST];
    int n_steps = list_steps(n, steps), n_others = list_other_flags(n, others);
    return try_single_flags(n, true, steps, n_steps) ||
           try_single_flags(n, false, others, n_others) || try_together(n, n->recipe);
}

static bool try_other_rounding(struct nearest *n)
{
    static const char *const bases[] = {"--lora-base 8", "--lora-base 4"};
    enum { N_BASES = sizeof bases / sizeof *bases };
    struct snug_recipe narrow = *n->recipe;
    const char *flags[2 + N_BASES];
    int n_flags = 0, n_bases = has_wide_base(n->recipe) ? N_BASES : 0;
    bool is_f32 = n->recipe->precision == DTYPE_f32;
    if (is_f32)
        flags[n_flags++] = "--precision bf16";
    if (recipe_state_bits(n->recipe) > 8)
        flags[n_flags++] = "--state-bits 8";
    for (int i = 0; i < n_bases; i++)
        flags[n_flags++] = bases[i];
    if (try_single_flags(n, false, flags, n_flags))
        return true;
    bool is_set = !is_f32 || snug_recipe_set_line(&narrow, "--precision bf16", NULL) == SNUG_OK;
    if (is_f32 && is_set && try_together(n, &narrow))
        return true;
    for (int i = 0; i < n_bases && is_set; i++)
        if (snug_recipe_set_line(&narrow, bases[i], NULL) == SNUG_OK && try_together(n, &narrow))
            return true;
    return false;
}

bool advice_find_fitting(const struct snug_model *model, const struct snug_recipe *recipe,
                         const struct compiled_step *s, int64_t limit_bytes,
                         struct priced_recipe *found)
{
    struct compile_target target;
    *found = (struct priced_recipe){.total_bytes = INT64_MAX};
    if (compile_target_find(recipe, &target, NULL) != SNUG_OK)
        return false;
    struct nearest n = {.request = {.model = model, .train = true, .target = &target},
                        .recipe = recipe,
                        .compiled = s,
                        .limit_bytes = limit_bytes,
                        .smallest_bytes = INT64_MAX,
                        .found = found};
    bool splits_are_last = splits_change_learning(s);
    for (int split = splits_are_last ? 0 : 1; split < 2 && s->prog.loss != TENSOR_NONE; split++) {
        bool is_last = split == 1 && splits_are_last;
        n.may_split = split;
        n.changes = is_last ? ADVICE_learning : ADVICE_nothing;
        if (try_same_result(&n))
            return true;
        n.changes = is_last ? ADVICE_learning : ADVICE_rounding;
        if (try_other_rounding(&n))
            return true;
    }
    if (n.smallest_bytes == INT64_MAX || price(&n.request, &n.smallest, false, found) != SNUG_OK)
        found->total_bytes = INT64_MAX;
    return false;
}
