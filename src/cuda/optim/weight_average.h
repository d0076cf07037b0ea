/*
 * weight_average.h -- launchers of weight_average.cu: averages of the weights.
 */
#ifndef SNUG_CUDA_OPTIM_WEIGHT_AVERAGE_H
#define SNUG_CUDA_OPTIM_WEIGHT_AVERAGE_H

#include "cuda/kernels/launch.h"
#include "ir/program.h"

struct average_job {
    enum average average;
    double options[MAX_OPTIONS];
    double *scalars; /* on the device */
    int64_t n, n_copies;
};

CUDA_LAUNCHERS_BEGIN
/* Updates the scalars that say what this step contributes to the average. */
CUDA_LAUNCHER int cuda_average_clock(const struct average_job *job, void *stream);
/* kept: n_copies times n elements */
CUDA_LAUNCHER int cuda_average_keep(const struct average_job *job, struct cuda_array w,
                                    struct cuda_array kept, void *stream);
CUDA_LAUNCHER int cuda_average(const struct average_job *job, struct cuda_array w,
                               struct cuda_array kept, struct cuda_array y, void *stream);
CUDA_LAUNCHERS_END

#endif
