/*
 * sums.cu -- column sums of a matrix (bias gradients, positions, partial sums of other kernels) and
 * sums of squares.
 *
 * A block sums a strip of columns: its warps take the rows in turn and add up through shared memory
 * in a fixed order.  If there are many rows they are first split into parts, by the number of rows
 * alone.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/sums.h"

enum { STRIPES_MOST = 32, SQUARE_THREADS = 256 };

/* blockIdx.x: columns; blockIdx.y: part of the rows; blockIdx.z: group of columns.  A thread has
 * EACH adjacent columns. */
template <int EACH>
KERNEL sum_strip(struct cuda_array from, int64_t n_rows, int64_t pitch, int64_t width,
                 struct cuda_sum_groups groups, bool add)
{
    /* a dynamic index would copy the parameter to local memory */
    struct cuda_array to = blockIdx.z == 0   ? groups.to[0]
                           : blockIdx.z == 1 ? groups.to[1]
                                             : groups.to[2];
    int64_t group = (int64_t)blockIdx.z * width;
    if (to.data == NULL)
        return;
    DYNAMIC_SHARED(float, sums);
    int lane = (int)threadIdx.x % WARP, stripe = (int)threadIdx.x / WARP;
    int n_stripes = (int)blockDim.x / WARP;
    int64_t column = ((int64_t)blockIdx.x * WARP + lane) * EACH;
    int64_t n_each = (n_rows + gridDim.y - 1) / gridDim.y, first = n_each * blockIdx.y;
    int64_t end = first + n_each < n_rows ? first + n_each : n_rows;
    float sum[EACH] = {};
    if (column >= width)
        end = first;
    UNROLL(4)
    for (int64_t row = first + stripe; row < end; row += n_stripes) {
        float x[PACK];
        if (EACH == PACK)
            pack_load(from.dtype, from.data, row * pitch + group + column, x);
        else
            x[0] = load(from.dtype, from.data, row * pitch + group + column);
        for (int i = 0; i < EACH; i++)
            sum[i] += x[i];
    }
    for (int i = 0; i < EACH; i++)
        sums[(stripe * EACH + i) * WARP + lane] = sum[i];
    __syncthreads();
    for (int i = stripe; i < EACH; i += n_stripes) {
        float total = 0.0f;
        for (int s = 0; s < n_stripes; s++)
            total += sums[(s * EACH + i) * WARP + lane];
        int64_t at = (int64_t)blockIdx.y * width + column + i;
        if (column + i < width)
            store(to.dtype, to.data, at, add ? load(to.dtype, to.data, at) + total : total);
    }
}

template <int EACH>
static int launch_strips(struct cuda_array from, int64_t n_rows, int64_t n_parts, int64_t pitch,
                         int64_t width, const struct cuda_sum_groups *groups, bool add,
                         void *stream)
{
    auto kernel = sum_strip<EACH>;
    int n_stripes = EACH == PACK || n_rows / n_parts < CUDA_SUM_ROWS ? 4 : STRIPES_MOST;
    dim3 grid(grid_of(width, WARP * EACH), (unsigned)n_parts, (unsigned)groups->n);
    return launch(kernel, grid, n_stripes * WARP, sizeof(float) * (size_t)(n_stripes * EACH * WARP),
                  stream, from, n_rows, pitch, width, *groups, add);
}

/* Uses packs if there are enough columns to keep the GPU busy. */
static int sum_parts(struct cuda_array from, int64_t n_rows, int64_t n_parts, int64_t pitch,
                     int64_t width, struct cuda_array to, bool add, void *stream)
{
    bool by_packs = pack_aligned(from.data) && pitch % PACK == 0 && width % PACK == 0 &&
                    width * n_parts >= 1 << 16;
    struct cuda_sum_groups one = {1, {to}};
    return by_packs ? launch_strips<PACK>(from, n_rows, n_parts, pitch, width, &one, add, stream)
                    : launch_strips<1>(from, n_rows, n_parts, pitch, width, &one, add, stream);
}

int cuda_sum_rows(struct cuda_array from, int64_t n_rows, int64_t pitch, int64_t width,
                  struct cuda_array to, bool add, void *stream)
{
    return sum_parts(from, n_rows, 1, pitch, width, to, add, stream);
}

int cuda_sum_groups(struct cuda_array from, int64_t n_rows, int64_t width,
                    const struct cuda_sum_groups *groups, bool add, void *stream)
{
    return launch_strips<1>(from, n_rows, 1, groups->n * width, width, groups, add, stream);
}

int cuda_sum_columns(struct cuda_array from, int64_t n_rows, int64_t width, float *work,
                     struct cuda_array to, bool add, void *stream)
{
    int64_t n_parts = cuda_sum_parts_of(n_rows);
    struct cuda_array parts = {DTYPE_f32, work};
    if (n_parts == 1)
        return cuda_sum_rows(from, n_rows, width, width, to, add, stream);
    int error = sum_parts(from, n_rows, n_parts, width, width, parts, false, stream);
    return error != 0 ? error : cuda_sum_rows(parts, n_parts, width, width, to, add, stream);
}

