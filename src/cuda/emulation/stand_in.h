/*
 * stand_in.h -- how a stand-in for a library puts its work on an emulated stream: done at once, or
 * kept for the graph while the stream is captured.
 */
#ifndef SNUG_CUDA_EMULATION_STAND_IN_H
#define SNUG_CUDA_EMULATION_STAND_IN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* run(a copy of arguments) */
void stand_in_submit(void *stream, void (*run)(const void *arguments), const void *arguments,
                     size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
