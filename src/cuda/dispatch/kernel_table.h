/*
 * kernel_table.h -- the part of the CUDA backend that plans, shared by kernel_table.c and cuda_backend.c.
 */
#ifndef SNUG_CUDA_DISPATCH_KERNEL_TABLE_H
#define SNUG_CUDA_DISPATCH_KERNEL_TABLE_H

#include "exec/backend.h"

enum { CUDA_ALIGNMENT = 256 }; /* as cudaMalloc; also what NVIDIA's libraries ask for */
#define CUDA_POOL_PLACE "the host's memory"

int cuda_choose(const struct program *prog, const struct op *op, const struct device_facts *facts);
const struct kernel *cuda_kernel(int number);

#endif
