/*
 * loss.cu -- softmax cross entropy: loss, lse and the gradient, which may overwrite the logits; and
 * the gradient of the mean squared error.
 *
 * A row is read once to find its maximum and its sum of exponentials together: each thread keeps
 * both for the elements it has seen, and rescales its sum when its maximum changes.  A team of
 * threads takes a row: a warp if there are few classes, else a block.
 *
 * Long 16-bit rows (50257 classes are 100 KB) are staged in shared memory, double-buffered: the
 * next row is loaded while the current one is processed.  If two rows do not fit, the second read,
 * for the gradient, mostly hits the caches.
 */
#include "cuda/kernels/device.h"
#include "cuda/kernels/loss.h"
#include "ir/program.h" /* enum scalar */

enum {
    BLOCK = 256,
    TEAMS = 4,
    FEW_CLASSES = 1024,
    SOME_CLASSES = 8192,
    STATIC_SHARED = 4096 /* upper bound for the block reductions */
};

DEVICE float team_sum(float value, int team)
{
    return team == WARP ? warp_sum(value) : block_sum(value);
}

DEVICE float team_max(float value, int team)
{
    return team == WARP ? warp_max(value) : block_max(value);
}

/* Loads eight logits of a row, from class k on. */
template <int DTYPE, bool ALIGNED>
DEVICE void load_classes(const void *row, int64_t n_classes, int64_t k, float x[PACK])
{
    enum dtype dtype = (enum dtype)DTYPE;
    int64_t n = n_classes - k;
    if (ALIGNED && n >= PACK) {
        pack_load(dtype, row, k, x);
        return;
    }
    pack_load_part(dtype, row, k, n < PACK ? (int)n : PACK, x);
    for (int i = 0; i < PACK; i++)
        x[i] = i < n ? x[i] : -INFINITY; /* contributes 0 to the sum */
}

struct row_sums {
    float most, exps, all; /* exps: sum of exp(x - most); all: sum of x */
};

#define LOG2_E 1.4426950408889634f

template <int DTYPE, bool ALIGNED>
DEVICE struct row_sums sum_row(const void *row, int64_t n_classes, bool wants_all, int lane,
                               int team)
{
    struct row_sums sums = {-INFINITY, 0.0f, 0.0f};
    UNROLL(4)
    for (int64_t k = (int64_t)lane * PACK; k < n_classes; k += (int64_t)team * PACK) {
        float x[PACK], most = sums.most;
        load_classes<DTYPE, ALIGNED>(row, n_classes, k, x);
        for (int i = 0; i < PACK; i++)
            most = x[i] > most ? x[i] : most;
        if (most > sums.most) {
            sums.exps *= exp2_near(LOG2_E * (sums.most - most));
            sums.most = most;
        }
        float base = most == -INFINITY ? 0.0f : LOG2_E * most; /* avoids inf - inf */
        for (int i = 0; i < PACK; i++)
            sums.exps += exp2_near(LOG2_E * x[i] - base);
        for (int i = 0; wants_all && i < PACK; i++)
            sums.all += k + i < n_classes ? x[i] : 0.0f;
    }
    return sums;
}

/* Computes lse = log(sum(exp(logits))) and the loss of row `at`. */
template <int DTYPE, bool ALIGNED>
DEVICE float compute_lse(const struct cuda_softmax &t, int64_t at, const void *row, int lane,
                         int team)
{
    int64_t target = t.targets[at];
    bool there = target >= 0 && target < t.n_classes;
    float right = there ? load((enum dtype)DTYPE, t.logits, at * t.pitch + target) : NAN;
    struct row_sums sums =
        sum_row<DTYPE, ALIGNED>(row, t.n_classes, t.smoothing > 0.0f, lane, team);
    float most = team_max(sums.most, team), mean = 0.0f;
    float exps = sums.most == -INFINITY ? 0.0f : sums.exps * exp2_near(LOG2_E * (sums.most - most));
    if (t.smoothing > 0.0f)
        mean = team_sum(sums.all, team) / (float)t.n_classes;
    float lse = most + logf(team_sum(exps, team));
    if (lane == 0) {
        t.lse[at] = lse;
        if (t.losses != NULL)
            t.losses[at] = (double)lse - (1.0 - (double)t.smoothing) * (double)right -
                           (double)t.smoothing * (double)mean;
    }
    return lse;
}

template <int DTYPE, bool ALIGNED>
DEVICE void write_gradient(const struct cuda_softmax &t, int64_t at, const void *row, float lse,
                           int lane, int team)
{
    enum dtype dtype = (enum dtype)DTYPE;
    float factor = (float)(t.grad_factor * t.scalars[SCALAR_loss_scale]);
    float each = factor * (t.smoothing / (float)t.n_classes), base = LOG2_E * lse;
    int64_t begin = at * t.pitch, target = t.targets[at];
    UNROLL(4)
    for (int64_t k = (int64_t)lane * PACK; k < t.n_classes; k += (int64_t)team * PACK) {
        float x[PACK];
        int64_t n = t.n_classes - k;
        load_classes<DTYPE, ALIGNED>(row, t.n_classes, k, x);
        for (int i = 0; i < PACK; i++)
            x[i] = factor * exp2_near(LOG2_E * x[i] - base) - each;
        if (target >= k && target < k + PACK)
            for (int i = 0; i < PACK; i++)
                x[i] -= k + i == target ? factor * (1.0f - t.smoothing) : 0.0f;
        if (ALIGNED && n >= PACK)
            pack_store(dtype, t.dlogits, begin + k, x);
        else
            pack_store_part(dtype, t.dlogits, begin + k, n < PACK ? (int)n : PACK, x);
    }
}

