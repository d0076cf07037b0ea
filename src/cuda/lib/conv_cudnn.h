/*
 * conv_cudnn.h -- convolutions by a library: cuDNN (conv_cudnn.c), or under emulation plain loops
 * (conv_emulated.c).
 *
 * Images are [N,H,W,C].  The library wants weights with the channels last as well: [O,KH,KW,I/groups].
 */
#ifndef SNUG_CUDA_LIB_CONV_CUDNN_H
#define SNUG_CUDA_LIB_CONV_CUDNN_H

#include "base/status.h"
#include "cuda/kernels/conv_shape.h"
#include "cuda/kernels/launch.h"

struct cuda_conv_call {
    void *x, *w, *y; /* of the forward convolution, or in their places its gradients */
    void *work;      /* 256-byte aligned */
    void *stream;
};

struct cuda_conv;

/* What is booked for it. */
size_t cuda_conv_work_bytes(const struct cuda_conv_shape *shape, enum dtype type);
/* Of x and y in `type`, of w in `w_type`.  *conv is NULL, which is not an error, if the library refuses:
 * then use an own kernel. */
CUDA_LAUNCHER enum snug_status cuda_conv_prepare(const struct cuda_conv_shape *shape,
                                                 enum dtype type, enum dtype w_type,
                                                 size_t most_work_bytes, struct cuda_conv **conv,
                                                 struct snug_error *err);
CUDA_LAUNCHER void cuda_conv_release(struct cuda_conv *conv); /* NULL is fine */
CUDA_LAUNCHER enum snug_status cuda_conv_run(const struct cuda_conv *conv,
                                             const struct cuda_conv_call *call,
                                             struct snug_error *err);

#endif
