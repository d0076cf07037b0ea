/*
 * loss.h -- launchers of loss.cu.
 */
#ifndef SNUG_CUDA_KERNELS_LOSS_H
#define SNUG_CUDA_KERNELS_LOSS_H

#include "cuda/kernels/launch.h"

/* Rows of logits, `pitch` elements apart.  They are read once, and written once if their gradient
 * is wanted. */
struct cuda_softmax {
    int64_t n_rows, n_classes, pitch;
    enum dtype dtype; /* of logits and dlogits */
    const void *logits;
    void *dlogits; /* (softmax - labels) * grad_factor * loss_scale; may be logits; NULL: not
                    * wanted */
    const int32_t *targets;
    float *lse;
    bool makes_lse; /* lse is computed; false: it is read */
    double *losses; /* per row, before weight and mean; NaN if the target is not a class; may be
                     * NULL */
    float smoothing;
    double grad_factor;    /* weight / number of rows over all chunks */
    const double *scalars; /* needed for dlogits */
};

CUDA_LAUNCHERS_BEGIN
CUDA_LAUNCHER int cuda_softmax(const struct cuda_softmax *softmax, void *stream);
/* dx = factor * loss_scale * (x - target); dx may be x */
CUDA_LAUNCHER int cuda_mse_grad(int64_t n, struct cuda_array x, const float *target, double factor,
                                const double *scalars, struct cuda_array dx, void *stream);
CUDA_LAUNCHERS_END

#endif
