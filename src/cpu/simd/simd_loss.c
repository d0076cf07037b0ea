/*
 * simd_loss.c -- cross_entropy and mse, and their gradients.
 *
 * The softmax is never stored.  The forward pass reads a row of logits once, block by block, with a
 * running maximum, and stores the log-sum-exp; the gradient needs only that and the logits.  Losses
 * are summed in fp64 over chunks of fixed size, then over the chunks in order, so the results do
 * not depend on the number of threads.
 */
#include "cpu/simd/simd_common.h"

#include <float.h>

enum { CHUNK_ROWS = 16, CHUNK_ELEMS = 16 * BLOCK_ELEMS };

static bool cross_entropy_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 1, 0, 3);
}

static bool cross_entropy_grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 1 | 1u << 3, 1u << 2, 0);
}

static bool mse_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 1);
}

static bool mse_grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 2, 0, 0);
}

static size_t cross_entropy_work_bytes(const struct program *prog, const struct op *op,
                                       const struct device_facts *facts)
{
    (void)facts;
    int64_t n_rows = shape_rows(&program_tensor(prog, op->in[0])->shape);
    return (size_t)divide_up(n_rows, CHUNK_ROWS) * sizeof(double);
}

static size_t mse_work_bytes(const struct program *prog, const struct op *op,
                             const struct device_facts *facts)
{
    (void)facts;
    return (size_t)divide_up(tensor_elems(prog, op->in[0]), CHUNK_ELEMS) * sizeof(double);
}

/* loss (+)= weight * sum of the chunks / count */
static void write_loss(const struct kernel_call *call, const double *sums, int64_t n_sums,
                       int64_t count)
{
    double total = 0.0;
    for (int64_t i = 0; i < n_sums; i++)
        total += sums[i];
    float *loss = call->out[0].data;
    *loss = (float)((call->add ? (double)*loss : 0.0) +
                    attrs_of(call->op, loss)->weight * total / (double)count);
}

static double loss_scale(const struct kernel_call *call, int k)
{
    return ((const double *)call->in[k].data)[SCALAR_loss_scale];
}

/* The log-sum-exp of one row. */
static double row_lse(const struct kernel_call *call, int64_t begin, int64_t width)
{
    float buffer[BLOCK_ELEMS];
    float top = -FLT_MAX;
    double sum = 0.0;
    for (int64_t at = 0; at < width; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, width - at);
        const float *x = in_view(call, 0, begin + at, count, buffer);
        float block_top = max_f32(x, count, top);
        if (block_top > top) {
            sum *= exp((double)top - (double)block_top);
            top = block_top;
        }
        sum += (double)sum_exp_f32(x, count, top);
    }
    return (double)top + log(sum);
}

static double row_sum(const struct kernel_call *call, int64_t begin, int64_t width)
{
    float buffer[BLOCK_ELEMS];
    double sum = 0.0;
    for (int64_t at = 0; at < width; at += BLOCK_ELEMS) {
        int64_t count = least(BLOCK_ELEMS, width - at);
        const float *x = in_view(call, 0, begin + at, count, buffer);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++)
            sum += (double)x[i];
    }
    return sum;
}

static enum snug_status run_cross_entropy(const struct kernel_call *call, struct snug_error *err)
{
    const struct tensor *logits = call->in[0].tensor;
    int64_t width = shape_last(&logits->shape), n_rows = shape_rows(&logits->shape);
    int64_t n_chunks = divide_up(n_rows, CHUNK_ROWS);
    const int32_t *targets = call->in[1].data;
    float *lse = call->out[1].data;
    double *sums = call->work, smoothing = attrs_of(call->op, loss)->smoothing;
    TRY(check_ids(call, 1, width, err));
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n_rows *width))
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        double sum = 0.0;
        int64_t end = least(n_rows, (chunk + 1) * CHUNK_ROWS);
        for (int64_t row = chunk * CHUNK_ROWS; row < end; row++) {
            float hit;
            double value = row_lse(call, row * width, width);
            load_f32(logits->dtype, call->in[0].data, row * width + targets[row], 1, &hit);
            lse[row] = (float)value;
            sum += value - (1.0 - smoothing) * (double)hit;
            if (smoothing > 0)
                sum -= smoothing / (double)width * row_sum(call, row * width, width);
        }
        sums[chunk] = sum;
    }
    write_loss(call, sums, n_chunks, n_rows);
    return SNUG_OK;
}

