/*
 * advice.c -- what would need less memory, in the order of what it changes for the user.
 *
 * Micro-batches, checkpointing, ZeRO, updates in the backward pass and offload cost time and leave the
 * result as it is.  Fewer bits change rounding.  Another optimizer or LoRA changes what is learned, so
 * they come last.  Micro-batches are statistics of their own to a norm over the batch: there they change
 * what is learned, too.
 *
 * Only what acts on a large share of the bytes is looked at, so that a plan with its advice takes a few
 * plans' time.  A budget has more candidates: what cannot fit is found by the lower bound of its plan, which
 * takes a fraction of the time, and what is said to fit is planned in full.
 */
#include "train/advice.h"

#include "optim/optim.h"

#include <stdio.h>
#include <string.h>

enum { CANDIDATES_MOST = 16 };

struct candidate {
    struct snug_recipe recipe;
    struct priced_recipe priced;
};

struct candidates {
    const struct snug_model *model;
    const struct snug_recipe *recipe;
    const struct session *session;
    struct candidate list[CANDIDATES_MOST];
    int n;
    bool no_memory; /* so that the list may lack what belongs in it */
};

/* Fails where there is no such plan, and where there is no memory to make it. */
static enum snug_status price(const struct snug_model *model, const struct snug_recipe *recipe,
                              bool estimate, struct priced_recipe *priced)
{
    struct session s;
    struct session_request q = {
        .model = model, .recipe = recipe, .train = true, .estimate = estimate};
    TRY(session_make(&q, &s, NULL));
    priced->total_bytes = s.plan.arena_bytes;
    priced->step_seconds = s.plan.step_seconds;
    session_free(&s);
    return SNUG_OK;
}

static int64_t own_batch(const struct session *s)
{
    return s->batch / s->n_ranks;
}

/* The largest divisor of a rank's batch that is at most `most` and less than micro_batch; 0: none. */
static int64_t smaller_micro_batch(int64_t batch, int64_t micro_batch, int64_t most)
{
    for (int64_t m = most < micro_batch ? most : micro_batch - 1; m >= 1; m--)
        if (batch % m == 0)
            return m;
    return 0;
}

static bool has_batch_statistics(const struct session *s)
{
    for (int i = 0; i < s->prog.n_ops; i++)
        if (s->prog.ops[i].kind == OP_batchnorm)
            return true;
    return false;
}

/* ---- one flag -------------------------------------------------------------------------------- */

static bool needs_less(const struct priced_recipe *priced, int64_t than_bytes)
{
    return priced->total_bytes < than_bytes - than_bytes / 50;
}

/* Adds the recipe with `flags` set, if there is such a plan and it needs a fiftieth less. */
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
        status = price(c->model, &one->recipe, false, &one->priced);
    c->no_memory |= status == SNUG_NO_MEMORY;
    if (status == SNUG_OK && needs_less(&one->priced, c->session->plan.arena_bytes))
        c->n++;
}

static bool is_large(const struct session *s, int64_t bytes)
{
    return bytes > s->plan.arena_bytes / 5;
}

static void consider_activations(struct candidates *c)
{
    const struct session *s = c->session;
    char flags[64];
    int64_t quarter = smaller_micro_batch(own_batch(s), s->micro_batch, (s->micro_batch + 3) / 4);
    if (!is_large(s, s->plan.at_peak[ROLE_activation] + s->plan.at_peak[ROLE_input]))
        return;
    if (quarter > 0) {
        snprintf(flags, sizeof flags, "--micro-batch %lld", (long long)quarter);
        consider(c, has_batch_statistics(s) ? ADVICE_learning : ADVICE_nothing, flags);
    }
    if (c->recipe->checkpoint == CHECKPOINT_none)
        consider(c, ADVICE_nothing, "--checkpoint every:1");
}

/* Of what is larger: offload takes the longest to plan. */
static void consider_offload(struct candidates *c)
{
    const int64_t *at_peak = c->session->plan.at_peak;
    bool of_states = at_peak[ROLE_optimizer] > at_peak[ROLE_activation];
    if (c->recipe->offload == OFFLOAD_none &&
        is_large(c->session, at_peak[of_states ? ROLE_optimizer : ROLE_activation]))
        consider(c, ADVICE_nothing, of_states ? "--offload states" : "--offload activations");
}

