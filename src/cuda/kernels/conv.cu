/*
 * conv.cu -- fallback convolutions, for what cuDNN rejects or where it is missing.
 *
 * Each of the three is an implicit gemm: one operand is never materialized, its elements are
 * gathered from the image as the gemm needs them.  For each group of channels:
 *
 *               rows             columns             summed over
 *     forward   pixels of y      channels of y       taps and channels of x
 *     grad_x    pixels of x      channels of x       taps and channels of y
 *     grad_w    channels of y    channels and taps   pixels of y, in parts that are summed later
 *
 * A block computes 64 x 64 results, 16 steps of the sum at a time from shared memory; a thread
 * computes 4 x 4.  Simple on purpose: what matters for speed goes through the library.
 */
#include "cuda/kernels/conv.h"
#include "cuda/kernels/device.h"
#include "cuda/kernels/sums.h"

enum { TILE = 64, DEPTH = 16, SIDE = 16, THREADS = SIDE * SIDE, EACH = TILE / SIDE };

struct conv_task {
    struct cuda_conv_shape s;
    struct cuda_array image, other, bias, result; /* other: w, or for grad_w dy */
    int64_t rows, columns, depth;
    int64_t in_group, out_group; /* channels per group of x and of y */
    int64_t part_depth;          /* summation steps per part */
};

DEVICE int64_t pixel_at(int64_t n, int64_t h, int64_t w, int64_t height, int64_t width)
{
    return h < 0 || h >= height || w < 0 || w >= width ? -1 : (n * height + h) * width + w;
}

/* The pixel of x under tap (kh, kw) of the window of pixel p of y; -1 if outside. */
DEVICE int64_t x_pixel_of(const struct cuda_conv_shape &s, int64_t p, int64_t tap)
{
    int64_t row = p / s.y_w;
    int64_t h = row % s.y_h * s.stride - s.pad + tap / s.kernel_w;
    int64_t w = p % s.y_w * s.stride - s.pad + tap % s.kernel_w;
    return pixel_at(row / s.y_h, h, w, s.x_h, s.x_w);
}

/* The pixel of y whose window has this tap on pixel p of x; -1 if there is none. */
DEVICE int64_t y_pixel_of(const struct cuda_conv_shape &s, int64_t p, int64_t tap)
{
    int64_t row = p / s.x_w;
    int64_t h = row % s.x_h + s.pad - tap / s.kernel_w, w = p % s.x_w + s.pad - tap % s.kernel_w;
    if (h < 0 || w < 0 || h % s.stride != 0 || w % s.stride != 0)
        return -1;
    return pixel_at(row / s.x_h, h / s.stride, w / s.stride, s.y_h, s.y_w);
}

DEVICE float pixel_or_0(struct cuda_array image, int64_t pixel, int64_t channels, int64_t c)
{
    return pixel < 0 ? 0.0f : load(image.dtype, image.data, pixel * channels + c);
}

/* Offset of weight [o, i, tap]; o counts all channels, i those of the group. */
DEVICE int64_t weight_at(const struct conv_task &t, int64_t o, int64_t i, int64_t tap)
{
    return (o * t.in_group + i) * t.s.kernel_h * t.s.kernel_w + tap;
}

template <int KIND>
DEVICE float left(const struct conv_task &t, int64_t group, int64_t m, int64_t k)
{
    if (m >= t.rows || k >= t.depth)
        return 0.0f;
    if (KIND == CONV_forward)
        return pixel_or_0(t.image, x_pixel_of(t.s, m, k / t.in_group), t.s.x_c,
                          group * t.in_group + k % t.in_group);
    if (KIND == CONV_grad_x)
        return pixel_or_0(t.image, y_pixel_of(t.s, m, k / t.out_group), t.s.y_c,
                          group * t.out_group + k % t.out_group);
    return load(t.other.dtype, t.other.data, k * t.s.y_c + group * t.out_group + m);
}

template <int KIND>
DEVICE float right(const struct conv_task &t, int64_t group, int64_t k, int64_t n)
{
    if (n >= t.columns || k >= t.depth)
        return 0.0f;
    int64_t at, taps = t.s.kernel_h * t.s.kernel_w;
    if (KIND == CONV_forward)
        at = weight_at(t, group * t.out_group + n, k % t.in_group, k / t.in_group);
    else if (KIND == CONV_grad_x)
        at = weight_at(t, group * t.out_group + k % t.out_group, n, k / t.out_group);
    else
        return pixel_or_0(t.image, x_pixel_of(t.s, k, n % taps), t.s.x_c,
                          group * t.in_group + n / taps);
    return load(t.other.dtype, t.other.data, at);
}

