/*
 * compile_rank.c -- compile one rank, or the rank with the largest plan.
 *
 *     compile_fullest_rank   no rank requested: compile one rank of each kind
 *       compile_rank           one rank
 *         lower_program          its program (lower.c)
 *         plan_step              its plan
 *         reserve_averages       averaged weights: lower and plan the programs that run beside it
 */
#include "compile/compile_rank.h"

#include "compile/compile_target.h"
#include "compile/lower.h"

#include <string.h>

static enum snug_status plan_step(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    if (q->over != NULL)
        return plan_make_over(&s->prog, &q->over->prog, &q->over->plan, s->backend->alignment,
                              &s->plan, err);
    const struct device_rates *rates = &q->target->rates.rates;
    memcpy(s->rates_origin, q->target->rates.origin, sizeof s->rates_origin);
    TRY(q->estimate ? plan_estimate(&s->prog, rates, &s->plan, err)
                    : plan_make(&s->prog, s->backend->alignment, rates, &s->plan, err));
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
    bool averages = q->train && !q->estimate && q->recipe->optimizer->average != AVERAGE_none;
    if (status == SNUG_OK && averages && s->prog.loss != TENSOR_NONE)
        status = reserve_averages(q, s, err);
    if (status != SNUG_OK)
        compiled_step_free(s);
    return status;
}

/* Compiles a rank and replaces *s by it if its plan is larger.  Averages need no memory here: the
 * shard pass refuses them. */
static enum snug_status replace_if_larger(const struct compile_request *q, struct compiled_step *s,
                                          struct snug_error *err)
{
    struct compiled_step other;
    bool is_smaller = false;
    TRY(lower_program(q, &other, err));
    enum snug_status status = plan_is_within(&other.prog, other.backend->alignment,
                                             s->plan.arena_bytes, &is_smaller, err);
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

enum snug_status compile_fullest_rank(const struct compile_request *q, struct compiled_step *s,
                                      struct snug_error *err)
{
    TRY(compile_rank(q, s, err));
    int n_kinds = q->estimate ? 0 : s->n_rank_kinds, made = s->rank;
    int kinds[RANK_KINDS_MAX];
    memcpy(kinds, s->rank_kinds, sizeof kinds);
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < n_kinds && status == SNUG_OK; i++) {
        int rank = s->stage * s->n_ranks + kinds[i];
        struct compile_request one = *q;
        one.rank = &rank;
        if (kinds[i] != made)
            status = replace_if_larger(&one, s, err);
    }
    if (status != SNUG_OK)
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
