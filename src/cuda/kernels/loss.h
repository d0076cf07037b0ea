/*
 * loss.h -- launchers of loss.cu.
 */
#ifndef SNUG_CUDA_KERNELS_LOSS_H
#define SNUG_CUDA_KERNELS_LOSS_H

#include "cuda/kernels/launch.h"

/* Rows of logits, each `pitch` elements after the one before.  One read of them, and one write if
 * their gradient is wanted. */
struct cuda_softmax {
    int64_t n_rows, n_classes, pitch;
    enum dtype dtype; /* of logits and dlogits */
    const void *logits;
    void *dlogits; /* (softmax - labels) * grad_factor * loss_scale; may be logits; NULL: none */
    const int32_t *targets;
    float *lse;
    bool makes_lse; /* else it is read */
    double *losses; /* of each row, before weight and mean; NaN if its target is no class; NULL */
    float smoothing;
    double grad_factor;    /* weight / number of rows of all chunks */
    const double *scalars; /* for dlogits */
};

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_softmax(const struct cuda_softmax *softmax, void *stream);
/* dx = factor * loss_scale * (x - target); dx may be x */
CUDA_LAUNCHER int cuda_mse_grad(int64_t n, struct cuda_array x, const float *target, double factor,
                                const double *scalars, struct cuda_array dx, void *stream);
CUDA_LAUNCHERS_END

#endif