static void consider_states(struct candidates *c)
{
    const struct session *s = c->session;
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

int advice_list(const struct snug_model *model, const struct snug_recipe *recipe,
                const struct session *s, struct priced_recipe out[ADVICE_MOST])
{
    enum { OF_ONE_KIND = ADVICE_MOST - 1 };
    struct candidates c = {.model = model, .recipe = recipe, .session = s};
    int n = 0, n_alike = 0;
    if (recipe->checkpoint == CHECKPOINT_auto)
        return 0; /* every one of them fills the same budget */
    if (s->prog.loss != TENSOR_NONE)
        consider_activations(&c);
    consider_states(&c);
    consider_offload(&c);
    if (recipe->precision == DTYPE_f32)
        consider(&c, ADVICE_rounding, "--precision bf16");
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
    const struct snug_model *model;
    const struct session *session;
    int64_t room_bytes;
    bool may_split;              /* the batch, in micro-batches */
    struct snug_recipe smallest; /* of those that do not fit, by its lower bound */
    struct priced_recipe *found;
};

/* From the micro-batch of the session downwards; `flags` go with it.  True: one fits. */
static bool try_micro_batches(struct nearest *n, const struct snug_recipe *recipe,
                              const char *flags)
{
    const struct session *s = n->session;
    struct snug_recipe other = *recipe;
    struct priced_recipe priced = {.changes = ADVICE_nothing};
    other.batch = s->batch;
    for (int64_t m = s->micro_batch; m > 0;
         m = n->may_split ? smaller_micro_batch(own_batch(s), m, (m + 1) / 2) : 0) {
        other.micro_batch = m;
        if (price(n->model, &other, true, &priced) != SNUG_OK)
            continue;
        snprintf(priced.flags, sizeof priced.flags, "--batch %lld --micro-batch %lld%s",
                 (long long)s->batch, (long long)m, flags);
        if (priced.total_bytes < n->found->total_bytes) {
            *n->found = priced;
            n->smallest = other;
        }
        if (priced.total_bytes <= n->room_bytes &&
            price(n->model, &other, false, &priced) == SNUG_OK &&
            priced.total_bytes <= n->room_bytes) {
            *n->found = priced;
            return true;
        }
    }
    return false;
}

/* As it is, then with one thing after the other that changes nothing in the result. */
static bool try_same_result(struct nearest *n, const struct snug_recipe *recipe, const char *begin)
{
    const struct session *s = n->session;
    struct snug_recipe other = *recipe;
    const char *steps[4];
    char flags[128];
    int n_steps = 0;
    bool shards = s->n_ranks > 1 && recipe->parallel == PARALLEL_ddp && recipe->zero < 2;
    if (shards)
        steps[n_steps++] = " --zero 2";
    if (recipe->checkpoint == CHECKPOINT_none)
        steps[n_steps++] = " --checkpoint every:1";
    if (recipe->offload == OFFLOAD_none)
        steps[n_steps++] = " --offload states";
    snprintf(flags, sizeof flags, "%s", begin);
    for (int i = 0; i <= n_steps; i++) {
        size_t length = strlen(flags);
        bool is_set = i == 0 || snug_recipe_set_line(&other, steps[i - 1], NULL) == SNUG_OK;
        snprintf(flags + length, sizeof flags - length, "%s", i == 0 ? "" : steps[i - 1]);
        if (is_set && try_micro_batches(n, &other, flags))
            return true;
    }
    return false;
}

bool advice_find_fitting(const struct snug_model *model, const struct snug_recipe *recipe,
                         const struct session *s, int64_t room_bytes, struct priced_recipe *found)
{
    struct nearest n = {.model = model, .session = s, .room_bytes = room_bytes, .found = found};
    bool splits_change_it = has_batch_statistics(s);
    *found = (struct priced_recipe){.total_bytes = INT64_MAX};
    for (int split = splits_change_it ? 0 : 1; split < 2 && s->prog.loss != TENSOR_NONE; split++) {
        n.may_split = split;
        struct snug_recipe narrow = *recipe;
        narrow.precision = DTYPE_bf16;
        if (try_same_result(&n, recipe, "") ||
            (recipe->precision == DTYPE_f32 && try_same_result(&n, &narrow, " --precision bf16")))
            return true;
    }
    if (found->total_bytes < INT64_MAX && price(model, &n.smallest, false, found) != SNUG_OK)
        found->total_bytes = INT64_MAX;
    return false;
}
