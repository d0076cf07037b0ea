/*
 * conv_shape.h -- the sizes of a convolution, for cuDNN and for our own kernels.
 */
#ifndef SNUG_CUDA_KERNELS_CONV_SHAPE_H
#define SNUG_CUDA_KERNELS_CONV_SHAPE_H

#include <stdint.h>

enum cuda_conv_kind { CONV_forward, CONV_grad_x, CONV_grad_w };

struct cuda_conv_shape { /* sizes of the forward convolution, for all three kinds */
    enum cuda_conv_kind kind;
    int64_t n, x_h, x_w, x_c, y_h, y_w, y_c;
    int64_t kernel_h, kernel_w, stride, pad, groups;
};

#endif
