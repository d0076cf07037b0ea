/*
 * grad_norm.h -- gradient clipping, skipped steps and the loss scale, from the norm of the
 * gradients.
 *
 * The arithmetic is PyTorch's: clip_grad_norm_ and GradScaler.  Shared by the kernels of all
 * devices.
 */
#ifndef SNUG_OPTIM_GRAD_NORM_H
#define SNUG_OPTIM_GRAD_NORM_H

#include <math.h>

#include "base/device_fn.h"
#include "ir/program.h"

enum { GOOD_STEPS_TO_GROW = 2000, LOSS_SCALE_MAX = 1 << 24 };

/* Non-finite gradients halve the scale; GOOD_STEPS_TO_GROW good steps in a row double it. */
DEVICE_FN void norm_next_loss_scale(double *scalars, bool skip)
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

/* Sets and returns the norm, from the sum of squares, and sets skip if it is not finite. */
DEVICE_FN double norm_set(double squares, double *scalars)
{
    double norm = sqrt(squares) / scalars[SCALAR_loss_scale];
    scalars[SCALAR_grad_norm] = norm;
    scalars[SCALAR_skip] = isfinite(norm) ? 0.0 : 1.0;
    return norm;
}

/* The op grad_norm, given the sum of squares.  max_norm 0: no clipping. */
DEVICE_FN void norm_clip(double squares, double max_norm, bool dynamic_scale, double *scalars)
{
    double norm = norm_set(squares, scalars);
    bool skip = !isfinite(norm);
    double clip = max_norm > 0.0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
    scalars[SCALAR_clip] = skip ? 0.0 : clip / scalars[SCALAR_loss_scale];
    if (!skip)
        scalars[SCALAR_update_count] += 1.0;
    if (dynamic_scale)
        norm_next_loss_scale(scalars, skip);
}

/* The op open_updates. */
DEVICE_FN void norm_open_updates(double *scalars)
{
    scalars[SCALAR_clip] = 1.0 / scalars[SCALAR_loss_scale];
    scalars[SCALAR_skip] = 0.0;
    scalars[SCALAR_update_count] += 1.0;
}

#endif
