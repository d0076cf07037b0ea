/*
 * simd_rmsnorm.c -- rmsnorm, add + rmsnorm, and the gradient of both.
 *
 * gamma may cover a head instead of a row of x: then a row here is a head.  Heads are short (64 or
 * 128 elements), so rows are processed in blocks of about BLOCK_ELEMS elements, which stay in L1:
 * each operand is converted a block at a time.  Threads take whole blocks, which depend on the
 * shape only.
 *
 * The fused form normalises the sum as stored, so it gives the bits of add followed by rmsnorm.
 */
#include "cpu/simd/simd_norm.h"

/* Workspace, floats (b: a block, w: a row, rounded up to a cache line):
 *     forward    gamma w, then per part: x b, second b, result b
 *     gradient   gamma w, then per part: dy b, x b, r b, result b,
 *                then per bundle: dgamma w */
enum { FORWARD_PART = 3, GRAD_PART = 4 };

struct sizes {
    int64_t width, n_rows;
    int64_t block_rows;       /* rows of a block */
    int64_t row_pitch, pitch; /* floats of a row and of a block in the workspace */
    int n_parts, n_bundles;
};

static struct sizes sizes_of(const struct device_facts *facts, const struct tensor *x,
                             const struct tensor *gamma)
{
    int64_t n = shape_elems(&x->shape), width = shape_elems(&gamma->shape);
    struct sizes s = {.width = width, .n_rows = n / width};
    s.block_rows = width < BLOCK_ELEMS ? BLOCK_ELEMS / width : 1;
    s.row_pitch = padded_floats(width);
    s.pitch = padded_floats(s.block_rows * width);
    s.n_parts = (int)least(count_parts(facts, n), s.n_rows);
    s.n_bundles = norm_bundles(n, s.n_rows);
    return s;
}

/* The next block of a range of rows, and where its elements are. */
struct block {
    int64_t row, n_rows, begin, n;
};

static struct block block_at(const struct sizes *s, int64_t row, int64_t end)
{
    int64_t n_rows = least(s->block_rows, end - row);
    return (struct block){row, n_rows, row * s->width, n_rows * s->width};
}

/* ---- forward ----------------------------------------------------------------------------- */

static bool rmsnorm_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 1u << 1);
}

static bool add_rmsnorm_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 3, 0, 1u << 2);
}

static size_t forward_work_bytes(const struct program *prog, const struct op *op,
                                 const struct device_facts *facts)
{
    int gamma = op->kind == OP_add_rmsnorm ? 2 : 1;
    struct sizes s =
        sizes_of(facts, program_tensor(prog, op->in[0]), program_tensor(prog, op->in[gamma]));
    return (size_t)(s.row_pitch + FORWARD_PART * s.n_parts * s.pitch) * sizeof(float);
}

/* Stores a + dropout(b) and returns the sum, rounded as stored, as fp32. */
static const float *add_block(const struct kernel_call *call, const struct dropout *dropout,
                              const struct block *block, float *buffer_a, float *buffer_b)
{
    int64_t n = block->n;
    const float *a = in_view(call, 0, block->begin, n, buffer_a);
    const float *b = in_view(call, 1, block->begin, n, buffer_b);
    float *sum = out_target(call, 0, block->begin, buffer_a);
    if (dropout->below > 0) {
        dropout_block(dropout, block->begin, n, b, buffer_b);
        b = round_row(call->in[1].tensor->dtype, n, buffer_b);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] = a[i] + b[i];
    out_store(call, 0, block->begin, n, sum);
    return view_f32(call->out[0].tensor->dtype, call->out[0].data, block->begin, n, buffer_a);
}

/* Returns rstd. */
static OUT_OF_LINE float norm_row(int64_t n, const float *x, const float *gamma, float eps,
                                  float *y)
{
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; i++)
        squares = fmadd(x[i], x[i], squares);
    float rstd = 1.0f / sqrtf(squares / (float)n + eps);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * rstd * gamma[i];
    return rstd;
}

/* In the fused form, in: a, b, gamma, scalars; out: sum, y, rstd. */
static void run_forward(const struct kernel_call *call, bool fused)
{
    const struct operand *gamma_in = &call->in[1 + fused];
    struct sizes s = sizes_of(call->facts, call->in[0].tensor, gamma_in->tensor);
    float *work = call->work, eps = (float)attrs_of(call->op, norm)->eps;
    float *rstd = call->out[1 + fused].data;
    const float *gamma = in_view(call, 1 + fused, 0, s.width, work);
    struct dropout dropout = fused ? dropout_of(call, 3) : (struct dropout){.scale = 1.0f};
#pragma omp parallel for schedule(static) num_threads(s.n_parts)
    for (int part = 0; part < s.n_parts; part++) {
        float *buffers = work + s.row_pitch + FORWARD_PART * part * s.pitch;
        struct range range = part_range(s.n_rows, s.n_parts, part, s.block_rows);
        for (int64_t row = range.begin; row < range.end; row += s.block_rows) {
            struct block block = block_at(&s, row, range.end);
            const float *x = fused ? add_block(call, &dropout, &block, buffers, buffers + s.pitch)
                                   : in_view(call, 0, block.begin, block.n, buffers);
            float *y = out_target(call, fused, block.begin, buffers + 2 * s.pitch);
            for (int64_t i = 0; i < block.n_rows; i++)
                rstd[row + i] = norm_row(s.width, x + i * s.width, gamma, eps, y + i * s.width);
            out_store(call, fused, block.begin, block.n, y);
        }
    }
}

