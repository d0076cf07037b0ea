/*
 * norm.cu -- layernorm and rmsnorm, alone and after a residual add, and their gradients.
 *
 * An rmsnorm is a layernorm without mean and beta: RMS in the forward kernels, and one column sum
 * instead of two or three in the gradient.  Its short rows are in norm_heads.cu.
 *
 * Everything is memory-bound.  The floor, as a multiple of the bytes of x: 2 (read x, write y), 4
 * after an add; 3 for the gradient (read dy and x, write dx), 4 with r.
 *
 * So a row is read once and stays in registers: a team of threads holds it, up to 4 packs of 8
 * elements per thread.  A team is one warp up to 1024 columns, else a whole block; row sums then
 * need only shuffles, or also a barrier.  In the gradient a thread holds at most 2 packs, because
 * it also holds sums and the next row, and 16 warps should fit on an SM.
 *
 * The gradients of gamma and beta are column sums, and so is the gradient of a bias that was added
 * to x: the sum of dx.  A thread sees the same columns in every row that its team takes, so it sums
 * them in registers.  The teams of a block add up in shared memory, the block writes one part, and
 * a second kernel sums the parts in an order that depends on the shape alone.  The next row is
 * loaded while the current one is processed.
 *
 * Rows of more than CUDA_NORM_WIDTH columns do not fit in the registers of a block.  Its threads
 * then loop over a row, read it again, mostly from the cache, and accumulate column sums in shared
 * memory, or in the block's part if that is too small.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/device_mask.h"
#include "cuda/kernels/norm.h"
#include "cuda/kernels/norm_heads.h"
#include "cuda/kernels/norm_rows.h"
#include "cuda/kernels/sums.h"

enum { PACKS_MOST = 4, TEAMS = CUDA_NORM_TEAMS };
enum { WIDE_SHARED_BYTES = 96 << 10 }; /* every GPU since Ampere lets a block have 99 KiB */

/* Sums over the threads of a row. */
DEVICE float team_sum(float value, int team)
{
    return team == WARP ? warp_sum(value) : block_sum(value);
}

