/*
 * conv_cudnn.h -- convolutions with cuDNN (conv_cudnn.c), or under emulation with plain loops
 * (conv_emulated.c).
 *
 * Images are [N,H,W,C].  cuDNN wants the weights channels-last as well: [O,KH,KW,I/groups].
 */
#ifndef SNUG_CUDA_LIB_CONV_CUDNN_H
#define SNUG_CUDA_LIB_CONV_CUDNN_H

#include "base/status.h"
#include "cuda/kernels/conv_shape.h"
#include "cuda/kernels/launch.h"

struct cuda_conv_call {
    void *x, *w, *y; /* as in the forward convolution; a gradient replaces the one it computes */
    void *work;      /* 256-byte aligned */
    void *stream;
};

struct cuda_conv;

/* dispatch_conv_cudnn.c: the workspace that is planned for it. */
size_t cuda_conv_work_bytes(const struct cuda_conv_shape *shape, enum dtype type);
/* x and y have type `type`, w has `w_type`.  If cuDNN rejects the convolution, *conv is NULL and
 * the status is OK: use the fallback kernel. */
CUDA_LAUNCHER enum snug_status cuda_conv_prepare(const struct cuda_conv_shape *shape,
                                                 enum dtype type, enum dtype w_type,
                                                 size_t most_work_bytes, struct cuda_conv **conv,
                                                 struct snug_error *err);
CUDA_LAUNCHER void cuda_conv_release(struct cuda_conv *conv); /* NULL is fine */
CUDA_LAUNCHER enum snug_status cuda_conv_run(const struct cuda_conv *conv,
                                             const struct cuda_conv_call *call,
                                             struct snug_error *err);

#endif
