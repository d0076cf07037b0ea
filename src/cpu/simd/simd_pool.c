/*
 * simd_pool.c -- pooling, positions and image layouts: one pass over memory each.
 *
 * Channels are last, so a tap of a window is a vector operation over channels.  The gradient of
 * maxpool gathers: each pixel of dx looks at the windows that contain it.  So no two threads write
 * to the same pixel, and sums are in the order of the taps.
 */
#include "cpu/simd/simd_common.h"

enum { BLOCK_C = 256 }; /* channels at a time, in stack buffers */

struct pool {
    int64_t count, x_height, x_width, y_height, y_width, channels;
    const struct image_attrs *attrs;
};

static struct pool pool_of(const struct kernel_call *call, const struct operand *x,
                           const struct operand *y)
{
    const int64_t *a = x->tensor->shape.dim, *b = y->tensor->shape.dim;
    return (struct pool){a[0], a[1], a[2], b[1], b[2], a[3], attrs_of(call->op, image)};
}

/* Computes one pixel of y, n_c <= BLOCK_C channels from c on. */
static void most_of_window(const struct kernel_call *call, const struct pool *p, int64_t n,
                           int64_t h, int64_t w, int64_t c, int64_t n_c)
{
    const struct image_attrs *a = p->attrs;
    const struct operand *x = &call->in[0];
    float best[BLOCK_C], buffer[BLOCK_C];
    int32_t place[BLOCK_C];
    bool is_first = true;
    for (int64_t kh = 0; kh < a->kernel_h; kh++)
        for (int64_t kw = 0; kw < a->kernel_w; kw++) {
            int64_t row = h * a->stride - a->pad + kh, column = w * a->stride - a->pad + kw;
            if (row < 0 || row >= p->x_height || column < 0 || column >= p->x_width)
                continue;
            int64_t from = ((n * p->x_height + row) * p->x_width + column) * p->channels + c;
            const float *v = view_f32(x->tensor->dtype, x->data, from, n_c, buffer);
            int32_t tap = (int32_t)(kh * a->kernel_w + kw);
#pragma omp simd
            for (int64_t i = 0; i < n_c; i++) {
                bool more = is_first || v[i] > best[i] || v[i] != v[i];
                best[i] = more ? v[i] : best[i];
                place[i] = more ? tap : place[i];
            }
            is_first = false;
        }
    int64_t to = ((n * p->y_height + h) * p->y_width + w) * p->channels + c;
    uint8_t *at = (uint8_t *)call->out[1].data + to;
    out_store(call, 0, to, n_c, best);
#pragma omp simd
    for (int64_t i = 0; i < n_c; i++)
        at[i] = (uint8_t)place[i];
}

static enum snug_status run_maxpool(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct pool p = pool_of(call, &call->in[0], &call->out[0]);
    int64_t n_rows = p.count * p.y_height;
    int n_parts = count_parts(call->facts, p.count * p.x_height * p.x_width * p.channels);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t w = 0; w < p.y_width; w++)
            for (int64_t c = 0; c < p.channels; c += BLOCK_C)
                most_of_window(call, &p, row / p.y_height, row % p.y_height, w, c,
                               least(BLOCK_C, p.channels - c));
    return SNUG_OK;
}

/* The windows that contain a row (or column): it is tap first + i stride of window `window` - i. */
struct window_range {
    int64_t first, window;
};

static struct window_range window_range_at(int64_t at, const struct image_attrs *a)
{
    int32_t from = (int32_t)(at + a->pad), stride = (int32_t)a->stride;
    return (struct window_range){from % stride, from / stride};
}

/* Computes one pixel of dx. */
static void sum_of_windows(const struct kernel_call *call, const struct pool *p, int64_t n,
                           int64_t h, int64_t w, int64_t c, int64_t n_c)
{
    const struct image_attrs *a = p->attrs;
    const struct operand *dy = &call->in[0];
    float sum[BLOCK_C], buffer[BLOCK_C];
    memset(sum, 0, (size_t)n_c * sizeof *sum);
    struct window_range down = window_range_at(h, a), right = window_range_at(w, a);
    int64_t row = down.window;
    for (int64_t kh = down.first; kh < a->kernel_h; kh += a->stride, row--) {
        int64_t column = right.window;
        for (int64_t kw = right.first; kw < a->kernel_w; kw += a->stride, column--) {
            if (row < 0 || row >= p->y_height || column < 0 || column >= p->y_width)
                continue;
            int64_t from = ((n * p->y_height + row) * p->y_width + column) * p->channels + c;
            const float *d = view_f32(dy->tensor->dtype, dy->data, from, n_c, buffer);
            const uint8_t *at = (const uint8_t *)call->in[1].data + from;
            int32_t tap = (int32_t)(kh * a->kernel_w + kw);
#pragma omp simd
            for (int64_t i = 0; i < n_c; i++)
                sum[i] += at[i] == tap ? d[i] : 0.0f;
        }
    }
    out_store(call, 0, ((n * p->x_height + h) * p->x_width + w) * p->channels + c, n_c, sum);
}

