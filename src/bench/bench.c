/*
 * bench.c -- time the ops of a training step and compare them with the limits of the device.
 *
 * The step is the one that `train` runs: same program, plan and kernels.  Each op counts with its
 * median over the steps; ops of a kind are summed.  The floor of an op is the longest of three
 * times: its flops at the FMA rate (or the tile rate, for bf16 matmuls), its reads at the read
 * bandwidth, and all its bytes at the update bandwidth.  Small tensors in a cache can be faster
 * than the floor.
 */
#include "bench/bench.h"

#include "exec/plugin.h"

#include "train/trainer.h"
#include "checkpoint/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    const struct compiled_step *compiled;
    struct exec *exec;
    struct input_spec input_spec;
    struct data *data;
    double *one; /* seconds of each op in the current step */
};

static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    struct bench *b = user;
    return data_fill(b->data, DATA_TRAIN, micro * b->compiled->micro_batch,
                     b->compiled->micro_batch, exec_input(b->exec, b->input_spec.input),
                     exec_input(b->exec, b->input_spec.target_input), err);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static int longest_first(const void *a, const void *b)
{
    const struct report_rate *x = a, *y = b;
    return x->seconds < y->seconds ? 1 : x->seconds > y->seconds ? -1 : 0;
}

static double median_of(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return values[n / 2];
}

/* Can tile instructions (AMX, tensor cores) run it: a matmul with bf16 operands, on a GPU also
 * f16? */
static bool fits_tiles(const struct compiled_step *compiled, const struct op *op)
{
    const struct program *prog = &compiled->prog;
    int n_operands = op->kind == OP_attention ? 1 : 2;
    bool all = op_has(op, TRAIT_gemm);
    for (int k = 0; k < n_operands; k++)
        all = all &&
              (prog->tensors[op->in[k]].dtype == DTYPE_bf16 ||
               (compiled_step_is_on_gpu(compiled) && prog->tensors[op->in[k]].dtype == DTYPE_f16));
    return all;
}

void bench_add_op(struct report_rate *row, const struct compiled_step *compiled,
                  const struct op *op, double times, double seconds,
                  const struct device_limits *limits)
{
    const struct program *prog = &compiled->prog;
    bool on_tiles =
        limits->bf16_flops > 0 && !compiled->facts.reference_only && fits_tiles(compiled, op);
    double flops = times * op_flops(prog, op), bytes = times * op_moved_bytes(prog, op);
    double by_flops = flops / (on_tiles ? limits->bf16_flops : limits->f32_flops);
    double by_bytes =
        fmax(times * op_read_bytes(prog, op) / limits->read_bytes, bytes / limits->update_bytes);
    row->n_calls += (int)times;
    row->seconds += seconds;
    row->flops += flops;
    row->bytes += bytes;
    row->floor_seconds += fmax(by_flops, by_bytes);
    row->memory_seconds += by_flops < by_bytes ? by_bytes : 0;
    bool by_memory = row->memory_seconds > row->floor_seconds / 2;
    const char *tiles = compiled_step_is_on_gpu(compiled) ? "tensor" : "AMX";
    row->limit = by_memory ? "memory" : on_tiles ? tiles : "FMA";
}

static void add_op(const struct compiled_step *compiled, int i, double seconds,
                   const struct device_limits *limits, struct report_bench *r)
{
    const struct program *prog = &compiled->prog;
    const struct op *op = &prog->ops[i];
    double times = program_op_runs(prog, i);
    struct report_rate *row = r->ops;
    if (op_has(op, TRAIT_copy))
        return; /* copies overlap; time spent waiting for one counts for the op that waits */
    while (row < r->ops + r->n_ops && row->op != op_infos[op->kind].name)
        row++;
    if (row == r->ops + r->n_ops) {
        *row = (struct report_rate){.op = op_infos[op->kind].name};
        r->n_ops++;
    }
    bench_add_op(row, compiled, op, times, seconds, limits);
    if (op_has(op, TRAIT_gemm))
        *(op_has(op, TRAIT_conv) ? &r->conv_flops : &r->gemm_flops) += times * op_flops(prog, op);
}

static enum snug_status run_steps(struct bench *b, int n_steps, double *seconds,
                                  struct snug_error *err)
{
    size_t n_ops = (size_t)b->compiled->prog.n_ops;
    TRY(weights_init(b->compiled, b->exec, 1, err));
    exec_scalars(b->exec)[SCALAR_lr] = 1e-6;
    TRY(exec_run(b->exec, feed, b, err));
    for (int step = 0; step < n_steps; step++) {
        memset(b->one, 0, n_ops * sizeof *b->one);
        exec_time_ops(b->exec, b->one);
        TRY(exec_run(b->exec, feed, b, err));
        for (size_t i = 0; i < n_ops; i++)
            seconds[i * (size_t)n_steps + (size_t)step] = b->one[i];
    }
    return SNUG_OK;
}

