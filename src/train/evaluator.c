/*
 * evaluator.c -- run the forward program on held-out data.
 *
 * During training it runs in the arena of the training step, above the weights, where nothing is
 * alive between two steps: evaluation costs no memory.  The micro-batch is halved until it fits.
 *
 * Most models materialize their outputs.  These are scored on the host, row by row, so a last batch
 * that is not full counts exactly.  The fused LM head only returns the mean loss of a micro-batch.
 * There, leftover samples are repeated until they fill a micro-batch: with micro-batches of 8, 15
 * samples run as 8, then 4 twice, 2 four times and 1 eight times.  Repeating every sample equally
 * often does not change the mean.
 */
#include "train/evaluator.h"

#include "train/agree.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Repeats the first e->n_now samples of an input up to the end of the micro-batch. */
static void repeat(const struct evaluator *e, tensor_id id)
{
    int64_t n_bytes = tensor_bytes(compiled_step_forward(&e->compiled), id);
    int64_t own_bytes = n_bytes / e->compiled.micro_batch * e->n_now;
    char *samples = exec_input(e->exec, id);
    for (int64_t at = own_bytes; at < n_bytes; at += own_bytes)
        memcpy(samples + at, samples, (size_t)own_bytes);
}

static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    struct evaluator *e = user;
    bool whole_outputs = e->input_spec.output != TENSOR_NONE;
    (void)micro;
    TRY(data_fill(e->data, DATA_HELD_OUT, e->first,
                  whole_outputs ? e->compiled.micro_batch : e->n_now,
                  exec_input(e->exec, e->input_spec.input),
                  exec_input(e->exec, e->input_spec.target_input), err));
    if (!whole_outputs) {
        repeat(e, e->input_spec.input);
        repeat(e, e->input_spec.target_input);
    }
    return SNUG_OK;
}

/* The number of samples to score, independent of the micro-batch. */
static int64_t samples_to_score(const struct evaluator *e, const struct program *prog,
                                int64_t per_batch, int64_t max_samples)
{
    enum { MAX_TOKENS = 131072 };
    int64_t n = data_n_samples(e->data, DATA_HELD_OUT);
    if (e->input_spec.output != TENSOR_NONE)
        return max_samples > 0 && max_samples < n ? max_samples : n;
    int64_t tokens = tensor_elems(prog, e->input_spec.target_input) / per_batch;
    int64_t most = max_samples > 0           ? max_samples
                   : MAX_TOKENS / tokens < 1 ? 1
                                             : MAX_TOKENS / tokens;
    return most < n ? most : n;
}

static int64_t divisor_up_to(int64_t n, int64_t most)
{
    int64_t d = most < n ? most : n;
    while (d > 1 && n % d != 0)
        d--;
    return d < 1 ? 1 : d;
}

/* For a head that only returns means: a micro-batch that divides n, or a power of two, so that the
 * remainder takes a few more runs. */
static int64_t mean_micro_batch(int64_t n, int64_t most)
{
    int64_t micro = most < n ? most : n, power = 1;
    if (micro < 1 || n % micro == 0)
        return micro < 1 ? 1 : micro;
    while (2 * power <= micro)
        power *= 2;
    return power;
}

/* How many of the remaining samples the next batch scores. */
static int64_t next_samples(const struct evaluator *e)
{
    int64_t left = e->n_samples - e->first, micro = e->compiled.micro_batch;
    return e->input_spec.output == TENSOR_NONE ? divisor_up_to(micro, left)
           : left < micro                      ? left
                                               : micro;
}

/* Compiles the largest micro-batch that fits.  If not even one sample fits, tries again with
 * kernels that need less workspace: without dropout an op may get a library kernel that training
 * did not use, with a workspace larger than the whole arena of a tiny model. */
static enum snug_status make_compiled(struct evaluator *e, const struct compile_request *request,
                                      int64_t max_samples, int64_t arena_limit,
                                      struct snug_error *err)
{
    struct compile_request q = *request;
    for (;; q.micro_batch = (q.micro_batch + 1) / 2) {
        q.batch = q.micro_batch;
        TRY(compile_step(&q, &e->compiled, err));
        const struct program *forward = compiled_step_forward(&e->compiled);
        enum snug_status status = input_spec_of(forward, &e->input_spec, err);
        e->n_samples =
            status != SNUG_OK ? 0 : samples_to_score(e, forward, q.micro_batch, max_samples);
        int64_t micro = e->input_spec.output != TENSOR_NONE
                            ? q.micro_batch
                            : mean_micro_batch(e->n_samples, q.micro_batch);
        if (status == SNUG_OK && micro == q.micro_batch &&
            (arena_limit == 0 || e->compiled.plan.arena_bytes <= arena_limit))
            return SNUG_OK;
        compiled_step_free(&e->compiled);
        TRY(status);
        if (micro < q.micro_batch)
            q.micro_batch = 2 * micro; /* the loop halves it to micro */
        else if (q.micro_batch == 1 && q.least_workspace)
            return snug_fail(
                err, SNUG_OVER_BUDGET,
                "the evaluation needs more memory than a training step: set --eval-every "
                "-1, and run snug eval after the training");
        else if (q.micro_batch == 1) {
            q.least_workspace = true;
            q.micro_batch = 2 * request->micro_batch; /* start again from the largest */
        }
    }
}