static enum snug_status run_maxpool_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct pool p = pool_of(call, &call->out[0], &call->in[0]);
    int64_t n_rows = p.count * p.x_height;
    int n_parts = count_parts(call->facts, n_rows * p.x_width * p.channels);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t w = 0; w < p.x_width; w++)
            for (int64_t c = 0; c < p.channels; c += BLOCK_C)
                sum_of_windows(call, &p, row / p.x_height, row % p.x_height, w, c,
                               least(BLOCK_C, p.channels - c));
    return SNUG_OK;
}

static enum snug_status run_meanpool(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct shape *x = &call->in[0].tensor->shape;
    int64_t count = x->dim[0], channels = shape_last(x), n_pixels = shape_rows(x) / count;
    int n_parts = count_parts(call->facts, shape_elems(x));
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t n = 0; n < count; n++)
        for (int64_t c = 0; c < channels; c += BLOCK_C) {
            float sum[BLOCK_C] = {0}, buffer[BLOCK_C];
            int64_t n_c = least(BLOCK_C, channels - c);
            for (int64_t p = 0; p < n_pixels; p++) {
                const float *v = in_view(call, 0, (n * n_pixels + p) * channels + c, n_c, buffer);
#pragma omp simd
                for (int64_t i = 0; i < n_c; i++)
                    sum[i] += v[i];
            }
            for (int64_t i = 0; i < n_c; i++)
                sum[i] /= (float)n_pixels;
            out_store(call, 0, n * channels + c, n_c, sum);
        }
    return SNUG_OK;
}

static enum snug_status run_meanpool_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct shape *dx = &call->out[0].tensor->shape;
    int64_t count = dx->dim[0], channels = shape_last(dx), n_pixels = shape_rows(dx) / count;
    int n_parts = count_parts(call->facts, shape_elems(dx));
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t n = 0; n < count; n++)
        for (int64_t c = 0; c < channels; c += BLOCK_C) {
            float share[BLOCK_C];
            int64_t n_c = least(BLOCK_C, channels - c);
            load_f32(call->in[0].tensor->dtype, call->in[0].data, n * channels + c, n_c, share);
            for (int64_t i = 0; i < n_c; i++)
                share[i] /= (float)n_pixels;
            for (int64_t p = 0; p < n_pixels; p++)
                out_store(call, 0, (n * n_pixels + p) * channels + c, n_c, share);
        }
    return SNUG_OK;
}

/* ---- positions --------------------------------------------------------------------------- */

/* Works on blocks of BLOCK_C elements of the channels of all positions. */
static enum snug_status run_add_positions(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    int64_t period = shape_elems(&call->in[1].tensor->shape);
    int64_t count = shape_elems(&call->in[0].tensor->shape) / period;
    int64_t n_blocks = divide_up(period, BLOCK_C);
    int n_parts = count_parts(call->facts, count * period);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t i = 0; i < count * n_blocks; i++) {
        float x[BLOCK_C], buffer[BLOCK_C];
        int64_t at = i % n_blocks * BLOCK_C, n = least(BLOCK_C, period - at);
        int64_t place = i / n_blocks * period + at;
        load_f32(call->in[0].tensor->dtype, call->in[0].data, place, n, x);
        const float *positions = in_view(call, 1, at, n, buffer);
#pragma omp simd
        for (int64_t k = 0; k < n; k++)
            x[k] += positions[k];
        out_store(call, 0, place, n, x);
    }
    return SNUG_OK;
}

