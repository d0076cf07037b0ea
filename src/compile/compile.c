/*
 * compile.c -- the driver of the compiler: which rank to compile, and how often.
 *
 * A run compiles the step of its own rank.  `snug plan` names no rank: it wants the rank with the
 * largest plan, so several ranks are compiled and the largest plan is returned.  From top to
 * bottom:
 *
 *     compile_step            entry point
 *       compile_largest_stage   no rank requested and a pipeline: compile every stage
 *       compile_stage           one stage
 *         compile_fitting       --checkpoint auto: search for a plan that fits (auto_checkpoint.c)
 *           compile_fullest     no rank requested: compile one rank of each kind
 *             compile_once      one rank: lower.c builds its program, plan_step plans it
 *
 * Each function calls those below it, never one above.
 */
#include "compile/compile.h"

#include "compile/compile_internal.h"
#include "compile/device_rates.h"

#include <string.h>

static enum snug_status plan_step(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    struct machine_rates own;
    if (q->over != NULL)
        return plan_make_over(&s->prog, &q->over->prog, &q->over->plan, s->backend->alignment,
                              &s->plan, err);
    if (q->rates == NULL) {
        TRY(rates_of_recipe(q->recipe, &own, err));
        memcpy(s->rates_origin, own.origin, sizeof s->rates_origin);
    }
    const struct device_rates *rates = q->rates != NULL ? q->rates : &own.rates;
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
                                          .averages_only = only};
        TRY(compile_program(&request, NULL, &beside, err));
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

enum snug_status compile_once(const struct compile_request *q, struct compiled_step *s,
                              struct snug_error *err)
{
    TRY(compile_program(q, NULL, s, err));
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
    TRY(compile_program(q, NULL, &other, err));
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

enum snug_status compile_fullest(const struct compile_request *q, struct compiled_step *s,
                                 struct snug_error *err)
{
    TRY(compile_once(q, s, err));
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

static enum snug_status compile_stage(const struct compile_request *q, struct compiled_step *s,
                                      struct snug_error *err)
{
    bool fits_itself = q->train && q->recipe->checkpoint == CHECKPOINT_auto;
    return fits_itself ? compile_fitting(q, s, err) : compile_fullest(q, s, err);
}

/* Compiles every stage and returns the one with the largest plan. */
static enum snug_status compile_largest_stage(const struct compile_request *q,
                                              struct compiled_step *s, struct snug_error *err)
{
    *s = (struct compiled_step){0};
    TRY(recipe_check(q->recipe, err));
    for (int stage = 0; stage < recipe_stages(q->recipe); stage++) {
        struct compiled_step other;
        struct compile_request one = *q;
        one.stage = &stage;
        enum snug_status status = compile_stage(&one, &other, err);
        if (status == SNUG_OK && stage > 0 && other.plan.arena_bytes <= s->plan.arena_bytes) {
            compiled_step_free(&other);
            continue;
        }
        compiled_step_free(s);
        if (status != SNUG_OK)
            return status;
        *s = other;
    }
    return SNUG_OK;
}

enum snug_status compile_step(const struct compile_request *q, struct compiled_step *s,
                              struct snug_error *err)
{
    bool is_any = q->rank == NULL && q->stage == NULL && q->over == NULL;
    bool any_stage = q->train && is_any && recipe_stages(q->recipe) > 1;
    return any_stage ? compile_largest_stage(q, s, err) : compile_stage(q, s, err);
}
