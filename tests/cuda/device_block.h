/*
 * device_block.h -- a device and a block of its memory, for tests of single kernels.
 */
#ifndef TESTS_CUDA_DEVICE_BLOCK_H
#define TESTS_CUDA_DEVICE_BLOCK_H

#include <stdio.h>

#include "exec/exec.h"

struct device_block {
    const struct backend *backend;
    struct device *device;
    char *bytes;
    size_t n_bytes;
};

/* False, with a message, if there is no device or no memory. */
static bool device_block_open(struct device_block *block, const struct backend *backend,
                              size_t n_bytes)
{
    struct snug_error err = {0};
    *block = (struct device_block){.backend = backend, .n_bytes = n_bytes};
    if (backend->hooks->open(0, &block->device, &err) != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), false;
    block->bytes = backend->alloc(n_bytes);
    if (block->bytes != NULL)
        return true;
    fprintf(stderr, "no memory for %zu bytes\n", n_bytes);
    backend->hooks->close(block->device);
    return false;
}

static void device_block_close(struct device_block *block)
{
    block->backend->release(block->bytes, block->n_bytes);
    block->backend->hooks->close(block->device);
}

#endif
