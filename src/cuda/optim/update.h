/*
 * update.h -- the launcher of update.cu: one step of an elementwise optimizer, for several tensors at once.
 */
#ifndef SNUG_CUDA_OPTIM_UPDATE_H
#define SNUG_CUDA_OPTIM_UPDATE_H

#include "base/quant_map.h"
#include "cuda/kernels/launch.h"
#include "ir/program.h"

enum { UPDATE_TENSORS_MOST = 16 }; /* of one launch: the kernel gets all of them by value */

struct update_numbers { /* that are read and written */
    void *data;
    uint64_t stream; /* of the random numbers that round them, if they have 16 bits */
    int64_t from;    /* and the number of the first of them in it */
};

struct update_tensor {
    int64_t n;
    const void *g;
    struct update_numbers stepped; /* the weight, or its master copy */
    void *copy;                    /* the weight that has a master: its rounding; else NULL */
    struct update_numbers state[MAX_STATES];
    float *scales[MAX_STATES]; /* of quantized states; NULL: numbers */
    double lr_factor, decay;
    uint8_t g_type, stepped_type, copy_type, state_type[MAX_STATES]; /* enum dtype */
    uint8_t positive; /* bit k: state k, which is quantized, is never negative */
    bool stochastic;  /* what is kept in 16 bits, but for `copy`, is rounded stochastically */
    bool aligned;     /* all of them to 16 bytes */
    int first_block;  /* the launcher's own */
};

struct update_job { /* what the tensors of a launch have in common: attributes of the op update */
    enum rule rule;
    enum direction direction;
    int state_bits; /* of quantized states */
    double options[MAX_OPTIONS];
    const double *scalars;
};

CUDA_LAUNCHERS_BEGIN
/* maps: those of numbers of either sign, and of positive ones; NULL: no quantized states. */
CUDA_LAUNCHER int cuda_update(const struct update_job *job, int n_tensors,
                              const struct update_tensor *tensors, const struct quant_map *maps,
                              void *stream);
CUDA_LAUNCHERS_END

#endif
