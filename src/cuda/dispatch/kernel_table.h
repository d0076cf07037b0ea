/*
 * kernel_table.h -- kernel selection of the CUDA backend, which also works without CUDA.
 */
#ifndef SNUG_CUDA_DISPATCH_KERNEL_TABLE_H
#define SNUG_CUDA_DISPATCH_KERNEL_TABLE_H

#include "exec/backend.h"

enum { CUDA_ALIGNMENT = 256 }; /* as cudaMalloc aligns; also required by NVIDIA's libraries */
#define CUDA_POOL_PLACE "the host's memory"

int cuda_choose(const struct program *prog, const struct op *op, const struct device_facts *facts);
const struct kernel *cuda_kernel(int number);

#endif
