/*
 * product.h -- fp32 matrix products, prepared before the step:  C[m,n] (+)= op(A)[m,k] op(B)[k,n]
 *
 * Row-major, with leading dimensions.  Made by oneDNN where the build has it, else by a BLAS, else
 * by our own loops.  Workspace is booked from the shape and the thread count alone; no
 * implementation may use more.  The same product on the same thread count gives the same bits; with
 * our own loops and with oneDNN (which sums k in order; tests/ops/test_threads.c watches it) on any
 * thread count and however the rows of C are cut, with a BLAS as it pleases.
 */
#ifndef SNUG_CPU_PRODUCT_H
#define SNUG_CPU_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct product_shape {
    int64_t m, n, k;                 /* all at least 1 */
    bool a_transposed, b_transposed; /* A is stored [k,m], B is stored [n,k] */
    int64_t lda, ldb, ldc;           /* elements between rows as stored */
    bool may_add;                    /* product_run may be asked to add */
};

struct product;

/* The name of the rows that are made with it. */
#if defined(SNUG_ONEDNN)
#define PRODUCT_NAME "onednn"
#elif defined(SNUG_BLAS)
#define PRODUCT_NAME "blas"
#else
#define PRODUCT_NAME "plain"
#endif

size_t product_work_bytes(const struct product_shape *shape, int threads);
enum snug_status product_prepare(const struct product_shape *shape, int threads,
                                 struct product **product, struct snug_error *err);
void product_release(struct product *product); /* NULL is fine */
/* add: +=, else =.  work: what product_work_bytes said, 64-byte aligned. */
enum snug_status product_run(const struct product *product, const float *a, const float *b,
                             float *c, bool add, void *work, struct snug_error *err);

/* A product that one thread makes in less time than it takes to wake another is left to one. */
static inline int product_threads(const struct product_shape *shape, int threads)
{
    const double least_flops_to_share = 4e6;
    double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
    return flops < least_flops_to_share ? 1 : threads;
}

struct text;
void product_describe(struct text *out); /* one line a library */

/* Our own loops (fast_product.c), which every build has: bits do not depend on the thread count. */
size_t product_plain_work_bytes(const struct product_shape *shape, int threads);

/* Its blocks: a k x NC panel of B is shared, a k x MC block of A belongs to a thread. */
enum {
    PRODUCT_KC = 256,
    PRODUCT_MC = 144, /* a multiple of every level's tile: 12, 6 and 4 rows ... */
    PRODUCT_NC = 512, /* ... and 32, 16 and 8 columns */
    PRODUCT_TILE_ROWS = 12,
    PRODUCT_TILE_COLS = 32
};
static inline int64_t product_block(int64_t n, int64_t most, int64_t tile)
{
    int64_t rounded = (n + tile - 1) / tile * tile;
    return rounded < most ? rounded : most;
}

#endif
