/*
 * compile.c -- the driver of the compiler: which rank to compile, and how often.
 *
 * A run compiles the step of its own rank.  `snug plan` names no rank: it wants the rank with the
 * largest plan, so several ranks are compiled and the largest plan is returned.  From top to
 * bottom:
 *
 *     compile_step                  the entry point: reads the machine (compile_target.c)
 *       stop_after_pass               last_pass: settle what plans decide, then run the passes only
 *       compile_planned
 *         compile_largest_stage         no rank requested and a pipeline: compile every stage, in
 *                                       full only those that are not soon shown to be smaller
 *         compile_stage                 one stage
 *           compile_fitting               --checkpoint auto: search for a plan that fits
 *                                         (auto_checkpoint.c)
 *             compile_fullest_rank          no rank requested: compile one rank of each kind
 *               compile_rank                  one rank (compile_rank.c)
 *                 lower_program                 its program (lower.c)
 *                 plan_step                     its plan
 *                 reserve_averages              averaged weights: lower and plan two more
 *                                               programs in the same arena
 *       compile_finished              bench: a program that needs no passes (compile_rank.c)
 *
 * Each function calls those below it, never one above.
 */
#include "compile/compile.h"

#include "compile/auto_checkpoint.h"
#include "compile/compile_rank.h"
#include "compile/compile_target.h"
#include "compile/lower.h"

static bool fits_itself(const struct compile_request *q)
{
    return q->train && q->recipe->checkpoint == CHECKPOINT_auto;
}

static enum snug_status compile_stage(const struct compile_request *q, struct compiled_step *s,
                                      struct snug_error *err)
{
    return fits_itself(q) ? compile_fitting(q, s, err) : compile_fullest_rank(q, s, err);
}

/* --checkpoint auto plans a stage many times; *s becomes the larger of the two plans. */
static enum snug_status try_fitting_stage(const struct compile_request *q, struct compiled_step *s,
                                          struct snug_error *err)
{
    struct compiled_step other;
    struct compile_request larger = *q;
    larger.least_bytes = s->plan.arena_bytes;
    enum snug_status status = compile_fitting(&larger, &other, err);
    if (status == SNUG_OK && other.plan.arena_bytes <= s->plan.arena_bytes) {
        compiled_step_free(&other);
        return SNUG_OK;
    }
    compiled_step_free(s);
    if (status == SNUG_OK)
        *s = other;
    return status;
}

/* Compiles every stage and returns the one with the largest plan. */
static enum snug_status compile_largest_stage(const struct compile_request *q,
                                              struct compiled_step *s, struct snug_error *err)
{
    struct compile_request one = *q;
    int stage = 0;
    *s = (struct compiled_step){0};
    TRY(recipe_check(q->recipe, err));
    one.stage = &stage;
    TRY(compile_stage(&one, s, err));
    for (stage = 1; stage < recipe_stages(q->recipe); stage++)
        TRY(fits_itself(q) ? try_fitting_stage(&one, s, err) : compile_fuller_rank(&one, s, err));
    return SNUG_OK;
}

static enum snug_status compile_planned(const struct compile_request *q, struct compiled_step *s,
                                        struct snug_error *err)
{
    bool is_any = q->rank == NULL && q->stage == NULL && q->over == NULL;
    bool any_stage = q->train && is_any && recipe_stages(q->recipe) > 1;
    return any_stage ? compile_largest_stage(q, s, err) : compile_stage(q, s, err);
}

/* Do plans decide the program: its rank, or with --checkpoint auto its recomputation and its
 * micro-batch? */
static bool depends_on_plans(const struct compile_request *q)
{
    bool any_rank = q->rank == NULL && q->over == NULL && q->recipe->ranks > 1;
    return any_rank || fits_itself(q);
}

/* Where nothing depends on plans none is made, so a pass can be dumped even if a later one
 * fails. */
static enum snug_status stop_after_pass(const struct compile_request *q, struct compiled_step *s,
                                        struct snug_error *err)
{
    struct compile_request one = *q;
    int rank;
    if (depends_on_plans(q)) {
        one.last_pass = NULL;
        TRY(compile_planned(&one, s, err));
        rank = s->stage * s->n_ranks + s->rank;
        one.rank = &rank;
        one.micro_batch = s->micro_batch;
        one.room_bytes = s->checkpoint.room_bytes;
        one.last_pass = q->last_pass;
        compiled_step_free(s);
    }
    return lower_program(&one, s, err);
}

enum snug_status compile_step(const struct compile_request *request, struct compiled_step *s,
                              struct snug_error *err)
{
    struct compile_target own;
    struct compile_request q = *request;
    if (q.program != NULL)
        return compile_finished(&q, s, err);
    if (q.target == NULL && q.over != NULL)
        compile_target_of_run(q.over, &own);
    else if (q.target == NULL)
        TRY(compile_target_find(q.recipe, &own, err));
    q.target = q.target != NULL ? q.target : &own;
    return q.last_pass != NULL ? stop_after_pass(&q, s, err) : compile_planned(&q, s, err);
}
