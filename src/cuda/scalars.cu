/*
 * scalars.cu -- the ops around the updates that only read and write the scalar table, and take_row,
 * which is told there what to take.
 *
 * The host never waits for any of these numbers: whether a step is skipped, by how much gradients are
 * clipped, is decided here and read by the kernels of the updates.
 */
#include "cuda/device.h"
#include "cuda/scalars.h"
#include "ir/program.h" /* enum scalar */

enum { BLOCK = 256, GOOD_STEPS_TO_GROW = 2000, LOSS_SCALE_MAX = 1 << 24 };

DEVICE void set_next_loss_scale(double *scalars, bool skip)
{
    double scale = scalars[SCALAR_loss_scale];
    double good_steps = skip ? 0.0 : scalars[SCALAR_good_steps] + 1.0;
    if (skip) {
        scale = fmax(1.0, scale / 2.0);
    } else if (good_steps >= GOOD_STEPS_TO_GROW) {
        scale = fmin((double)LOSS_SCALE_MAX, scale * 2.0);
        good_steps = 0.0;
    }
    scalars[SCALAR_loss_scale] = scale;
    scalars[SCALAR_good_steps] = good_steps;
}

/* Of all threads, the first knows the norm and has set it, and whether there is one. */
DEVICE double set_norm(const double *parts, int64_t n, double *scalars)
{
    double total = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        total += parts[i];
    total = block_sum(total);
    double norm = sqrt(total) / scalars[SCALAR_loss_scale];
    if (threadIdx.x == 0) {
        scalars[SCALAR_grad_norm] = norm;
        scalars[SCALAR_skip] = isfinite(norm) ? 0.0 : 1.0;
    }
    return norm;
}

KERNEL grad_norm(const double *parts, int64_t n, double max_norm, bool dynamic_scale,
                 double *scalars)
{
    double norm = set_norm(parts, n, scalars);
    if (threadIdx.x != 0)
        return;
    bool skip = !isfinite(norm);
    double clip = max_norm > 0.0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
    scalars[SCALAR_clip] = skip ? 0.0 : clip / scalars[SCALAR_loss_scale];
    if (!skip)
        scalars[SCALAR_update_count] += 1.0;
    if (dynamic_scale)
        set_next_loss_scale(scalars, skip);
}

KERNEL open_updates(double *scalars)
{
    scalars[SCALAR_clip] = 1.0 / scalars[SCALAR_loss_scale];
    scalars[SCALAR_skip] = 0.0;
    scalars[SCALAR_update_count] += 1.0;
}

KERNEL check_gradient(const double *part, double *scalars)
{
    scalars[SCALAR_skip] = isfinite(*part) ? 0.0 : 1.0;
}

KERNEL close_updates(const double *parts, int64_t n, double *scalars)
{
    set_norm(parts, n, scalars);
}

KERNEL next_loss_scale(double *scalars)
{
    set_next_loss_scale(scalars, scalars[SCALAR_skip] != 0.0);
}

KERNEL take_row(int64_t n_batch, int64_t n_time, int64_t width, struct cuda_array x,
                const double *scalars, struct cuda_array y)
{
    int64_t i = thread_index();
    if (i >= n_batch * width)
        return;
    double row = scalars[SCALAR_row];
    bool there = row >= 0.0 && row < (double)n_time;
    int64_t from = (i / width * n_time + (there ? (int64_t)row : 0)) * width + i % width;
    store(y.dtype, y.data, i, there ? load(x.dtype, x.data, from) : NAN);
}

int cuda_grad_norm(const double *parts, int64_t n, double max_norm, bool dynamic_scale,
                   double *scalars, void *stream)
{
    return launch(grad_norm, 1, BLOCK, 0, stream, parts, n, max_norm, dynamic_scale, scalars);
}

int cuda_open_updates(double *scalars, void *stream)
{
    return launch(open_updates, 1, 1, 0, stream, scalars);
}

int cuda_check_gradient(const double *part, double *scalars, void *stream)
{
    return launch(check_gradient, 1, 1, 0, stream, part, scalars);
}

int cuda_close_updates(const double *parts, int64_t n, double *scalars, void *stream)
{
    return launch(close_updates, 1, BLOCK, 0, stream, parts, n, scalars);
}

int cuda_next_loss_scale(double *scalars, void *stream)
{
    return launch(next_loss_scale, 1, 1, 0, stream, scalars);
}

int cuda_take_row(int64_t n_batch, int64_t n_time, int64_t width, struct cuda_array x,
                  const double *scalars, struct cuda_array y, void *stream)
{
    return launch(take_row, grid_of(n_batch * width, BLOCK), BLOCK, 0, stream, n_batch, n_time,
                  width, x, scalars, y);
}