/* Two sums at once. */
DEVICE void team_sums(float *a, float *b, int team)
{
    SHARED float part[2][BLOCK_MOST / WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, n_warps = team / WARP;
    *a = warp_sum(*a);
    *b = warp_sum(*b);
    if (team == WARP)
        return;
    __syncthreads(); /* an earlier call may still be reading */
    if (lane == 0) {
        part[0][warp] = *a;
        part[1][warp] = *b;
    }
    __syncthreads();
    *a = warp_sum(lane < n_warps ? part[0][lane] : 0.0f);
    *b = warp_sum(lane < n_warps ? part[1][lane] : 0.0f);
}

static int team_of(int width)
{
    int n_packs = (width + PACK - 1) / PACK, team = WARP;
    while (team * PACKS_MOST < n_packs)
        team *= 2;
    return team;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* x = a, or the rounded a + dropout(b), which is stored: the same bits as separate add and
 * layernorm. The whole row is loaded before anything is stored. */
template <int DTYPE, int N_PACKS, bool ALIGNED>
DEVICE void read_row(const struct cuda_norm &t, int64_t begin, int lane, int team,
                     float (&x)[N_PACKS][PACK])
{
    raw_pack<DTYPE> a[N_PACKS], b[N_PACKS];
    struct mask mask = mask_of(t.dropout);
    for (int k = 0; k < N_PACKS; k++) {
        a[k] = raw_load<DTYPE, ALIGNED>(t.a, begin, (lane + k * team) * PACK, t.width);
        if (t.b != NULL)
            b[k] = raw_load<DTYPE, ALIGNED>(t.b, begin, (lane + k * team) * PACK, t.width);
    }
    for (int k = 0; k < N_PACKS; k++) {
        unpack<DTYPE>(a[k], x[k]);
        if (t.b == NULL)
            continue;
        int column = (lane + k * team) * PACK;
        float more[PACK];
        unpack<DTYPE>(b[k], more);
        for (int i = 0; i < PACK; i++) {
            if (mask.below != 0)
                more[i] = mask_keeps(mask, (uint64_t)(begin + column + i))
                              ? as_stored((enum dtype)DTYPE, mask.scale * more[i])
                              : 0.0f;
            x[k][i] = as_stored((enum dtype)DTYPE, x[k][i] + more[i]);
        }
        row_store<DTYPE, ALIGNED>(t.sum, begin, column, t.width, x[k]);
    }
}

/* x is centred already. */
template <int DTYPE, bool ALIGNED, bool RMS>
DEVICE void write_y(const struct cuda_norm &t, int64_t begin, int column, float rstd, float x[PACK])
{
    float gamma[PACK], beta[PACK] = {0};
    row_load<DTYPE, ALIGNED>(t.gamma, 0, column, t.width, gamma);
    if (!RMS)
        row_load<DTYPE, ALIGNED>(t.beta, 0, column, t.width, beta);
    for (int i = 0; i < PACK; i++)
        x[i] = RMS ? x[i] * rstd * gamma[i] : x[i] * rstd * gamma[i] + beta[i];
    row_store<DTYPE, ALIGNED>(t.y, begin, column, t.width, x);
}

template <bool RMS>
DEVICE void write_statistics(const struct cuda_norm &t, int64_t row, float mean, float rstd)
{
    if (!RMS)
        t.mean[row] = mean;
    t.rstd[row] = rstd;
}

template <int DTYPE, int N_PACKS, bool ALIGNED, bool RMS>
KERNEL norm_rows(struct cuda_norm t, int team)
{
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
    int lane = (int)threadIdx.x % team;
    if (row >= t.n_rows)
        return; /* a whole team */
    int64_t begin = row * t.width;
    float x[N_PACKS][PACK], sum = 0.0f, squares = 0.0f, mean = 0.0f;
    read_row<DTYPE, N_PACKS, ALIGNED>(t, begin, lane, team, x);
    if (!RMS) {
        for (int k = 0; k < N_PACKS; k++)
            for (int i = 0; i < PACK; i++)
                sum += x[k][i];
        mean = team_sum(sum, team) / (float)t.width;
    }
    for (int k = 0; k < N_PACKS; k++)
        square_pack<RMS>(x[k], mean, t.width - (lane + k * team) * PACK, &squares);
    float rstd = rstd_of(team_sum(squares, team), t.width, t.eps);
    for (int k = 0; k < N_PACKS; k++)
        write_y<DTYPE, ALIGNED, RMS>(t, begin, (lane + k * team) * PACK, rstd, x[k]);
    if (lane == 0)
        write_statistics<RMS>(t, row, mean, rstd);
}

/* One block per row.  A thread rereads only columns that it wrote itself. */
template <int DTYPE, bool ALIGNED, bool RMS> KERNEL norm_wide_rows(struct cuda_norm t)
{
    const int team = CUDA_NORM_WIDE_TEAM, first = (int)threadIdx.x * PACK, step = team * PACK;
    int64_t row = blockIdx.x, begin = row * t.width;
    const void *x_rows = t.b == NULL ? t.a : t.sum;
    float sum = 0.0f, squares = 0.0f, mean = 0.0f, x[1][PACK];
    for (int column = first; column < t.width; column += step) {
        read_row<DTYPE, 1, ALIGNED>(t, begin, column / PACK, team, x);
        if (RMS)
            square_pack<RMS>(x[0], mean, t.width - column, &squares);
        else
            for (int i = 0; i < PACK; i++)
                sum += x[0][i];
    }
    if (!RMS)
        mean = team_sum(sum, team) / (float)t.width;
    for (int column = first; !RMS && column < t.width; column += step) {
        row_load<DTYPE, ALIGNED>(x_rows, begin, column, t.width, x[0]);
        square_pack<RMS>(x[0], mean, t.width - column, &squares);
    }
    float rstd = rstd_of(team_sum(squares, team), t.width, t.eps);
    for (int column = first; column < t.width; column += step) {
        row_load<DTYPE, ALIGNED>(x_rows, begin, column, t.width, x[0]);
        for (int i = 0; i < PACK && !RMS; i++)
            x[0][i] -= mean;
        write_y<DTYPE, ALIGNED, RMS>(t, begin, column, rstd, x[0]);
    }
    if (threadIdx.x == 0)
        write_statistics<RMS>(t, row, mean, rstd);
}

template <int DTYPE, bool RMS>
static int launch_wide(const struct cuda_norm *t, bool aligned, void *stream)
{
    auto kernel = aligned ? norm_wide_rows<DTYPE, true, RMS> : norm_wide_rows<DTYPE, false, RMS>;
    return launch(kernel, grid_of(t->n_rows, 1), CUDA_NORM_WIDE_TEAM, 0, stream, *t);
}

template <int DTYPE, int N_PACKS, bool ALIGNED, bool RMS>
static int launch_norm(const struct cuda_norm *t, int team, void *stream)
{
    auto kernel = norm_rows<DTYPE, N_PACKS, ALIGNED, RMS>;
    int n_teams = team == WARP ? TEAMS : 1;
    return launch(kernel, grid_of(t->n_rows, n_teams), team * n_teams, 0, stream, *t, team);
}

/* Rows of GPT-2 fill 3 packs per thread of a warp (768), or 4. */
template <int DTYPE, bool RMS> static int norm_of_type(const struct cuda_norm *t, void *stream)
{
    int team = team_of(t->width), n_packs = (t->width + PACK - 1) / PACK;
    bool aligned = t->width % PACK == 0 && pack_aligned(t->a) && pack_aligned(t->b) &&
                   pack_aligned(t->gamma) && pack_aligned(t->beta) && pack_aligned(t->sum) &&
                   pack_aligned(t->y);
    if (t->width > CUDA_NORM_WIDTH)
        return launch_wide<DTYPE, RMS>(t, aligned, stream);
    if (!aligned)
        return launch_norm<DTYPE, 4, false, RMS>(t, team, stream);
    if (n_packs <= team)
        return launch_norm<DTYPE, 1, true, RMS>(t, team, stream);
    if (n_packs <= 3 * team)
        return launch_norm<DTYPE, 3, true, RMS>(t, team, stream);
    return launch_norm<DTYPE, 4, true, RMS>(t, team, stream);
}

int cuda_norm(const struct cuda_norm *norm, void *stream)
{
    bool rms = norm->mean == NULL;
    if (norm->b == NULL && cuda_norm_is_head(norm->width, rms ? 1 : 2))
        return cuda_norm_heads(norm, stream);
    switch (norm->dtype) {
    case DTYPE_f32:
        return rms ? norm_of_type<DTYPE_f32, true>(norm, stream)
                   : norm_of_type<DTYPE_f32, false>(norm, stream);
    case DTYPE_bf16:
        return rms ? norm_of_type<DTYPE_bf16, true>(norm, stream)
                   : norm_of_type<DTYPE_bf16, false>(norm, stream);
    default:
        return rms ? norm_of_type<DTYPE_f16, true>(norm, stream)
                   : norm_of_type<DTYPE_f16, false>(norm, stream);
    }
}

/* ---- gradient ------------------------------------------------------------------------------- */

/*
 * With h = (x - mean) * rstd and g = dy * gamma:
 *     dx = rstd * (g - mean(g) - h * mean(g * h)) (+ r)   dgamma = sum of dy h   dbeta = sum of dy
 * For rmsnorm mean and mean(g) are 0.
 *
 * N_SUMS, the number of column sums: 1 (rmsnorm: dgamma), 2 (and dbeta), 3 (and dsum).
 */
template <int DTYPE, int N_PACKS, bool ALIGNED> struct grad_row {
    raw_pack<DTYPE> dy[N_PACKS], x[N_PACKS];
    float mean, rstd;
};

/* Issues the loads of a row, unless it is beyond the end. */
template <int N_SUMS, int DTYPE, int N_PACKS, bool ALIGNED>
DEVICE void load_grad_row(const struct cuda_norm_grad &t, grad_row<DTYPE, N_PACKS, ALIGNED> &in,
                          int64_t row, int lane, int team)
{
    if (row >= t.n_rows)
        return;
    for (int k = 0; k < N_PACKS; k++) {
        int column = (lane + k * team) * PACK;
        in.dy[k] = raw_load<DTYPE, ALIGNED>(t.dy, row * t.width, column, t.width);
        in.x[k] = raw_load<DTYPE, ALIGNED>(t.x, row * t.width, column, t.width);
    }
    in.mean = N_SUMS == 1 ? 0.0f : t.mean[row];
    in.rstd = t.rstd[row];
}

/* Sums over this thread's columns.  Those that are not written take no registers. */
template <int N_PACKS, int N_SUMS> struct column_sums {
    float gamma[N_PACKS][PACK], beta[N_PACKS][PACK], dx[N_SUMS == 3 ? N_PACKS : 1][PACK];
};

template <int DTYPE, int N_PACKS, bool ALIGNED, int N_SUMS>
DEVICE void write_dx(const struct cuda_norm_grad &t, const grad_row<DTYPE, N_PACKS, ALIGNED> &in,
                     const raw_pack<DTYPE> (&more)[N_PACKS], int64_t row, int lane, int team,
                     float mean_g, float mean_gh, column_sums<N_PACKS, N_SUMS> &sums)
{
    int64_t begin = row * t.width;
    for (int k = 0; k < N_PACKS; k++) {
        int column = (lane + k * team) * PACK;
        float dy[PACK], x[PACK], gamma[PACK], r[PACK] = {0};
        unpack<DTYPE>(in.dy[k], dy);
        unpack<DTYPE>(in.x[k], x);
        row_load<DTYPE, ALIGNED>(t.gamma, 0, column, t.width, gamma);
        if (t.r != NULL)
            unpack<DTYPE>(more[k], r);
        for (int i = 0; i < PACK; i++) {
            float h = (x[i] - in.mean) * in.rstd;
            x[i] = in.rstd * (dy[i] * gamma[i] - mean_g - h * mean_gh) + r[i];
            if (N_SUMS == 3)
                sums.dx[k][i] += x[i];
        }
        row_store<DTYPE, ALIGNED>(t.dx, begin, column, t.width, x);
    }
}

/* Adds a row to the column sums; adds the sums of g and g h over this thread's columns to *sum_g
 * and *sum_gh. */
template <int DTYPE, int N_PACKS, bool ALIGNED, int N_SUMS>
DEVICE void sum_grad_row(const struct cuda_norm_grad &t,
                         const grad_row<DTYPE, N_PACKS, ALIGNED> &in, int lane, int team,
                         column_sums<N_PACKS, N_SUMS> &sums, float *sum_g, float *sum_gh)
{
    for (int k = 0; k < N_PACKS; k++) {
        float dy[PACK], x[PACK], gamma[PACK];
        unpack<DTYPE>(in.dy[k], dy);
        unpack<DTYPE>(in.x[k], x);
        row_load<DTYPE, ALIGNED>(t.gamma, 0, (lane + k * team) * PACK, t.width, gamma);
        for (int i = 0; i < PACK; i++) { /* dy is 0 beyond the end of the row */
            float h = (x[i] - in.mean) * in.rstd;
            sums.gamma[k][i] += dy[i] * h;
            sums.beta[k][i] += dy[i];
            *sum_g += dy[i] * gamma[i];
            *sum_gh += dy[i] * gamma[i] * h;
        }
    }
}

/* Writes the block's part: dgamma, then dbeta and dsum.  Teams add up one after the other. */
template <int N_PACKS, int N_SUMS>
DEVICE void write_part(const struct cuda_norm_grad &t, int lane, int team,
                       const column_sums<N_PACKS, N_SUMS> &own)
{
    DYNAMIC_SHARED(float, sums);
    float *part = t.parts + (int64_t)blockIdx.x * N_SUMS * t.width;
    int n_teams = (int)blockDim.x / team, mine = (int)threadIdx.x / team;
    for (int turn = 0; turn < n_teams; turn++) {
        if (turn > 0)
            __syncthreads();
        for (int k = 0; turn == mine && k < N_PACKS; k++)
            for (int i = 0; i < PACK; i++) {
                int column = (lane + k * team) * PACK + i;
                if (column >= t.width)
                    continue;
                float *to = turn == n_teams - 1 ? part : sums;
                to[column] = own.gamma[k][i] + (turn > 0 ? sums[column] : 0.0f);
                if (N_SUMS > 1)
                    to[column + t.width] =
                        own.beta[k][i] + (turn > 0 ? sums[column + t.width] : 0.0f);
                if (N_SUMS == 3)
                    to[column + 2 * t.width] =
                        own.dx[k][i] + (turn > 0 ? sums[column + 2 * t.width] : 0.0f);
            }
    }
}

template <int DTYPE, int N_PACKS, bool ALIGNED, int N_SUMS>
KERNEL REGISTERS_MOST(N_SUMS == 1 ? 96 : 128) norm_grad_rows(struct cuda_norm_grad t, int team)
{
    int n_teams = (int)blockDim.x / team, lane = (int)threadIdx.x % team;
    column_sums<N_PACKS, N_SUMS> sums = {};
    int64_t first = (int64_t)blockIdx.x * n_teams + threadIdx.x / team;
    int64_t step = (int64_t)gridDim.x * n_teams;
    const bool ahead = DTYPE != DTYPE_f32; /* fp32 has no registers for two rows */
    grad_row<DTYPE, N_PACKS, ALIGNED> in, next;
    load_grad_row<N_SUMS>(t, ahead ? next : in, first, lane, team);
    for (int64_t row = first; row < t.n_rows; row += step) {
        raw_pack<DTYPE> more[N_PACKS];
        for (int k = 0; t.r != NULL && k < N_PACKS; k++)
            more[k] =
                raw_load<DTYPE, ALIGNED>(t.r, row * t.width, (lane + k * team) * PACK, t.width);
        if (ahead) {
            in = next;
            load_grad_row<N_SUMS>(t, next, row + step, lane, team);
        }
        float sum_g = 0.0f, sum_gh = 0.0f;
        sum_grad_row(t, in, lane, team, sums, &sum_g, &sum_gh);
        if (t.dx != NULL) {
            if (N_SUMS == 1)
                sum_g = 0.0f, sum_gh = team_sum(sum_gh, team);
            else
                team_sums(&sum_g, &sum_gh, team);
            for (int k = 0; k < N_PACKS; k++) {
                forget_floats(in.dy[k]);
                forget_floats(in.x[k]);
            }
            write_dx(t, in, more, row, lane, team, sum_g / (float)t.width, sum_gh / (float)t.width,
                     sums);
        }
        if (!ahead)
            load_grad_row<N_SUMS>(t, in, row + step, lane, team);
    }
    if (N_SUMS == 3 || t.dgamma.data != NULL || t.dbeta.data != NULL)
        write_part(t, lane, team, sums);
}

/* One wide row; adds to the column sums of this thread. */
template <int DTYPE, bool ALIGNED, int N_SUMS>
DEVICE void wide_grad_row(const struct cuda_norm_grad &t, int64_t row, float *sums)
{
    const int first = (int)threadIdx.x * PACK, step = (int)blockDim.x * PACK;
    int64_t begin = row * t.width;
    float mean = N_SUMS == 1 ? 0.0f : t.mean[row], rstd = t.rstd[row], sum_g = 0.0f, sum_gh = 0.0f;
    float dy[PACK], x[PACK], gamma[PACK], r[PACK];
    for (int column = first; column < t.width; column += step) {
        row_load<DTYPE, ALIGNED>(t.dy, begin, column, t.width, dy);
        row_load<DTYPE, ALIGNED>(t.x, begin, column, t.width, x);
        row_load<DTYPE, ALIGNED>(t.gamma, 0, column, t.width, gamma);
        for (int i = 0; i < PACK && column + i < t.width; i++) {
            float h = (x[i] - mean) * rstd;
            sums[column + i] += dy[i] * h;
            if (N_SUMS > 1)
                sums[column + i + t.width] += dy[i];
            sum_g += dy[i] * gamma[i];
            sum_gh += dy[i] * gamma[i] * h;
        }
    }
    if (t.dx == NULL)
        return;
    if (N_SUMS == 1)
        sum_g = 0.0f, sum_gh = block_sum(sum_gh);
    else
        team_sums(&sum_g, &sum_gh, (int)blockDim.x);
    float mean_g = sum_g / (float)t.width, mean_gh = sum_gh / (float)t.width;
    for (int column = first; column < t.width; column += step) {
        row_load<DTYPE, ALIGNED>(t.dy, begin, column, t.width, dy);
        row_load<DTYPE, ALIGNED>(t.x, begin, column, t.width, x);
        row_load<DTYPE, ALIGNED>(t.gamma, 0, column, t.width, gamma);
        if (t.r != NULL)
            row_load<DTYPE, ALIGNED>(t.r, begin, column, t.width, r);
        for (int i = 0; i < PACK && column + i < t.width; i++) {
            float h = (x[i] - mean) * rstd;
            x[i] = rstd * (dy[i] * gamma[i] - mean_g - h * mean_gh) + (t.r != NULL ? r[i] : 0.0f);
            if (N_SUMS == 3)
                sums[column + i + 2 * t.width] += x[i];
        }
        row_store<DTYPE, ALIGNED>(t.dx, begin, column, t.width, x);
    }
}

/* A thread touches only its own columns, in shared memory too. */
template <int DTYPE, bool ALIGNED, int N_SUMS>
KERNEL norm_grad_wide_rows(struct cuda_norm_grad t, bool in_shared)
{
    DYNAMIC_SHARED(float, shared_sums);
    float *part = t.parts + (int64_t)blockIdx.x * N_SUMS * t.width;
    float *sums = in_shared ? shared_sums : part;
    const int first = (int)threadIdx.x * PACK, step = (int)blockDim.x * PACK;
    for (int column = first; column < t.width; column += step)
        for (int i = 0; i < PACK && column + i < t.width; i++)
            for (int k = 0; k < N_SUMS; k++)
                sums[column + i + k * t.width] = 0.0f;
    for (int64_t row = blockIdx.x; row < t.n_rows; row += gridDim.x)
        wide_grad_row<DTYPE, ALIGNED, N_SUMS>(t, row, sums);
    for (int column = first; in_shared && column < t.width; column += step)
        for (int i = 0; i < PACK && column + i < t.width; i++)
            for (int k = 0; k < N_SUMS; k++)
                part[column + i + k * t.width] = sums[column + i + k * t.width];
}

template <int DTYPE, bool ALIGNED, int N_SUMS>
static int launch_wide_grad(const struct cuda_norm_grad *t, void *stream)
{
    auto kernel = norm_grad_wide_rows<DTYPE, ALIGNED, N_SUMS>;
    size_t bytes = (size_t)N_SUMS * sizeof(float) * (size_t)t->width;
    bool in_shared = bytes <= WIDE_SHARED_BYTES;
    return launch(kernel, (unsigned)cuda_norm_blocks(t->n_rows, t->width, N_SUMS),
                  cuda_norm_grad_team(t->width, N_SUMS), in_shared ? bytes : 0, stream, *t,
                  in_shared);
}

template <int DTYPE, int N_PACKS, bool ALIGNED, int N_SUMS>
static int launch_norm_grad(const struct cuda_norm_grad *t, int team, void *stream)
{
    auto kernel = norm_grad_rows<DTYPE, N_PACKS, ALIGNED, N_SUMS>;
    int n_teams = team == WARP ? TEAMS : 1;
    size_t shared_bytes = n_teams == 1 ? 0 : N_SUMS * sizeof(float) * (size_t)t->width;
    return launch(kernel, (unsigned)cuda_norm_blocks(t->n_rows, t->width, N_SUMS), team * n_teams,
                  shared_bytes, stream, *t, team);
}

template <int DTYPE, int N_SUMS>
static int norm_grad_of_type(const struct cuda_norm_grad *t, void *stream)
{
    int team = cuda_norm_grad_team(t->width, N_SUMS), n_packs = (t->width + PACK - 1) / PACK;
    bool aligned = t->width % PACK == 0 && pack_aligned(t->dy) && pack_aligned(t->x) &&
                   pack_aligned(t->gamma) && pack_aligned(t->r) && pack_aligned(t->dx);
    if (t->width > CUDA_NORM_WIDTH)
        return aligned ? launch_wide_grad<DTYPE, true, N_SUMS>(t, stream)
                       : launch_wide_grad<DTYPE, false, N_SUMS>(t, stream);
    if (!aligned)
        return launch_norm_grad<DTYPE, 2, false, N_SUMS>(t, team, stream);
    return n_packs <= team ? launch_norm_grad<DTYPE, 1, true, N_SUMS>(t, team, stream)
                           : launch_norm_grad<DTYPE, 2, true, N_SUMS>(t, team, stream);
}

template <int N_SUMS> static int norm_grad_parts(const struct cuda_norm_grad *t, void *stream)
{
    switch (t->dtype) {
    case DTYPE_f32:
        return norm_grad_of_type<DTYPE_f32, N_SUMS>(t, stream);
    case DTYPE_bf16:
        return norm_grad_of_type<DTYPE_bf16, N_SUMS>(t, stream);
    default:
        return norm_grad_of_type<DTYPE_f16, N_SUMS>(t, stream);
    }
}

int cuda_norm_grad(const struct cuda_norm_grad *grad, void *stream)
{
    int n_sums = grad->mean == NULL ? 1 : grad->dsum.data == NULL ? 2 : 3;
    struct cuda_array parts = {DTYPE_f32, grad->parts};
    struct cuda_sum_groups groups = {n_sums, {grad->dgamma, grad->dbeta, grad->dsum}};
    bool has_sums = n_sums == 3 || grad->dgamma.data != NULL || grad->dbeta.data != NULL;
    int error = cuda_norm_is_head(grad->width, n_sums) ? cuda_norm_heads_grad(grad, stream)
                : n_sums == 1                          ? norm_grad_parts<1>(grad, stream)
                : n_sums == 2                          ? norm_grad_parts<2>(grad, stream)
                                                       : norm_grad_parts<3>(grad, stream);
    if (error != 0 || !has_sums)
        return error;
    return cuda_sum_groups(parts, cuda_norm_blocks(grad->n_rows, grad->width, n_sums), grad->width,
                           &groups, grad->add, stream);
}