/* row: the logits of row `at`, in place or copied to shared memory. */
template <int DTYPE, bool ALIGNED>
DEVICE void finish_row(const struct cuda_softmax &t, int64_t at, const void *row, int lane,
                       int team)
{
    float lse = t.makes_lse ? compute_lse<DTYPE, ALIGNED>(t, at, row, lane, team) : t.lse[at];
    if (t.dlogits != NULL)
        write_gradient<DTYPE, ALIGNED>(t, at, row, lse, lane, team);
}

template <int DTYPE> DEVICE const void *row_at(const struct cuda_softmax &t, int64_t at)
{
    const int64_t bytes = DTYPE == DTYPE_f32 ? 4 : 2;
    return (const char *)t.logits + at * t.pitch * bytes;
}

template <int DTYPE, bool ALIGNED> KERNEL softmax_rows(struct cuda_softmax t, int team)
{
    int64_t at = (int64_t)blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
    if (at >= t.n_rows)
        return; /* a whole team */
    finish_row<DTYPE, ALIGNED>(t, at, row_at<DTYPE>(t, at), (int)threadIdx.x % team, team);
}

/* ---- long 16-bit rows
 * -------------------------------------------------------------------------- */

/* Each thread loads the packs of a row that it will read itself. */
template <int DTYPE>
DEVICE void load_row_async(const struct cuda_softmax &t, int64_t at, pack_16 *row)
{
    const pack_16 *from = (const pack_16 *)row_at<DTYPE>(t, at);
    for (int64_t i = threadIdx.x; i < t.pitch / PACK; i += blockDim.x)
        copy_ahead(row + i, from + i);
}

template <int DTYPE> KERNEL softmax_staged(struct cuda_softmax t)
{
    DYNAMIC_SHARED(pack_16, rows);
    int64_t n_packs = t.pitch / PACK, slot = 0;
    load_row_async<DTYPE>(t, blockIdx.x, rows);
    copies_group();
    for (int64_t at = blockIdx.x; at < t.n_rows; at += gridDim.x, slot = 1 - slot) {
        if (at + gridDim.x < t.n_rows)
            load_row_async<DTYPE>(t, at + gridDim.x, rows + (1 - slot) * n_packs);
        copies_group();
        copies_wait_but_one();
        finish_row<DTYPE, true>(t, at, rows + slot * n_packs, (int)threadIdx.x, (int)blockDim.x);
    }
}

/* ---- launching ------------------------------------------------------------------------------ */

/* Blocks for the staged kernel, one per SM; 0 if two rows do not fit in shared memory. */
static unsigned staged_blocks(const struct cuda_softmax *t, size_t *shared_bytes)
{
    int device = 0, most = 0, n_processors = 0;
    *shared_bytes = 2 * (size_t)t->pitch / PACK * sizeof(pack_16);
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, device) !=
            cudaSuccess ||
        *shared_bytes + STATIC_SHARED > (size_t)most)
        return 0;
    return (unsigned)(n_processors < t->n_rows ? n_processors : t->n_rows);
}

template <int DTYPE> static int softmax_of_type(const struct cuda_softmax *t, void *stream)
{
    bool aligned = t->pitch % PACK == 0 && pack_aligned(t->logits) && pack_aligned(t->dlogits);
    auto kernel = aligned ? softmax_rows<DTYPE, true> : softmax_rows<DTYPE, false>;
    if (t->n_classes <= FEW_CLASSES)
        return launch(kernel, grid_of(t->n_rows, TEAMS), TEAMS * WARP, 0, stream, *t, WARP);
    if (t->n_classes <= SOME_CLASSES)
        return launch(kernel, (unsigned)t->n_rows, BLOCK, 0, stream, *t, BLOCK);
    if constexpr (DTYPE != DTYPE_f32) {
        size_t shared_bytes;
        unsigned n_blocks = aligned ? staged_blocks(t, &shared_bytes) : 0;
        auto staged = softmax_staged<DTYPE>;
        if (n_blocks > 0)
            return launch(staged, n_blocks, BLOCK_MOST, shared_bytes, stream, *t);
    }
    return launch(kernel, (unsigned)t->n_rows, BLOCK_MOST, 0, stream, *t, BLOCK_MOST);
}

int cuda_softmax(const struct cuda_softmax *softmax, void *stream)
{
    switch (softmax->dtype) {
    case DTYPE_f32:
        return softmax_of_type<DTYPE_f32>(softmax, stream);
    case DTYPE_bf16:
        return softmax_of_type<DTYPE_bf16>(softmax, stream);
    default:
        return softmax_of_type<DTYPE_f16>(softmax, stream);
    }
}

KERNEL mse_grad(int64_t n, struct cuda_array x, const float *target, double factor,
                const double *scalars, struct cuda_array dx)
{
    float scale = (float)(factor * scalars[SCALAR_loss_scale]);
    int64_t i = thread_index();
    if (i < n)
        store(dx.dtype, dx.data, i, scale * (load(x.dtype, x.data, i) - target[i]));
}

int cuda_mse_grad(int64_t n, struct cuda_array x, const float *target, double factor,
                  const double *scalars, struct cuda_array dx, void *stream)
{
    return launch(mse_grad, grid_of(n, BLOCK), BLOCK, 0, stream, n, x, target, factor, scalars, dx);
}