enum snug_status bench_op_seconds(const struct compiled_step *compiled, int n_steps,
                                  double *seconds, struct snug_error *err)
{
    struct bench b = {.compiled = compiled};
    enum snug_status status = input_spec_of(&compiled->prog, &b.input_spec, err);
    if (status == SNUG_OK)
        status =
            input_spec_open_data(compiled, &b.input_spec, &(struct input_source){.spec = "random"},
                                 &(struct snug_recipe){.seed = 1}, &b.data, err);
    if (status == SNUG_OK)
        status = exec_create(&compiled->prog, &compiled->plan, compiled->backend, &compiled->facts,
                             NULL, &b.exec, err);
    b.one = malloc(((size_t)compiled->prog.n_ops + 1) * sizeof *b.one);
    if (status == SNUG_OK && b.one == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (status == SNUG_OK)
        status = run_steps(&b, n_steps, seconds, err);
    free(b.one);
    exec_free(b.exec);
    data_close(b.data);
    return status;
}

static void add_steps(const struct compiled_step *compiled, int n_steps, double *seconds,
                      const struct device_limits *limits, struct report_bench *r)
{
    for (int i = 0; i < compiled->prog.n_ops; i++)
        add_op(compiled, i, median_of(seconds + (size_t)i * (size_t)n_steps, n_steps), limits, r);
    qsort(r->ops, (size_t)r->n_ops, sizeof *r->ops, longest_first);
    for (int i = 0; i < r->n_ops; i++) {
        r->step_seconds += r->ops[i].seconds;
        r->floor_seconds += r->ops[i].floor_seconds;
    }
    r->n_steps = n_steps;
    r->step_tokens = compiled->batch * (compiled->seq > 0 ? compiled->seq : 1);
    r->unit = compiled->seq > 0 ? "tokens" : "samples";
}

static enum snug_status bench_step(const struct compiled_step *compiled, int n_steps,
                                   const struct device_limits *limits, struct report_bench *r,
                                   struct snug_error *err)
{
    double *seconds =
        malloc(((size_t)compiled->prog.n_ops + 1) * (size_t)n_steps * sizeof *seconds);
    if (seconds == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status status = bench_op_seconds(compiled, n_steps, seconds, err);
    if (status == SNUG_OK)
        add_steps(compiled, n_steps, seconds, limits, r);
    free(seconds);
    return status;
}

enum snug_status bench_measure_again(const struct compiled_step *compiled,
                                     struct report_bench *bench, struct snug_error *err)
{
    struct device_limits limits;
    if (!compiled->backend->measure(&compiled->facts, &limits))
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    bench_note_limits(bench, &limits);
    bench->is_busy = bench_is_busy(bench);
    return SNUG_OK;
}

enum snug_status bench_run(const struct compiled_step *compiled, int n_steps, const char *type,
                           struct report_bench *bench, struct snug_error *err)
{
    struct device_limits limits;
    _Static_assert((int)OP_COUNT <= (int)REPORT_RATES_MOST, "the report has a row for every kind");
    const struct backend *backend;
    TRY(plugin_backend(compiled->backend, &backend, err));
    bool is_measured = backend->measure(&compiled->facts, &limits);
    bench->threads = compiled->facts.threads;
    bench->on_gpu = compiled_step_is_on_gpu(compiled);
    bench->fma_flops = limits.f32_flops;
    bench->amx_flops = limits.bf16_flops;
    bench->read_bytes = limits.read_bytes;
    bench->copy_bytes = limits.copy_bytes;
    bench->update_bytes = limits.update_bytes;
    if (!bench->on_gpu) { /* take the best of two, in case the machine was busy */
        is_measured = is_measured && backend->measure(&compiled->facts, &limits);
        bench_note_limits(bench, &limits);
        limits = (struct device_limits){bench->fma_flops, bench->amx_flops, bench->read_bytes,
                                        bench->copy_bytes, bench->update_bytes};
    }
    if (!is_measured)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    TRY(bench_kernels(compiled, type, &limits, bench, err));
    TRY(bench_step(compiled, n_steps, &limits, bench, err));
    return bench->on_gpu ? SNUG_OK : bench_measure_again(compiled, bench, err);
}
