/*
 * swap.cu -- the last two sides of a tensor change places: weights of a convolution, from channels
 * first to channels last and back.
 *
 * A block moves a square of 32 x 32 through shared memory, so that both reading and writing go along
 * rows.  A row there is one longer than the square: columns lie in different banks.
 */
#include "cuda/device.h"
#include "cuda/swap.h"

enum { SIDE = WARP, ROWS_AT_ONCE = 8 };

KERNEL swap_squares(int64_t n, int64_t a, int64_t b, struct cuda_array x, struct cuda_array y,
                    bool add)
{
    SHARED float square[SIDE][SIDE + 1];
    int lane = (int)threadIdx.x % SIDE, first = (int)threadIdx.x / SIDE;
    int64_t a_begin = (int64_t)blockIdx.y * SIDE, b_begin = (int64_t)blockIdx.x * SIDE;
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

int cuda_swap_sides(int64_t n, int64_t a, int64_t b, struct cuda_array x, struct cuda_array y,
                    bool add, void *stream)
{
    const int64_t most_blocks = 4096;
    dim3 grid(grid_of(b, SIDE), grid_of(a, SIDE), (unsigned)(n < most_blocks ? n : most_blocks));
    return launch(swap_squares, grid, SIDE * ROWS_AT_ONCE, 0, stream, n, a, b, x, y, add);
}
