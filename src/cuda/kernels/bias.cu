/*
 * bias.cu -- adds a row to every row, for gemms whose epilogue the library does not support.
 *
 * A thread takes 8 columns of a row and reads all of them before it writes one.
 */
#include "cuda/kernels/bias.h"
#include "cuda/kernels/device.h"

enum { BLOCK = 256 };

DEVICE void add_columns(struct cuda_array x, bool whole, int64_t at, int count, float sum[PACK])
{
    float more[PACK];
    if (x.data == NULL)
        return;
    if (whole)
        pack_load(x.dtype, x.data, at, more);
    else
        pack_load_part(x.dtype, x.data, at, count, more);
    for (int i = 0; i < PACK; i++)
        sum[i] += more[i];
}

KERNEL add_bias(int64_t n_rows, int64_t width, bool aligned, struct cuda_array x,
                struct cuda_array bias, struct cuda_array r, struct cuda_array y)
{
    int64_t packs = (width + PACK - 1) / PACK, index = thread_index();
    if (index >= n_rows * packs)
        return;
    int64_t column = index % packs * PACK, at = index / packs * width + column;
    int count = width - column < PACK ? (int)(width - column) : PACK;
    float sum[PACK] = {0};
    add_columns(x, aligned, at, count, sum);
    add_columns(bias, aligned, column, count, sum);
    add_columns(r, aligned, at, count, sum);
    if (aligned)
        pack_store(y.dtype, y.data, at, sum);
    else
        pack_store_part(y.dtype, y.data, at, count, sum);
}

int cuda_add_bias(int64_t n_rows, int64_t width, struct cuda_array x, struct cuda_array bias,
                  struct cuda_array r, struct cuda_array y, void *stream)
{
    bool aligned = width % PACK == 0 && pack_aligned(x.data) && pack_aligned(bias.data) &&
                   pack_aligned(r.data) && pack_aligned(y.data);
    int64_t n = n_rows * ((width + PACK - 1) / PACK);
    return launch(add_bias, grid_of(n, BLOCK), BLOCK, 0, stream, n_rows, width, aligned, x, bias, r,
                  y);
}