/* If dx aliases dy, there is nothing to copy. */
static enum snug_status run_add_positions_grad(const struct kernel_call *call,
                                               struct snug_error *err)
{
    (void)err;
    const struct shape *dy = &call->in[0].tensor->shape;
    int64_t count = dy->dim[0], period = shape_elems(dy) / count;
    int n_parts = count_parts(call->facts, count * period);
    bool has_positions = call->op->n_out > 1 && call->out[1].data != NULL;
    bool writes_dx = call->out[0].data != NULL && call->out[0].data != call->in[0].data;
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t at = 0; at < period; at += BLOCK_C) {
        float sum[BLOCK_C] = {0}, buffer[BLOCK_C];
        int64_t n = least(BLOCK_C, period - at);
        if (has_positions && call->add)
            load_f32(call->out[1].tensor->dtype, call->out[1].data, at, n, sum);
        for (int64_t i = 0; i < count; i++) {
            const float *d = in_view(call, 0, i * period + at, n, buffer);
#pragma omp simd
            for (int64_t k = 0; k < n; k++)
                sum[k] += d[k];
            if (writes_dx)
                out_store(call, 0, i * period + at, n, d);
        }
        if (has_positions)
            out_store(call, 1, at, n, sum);
    }
    return SNUG_OK;
}

/* ---- layouts ----------------------------------------------------------------------------- */

/* Transposes [N,A,B] to [N,B,A]. */
static void transpose_planes(const struct kernel_call *call, int64_t count, int64_t a, int64_t b)
{
    bool is_wide = call->in[0].tensor->dtype == DTYPE_f32;
    int n_parts = (int)least(count_parts(call->facts, count * a * b), count);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int64_t n = 0; n < count; n++) {
        const float *from = (const float *)call->in[0].data + n * a * b;
        float *to = (float *)call->out[0].data + n * a * b;
        const uint16_t *from16 = (const uint16_t *)call->in[0].data + n * a * b;
        uint16_t *to16 = (uint16_t *)call->out[0].data + n * a * b;
        for (int64_t k = 0; k < b; k++)
            for (int64_t j = 0; j < a; j++) {
                if (is_wide)
                    to[k * a + j] = from[j * b + k];
                else
                    to16[k * a + j] = from16[j * b + k];
            }
    }
}

static enum snug_status run_channels_last(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const int64_t *dim = call->in[0].tensor->shape.dim;
    transpose_planes(call, dim[0], dim[1], dim[2] * dim[3]);
    return SNUG_OK;
}

static enum snug_status run_channels_first(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const int64_t *dim = call->in[0].tensor->shape.dim;
    transpose_planes(call, dim[0], dim[1] * dim[2], dim[3]);
    return SNUG_OK;
}

/* ---- kernels ----------------------------------------------------------------------------- */

static bool all_floats(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 0, 0, 0);
}

static bool maxpool_fits(const struct program *prog, const struct op *op)
{
    return operands_fit(prog, op->n_in, op->in, 0, 0) && operands_fit(prog, 1, op->out, 0, 0) &&
           program_tensor(prog, op->out[1])->dtype == DTYPE_u8;
}

static bool maxpool_grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 1, 0, 0);
}

static bool layout_fits(const struct program *prog, const struct op *op)
{
    return all_floats(prog, op) &&
           program_tensor(prog, op->in[0])->dtype == program_tensor(prog, op->out[0])->dtype;
}

static const struct kernel kernels[] = {
    {.kind = OP_maxpool, .name = KERNEL_NAME, .supports = maxpool_fits, .run = run_maxpool},
    {.kind = OP_maxpool_grad,
     .name = KERNEL_NAME,
     .supports = maxpool_grad_fits,
     .run = run_maxpool_grad},
    {.kind = OP_meanpool, .name = KERNEL_NAME, .supports = all_floats, .run = run_meanpool},
    {.kind = OP_meanpool_grad,
     .name = KERNEL_NAME,
     .supports = all_floats,
     .run = run_meanpool_grad},
    {.kind = OP_add_positions,
     .name = KERNEL_NAME,
     .supports = all_floats,
     .run = run_add_positions},
    {.kind = OP_add_positions_grad,
     .name = KERNEL_NAME,
     .supports = all_floats,
     .run = run_add_positions_grad},
    {.kind = OP_channels_last,
     .name = KERNEL_NAME,
     .supports = layout_fits,
     .run = run_channels_last},
    {.kind = OP_channels_first,
     .name = KERNEL_NAME,
     .supports = layout_fits,
     .run = run_channels_first},
};

const struct kernel *LEVEL(simd_pool_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
