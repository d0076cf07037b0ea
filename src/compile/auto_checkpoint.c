/*
 * auto_checkpoint.c -- --checkpoint auto: find the least recomputation whose plan fits --memory.
 *
 * The checkpoint pass minimizes recomputation for a given memory limit (room_bytes), but its bytes
 * are estimates: it counts blocks and knows neither fused ops nor placement.  Only the plan is
 * exact.  So we search for the largest limit whose plan fits the budget.  First no limit: if that
 * fits, nothing is recomputed.  Then the lowest limit: if that does not fit, nothing does.  Then
 * bisection between the two.  Only the plan that is chosen is made in full, which takes several
 * times as long as to know whether a plan fits.  An estimate bisects less often: it is only
 * compared with others, and planned in full if it wins.
 *
 * If not even the lowest limit fits, the batch is split into smaller micro-batches, unless the user
 * has set --micro-batch.  If no plan fits, the smallest is returned, or one that is nearly as small
 * and recomputes less, and budget.c refuses it.
 *
 * Ranks that share a batch recompute the same ops: every rank uses the limit of the largest plan.
 */
#include "compile/auto_checkpoint.h"

#include "compile/compile_rank.h"

enum { N_HALVINGS = 12, N_HALVINGS_ESTIMATE = 5 };

static int64_t needed_bytes(const struct compiled_step *s)
{
    return s->plan.arena_bytes + compiled_step_runtime_bytes(s);
}

static bool fits(const struct compiled_step *s, const struct snug_recipe *recipe)
{
    return needed_bytes(s) <= recipe->memory;
}

/* Which of two plans that do not fit is returned: to save the last percents, recomputation can grow
 * to many times the forward pass, which says little about the recipe.  Estimates are compared with
 * others by their bytes alone. */
static bool is_better_refused(const struct compile_request *q, const struct compiled_step *other,
                              const struct compiled_step *s)
{
    enum { NEARLY = 16 };
    int64_t of_other = needed_bytes(other), of_s = needed_bytes(s);
    int64_t difference = of_other < of_s ? of_s - of_other : of_other - of_s;
    bool is_near = difference <= of_s / NEARLY && !q->estimate;
    return is_near && other->plan.recompute_flops != s->plan.recompute_flops
               ? other->plan.recompute_flops < s->plan.recompute_flops
               : of_other < of_s;
}

/* Plans with that limit.  Does the lower bound of the plan fit? */
static enum snug_status may_fit(const struct compile_request *q, int64_t room_bytes, bool *may,
                                struct snug_error *err)
{
    struct compiled_step bound;
    struct compile_request one = *q;
    one.room_bytes = room_bytes;
    one.estimate = true;
    TRY(compile_fullest_rank(&one, &bound, err));
    *may = fits(&bound, q->recipe);
    compiled_step_free(&bound);
    return SNUG_OK;
}

/* Plans with that limit, maybe an estimate.  If the plan fits, it becomes *s unless *s fits with
 * less recomputation. */
static enum snug_status try_room(const struct compile_request *q, int64_t room_bytes,
                                 struct compiled_step *s, bool *does_fit, struct snug_error *err)
{
    struct compiled_step other;
    struct compile_request one = *q;
    one.room_bytes = room_bytes;
    one.bound_first = true;
    TRY(compile_fullest_rank(&one, &other, err));
    *does_fit = fits(&other, q->recipe);
    bool is_better =
        *does_fit && (!fits(s, q->recipe) || other.plan.recompute_flops < s->plan.recompute_flops);
    compiled_step_free(is_better ? s : &other);
    if (is_better)
        *s = other;
    return SNUG_OK;
}

/* Plans with the lowest limits; *s becomes the better plan. */
static enum snug_status use_lowest(const struct compile_request *q, int64_t least_bytes,
                                   struct compiled_step *s, struct snug_error *err)
{
    const int64_t rooms[] = {least_bytes, 1}; /* 1: recompute everything from the inputs */
    for (int i = 0; i < 2 && (i == 0 || !fits(s, q->recipe)); i++) {
        struct compiled_step other;
        struct compile_request one = *q;
        one.room_bytes = rooms[i];
        TRY(compile_fullest_rank(&one, &other, err));
        bool is_better = i == 0 || fits(&other, q->recipe) || is_better_refused(q, &other, s);
        compiled_step_free(is_better ? s : &other);
        if (is_better)
            *s = other;
    }
    return SNUG_OK;
}

