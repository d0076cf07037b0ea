/*
 * scalars.h -- launchers of scalars.cu.  All but take_row change the scalar table.
 */
#ifndef SNUG_CUDA_OPTIM_SCALARS_H
#define SNUG_CUDA_OPTIM_SCALARS_H

#include "cuda/kernels/launch.h"

CUDA_LAUNCHERS_BEGIN
/* From the sums of squares: sets grad_norm, clip, skip, update_count, and the next loss_scale if
 * dynamic. */
CUDA_LAUNCHER int cuda_grad_norm(const double *parts, int64_t n, double max_norm,
                                 bool dynamic_scale, double *scalars, void *stream);
CUDA_LAUNCHER int cuda_open_updates(double *scalars, void *stream);
/* skip = *part is finite ? 0 : 1 */
CUDA_LAUNCHER int cuda_check_gradient(const double *part, double *scalars, void *stream);
/* sets grad_norm and skip */
CUDA_LAUNCHER int cuda_close_updates(const double *parts, int64_t n, double *scalars, void *stream);
CUDA_LAUNCHER int cuda_next_loss_scale(double *scalars, void *stream);
/* y[b] = x[b, scalars[row]]; NaN if there is no such row */
CUDA_LAUNCHER int cuda_take_row(int64_t n_batch, int64_t n_time, int64_t width, struct cuda_array x,
                                const double *scalars, struct cuda_array y, void *stream);
CUDA_LAUNCHERS_END

#endif
