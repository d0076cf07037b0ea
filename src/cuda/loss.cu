/*
 * loss.cu -- from logits to loss, lse and, in their place, the gradient; and that of the squared error.
 *
 * A row is read once to find its largest logit and the sum of exponentials together: a thread keeps both
 * for what it has seen, and scales its sum when the largest moves.  The second reading, for the
 * gradient, finds the row in the caches: 50257 classes in bf16 are 100 KB, and a processor has two rows
 * in work.  A team of threads takes a row: a warp where classes are few, else a block.
 */
#include "cuda/device.h"
#include "cuda/loss.h"
#include "ir/program.h" /* enum scalar */

enum { BLOCK = 256, TEAMS = 4, FEW_CLASSES = 1024 };

DEVICE float team_sum(float value, int team)
{
    return team == WARP ? warp_sum(value) : block_sum(value);
}

DEVICE float team_max(float value, int team)
{
    return team == WARP ? warp_max(value) : block_max(value);
}

template <int DTYPE, bool ALIGNED>
DEVICE void load_classes(const struct cuda_softmax &t, int64_t begin, int64_t k, float x[PACK])
{
    enum dtype dtype = (enum dtype)DTYPE;
    int64_t n = t.n_classes - k;
    if (ALIGNED && n >= PACK) {
        pack_load(dtype, t.logits, begin + k, x);
        return;
    }
    pack_load_part(dtype, t.logits, begin + k, n < PACK ? (int)n : PACK, x);
    for (int i = 0; i < PACK; i++)
        x[i] = i < n ? x[i] : -INFINITY; /* counts for nothing */
}

struct row_sums {
    float most, exps, all; /* exps: of exp(x - most); all: of x itself */
};

template <int DTYPE, bool ALIGNED>
DEVICE struct row_sums sum_row(const struct cuda_softmax &t, int64_t begin, int lane, int team)
{
    struct row_sums sums = {-INFINITY, 0.0f, 0.0f};
    UNROLL(4)
    for (int64_t k = (int64_t)lane * PACK; k < t.n_classes; k += (int64_t)team * PACK) {
        float x[PACK], most = sums.most;
        load_classes<DTYPE, ALIGNED>(t, begin, k, x);
        for (int i = 0; i < PACK; i++)
            most = x[i] > most ? x[i] : most;
        if (most > sums.most) {
            sums.exps *= __expf(sums.most - most);
            sums.most = most;
        }
        float base = most == -INFINITY ? 0.0f : most; /* no difference of infinities */
        for (int i = 0; i < PACK; i++)
            sums.exps += __expf(x[i] - base);
        for (int i = 0; t.smoothing > 0.0f && i < PACK; i++)
            sums.all += k + i < t.n_classes ? x[i] : 0.0f;
    }
    return sums;
}

/* log(sum(exp(logits))), and the row's loss. */
template <int DTYPE, bool ALIGNED>
DEVICE float make_lse(const struct cuda_softmax &t, int64_t row, int lane, int team)
{
    int64_t begin = row * t.pitch, target = t.targets[row];
    bool there = target >= 0 && target < t.n_classes;
    float right = there ? load((enum dtype)DTYPE, t.logits, begin + target) : NAN;
    struct row_sums sums = sum_row<DTYPE, ALIGNED>(t, begin, lane, team);
    float most = team_max(sums.most, team), mean = 0.0f;
    float exps = sums.most == -INFINITY ? 0.0f : sums.exps * __expf(sums.most - most);
    if (t.smoothing > 0.0f)
        mean = team_sum(sums.all, team) / (float)t.n_classes;
    float lse = most + logf(team_sum(exps, team));
    if (lane == 0) {
        t.lse[row] = lse;
        if (t.losses != NULL)
            t.losses[row] = (double)lse - (1.0 - (double)t.smoothing) * (double)right -
                            (double)t.smoothing * (double)mean;
    }
    return lse;
}

template <int DTYPE, bool ALIGNED>
DEVICE void write_gradient(const struct cuda_softmax &t, int64_t row, float lse, int lane, int team)
{
    enum dtype dtype = (enum dtype)DTYPE;
    float factor = (float)(t.grad_factor * t.scalars[SCALAR_loss_scale]);
    float each = t.smoothing / (float)t.n_classes;
    int64_t begin = row * t.pitch, target = t.targets[row];
    UNROLL(4)
    for (int64_t k = (int64_t)lane * PACK; k < t.n_classes; k += (int64_t)team * PACK) {
        float x[PACK];
        int64_t n = t.n_classes - k;
        load_classes<DTYPE, ALIGNED>(t, begin, k, x);
        for (int i = 0; i < PACK; i++)
            x[i] = factor * (__expf(x[i] - lse) - each);
        if (target >= k && target < k + PACK)
            for (int i = 0; i < PACK; i++)
                x[i] -= k + i == target ? factor * (1.0f - t.smoothing) : 0.0f;
        if (ALIGNED && n >= PACK)
            pack_store(dtype, t.dlogits, begin + k, x);
        else
            pack_store_part(dtype, t.dlogits, begin + k, n < PACK ? (int)n : PACK, x);
    }
}

template <int DTYPE, bool ALIGNED> KERNEL softmax_rows(struct cuda_softmax t, int team)
{
    int64_t row = (int64_t)blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
    int lane = (int)threadIdx.x % team;
    if (row >= t.n_rows)
        return; /* a whole team */
    float lse = t.makes_lse ? make_lse<DTYPE, ALIGNED>(t, row, lane, team) : t.lse[row];
    if (t.dlogits != NULL)
        write_gradient<DTYPE, ALIGNED>(t, row, lse, lane, team);
}

template <int DTYPE> static int softmax_of_type(const struct cuda_softmax *t, void *stream)
{
    bool aligned = t->pitch % PACK == 0 && pack_aligned(t->logits) && pack_aligned(t->dlogits);
    auto kernel = aligned ? softmax_rows<DTYPE, true> : softmax_rows<DTYPE, false>;
    if (t->n_classes <= FEW_CLASSES)
        return launch(kernel, grid_of(t->n_rows, TEAMS), TEAMS * WARP, 0, stream, *t, WARP);
    int team = t->n_classes <= 8 * FEW_CLASSES ? (int)BLOCK : (int)BLOCK_MOST;
    return launch(kernel, (unsigned)t->n_rows, team, 0, stream, *t, team);
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