/* All ranks must run the same micro-batch: stages pass it on, and shards are gathered for each.
 * They take the smallest that fits on any rank. */
static enum snug_status agree_on_micro_batch(struct evaluator *e, struct comm *comm,
                                             const struct compile_request *request,
                                             int64_t max_samples, int64_t arena_limit,
                                             struct snug_error *err)
{
    double negated = -(double)e->compiled.micro_batch; /* the minimum, by a maximum */
    TRY(comm_max(comm, &negated, err));
    int64_t least = -(int64_t)negated;
    if (least == e->compiled.micro_batch)
        return SNUG_OK;
    struct compile_request q = *request;
    q.micro_batch = least;
    compiled_step_free(&e->compiled);
    e->compiled = (struct compiled_step){0};
    TRY(make_compiled(e, &q, max_samples, arena_limit, err));
    return e->compiled.micro_batch == least
               ? SNUG_OK
               : snug_fail(err, SNUG_OVER_BUDGET,
                           "the evaluation needs more memory than a training step, even with a "
                           "micro-batch of %lld: set --eval-every -1, and run snug eval after "
                           "the training",
                           (long long)least);
}

enum snug_status evaluator_make(struct evaluator *e, const struct compile_request *request,
                                struct exec *shared, struct data *data, int64_t max_samples,
                                int64_t arena_limit, struct comm *comm, struct snug_error *err)
{
    bool has_stages = request->over != NULL && request->over->n_stages > 1;
    bool has_ranks = request->over != NULL && comm != NULL && comm->n_ranks > 1;
    *e = (struct evaluator){
        .data = data, .comm = has_stages ? comm : NULL, .ranks = has_ranks ? comm : NULL};
    if (data_n_samples(data, DATA_HELD_OUT) < 1)
        return snug_fail(
            err, SNUG_BAD_FILE,
            "no held-out data to evaluate on: the split is shorter than one sample; add "
            "data or use a shorter --seq");
    TRY(make_compiled(e, request, max_samples, arena_limit, err));
    enum snug_status status = SNUG_OK;
    if (has_ranks)
        status = agree_on_micro_batch(e, comm, request, max_samples, arena_limit, err);
    if (status == SNUG_OK)
        status = exec_create(&e->compiled.prog, &e->compiled.plan, e->compiled.backend,
                             &e->compiled.facts, shared, &e->exec, err);
    if (status != SNUG_OK)
        compiled_step_free(&e->compiled);
    return status;
}

void evaluator_free(struct evaluator *e)
{
    exec_free(e->exec);
    compiled_step_free(&e->compiled);
}

enum { TENSOR_SHOWN = 256 }; /* bytes of a tensor name in a message */

struct score {
    double loss_sum;
    int64_t n, n_right;
    int64_t first_bad; /* first sample of the first batch with a non-finite loss, or -1 */
};

/* The index of the largest of n elements, the first if several are equal. */
static int64_t largest(enum dtype dtype, const void *values, int64_t begin, int64_t n)
{
    int64_t best = 0;
    double most = -INFINITY;
    for (int64_t k = 0; k < n; k++) {
        double x = dtype_load(dtype, values, begin + k);
        if (x > most) {
            most = x;
            best = k;
        }
    }
    return best;
}

/* Scores the first `rows` rows of the current batch from the outputs. */
static enum snug_status score_rows(const struct evaluator *e, int64_t rows, struct score *score,
                                   struct snug_error *err)
{
    const struct program *prog = &e->compiled.prog;
    const struct tensor *out = &prog->tensors[e->input_spec.output];
    const void *values, *targets;
    TRY(exec_view(e->exec, e->input_spec.output, &values, err));
    TRY(exec_view(e->exec, e->input_spec.target_input, &targets, err));
    int64_t width = shape_last(&out->shape);
    for (int64_t r = 0; r < rows; r++) {
        int64_t best = largest(out->dtype, values, r * width, width);
        if (e->input_spec.target == DATA_TARGET_REAL) {
            double gaps = 0;
            for (int64_t k = 0; k < width; k++) {
                double gap = dtype_load(out->dtype, values, r * width + k) -
                             (double)((const float *)targets)[r * width + k];
                gaps += gap * gap;
            }
            score->loss_sum += gaps / (double)width;
            score->n_right += best == largest(DTYPE_f32, targets, r * width, width);
            continue;
        }
        int64_t target = ((const int32_t *)targets)[r];
        double most = dtype_load(out->dtype, values, r * width + best), sum = 0;
        for (int64_t k = 0; k < width; k++)
            sum += exp(dtype_load(out->dtype, values, r * width + k) - most);
        score->loss_sum += most + log(sum) - dtype_load(out->dtype, values, r * width + target);
        score->n_right += best == target;
    }
    score->n += rows;
    return SNUG_OK;
}

