/*
 * update.h -- launcher of update.cu: one step of an elementwise optimizer, for several tensors at
 * once.
 */
#ifndef SNUG_CUDA_OPTIM_UPDATE_H
#define SNUG_CUDA_OPTIM_UPDATE_H

#include "base/quant_map.h"
#include "cuda/kernels/launch.h"
#include "ir/program.h"

enum { UPDATE_TENSORS_MOST = 16 }; /* per launch: the kernel gets all of them by value */

struct update_array { /* an array that is read and written */
    void *data;
    uint64_t stream; /* random stream for stochastic rounding of 16-bit elements */
    int64_t from;    /* index of the first element in that stream */
};

struct update_tensor {
    int64_t n;
    const void *g;
    struct update_array stepped; /* the weight, or its master copy */
    void *copy;                  /* if there is a master: the weight, which gets the rounded
                                    * master; else NULL */
    struct update_array state[MAX_STATES];
    float *scales[MAX_STATES]; /* of quantized states; NULL if not quantized */
    double lr_factor, decay;
    uint8_t g_type, stepped_type, copy_type, state_type[MAX_STATES]; /* enum dtype */
    uint8_t positive; /* bit k: the quantized state k is never negative */
    bool stochastic;  /* 16-bit arrays other than `copy` use stochastic rounding */
    bool aligned;     /* all arrays are 16-byte aligned */
    int first_block;  /* set by the launcher */
};

struct update_job { /* what all tensors of a launch share: attributes of the op update */
    enum rule rule;
    enum direction direction;
    int state_bits; /* of quantized states */
    double options[MAX_OPTIONS];
    const double *scalars;
};

CUDA_LAUNCHERS_BEGIN
/* maps[0] is for values of either sign, maps[1] for non-negative ones; NULL if no state is
 * quantized. */
CUDA_LAUNCHER int cuda_update(const struct update_job *job, int n_tensors,
                              const struct update_tensor *tensors, const struct quant_map *maps,
                              void *stream);
CUDA_LAUNCHERS_END

#endif
