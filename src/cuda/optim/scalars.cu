/*
 * scalars.cu -- the ops around the updates that only read and write the scalar table, and take_row,
 * which reads its row index there.
 *
 * The host never waits for any of these values.  Whether a step is skipped and how much gradients
 * are clipped is decided here and read by the update kernels.
 */
#include "cuda/kernels/device.h"
#include "cuda/optim/scalars.h"
#include "optim/grad_norm.h"

enum { BLOCK = 256 };

/* Computed by one block. */
DEVICE double sum_parts(const double *parts, int64_t n)
{
    double total = 0.0;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
        total += parts[i];
    return block_sum(total);
}

KERNEL grad_norm(const double *parts, int64_t n, double max_norm, bool dynamic_scale,
                 double *scalars)
{
    double squares = sum_parts(parts, n);
    if (threadIdx.x == 0)
        norm_clip(squares, max_norm, dynamic_scale, scalars);
}

KERNEL open_updates(double *scalars)
{
    norm_open_updates(scalars);
}

KERNEL check_gradient(const double *part, double *scalars)
{
    scalars[SCALAR_skip] = isfinite(*part) ? 0.0 : 1.0;
}

KERNEL close_updates(const double *parts, int64_t n, double *scalars)
{
    double squares = sum_parts(parts, n);
    if (threadIdx.x == 0)
        (void)norm_set(squares, scalars);
}

KERNEL next_loss_scale(double *scalars)
{
    norm_next_loss_scale(scalars, scalars[SCALAR_skip] != 0.0);
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
