/*
 * workspace.h -- splits a kernel's workspace into pieces.  Pieces begin at multiples of 256 bytes,
 * as NVIDIA's libraries require; the workspace itself may be aligned to less.
 */
#ifndef SNUG_CUDA_DISPATCH_WORKSPACE_H
#define SNUG_CUDA_DISPATCH_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>

enum { CUDA_WORK_ALIGNMENT = 256 };

/* Reserves a piece and returns its offset. */
static inline size_t cuda_work_take(size_t *total, size_t bytes)
{
    size_t at = *total, mask = CUDA_WORK_ALIGNMENT - 1;
    *total += (bytes + mask) & ~mask;
    return at;
}

/* The bytes to plan for all pieces, with a margin for alignment. */
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
