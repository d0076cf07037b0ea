/*
 * bench.c -- time the ops of a training step, as they are run, and hold them against the limits.
 *
 * The step is the one that `train` runs: same program, plan and kernels.  Of each op the median over
 * the steps counts; kinds are summed.  The floor of an op is its flops over the FMA rate or its bytes
 * over the copy rate of memory, whichever is longer; small tensors in the cache can be below it.
 */
#include "train/bench.h"

#include "train/trainer.h"
#include "train/weights.h"

#include <stdlib.h>
#include <string.h>

struct bench {
    const struct session *session;
    struct exec *exec;
    struct data_needs needs;
    struct data *data;
    double *seconds; /* [step][op] */
    double *one;     /* of the present step */
};

static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    struct bench *b = user;
    return data_fill(b->data, DATA_TRAIN, micro * b->session->micro_batch, b->session->micro_batch,
                     exec_data(b->exec, b->needs.input), exec_data(b->exec, b->needs.target_input),
                     err);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static int longest_first(const void *a, const void *b)
{
    const struct bench_row *x = a, *y = b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

static double median_of(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return values[n / 2];
}

static void add_op(const struct program *prog, int i, double seconds, struct bench_result *r)
{
    const struct op *op = &prog->ops[i];
    double times = i >= prog->body_begin && i < program_body_end(prog) ? prog->n_repeat : 1;
    double flops = times * op_flops(prog, op), bytes = times * op_moved_bytes(prog, op);
    double by_flops = flops / r->limits.f32_flops, by_bytes = bytes / r->limits.copy_bytes;
    struct bench_row *row = r->rows;
    while (row < r->rows + r->n_rows && row->kind != op->kind)
        row++;
    if (row == r->rows + r->n_rows) {
        *row = (struct bench_row){.kind = op->kind};
        r->n_rows++;
    }
    row->n_calls += (int)times;
    row->seconds += seconds;
    row->flops += flops;
    row->bytes += bytes;
    row->floor_seconds += by_flops > by_bytes ? by_flops : by_bytes;
}

static enum snug_status time_steps(struct bench *b, int n_steps, struct bench_result *r,
                                   struct snug_error *err)
{
    const struct program *prog = &b->session->prog;
    size_t n_ops = (size_t)prog->n_ops;
    weights_init(b->session, b->exec, 1);
    exec_scalars(b->exec)[SCALAR_lr] = 1e-6;
    TRY(exec_run(b->exec, feed, b, err));
    for (int step = 0; step < n_steps; step++) {
        memset(b->one, 0, n_ops * sizeof *b->one);
        exec_time_ops(b->exec, b->one);
        TRY(exec_run(b->exec, feed, b, err));
        for (size_t i = 0; i < n_ops; i++)
            b->seconds[i * (size_t)n_steps + (size_t)step] = b->one[i];
    }
    for (size_t i = 0; i < n_ops; i++)
        add_op(prog, (int)i, median_of(b->seconds + i * (size_t)n_steps, n_steps), r);
    qsort(r->rows, (size_t)r->n_rows, sizeof *r->rows, longest_first);
    for (int i = 0; i < r->n_rows; i++) {
        r->step_seconds += r->rows[i].seconds;
        r->floor_seconds += r->rows[i].floor_seconds;
    }
    r->tokens = b->session->batch * (b->session->seq > 0 ? b->session->seq : 1);
    return SNUG_OK;
}

enum snug_status bench_step(const struct session *session, int n_steps, struct bench_result *result,
                            struct snug_error *err)
{
    struct bench b = {.session = session};
    *result = (struct bench_result){0};
    enum snug_status status = needs_of(&session->prog, &b.needs, err);
    if (status == SNUG_OK)
        status = needs_open_data(session, &b.needs, "random", 1, &b.data, err);
    if (status == SNUG_OK && !session->backend->measure(&session->facts, &result->limits))
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (status == SNUG_OK)
        status = exec_create(&session->prog, &session->plan, session->backend, &session->facts,
                             NULL, &b.exec, err);
    size_t n_ops = (size_t)session->prog.n_ops;
    b.one = malloc((n_ops + 1) * sizeof *b.one);
    b.seconds = malloc((n_ops + 1) * (size_t)n_steps * sizeof *b.seconds);
    if (status == SNUG_OK && (b.one == NULL || b.seconds == NULL))
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (status == SNUG_OK)
        status = time_steps(&b, n_steps, result, err);
    free(b.one);
    free(b.seconds);
    exec_free(b.exec);
    data_close(b.data);
    return status;
}
