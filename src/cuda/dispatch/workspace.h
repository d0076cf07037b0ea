/*
 * workspace.h -- how kernels of the CUDA backend cut their workspace: pieces begin at multiples of 256 bytes,
 * which NVIDIA's libraries ask for and a workspace need not give.
 */
#ifndef SNUG_CUDA_DISPATCH_WORKSPACE_H
#define SNUG_CUDA_DISPATCH_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>

enum { CUDA_WORK_ALIGNMENT = 256 };

/* A piece of so many bytes; its offset. */
static inline size_t cuda_work_take(size_t *total, size_t bytes)
{
    size_t at = *total, mask = CUDA_WORK_ALIGNMENT - 1;
    *total += (bytes + mask) & ~mask;
    return at;
}

/* What to book for all pieces. */
static inline size_t cuda_work_bytes(size_t total)
{
    return total > 0 ? total + CUDA_WORK_ALIGNMENT : 0;
}

static inline void *cuda_work_at(void *work, size_t offset)
{
    size_t mask = CUDA_WORK_ALIGNMENT - 1, short_of = (~(uintptr_t)work + 1) & mask;
    return (char *)work + short_of + offset;
}

#endif
