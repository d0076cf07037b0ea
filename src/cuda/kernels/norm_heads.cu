/*
 * norm_heads.cu -- rmsnorm of short rows, such as the heads of q and k, and its gradient.
 *
 * A head of 64 or 128 elements is 8 or 16 packs, and there are millions of them: a warp for each
 * would leave most of its lanes idle.  So a thread holds one pack of a row, a team of 1 to 32
 * neighbouring threads holds the row, and a sum over the row takes at most 5 shuffles.  A thread
 * loads its packs of several rows before it works on the first, because one pack per thread is too
 * little to keep the memory busy.
 *
 * The floor, as a multiple of the bytes of x: 2 (read x, write y), 3 for the gradient (read dy and
 * x, write dx).  rstd adds 4 bytes per row: 3% of a head of 64 in 16 bits.
 *
 * A thread has the same columns in all its rows, so it sums their gradient of gamma in a register;
 * the block adds up its teams in order and writes one part, which norm.cu sums.
 *
 * All threads stay to the end, because shuffles need whole warps: rows beyond the last are zeros,
 * and are not stored.
 */
#include "cuda/kernels/norm_heads.h"
#include "cuda/kernels/norm_rows.h"

enum { BLOCK = CUDA_NORM_HEADS_BLOCK, ROWS = 4, GRAD_ROWS = CUDA_NORM_HEADS_GRAD_ROWS };

/* Adds in the order of warp_sum, whose other lanes would add zeros: the bits are those of norm.cu,
 * which takes a whole warp when it adds first. */
DEVICE float head_sum(float value, int team)
{
    for (int mask = team / 2; mask > 0; mask /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, mask);
    return value;
}

template <int DTYPE, bool ALIGNED>
DEVICE raw_pack<DTYPE> head_load(const void *data, int64_t row, int64_t n_rows, int column,
                                 int width)
{
    return raw_load<DTYPE, ALIGNED>(data, row * width, row < n_rows ? column : width, width);
}

template <int DTYPE, bool ALIGNED> KERNEL norm_heads(struct cuda_norm t, int team)
{
    int n_teams = BLOCK / team, column = (int)threadIdx.x % team * PACK;
    int64_t first = (int64_t)blockIdx.x * ROWS * n_teams + threadIdx.x / team;
    raw_pack<DTYPE> raw[ROWS];
    for (int k = 0; k < ROWS; k++)
        raw[k] = head_load<DTYPE, ALIGNED>(t.a, first + k * n_teams, t.n_rows, column, t.width);
    float gamma[PACK];
    row_load<DTYPE, ALIGNED>(t.gamma, 0, column, t.width, gamma);
    for (int k = 0; k < ROWS; k++) {
        int64_t row = first + k * n_teams;
        float x[PACK], squares = 0.0f;
        unpack<DTYPE>(raw[k], x);
        square_pack<true>(x, 0.0f, 0, &squares);
        float rstd = rstd_of(head_sum(squares, team), t.width, t.eps);
        if (row >= t.n_rows)
            continue;
        for (int i = 0; i < PACK; i++)
            x[i] = x[i] * rstd * gamma[i];
        row_store<DTYPE, ALIGNED>(t.y, row * t.width, column, t.width, x);
        if (column == 0)
            t.rstd[row] = rstd;
    }
}

/* Adds up the sums of the teams, in order, and writes the block's part. */
DEVICE void write_part(const struct cuda_norm_grad &t, int team, const float own[PACK])
{
    SHARED float sums[BLOCK * PACK];
    float *part = t.parts + (int64_t)blockIdx.x * t.width;
    for (int i = 0; i < PACK; i++)
        sums[threadIdx.x * PACK + i] = own[i];
    __syncthreads();
    for (int column = (int)threadIdx.x; column < t.width; column += BLOCK) {
        float sum = 0.0f;
        for (int first = 0; first < BLOCK * PACK; first += team * PACK)
            sum += sums[first + column];
        part[column] = sum;
    }
}

/* With h = x * rstd and g = dy * gamma:
 *     dx = rstd * (g - h * mean(g * h)) (+ r)   dgamma = sum of dy h */
