/*
 * library_version.h -- which libraries the backend runs on, in one line.
 */
#ifndef SNUG_CUDA_LIBRARY_VERSION_H
#define SNUG_CUDA_LIBRARY_VERSION_H

#include <stddef.h>

/* "CUDA 13.0, cuBLASLt 13.1.0, cuDNN 9.19.0", or that they are emulated.  Needs no device. */
void cuda_library_describe(char *out, size_t out_bytes);

#endif