/* Scores the batch that was run last. */
static enum snug_status score_batch(const struct evaluator *e, struct score *score,
                                    struct snug_error *err)
{
    const struct program *prog = &e->compiled.prog;
    int64_t micro = e->compiled.micro_batch;
    if (e->input_spec.output != TENSOR_NONE) {
        int64_t rows_per_sample = shape_rows(&prog->tensors[e->input_spec.output].shape) / micro;
        return score_rows(e, e->n_now * rows_per_sample, score, err);
    }
    int64_t tokens = tensor_elems(prog, e->input_spec.target_input) / micro * e->n_now;
    const void *loss;
    TRY(exec_view(e->exec, prog->loss, &loss, err));
    score->loss_sum += dtype_load(prog->tensors[prog->loss].dtype, loss, 0) * (double)tokens;
    score->n += tokens;
    return SNUG_OK;
}

/* Broadcasts the name from the first rank that has one: other ranks may not hold that tensor. */
static enum snug_status share_name(struct comm *comm, char name[TENSOR_SHOWN],
                                   struct snug_error *err)
{
    double before_last = name[0] != '\0' ? comm->n_ranks - 1 - comm->rank : 0;
    TRY(comm_max(comm, &before_last, err));
    return comm_broadcast(comm, comm->n_ranks - 1 - (int)before_last, name, TENSOR_SHOWN, err);
}

/* Repeats the batch of sample `first` to find the tensor.  All ranks call it together. */
static enum snug_status not_finite(struct evaluator *e, int64_t first, struct snug_error *err)
{
    const char *found = NULL;
    char name[TENSOR_SHOWN] = "";
    e->first = first;
    e->n_now = next_samples(e);
    TRY(exec_find_nonfinite(e->exec, feed, e, &found, err));
    if (found != NULL)
        snprintf(name, sizeof name, "%s", found);
    if (e->ranks != NULL)
        TRY(share_name(e->ranks, name, err));
    bool is_found = name[0] != '\0';
    return snug_fail(err, SNUG_DIVERGED, "the loss on held-out data is not finite%s%s%s",
                     is_found ? "; first non-finite tensor: \"" : "", name, is_found ? "\"" : "");
}

static bool is_asked_to_stop(void *user)
{
    const struct evaluator *e = user;
    return e->stop(e->stop_user, e->first, e->n_samples);
}

static enum snug_status run_batch(struct evaluator *e, struct snug_error *err)
{
    bool stop = e->stop != NULL && is_asked_to_stop(e);
    if (e->ranks != NULL)
        TRY(agree_on_any(e->ranks, &stop, err));
    enum snug_status status = stop ? SNUG_INTERRUPTED : exec_run(e->exec, feed, e, err);
    return status == SNUG_INTERRUPTED
               ? snug_fail(err, status, "the evaluation was canceled after %lld of %lld samples",
                           (long long)e->first, (long long)e->n_samples)
               : status;
}

enum snug_status evaluator_run(struct evaluator *e, struct snug_eval_result *result,
                               struct snug_error *err)
{
    const struct compiled_step *s = &e->compiled;
    bool whole_outputs = e->input_spec.output != TENSOR_NONE;
    bool is_last = s->n_stages < 2 || s->stage == s->n_stages - 1;
    struct score score = {.first_bad = -1};
    /* ranks that wait for each other inside a batch must finish it */
    exec_watch(e->exec, e->stop != NULL && e->ranks == NULL ? is_asked_to_stop : NULL, e);
    for (e->first = 0; e->first < e->n_samples; e->first += e->n_now) {
        e->n_now = next_samples(e);
        TRY(run_batch(e, err));
        if (is_last)
            TRY(score_batch(e, &score, err));
        if (!isfinite(score.loss_sum) && score.first_bad < 0)
            score.first_bad = e->first;
    }
    if (e->comm != NULL) /* the last stage has the scores */
        TRY(comm_broadcast(e->comm, e->comm->n_ranks - 1, &score, sizeof score, err));
    if (score.first_bad >= 0)
        return not_finite(e, score.first_bad, err);
    double loss = score.loss_sum / (double)score.n;
    *result = (struct snug_eval_result){
        .n = score.n,
        .loss = loss,
        .perplexity = exp(loss),
        .accuracy = (double)score.n_right / (double)score.n,
        .has_accuracy = whole_outputs &&
                        (e->input_spec.target == DATA_TARGET_CLASS || data_has_classes(e->data))};
    return SNUG_OK;
}
