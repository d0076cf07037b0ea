/*
 * library_plain.c -- what is said of the libraries where their stand-ins run.
 */
#include <stdio.h>

#include "cuda/library_version.h"

void cuda_library_describe(char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "CUDA, cuBLASLt and cuDNN emulated");
}
