/*
 * simd_norm.c -- layernorm, add + layernorm, and the gradient of both.
 *
 * A row is read once: it stays in L1 for the mean, the variance (about the mean, so nothing
 * cancels) and the result.  simd_norm.h describes the sums over rows.
 *
 * The fused form normalises the sum as stored, so it gives the bits of add followed by layernorm.
 *
 * One Zen 4 core, v4, 4096 rows of 768: layernorm 38 GB/s in f32 (12 in bf16), add_layernorm 20
 * (13), gradient with residual 25 (14).
 */
#include "cpu/simd/simd_norm.h"

/* Workspace, floats (w: width rounded up to a cache line):
 *     forward    gamma w, beta w, then per part: row w, second row w, result w
 *     gradient   gamma w, then per part: dy w, x w, r w, result w,
 *                then per bundle: dgamma w, dbeta w
 */
enum { FORWARD_SHARED = 2, FORWARD_PART = 3, GRAD_SHARED = 1, GRAD_PART = 4, GRAD_BUNDLE = 2 };

static int norm_parts(const struct device_facts *facts, const struct tensor *x)
{
    return (int)least(count_parts(facts, shape_elems(&x->shape)), shape_rows(&x->shape));
}

static size_t lines_bytes(const struct tensor *x, int64_t n_lines)
{
    return (size_t)(n_lines * padded_floats(shape_last(&x->shape))) * sizeof(float);
}

/* ---- forward ----------------------------------------------------------------------------- */

/* The operands of either form.  second is NULL for plain layernorm. */
struct norm {
    const struct operand *x, *second;
    const struct operand *sum, *y;
    float *mean, *rstd;
    const float *gamma, *beta;
    int64_t width;
    float eps;
    struct dropout dropout; /* of the second */
};

static bool layernorm_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 6);
}

static bool add_layernorm_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 4, 0, 12);
}

static size_t forward_work_bytes(const struct program *prog, const struct op *op,
                                 const struct device_facts *facts)
{
    const struct tensor *x = program_tensor(prog, op->in[0]);
    return lines_bytes(x, FORWARD_SHARED + FORWARD_PART * norm_parts(facts, x));
}

/* Stores a + b and returns the sum, rounded as stored, as fp32. */
static const float *add_row(const struct norm *norm, int64_t begin, float *buffer_a,
                            float *buffer_b)
{
    int64_t n = norm->width;
    enum dtype dtype = norm->sum->tensor->dtype;
    const float *a = view_f32(norm->x->tensor->dtype, norm->x->data, begin, n, buffer_a);
    const float *b = view_f32(norm->second->tensor->dtype, norm->second->data, begin, n, buffer_b);
    float *sum = target_f32(dtype, norm->sum->data, begin, buffer_a);
    if (norm->dropout.below > 0) {
        dropout_block(&norm->dropout, begin, n, b, buffer_b);
        b = round_row(norm->second->tensor->dtype, n, buffer_b);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i];
    store_f32(dtype, norm->sum->data, begin, n, sum);
    return view_f32(dtype, norm->sum->data, begin, n, buffer_a);
}

static void norm_row(const struct norm *norm, int64_t row, float *buffers, int64_t pitch)
{
    int64_t n = norm->width, begin = row * n;
    const float *x = norm->second != NULL
                         ? add_row(norm, begin, buffers, buffers + pitch)
                         : view_f32(norm->x->tensor->dtype, norm->x->data, begin, n, buffers);
    float total = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; i++)
        total += x[i];
    float mean = total / (float)n;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float rstd = 1.0f / sqrtf(squares / (float)n + norm->eps);

    enum dtype dtype = norm->y->tensor->dtype;
    float *y = target_f32(dtype, norm->y->data, begin, buffers + 2 * pitch);
    const float *gamma = norm->gamma, *beta = norm->beta;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = fmadd((x[i] - mean) * rstd, gamma[i], beta[i]);
    store_f32(dtype, norm->y->data, begin, n, y);
    norm->mean[row] = mean;
    norm->rstd[row] = rstd;
}

/* The operands start at input 0 and output 0 in layernorm, one later in the fused form. */
static void run_forward(const struct kernel_call *call, bool fused)
{
    const struct operand *in = call->in + fused, *out = call->out + fused;
    const struct tensor *x = call->in[0].tensor;
    int64_t n_rows = shape_rows(&x->shape), width = shape_last(&x->shape);
    int64_t pitch = padded_floats(width);
    int n_parts = norm_parts(call->facts, x);
    float *work = call->work;
    struct norm norm = {
        .x = &call->in[0],
        .second = fused ? &call->in[1] : NULL,
        .sum = &call->out[0],
        .y = &out[0],
        .mean = out[1].data,
        .rstd = out[2].data,
        .gamma = view_f32(in[1].tensor->dtype, in[1].data, 0, width, work),
        .beta = view_f32(in[2].tensor->dtype, in[2].data, 0, width, work + pitch),
        .width = width,
        .eps = (float)attrs_of(call->op, norm)->eps,
    };
    if (fused)
        norm.dropout = dropout_of(call, 4);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        float *buffers = work + (FORWARD_SHARED + FORWARD_PART * part) * pitch;
        struct range range = part_range(n_rows, n_parts, part, 1);
        for (int64_t row = range.begin; row < range.end; row++)
            norm_row(&norm, row, buffers, pitch);
    }
}