/* ---- sums of everything --------------------------------------------------------------------- */

/* Part `part` of the n_parts of a sum, computed by one block.  In fp64 from the first addition on:
 * the gradient norm of a large model is the sum of 10^9 small values. */
DEVICE double square_sum(int64_t n, bool aligned, struct cuda_array x, const float *minus, int part,
                         int n_parts)
{
    double sum = 0.0;
    int64_t step = (int64_t)blockDim.x * PACK;
    for (int64_t at = part * step + threadIdx.x * PACK; at < n; at += n_parts * step) {
        float value[PACK], other[PACK] = {0};
        int count = n - at < PACK ? (int)(n - at) : PACK;
        if (aligned && count == PACK)
            pack_load(x.dtype, x.data, at, value);
        else
            pack_load_part(x.dtype, x.data, at, count, value);
        if (minus != NULL)
            pack_load_part(DTYPE_f32, minus, at, count, other);
        for (int i = 0; i < PACK; i++) {
            double off = (double)value[i] - (double)other[i];
            sum += off * off;
        }
    }
    return block_sum(sum);
}

KERNEL square_part(int64_t n, bool aligned, struct cuda_array x, const float *minus, double *parts)
{
    double sum = square_sum(n, aligned, x, minus, (int)blockIdx.x, (int)gridDim.x);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

int cuda_sum_square_gaps(int64_t n, struct cuda_array x, const float *minus, double *parts,
                         void *stream)
{
    return launch(square_part, (unsigned)cuda_square_parts(n), SQUARE_THREADS, 0, stream, n,
                  pack_aligned(x.data), x, minus, parts);
}

/* Several tensors: one block per part, then one per tensor.  Neither the parts of a tensor nor
 * their order depend on the other tensors. */
struct square_tensor {
    int64_t n;
    struct cuda_array x;
    double *sum;
    int first_part, n_parts;
    bool aligned;
};
struct square_list {
    int n;
    struct square_tensor tensor[CUDA_SQUARE_TENSORS];
};

KERNEL square_parts(const GRID_CONSTANT struct square_list list, double *parts)
{
    int i = 0, block = (int)blockIdx.x;
    while (i + 1 < list.n && list.tensor[i + 1].first_part <= block)
        i++;
    const struct square_tensor *t = &list.tensor[i];
    double sum = square_sum(t->n, t->aligned, t->x, NULL, block - t->first_part, t->n_parts);
    if (threadIdx.x == 0)
        parts[block] = sum;
}

KERNEL square_totals(const GRID_CONSTANT struct square_list list, const double *parts)
{
    const struct square_tensor *t = &list.tensor[blockIdx.x];
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < t->n_parts; i += (int)blockDim.x)
        sum += parts[t->first_part + i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *t->sum = sum;
}

int cuda_sum_squares(int n_tensors, const struct cuda_square *tensors, double *parts, void *stream)
{
    struct square_list list = {};
    int n_parts = 0;
    list.n = n_tensors;
    for (int i = 0; i < n_tensors; i++) {
        struct square_tensor *t = &list.tensor[i];
        t->n = tensors[i].n;
        t->x = tensors[i].x;
        t->sum = tensors[i].sum;
        t->first_part = n_parts;
        t->n_parts = (int)cuda_square_parts(tensors[i].n);
        t->aligned = pack_aligned(tensors[i].x.data);
        n_parts += t->n_parts;
    }
    int error = launch(square_parts, (unsigned)n_parts, SQUARE_THREADS, 0, stream, list, parts);
    return error != 0 ? error
                      : launch(square_totals, (unsigned)n_tensors, SQUARE_THREADS, 0, stream, list,
                               (const double *)parts);
}

KERNEL total_of_parts(const double *parts, int64_t n, double factor, struct cuda_array to, bool add)
{
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += parts[i];
    sum = factor * block_sum(sum);
    if (threadIdx.x != 0)
        return;
    if (to.dtype == DTYPE_f64) {
        double *total = (double *)to.data;
        *total = add ? *total + sum : sum;
    } else {
        float *total = (float *)to.data;
        *total = (float)(add ? (double)*total + sum : sum);
    }
}

int cuda_total(const double *parts, int64_t n, double factor, struct cuda_array to, bool add,
               void *stream)
{
    return launch(total_of_parts, 1, n > 256 ? BLOCK_MOST : 256, 0, stream, parts, n, factor, to,
                  add);
}

int cuda_clear(void *data, size_t n_bytes, void *stream)
{
    return (int)cudaMemsetAsync(data, 0, n_bytes, (cudaStream_t)stream);
}
