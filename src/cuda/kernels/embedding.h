/*
 * embedding.h -- launchers of embedding.cu.
 */
#ifndef SNUG_CUDA_KERNELS_EMBEDDING_H
#define SNUG_CUDA_KERNELS_EMBEDDING_H

#include "cuda/kernels/launch.h"

enum {
    CUDA_SORT_DIGITS = 256, /* radix sort of the ids, 8 bits per round */
    CUDA_SORT_CHUNK = 1024, /* ids per block when sorting */
    CUDA_RUN_CHUNK = 64     /* sorted positions per block when summing */
};

struct cuda_embedding_grad {
    int64_t n_ids, n_rows; /* n_rows: of the table */
    int width;
    const int32_t *ids;
    struct cuda_array dy;
    struct cuda_array dtable;
    bool add;
    void *work; /* cuda_embedding_layout(...).total bytes */
};

/* Byte offsets of the pieces of the workspace, and its size. */
struct cuda_embedding_layout {
    int64_t n_chunks, n_runs;
    size_t place[2], counts, parts, total;
};

static inline struct cuda_embedding_layout cuda_embedding_layout(int64_t n_ids, int64_t width)
{
    struct cuda_embedding_layout l;
    l.n_chunks = (n_ids + CUDA_SORT_CHUNK - 1) / CUDA_SORT_CHUNK;
    l.n_runs = (n_ids + CUDA_RUN_CHUNK - 1) / CUDA_RUN_CHUNK;
    size_t list_bytes = ((size_t)n_ids * sizeof(int32_t) + 63) / 64 * 64;
    l.place[0] = 0;
    l.place[1] = list_bytes;
    l.counts = 2 * list_bytes;
    l.parts = l.counts + (size_t)l.n_chunks * CUDA_SORT_DIGITS * sizeof(int32_t);
    l.total = l.parts + 2 * (size_t)l.n_runs * (size_t)width * sizeof(float);
    return l;
}

CUDA_LAUNCHERS_BEGIN
/* y[n] = table[ids[n]] (+ positions[n % n_time]); a row of NaN if the id is not in [0, n_rows) */
CUDA_LAUNCHER int cuda_embedding(int64_t n_ids, int64_t n_time, int64_t n_rows, int width,
                                 const int32_t *ids, struct cuda_array table,
                                 struct cuda_array positions, struct cuda_array y, void *stream);
/* dtable[v] (+)= sum of dy[n] where ids[n] = v; ids outside the table are ignored */
CUDA_LAUNCHER int cuda_embedding_grad(const struct cuda_embedding_grad *grad, void *stream);
CUDA_LAUNCHERS_END

#endif