static enum snug_status run_layernorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    run_forward(call, false);
    return SNUG_OK;
}

static enum snug_status run_add_layernorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    run_forward(call, true);
    return SNUG_OK;
}

/* ---- gradient ---------------------------------------------------------------------------- */

/* Column sums of dx are not supported here: linear_grad_w computes them. */
static bool grad_fits(const struct program *prog, const struct op *op)
{
    bool sums_dx = op->n_out > 3 && op->out[3] != TENSOR_NONE;
    return !sums_dx && floats_fit(prog, op, 0, 1u << 3 | 1u << 4, 0);
}

static size_t grad_work_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    const struct tensor *x = program_tensor(prog, op->in[0]);
    return lines_bytes(x, GRAD_SHARED + GRAD_PART * norm_parts(facts, x) +
                              GRAD_BUNDLE *
                                  norm_bundles(shape_elems(&x->shape), shape_rows(&x->shape)));
}

/* With h = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - h mean(g h)) (+ r). */
static void grad_row(const struct kernel_call *call, const float *gamma, int64_t row, int64_t n,
                     float *buffers, float *sums, int64_t pitch)
{
    int64_t begin = row * n;
    const float *dy = in_view(call, 0, begin, n, buffers);
    const float *x = in_view(call, 1, begin, n, buffers + pitch);
    bool has_r = call->op->n_in > 5 && call->in[5].data != NULL;
    const float *r = has_r ? in_view(call, 5, begin, n, buffers + 2 * pitch) : NULL;
    float *dgamma = sums, *dbeta = sums + pitch;
    float mean = ((const float *)call->in[3].data)[row];
    float rstd = ((const float *)call->in[4].data)[row];
    float sum_g = 0.0f, sum_gh = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_gh)
    for (int64_t i = 0; i < n; i++) {
        float h = (x[i] - mean) * rstd;
        float g = dy[i] * gamma[i];
        sum_g += g;
        sum_gh = fmadd(g, h, sum_gh);
        dgamma[i] = fmadd(dy[i], h, dgamma[i]);
        dbeta[i] += dy[i];
    }
    if (call->out[0].data == NULL) /* only the sums are needed */
        return;
    float *dx = out_target(call, 0, begin, buffers + 3 * pitch);
    float mean_g = sum_g / (float)n, mean_gh = sum_gh / (float)n;
    if (r != NULL) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float h = (x[i] - mean) * rstd;
            dx[i] = fmadd(rstd, fmadd(dy[i], gamma[i], -mean_g) - h * mean_gh, r[i]);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float h = (x[i] - mean) * rstd;
            dx[i] = rstd * (fmadd(dy[i], gamma[i], -mean_g) - h * mean_gh);
        }
    }
    out_store(call, 0, begin, n, dx);
}

static enum snug_status run_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct tensor *x = call->in[0].tensor;
    int64_t n_rows = shape_rows(&x->shape), width = shape_last(&x->shape);
    int64_t pitch = padded_floats(width);
    int n_bundles = norm_bundles(shape_elems(&x->shape), shape_rows(&x->shape)),
        n_parts = norm_parts(call->facts, x);
    float *work = call->work;
    const float *gamma = in_view(call, 2, 0, width, work);
    float *sums = work + (GRAD_SHARED + GRAD_PART * n_parts) * pitch;
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        float *buffers = work + (GRAD_SHARED + GRAD_PART * part) * pitch;
        struct range mine = part_range(n_bundles, n_parts, part, 1);
        for (int64_t bundle = mine.begin; bundle < mine.end; bundle++) {
            float *own = sums + bundle * GRAD_BUNDLE * pitch;
            memset(own, 0, (size_t)(GRAD_BUNDLE * pitch) * sizeof(float));
            struct range range = part_range(n_rows, n_bundles, (int)bundle, 1);
            for (int64_t row = range.begin; row < range.end; row++)
                grad_row(call, gamma, row, width, buffers, own, pitch);
        }
    }
    add_bundles(call, 1, width, n_bundles, sums, GRAD_BUNDLE * pitch);
    add_bundles(call, 2, width, n_bundles, sums + pitch, GRAD_BUNDLE * pitch);
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_layernorm,
     .name = KERNEL_NAME,
     .supports = layernorm_fits,
     .workspace_bytes = forward_work_bytes,
     .run = run_layernorm},
    {.kind = OP_add_layernorm,
     .name = KERNEL_NAME,
     .supports = add_layernorm_fits,
     .workspace_bytes = forward_work_bytes,
     .run = run_add_layernorm},
    {.kind = OP_layernorm_grad,
     .name = KERNEL_NAME,
     .supports = grad_fits,
     .workspace_bytes = grad_work_bytes,
     .run = run_grad},
};

const struct kernel *LEVEL(simd_norm_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
