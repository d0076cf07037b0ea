/*
 * compile_rank.c -- compile one rank, or the rank with the largest plan.
 *
 *     compile_fullest_rank   no rank requested: compile one rank of each kind
 *     compile_fuller_rank    compile another stage, and keep it if its plan is larger; for most
 *                            stages a quick test shows that it is not
 *       compile_rank           one rank
 *         lower_program          its program (lower.c)
 *         plan_step              its plan
 *         reserve_averages       averaged weights: lower and plan the programs that run beside it
 */
#include "compile/compile_rank.h"

#include "compile/compile_target.h"
#include "compile/lower.h"

#include <string.h>

/* Estimates the plan: it is over --memory if and only if the plan is.  Where the quick search
 * cannot tell, because the budget is close to the lower bound, makes the plan. */
static enum snug_status estimate_bound(const struct compile_request *q, struct compiled_step *s,
                                       struct snug_error *err)
{
    const struct device_rates *rates = &q->target->rates.rates;
    TRY(plan_estimate(&s->prog, rates, &s->plan, err));
    int64_t limit = q->recipe->memory - compiled_step_runtime_bytes(s);
    int64_t left = limit - s->plan.arena_bytes;
    bool is_within = false;
    if (left >= 0)
        TRY(plan_is_within(&s->prog, s->backend->alignment, limit, &is_within, err));
    if (left < 0 || is_within)
        return SNUG_OK;
    if (left > s->plan.arena_bytes / 500) {
        s->plan.arena_bytes = limit + 1; /* at least */
        return SNUG_OK;
    }
    s->is_estimate = false;
    plan_free(&s->plan);
    return plan_make(&s->prog, s->backend->alignment, rates, &s->plan, err);
}

static enum snug_status make_plan(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    const struct device_rates *rates = &q->target->rates.rates;
    bool adds_averages = q->recipe->optimizer->average != AVERAGE_none; /* to the plan */
    s->is_estimate = q->estimate || (q->bound_first && !adds_averages);
    if (q->estimate)
        return plan_estimate(&s->prog, rates, &s->plan, err);
    if (s->is_estimate)
        return estimate_bound(q, s, err);
    return plan_make(&s->prog, s->backend->alignment, rates, &s->plan, err);
}

static enum snug_status plan_step(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    if (q->over != NULL)
        return plan_make_over(&s->prog, &q->over->prog, &q->over->plan, s->backend->alignment,
                              &s->plan, err);
    memcpy(s->rates_origin, q->target->rates.origin, sizeof s->rates_origin);
    TRY(make_plan(q, s, err));
    double idle = compiled_step_bubble(s, q->recipe);
    double slowest = s->cut != NULL && s->cut->n_stages > 0 ? s->cut->slowest : 1;
    s->plan.step_seconds += s->plan.body_seconds * (slowest / (1 - idle) - 1);
    return SNUG_OK;
}

/* Evaluating with averaged weights (one sample at a time) and saving the averages both run in the
 * arena of the run.  This grows the arena to fit them; the gradients usually make it large
 * enough. */
static enum snug_status reserve_averages(const struct compile_request *q, struct compiled_step *s,
                                         struct snug_error *err)
{
    for (int only = 0; only < 2; only++) { /* evaluating, saving */
        struct compiled_step beside;
        struct compile_request request = {.model = q->model,
                                          .recipe = q->recipe,
                                          .batch = 1,
                                          .micro_batch = 1,
                                          .seq = s->seq,
                                          .over = s,
                                          .target = q->target,
                                          .averages_only = only};
        TRY(lower_program(&request, &beside, err));
        enum snug_status status = plan_step(&request, &beside, err);
        int64_t more = beside.plan.arena_bytes - s->plan.arena_bytes;
        compiled_step_free(&beside);
        if (status != SNUG_OK)
            return status;
        if (more > 0) {
            s->plan.arena_bytes += more;
            s->plan.lower_bound += more;
            s->plan.at_peak[ROLE_temporary] += more;
        }
    }
    return SNUG_OK;
}

enum snug_status compile_rank(const struct compile_request *q, struct compiled_step *s,
                              struct snug_error *err)
{
    TRY(lower_program(q, s, err));
    enum snug_status status = plan_step(q, s, err);
    bool averages = q->train && !s->is_estimate && q->recipe->optimizer->average != AVERAGE_none;
    if (status == SNUG_OK && averages && s->prog.loss != TENSOR_NONE)
        status = reserve_averages(q, s, err);
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}

/* One rank of each kind in a stage. */
struct kinds {
    int n, made; /* made: the one that is compiled already */
    int ranks[RANK_KINDS_MAX];
};

static struct kinds kinds_of(const struct compile_request *q, const struct compiled_step *s)
{
    struct kinds kinds = {.n = q->estimate ? 0 : s->n_rank_kinds};
    int first = s->stage * s->n_ranks;
    kinds.made = first + s->rank;
    for (int i = 0; i < kinds.n; i++)
        kinds.ranks[i] = first + s->rank_kinds[i];
    return kinds;
}

/* Compiles a rank and replaces *s by it if its plan is larger.  Averages need no memory here: the
 * shard and the stage pass refuse them. */
static enum snug_status replace_if_larger(const struct compile_request *q, struct compiled_step *s,
                                          struct kinds *kinds, struct snug_error *err)
{
    struct compiled_step other;
    bool is_smaller = false;
    TRY(lower_program(q, &other, err));
    *kinds = kinds_of(q, &other);
    enum snug_status status = SNUG_OK;
    if (!q->estimate) /* an estimate takes no longer than this */
        status = plan_is_within(&other.prog, other.backend->alignment, s->plan.arena_bytes,
                                &is_smaller, err);
    if (status == SNUG_OK && !is_smaller)
        status = plan_step(q, &other, err);
    if (status == SNUG_OK && !is_smaller && other.plan.arena_bytes > s->plan.arena_bytes) {
        struct compiled_step smaller = *s;
        *s = other;
        other = smaller;
    }
    compiled_step_free(&other);
    return status;
}

static enum snug_status try_other_kinds(const struct compile_request *q, const struct kinds *kinds,
                                        struct compiled_step *s, struct snug_error *err)
{
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < kinds->n && status == SNUG_OK; i++) {
        struct compile_request one = *q;
        struct kinds unused;
        one.rank = &kinds->ranks[i];
        if (kinds->ranks[i] != kinds->made)
            status = replace_if_larger(&one, s, &unused, err);
    }
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}

enum snug_status compile_fullest_rank(const struct compile_request *q, struct compiled_step *s,
                                      struct snug_error *err)
{
    TRY(compile_rank(q, s, err));
    struct kinds kinds = kinds_of(q, s);
    return try_other_kinds(q, &kinds, s, err);
}

enum snug_status compile_fuller_rank(const struct compile_request *q, struct compiled_step *s,
                                     struct snug_error *err)
{
    struct kinds kinds;
    enum snug_status status = replace_if_larger(q, s, &kinds, err);
    if (status == SNUG_OK)
        return try_other_kinds(q, &kinds, s, err);
    compiled_step_free(s);
    return status;
}

enum snug_status compile_finished(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    struct device_rates rates = rates_generic_cpu(q->like->facts.threads);
    TRY(lower_finished(q, s, err));
    enum snug_status status = plan_make(&s->prog, s->backend->alignment, &rates, &s->plan, err);
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}