static enum snug_status run_cross_entropy_grad(const struct kernel_call *call,
                                               struct snug_error *err)
{
    const struct tensor *logits = call->in[0].tensor;
    int64_t width = shape_last(&logits->shape), n_rows = shape_rows(&logits->shape);
    const int32_t *targets = call->in[1].data;
    const float *lse = call->in[2].data;
    float scale = (float)(attrs_of(call->op, loss)->weight * loss_scale(call, 3) / (double)n_rows);
    struct labels labels = labels_of(attrs_of(call->op, loss)->smoothing, width);
    TRY(check_ids(call, 1, width, err));
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n_rows *width))
    for (int64_t row = 0; row < n_rows; row++) {
        float buffer[BLOCK_ELEMS];
        for (int64_t at = 0; at < width; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, width - at), begin = row * width + at;
            const float *x = in_view(call, 0, begin, count, buffer);
            float *dx = out_target(call, 0, begin, buffer);
            float row_top = lse[row];
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                dx[i] = scale * (exp_f32(x[i] - row_top) - labels.each);
            int64_t target = targets[row] - at;
            if (target >= 0 && target < count)
                dx[target] -= scale * labels.target;
            out_store(call, 0, begin, count, dx);
        }
    }
    return SNUG_OK;
}

static enum snug_status run_mse(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    int64_t n = shape_elems(&call->in[0].tensor->shape);
    int64_t n_chunks = divide_up(n, CHUNK_ELEMS);
    double *sums = call->work;
#pragma omp parallel for schedule(static) num_threads(count_parts(call->facts, n))
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        float buffer_x[BLOCK_ELEMS], buffer_t[BLOCK_ELEMS];
        double sum = 0.0;
        int64_t end = least(n, (chunk + 1) * CHUNK_ELEMS);
        for (int64_t at = chunk * CHUNK_ELEMS; at < end; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, end - at);
            const float *x = in_view(call, 0, at, count, buffer_x);
            const float *t = in_view(call, 1, at, count, buffer_t);
            sum += sum_squares_f64(x, t, count);
        }
        sums[chunk] = sum;
    }
    write_loss(call, sums, n_chunks, n);
    return SNUG_OK;
}

static enum snug_status run_mse_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    int64_t n = shape_elems(&call->in[0].tensor->shape);
    float scale = (float)(2.0 * attrs_of(call->op, loss)->weight * loss_scale(call, 2) / (double)n);
    int n_parts = count_parts(call->facts, n);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        float buffer_x[BLOCK_ELEMS], buffer_t[BLOCK_ELEMS];
        struct range range = part_range(n, n_parts, part, BLOCK_ELEMS);
        for (int64_t at = range.begin; at < range.end; at += BLOCK_ELEMS) {
            int64_t count = least(BLOCK_ELEMS, range.end - at);
            const float *x = in_view(call, 0, at, count, buffer_x);
            const float *t = in_view(call, 1, at, count, buffer_t);
            float *dx = out_target(call, 0, at, buffer_x);
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                dx[i] = scale * (x[i] - t[i]);
            out_store(call, 0, at, count, dx);
        }
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_cross_entropy,
     .name = KERNEL_NAME,
     .supports = cross_entropy_fits,
     .workspace_bytes = cross_entropy_work_bytes,
     .run = run_cross_entropy},
    {.kind = OP_cross_entropy_grad,
     .name = KERNEL_NAME,
     .supports = cross_entropy_grad_fits,
     .run = run_cross_entropy_grad},
    {.kind = OP_mse,
     .name = KERNEL_NAME,
     .supports = mse_fits,
     .workspace_bytes = mse_work_bytes,
     .run = run_mse},
    {.kind = OP_mse_grad, .name = KERNEL_NAME, .supports = mse_grad_fits, .run = run_mse_grad},
};

const struct kernel *LEVEL(simd_loss_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
