/*
 * stand_in.h -- how an emulated library enqueues work on an emulated stream: it runs at once, or is
 * added to the graph while the stream is captured.
 */
#ifndef SNUG_CUDA_EMULATION_STAND_IN_H
#define SNUG_CUDA_EMULATION_STAND_IN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues run(a copy of arguments). */
void stand_in_submit(void *stream, void (*run)(const void *arguments), const void *arguments,
                     size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