template <int DTYPE, bool ALIGNED>
KERNEL REGISTERS_MOST(80) norm_heads_grad(struct cuda_norm_grad t, int team)
{
    int n_teams = BLOCK / team, column = (int)threadIdx.x % team * PACK;
    int64_t step = (int64_t)gridDim.x * GRAD_ROWS * n_teams;
    float gamma[PACK], sums[PACK] = {};
    row_load<DTYPE, ALIGNED>(t.gamma, 0, column, t.width, gamma);
    for (int64_t begin = (int64_t)blockIdx.x * GRAD_ROWS * n_teams; begin < t.n_rows;
         begin += step) {
        raw_pack<DTYPE> dy_raw[GRAD_ROWS], x_raw[GRAD_ROWS], r_raw[GRAD_ROWS] = {};
        float rstd[GRAD_ROWS];
        for (int k = 0; k < GRAD_ROWS; k++) {
            int64_t row = begin + k * n_teams + threadIdx.x / team;
            dy_raw[k] = head_load<DTYPE, ALIGNED>(t.dy, row, t.n_rows, column, t.width);
            x_raw[k] = head_load<DTYPE, ALIGNED>(t.x, row, t.n_rows, column, t.width);
            if (t.r != NULL)
                r_raw[k] = head_load<DTYPE, ALIGNED>(t.r, row, t.n_rows, column, t.width);
            rstd[k] = row < t.n_rows ? t.rstd[row] : 0.0f;
        }
        for (int k = 0; k < GRAD_ROWS; k++) {
            int64_t row = begin + k * n_teams + threadIdx.x / team;
            float dy[PACK], h[PACK], r[PACK], sum = 0.0f;
            unpack<DTYPE>(dy_raw[k], dy);
            unpack<DTYPE>(x_raw[k], h);
            unpack<DTYPE>(r_raw[k], r);
            for (int i = 0; i < PACK; i++) {
                h[i] *= rstd[k];
                sums[i] += dy[i] * h[i];
                sum += dy[i] * gamma[i] * h[i];
            }
            float mean = head_sum(sum, team) / (float)t.width;
            for (int i = 0; i < PACK; i++)
                h[i] = rstd[k] * (dy[i] * gamma[i] - h[i] * mean) + r[i];
            if (t.dx != NULL && row < t.n_rows)
                row_store<DTYPE, ALIGNED>(t.dx, row * t.width, column, t.width, h);
        }
    }
    if (t.dgamma.data != NULL)
        write_part(t, team, sums);
}

template <int DTYPE> static int heads_of_type(const struct cuda_norm *t, void *stream)
{
    int team = cuda_norm_heads_team(t->width);
    bool aligned =
        t->width % PACK == 0 && pack_aligned(t->a) && pack_aligned(t->gamma) && pack_aligned(t->y);
    auto kernel = aligned ? norm_heads<DTYPE, true> : norm_heads<DTYPE, false>;
    return launch(kernel, grid_of(t->n_rows, ROWS * (BLOCK / team)), BLOCK, 0, stream, *t, team);
}

int cuda_norm_heads(const struct cuda_norm *norm, void *stream)
{
    return norm->dtype == DTYPE_f32    ? heads_of_type<DTYPE_f32>(norm, stream)
           : norm->dtype == DTYPE_bf16 ? heads_of_type<DTYPE_bf16>(norm, stream)
                                       : heads_of_type<DTYPE_f16>(norm, stream);
}

template <int DTYPE> static int grad_of_type(const struct cuda_norm_grad *t, void *stream)
{
    bool aligned = t->width % PACK == 0 && pack_aligned(t->dy) && pack_aligned(t->x) &&
                   pack_aligned(t->gamma) && pack_aligned(t->r) && pack_aligned(t->dx);
    auto kernel = aligned ? norm_heads_grad<DTYPE, true> : norm_heads_grad<DTYPE, false>;
    return launch(kernel, (unsigned)cuda_norm_heads_blocks(t->n_rows, t->width), BLOCK, 0, stream,
                  *t, cuda_norm_heads_team(t->width));
}

int cuda_norm_heads_grad(const struct cuda_norm_grad *grad, void *stream)
{
    return grad->dtype == DTYPE_f32    ? grad_of_type<DTYPE_f32>(grad, stream)
           : grad->dtype == DTYPE_bf16 ? grad_of_type<DTYPE_bf16>(grad, stream)
                                       : grad_of_type<DTYPE_f16>(grad, stream);
}