/* *s is the estimate without a limit, which is over the budget. */
static enum snug_status search(const struct compile_request *q, struct compiled_step *s,
                               struct snug_error *err)
{
    int64_t least = s->checkpoint_bounds.least_bytes, low = least;
    int64_t high = s->checkpoint_bounds.most_bytes;
    bool does_fit;
    TRY(may_fit(q, low, &does_fit, err));
    int n_halvings = !does_fit ? 0 : q->estimate ? N_HALVINGS_ESTIMATE : N_HALVINGS;
    for (int i = 0; i < n_halvings && high - low > high / 256; i++) {
        int64_t middle = low + (high - low) / 2;
        TRY(try_room(q, middle, s, &does_fit, err));
        if (does_fit)
            low = middle;
        else
            high = middle;
    }
    return fits(s, q->recipe) ? SNUG_OK : use_lowest(q, least, s, err);
}

/* Replaces the estimate *s by the plan with its limit, unless that is of no interest. */
static enum snug_status make_full(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    struct compile_request one = *q;
    enum snug_status status = SNUG_OK;
    bool is_small = false;
    if (q->least_bytes > 0 && s->n_rank_kinds < 2)
        status = plan_is_within(&s->prog, s->backend->alignment, q->least_bytes, &is_small, err);
    if (status == SNUG_OK && is_small)
        return SNUG_OK;
    one.room_bytes = s->checkpoint.room_bytes;
    compiled_step_free(s);
    return status == SNUG_OK ? compile_fullest_rank(&one, s, err) : status;
}

/* The best plan for one micro-batch, whether it fits or not. */
static enum snug_status make_best(const struct compile_request *q, struct compiled_step *s,
                                  struct snug_error *err)
{
    struct compile_request one = *q;
    one.room_bytes = 0;
    one.bound_first = true;
    TRY(compile_fullest_rank(&one, s, err));
    if (s->prog.loss != TENSOR_NONE && !fits(s, q->recipe)) {
        enum snug_status status = search(q, s, err);
        if (status != SNUG_OK) {
            compiled_step_free(s);
            return status;
        }
    }
    return s->is_estimate && !q->estimate ? make_full(q, s, err) : SNUG_OK;
}

/* Batch norm computes statistics per micro-batch, so there the split is left to the user.  A caller
 * that asks for estimates tries micro-batches itself. */
static bool may_split(const struct compile_request *q, const struct compiled_step *s)
{
    for (int i = 0; i < s->prog.n_ops; i++)
        if (op_has(&s->prog.ops[i], TRAIT_batch_statistics))
            return false;
    return s->prog.loss != TENSOR_NONE && !q->estimate && q->micro_batch == 0 &&
           q->recipe->micro_batch == 0;
}

static int64_t smaller_divisor(int64_t batch, int64_t micro_batch)
{
    int64_t m = micro_batch - 1;
    while (m > 0 && batch % m != 0)
        m--;
    return m;
}

/* Replaces *s by the plan of one rank, with the limit and the micro-batch of *s. */
static enum snug_status compile_alike(const struct compile_request *request,
                                      struct compiled_step *s, struct snug_error *err)
{
    struct compile_request q = *request;
    q.room_bytes = s->checkpoint.room_bytes;
    q.micro_batch = s->micro_batch;
    compiled_step_free(s);
    return compile_rank(&q, s, err);
}

enum snug_status compile_fitting(const struct compile_request *request, struct compiled_step *s,
                                 struct snug_error *err)
{
    struct compile_request q = *request;
    if (q.recipe->memory <= 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--checkpoint auto needs a memory budget: add --memory 24G");
    TRY(recipe_check(q.recipe, err)); /* the number of stages divides the number of ranks */
    int n_ranks = q.recipe->ranks > 1 ? (int)q.recipe->ranks : 1;
    int stage = q.rank != NULL ? *q.rank / (n_ranks / recipe_stages(q.recipe)) : 0;
    bool is_one_of_many = q.rank != NULL && n_ranks > recipe_stages(q.recipe);
    if (is_one_of_many) {
        q.rank = NULL;
        q.stage = &stage;
    }
    TRY(make_best(&q, s, err));
    bool splits = may_split(request, s);
    int64_t micro_batch = s->micro_batch;
    while (splits && !fits(s, q.recipe) && micro_batch > 1) {
        struct compiled_step other;
        q.micro_batch = micro_batch = smaller_divisor(s->batch, micro_batch);
        enum snug_status status = make_best(&q, &other, err);
        if (status != SNUG_OK) {
            compiled_step_free(s);
            return status;
        }
        bool is_better = fits(&other, q.recipe) || is_better_refused(&q, &other, s);
        compiled_step_free(is_better ? s : &other);
        if (is_better)
            *s = other;
    }
    return is_one_of_many ? compile_alike(request, s, err) : SNUG_OK;
}