static enum snug_status run_rmsnorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    run_forward(call, false);
    return SNUG_OK;
}

static enum snug_status run_add_rmsnorm(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    run_forward(call, true);
    return SNUG_OK;
}

/* ---- gradient ---------------------------------------------------------------------------- */

static bool grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 1u << 3, 0);
}

static size_t grad_work_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    struct sizes s =
        sizes_of(facts, program_tensor(prog, op->in[1]), program_tensor(prog, op->in[2]));
    return (size_t)((1 + s.n_bundles) * s.row_pitch + GRAD_PART * s.n_parts * s.pitch) *
           sizeof(float);
}

/* dgamma += dy x rstd */
static OUT_OF_LINE void sum_row(int64_t n, const float *dy, const float *x, float rstd,
                                float *dgamma)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dgamma[i] = fmadd(dy[i], x[i] * rstd, dgamma[i]);
}

/* With h = x rstd and g = dy gamma:  dx = rstd (g - h mean(g h)) (+ r).  dx may alias dy or r. */
static OUT_OF_LINE void grad_row(int64_t n, const float *dy, const float *x, const float *gamma,
                                 float rstd, const float *r, float *dx)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum = fmadd(dy[i] * gamma[i], x[i], sum);
    float of_x = -rstd * rstd * rstd * (sum / (float)n);
    if (r != NULL) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = fmadd(dy[i] * gamma[i], rstd, fmadd(x[i], of_x, r[i]));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = fmadd(dy[i] * gamma[i], rstd, x[i] * of_x);
    }
}

static void grad_block(const struct kernel_call *call, const struct sizes *s,
                       const struct block *block, const float *gamma, float *buffers, float *sums)
{
    int64_t pitch = s->pitch, w = s->width;
    const float *rstd = (const float *)call->in[3].data + block->row;
    const float *dy = in_view(call, 0, block->begin, block->n, buffers);
    const float *x = in_view(call, 1, block->begin, block->n, buffers + pitch);
    for (int64_t i = 0; i < block->n_rows && call->out[1].data != NULL; i++)
        sum_row(w, dy + i * w, x + i * w, rstd[i], sums);
    if (call->out[0].data == NULL) /* only the sums are needed */
        return;
    bool has_r = call->op->n_in > 4 && call->in[4].data != NULL;
    const float *r = has_r ? in_view(call, 4, block->begin, block->n, buffers + 2 * pitch) : NULL;
    float *dx = out_target(call, 0, block->begin, buffers + 3 * pitch);
    for (int64_t i = 0; i < block->n_rows; i++)
        grad_row(w, dy + i * w, x + i * w, gamma, rstd[i], has_r ? r + i * w : NULL, dx + i * w);
    out_store(call, 0, block->begin, block->n, dx);
}

static enum snug_status run_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct sizes s = sizes_of(call->facts, call->in[1].tensor, call->in[2].tensor);
    float *work = call->work;
    const float *gamma = in_view(call, 2, 0, s.width, work);
    float *sums = work + s.row_pitch + GRAD_PART * s.n_parts * s.pitch;
#pragma omp parallel for schedule(static) num_threads(s.n_parts)
    for (int part = 0; part < s.n_parts; part++) {
        float *buffers = work + s.row_pitch + GRAD_PART * part * s.pitch;
        struct range mine = part_range(s.n_bundles, s.n_parts, part, 1);
        for (int64_t bundle = mine.begin; bundle < mine.end; bundle++) {
            float *own = sums + bundle * s.row_pitch;
            memset(own, 0, (size_t)s.row_pitch * sizeof(float));
            struct range range = part_range(s.n_rows, s.n_bundles, (int)bundle, 1);
            for (int64_t row = range.begin; row < range.end; row += s.block_rows) {
                struct block block = block_at(&s, row, range.end);
                grad_block(call, &s, &block, gamma, buffers, own);
            }
        }
    }
    add_bundles(call, 1, s.width, s.n_bundles, sums, s.row_pitch);
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_rmsnorm,
     .name = KERNEL_NAME,
     .supports = rmsnorm_fits,
     .workspace_bytes = forward_work_bytes,
     .run = run_rmsnorm},
    {.kind = OP_add_rmsnorm,
     .name = KERNEL_NAME,
     .supports = add_rmsnorm_fits,
     .workspace_bytes = forward_work_bytes,
     .run = run_add_rmsnorm},
    {.kind = OP_rmsnorm_grad,
     .name = KERNEL_NAME,
     .supports = grad_fits,
     .workspace_bytes = grad_work_bytes,
     .run = run_grad},
};

const struct kernel *LEVEL(simd_rmsnorm_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
