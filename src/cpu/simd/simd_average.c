/*
 * simd_average.c -- weight averages: one pass over the stored copies.
 */
#include "cpu/simd/simd_common.h"
#include "optim/average.h"

static int64_t n_copies(const struct kernel_call *call)
{
    return shape_elems(&call->in[AVERAGE_KEPT].tensor->shape) /
           shape_elems(&call->in[AVERAGE_WEIGHT].tensor->shape);
}

static bool average_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << AVERAGE_SCALARS, 0, 0);
}

/* y = a x + b y */
static OUT_OF_LINE void mix_block(float a, const float *x, float b, float *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = fmadd(a, x[i], b * y[i]);
}

static OUT_OF_LINE void add_block(const float *x, float *sum, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* `first` is the first element of the copy that changes. */
static void keep_block(const struct kernel_call *call, const struct average_change *change,
                       int64_t first, int64_t at, int64_t n)
{
    const struct operand *kept = &call->in[AVERAGE_KEPT];
    float buffer_w[BLOCK_ELEMS], values[BLOCK_ELEMS];
    const float *w = in_view(call, AVERAGE_WEIGHT, at, n, buffer_w);
    if (change->of_kept > 0) {
        load_f32(kept->tensor->dtype, kept->data, at, n, values);
        mix_block((float)change->of_weight, w, (float)change->of_kept, values, n);
        w = values;
    }
    store_f32(kept->tensor->dtype, kept->data, first + at, n, w);
}

static enum snug_status run_keep(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const double *scalars = call->in[AVERAGE_SCALARS].data;
    const struct average_attrs *attrs = attrs_of(call->op, average);
    struct average_change change =
        average_change(attrs->average, attrs->options.value, n_copies(call), scalars);
    int64_t n = shape_elems(&call->in[AVERAGE_WEIGHT].tensor->shape);
    if (scalars[SCALAR_keeps] == 0.0)
        return SNUG_OK;
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n))
    for (int64_t at = 0; at < n; at += BLOCK_ELEMS)
        keep_block(call, &change, change.copy * n, at, least(BLOCK_ELEMS, n - at));
    return SNUG_OK;
}

static void average_block(const struct kernel_call *call, const struct average_mix *mix,
                          int64_t n_elems, int64_t at, int64_t n)
{
    float buffer[BLOCK_ELEMS], sum[BLOCK_ELEMS] = {0};
    for (int64_t copy = 0; copy < mix->n_copies; copy++)
        add_block(in_view(call, AVERAGE_KEPT, copy * n_elems + at, n, buffer), sum, n);
    const float *w = in_view(call, AVERAGE_WEIGHT, at, n, buffer);
    mix_block((float)mix->of_weight, w, (float)mix->of_kept, sum, n);
    out_store(call, 0, at, n, sum);
}

static enum snug_status run_average(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct average_attrs *attrs = attrs_of(call->op, average);
    struct average_mix mix = average_mix(attrs->average, attrs->options.value, n_copies(call),
                                         call->in[AVERAGE_SCALARS].data);
    int64_t n = shape_elems(&call->in[AVERAGE_WEIGHT].tensor->shape);
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n))
    for (int64_t at = 0; at < n; at += BLOCK_ELEMS)
        average_block(call, &mix, n, at, least(BLOCK_ELEMS, n - at));
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_average_keep, .name = KERNEL_NAME, .supports = average_fits, .run = run_keep},
    {.kind = OP_average, .name = KERNEL_NAME, .supports = average_fits, .run = run_average},
};

const struct kernel *LEVEL(simd_average_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
