/*
 * transpose.cu -- transposes the last two dimensions of a tensor: convolution weights, or images,
 * between channels first and channels last.
 *
 * A block moves a 32 x 32 square through shared memory, so that both reads and writes go along
 * rows.  The shared rows have one more element, so that columns are in different banks.  All
 * squares of an image are along blockIdx.x, because either dimension may be long and other grid
 * dimensions are limited to 65535.
 *
 * If one dimension is short (the colours of an image), such a square would be nearly empty.  There
 * a thread moves whole columns of the short dimension: neighbouring threads read along rows and
 * write adjacent elements, or the other way round.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/transpose.h"

enum { SIDE = WARP, ROWS_AT_ONCE = 8 };
enum { SHORT_MOST = 8, SHORT_BLOCK = 128, COLUMNS_EACH = 4, HELD = 4 /* of a column */ };

KERNEL transpose_squares(int64_t n, int64_t a, int64_t b, unsigned n_across, struct cuda_array x,
                         struct cuda_array y, bool add)
{
    SHARED float square[SIDE][SIDE + 1];
    int lane = (int)threadIdx.x % SIDE, first = (int)threadIdx.x / SIDE;
    int64_t a_begin = (int64_t)(blockIdx.x / n_across) * SIDE;
    int64_t b_begin = (int64_t)(blockIdx.x % n_across) * SIDE;
    for (int64_t i = blockIdx.z; i < n; i += gridDim.z) {
        for (int row = first; row < SIDE; row += ROWS_AT_ONCE)
            if (a_begin + row < a && b_begin + lane < b)
                square[row][lane] =
                    load(x.dtype, x.data, (i * a + a_begin + row) * b + b_begin + lane);
        __syncthreads();
        for (int row = first; row < SIDE; row += ROWS_AT_ONCE)
            if (b_begin + row < b && a_begin + lane < a) {
                int64_t at = (i * b + b_begin + row) * a + a_begin + lane;
                float value = square[lane][row];
                store(y.dtype, y.data, at, add ? load(y.dtype, y.data, at) + value : value);
            }
        __syncthreads();
    }
}

/* Lengths of the short and the long dimension, and their strides in x and in y. */
struct sides {
    int n_short, n_long, x_step_short, x_step_long, y_step_short, y_step_long;
};

/* T: an element as raw bits. */
template <class T> KERNEL transpose_short(int64_t n, struct sides s, const T *x, T *y)
{
    int first = (int)(blockIdx.x * SHORT_BLOCK * COLUMNS_EACH + threadIdx.x);
    int64_t n_elems = (int64_t)s.n_short * s.n_long;
    for (int64_t i = blockIdx.z; i < n; i += gridDim.z)
        for (int k = 0; k < s.n_short; k += HELD) {
            T held[HELD][COLUMNS_EACH] = {};
            for (int l = 0; l < HELD; l++)
                for (int j = 0; j < COLUMNS_EACH; j++) {
                    int at = first + j * SHORT_BLOCK;
                    if (k + l < s.n_short && at < s.n_long)
                        held[l][j] = x[i * n_elems + (k + l) * s.x_step_short + at * s.x_step_long];
                }
            for (int l = 0; l < HELD; l++)
                for (int j = 0; j < COLUMNS_EACH; j++) {
                    int at = first + j * SHORT_BLOCK;
                    if (k + l < s.n_short && at < s.n_long)
                        y[i * n_elems + (k + l) * s.y_step_short + at * s.y_step_long] = held[l][j];
                }
        }
}

static unsigned blocks_of_images(int64_t n)
{
    const int64_t most_blocks = 4096;
    return (unsigned)(n < most_blocks ? n : most_blocks);
}

static int transpose_short_side(int64_t n, int64_t a, int64_t b, struct cuda_array x,
                                struct cuda_array y, void *stream)
{
    int n_a = (int)a, n_b = (int)b;
    struct sides a_short = {n_a, n_b, n_b, 1, 1, n_a}, b_short = {n_b, n_a, 1, n_b, n_a, 1};
    struct sides s = a < b ? a_short : b_short;
    dim3 grid(grid_of(s.n_long, SHORT_BLOCK * COLUMNS_EACH), 1, blocks_of_images(n));
    if (x.dtype == DTYPE_f32) {
        auto kernel = transpose_short<uint32_t>;
        return launch(kernel, grid, SHORT_BLOCK, 0, stream, n, s, (const uint32_t *)x.data,
                      (uint32_t *)y.data);
    }
    auto kernel = transpose_short<uint16_t>;
    return launch(kernel, grid, SHORT_BLOCK, 0, stream, n, s, (const uint16_t *)x.data,
                  (uint16_t *)y.data);
}

int cuda_transpose(int64_t n, int64_t a, int64_t b, struct cuda_array x, struct cuda_array y,
                   bool add, void *stream)
{
    bool is_short = (a <= SHORT_MOST || b <= SHORT_MOST) && a * b <= INT32_MAX / 2;
    if (is_short && x.dtype == y.dtype && !add)
        return transpose_short_side(n, a, b, x, y, stream);
    unsigned n_across = grid_of(b, SIDE);
    dim3 grid(grid_of(a, SIDE) * n_across, 1, blocks_of_images(n));
    return launch(transpose_squares, grid, SIDE * ROWS_AT_ONCE, 0, stream, n, a, b, n_across, x, y,
                  add);
}