template <int KIND>
DEVICE void write(const struct conv_task &t, int64_t group, int64_t part, int64_t m, int64_t n,
                  float sum)
{
    if (m >= t.rows || n >= t.columns)
        return;
    if (KIND == CONV_grad_w) { /* a part, stored in the layout of the weights */
        int64_t n_weights = t.s.y_c * t.columns;
        store(DTYPE_f32, t.result.data, part * n_weights + (group * t.rows + m) * t.columns + n,
              sum);
        return;
    }
    int64_t channels = KIND == CONV_forward ? t.s.y_c : t.s.x_c, c = group * t.columns + n;
    if (t.bias.data != NULL)
        sum += load(t.bias.dtype, t.bias.data, c);
    store(t.result.dtype, t.result.data, m * channels + c, sum);
}

/* blockIdx.x: rows; y: columns; z: group and part */
template <int KIND> KERNEL convolve(struct conv_task t)
{
    SHARED float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
    int tx = (int)threadIdx.x % SIDE, ty = (int)threadIdx.x / SIDE;
    int64_t m0 = (int64_t)blockIdx.x * TILE, n0 = (int64_t)blockIdx.y * TILE;
    int64_t group = blockIdx.z % t.s.groups, part = blockIdx.z / t.s.groups;
    int64_t first = part * t.part_depth;
    int64_t end = first + t.part_depth < t.depth ? first + t.part_depth : t.depth;
    float sum[EACH][EACH] = {};
    for (int64_t k0 = first; k0 < end; k0 += DEPTH) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < DEPTH * TILE; i += THREADS) {
            /* neighbouring threads take neighbouring channels */
            int k = KIND == CONV_grad_w ? i / TILE : i % DEPTH;
            int m = KIND == CONV_grad_w ? i % TILE : i / DEPTH;
            bool inside = k0 + k < end;
            a[k][m] = inside ? left<KIND>(t, group, m0 + m, k0 + k) : 0.0f;
            b[k][m] = inside ? right<KIND>(t, group, k0 + k, n0 + m) : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++)
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += a[k][ty + SIDE * i] * b[k][tx + SIDE * j];
    }
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            write<KIND>(t, group, part, m0 + ty + SIDE * i, n0 + tx + SIDE * j, sum[i][j]);
}

template <int KIND>
static int launch_conv(struct conv_task *t, const struct cuda_conv_shape *shape, int64_t n_parts,
                       void *stream)
{
    auto kernel = convolve<KIND>;
    int64_t taps = shape->kernel_h * shape->kernel_w;
    t->s = *shape;
    t->in_group = shape->x_c / shape->groups;
    t->out_group = shape->y_c / shape->groups;
    int64_t x_pixels = shape->n * shape->x_h * shape->x_w;
    int64_t y_pixels = shape->n * shape->y_h * shape->y_w;
    t->rows = KIND == CONV_forward ? y_pixels : KIND == CONV_grad_x ? x_pixels : t->out_group;
    t->columns = KIND == CONV_forward  ? t->out_group
                 : KIND == CONV_grad_x ? t->in_group
                                       : t->in_group * taps;
    t->depth = KIND == CONV_forward  ? taps * t->in_group
               : KIND == CONV_grad_x ? taps * t->out_group
                                     : y_pixels;
    t->part_depth = (t->depth + n_parts - 1) / n_parts;
    dim3 grid(grid_of(t->rows, TILE), grid_of(t->columns, TILE),
              (unsigned)(shape->groups * n_parts));
    return launch(kernel, grid, THREADS, 0, stream, *t);
}

int cuda_conv(const struct cuda_conv_shape *shape, struct cuda_array x, struct cuda_array w,
              struct cuda_array bias, struct cuda_array y, void *stream)
{
    struct conv_task task = {};
    task.image = x;
    task.other = w;
    task.bias = bias;
    task.result = y;
    return launch_conv<CONV_forward>(&task, shape, 1, stream);
}

int cuda_conv_grad_x(const struct cuda_conv_shape *shape, struct cuda_array dy, struct cuda_array w,
                     struct cuda_array dx, void *stream)
{
    struct conv_task task = {};
    task.image = dy;
    task.other = w;
    task.result = dx;
    return launch_conv<CONV_grad_x>(&task, shape, 1, stream);
}

int cuda_conv_grad_w(const struct cuda_conv_shape *shape, struct cuda_array x, struct cuda_array dy,
                     float *work, struct cuda_array dw, bool add, void *stream)
{
    int64_t n_parts = cuda_conv_parts(shape->n * shape->y_h * shape->y_w, shape->groups);
    int64_t n_weights =
        shape->y_c * (shape->x_c / shape->groups) * shape->kernel_h * shape->kernel_w;
    struct conv_task task = {};
    task.image = x;
    task.other = dy;
    task.result = {DTYPE_f32, work};
    int error = launch_conv<CONV_grad_w>(&task, shape, n_parts, stream);
    return error != 0 ? error
                      : cuda_sum_rows(task.result, n_parts, n_weights, n_weights, dw, add, stream);
}
