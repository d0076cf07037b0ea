/*
 * gemm.h -- fp32 matmuls, prepared before the step:  C[m,n] (+)= op(A)[m,k] op(B)[k,n]
 *
 * Matrices are row-major, with leading dimensions.  oneDNN runs them if the build has it, except
 * for large ones where our own loops are faster; otherwise our own loops run them.  The workspace
 * size depends only on the shape and the thread count, and no implementation may use more.
 *
 * Results are deterministic.  They do not depend on the thread count, nor on how the rows of C are
 * split if chosen_by_m is the same: both our loops and oneDNN sum over k in order
 * (tests/ops/test_threads.c checks it).
 */
#ifndef SNUG_CPU_GEMM_GEMM_H
#define SNUG_CPU_GEMM_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct gemm_shape {
    int64_t m, n, k;                 /* all at least 1 */
    bool a_transposed, b_transposed; /* A is stored [k,m], B is stored [n,k] */
    int64_t lda, ldb, ldc;           /* elements between rows as stored */
    bool may_add;                    /* gemm_run may be called with add */
    int64_t chosen_by_m; /* the implementation is chosen as if m were this; 0 means m.  A caller
                          * whose chunks of rows vary in length passes the same value for all. */
};

struct gemm;
struct cpu_loops;

/* The name of gemm-based kernels, whichever implementation runs a single matmul. */
#if defined(SNUG_ONEDNN)
#define GEMM_NAME "onednn"
#else
#define GEMM_NAME "plain"
#endif

/* gemm_onednn.c, or gemm_builtin.c in a build without oneDNN. */
size_t gemm_work_bytes(const struct gemm_shape *shape, int threads);
/* `loops` are those of the compiled step's instruction level. */
enum snug_status gemm_prepare(const struct gemm_shape *shape, int threads,
                              const struct cpu_loops *loops, struct gemm **gemm,
                              struct snug_error *err);
void gemm_release(struct gemm *gemm); /* accepts NULL */
/* += if `add`, else =.  `work` has gemm_work_bytes bytes and is 64-byte aligned. */
enum snug_status gemm_run(const struct gemm *gemm, const float *a, const float *b, float *c,
                          bool add, void *work, struct snug_error *err);

/* A matmul that is faster than waking a second thread runs on one thread. */
static inline int gemm_threads(const struct gemm_shape *shape, int threads)
{
    const double least_flops_to_share = 4e6;
    double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
    return flops < least_flops_to_share ? 1 : threads;
}

struct text;
void gemm_describe(struct text *out); /* one line per library */

/* gemm_builtin.c: the workspace of our own loops (simd_gemm.c), which every build has. */
size_t gemm_plain_work_bytes(const struct gemm_shape *shape, int threads);

/* A packed panel of B is at most KC x NC, in whole strips.  A thread packs ITEM_ROWS rows of A at a
 * time.  Both are the same at every level; the strips are 48, 16 or 8 columns of B and 8, 6 or 4
 * rows of A. */
enum { GEMM_KC = 384, GEMM_NC = 768, GEMM_STRIP_COLS = 48, GEMM_ITEM_ROWS = 24 };
static inline int64_t gemm_panel_cols(const struct gemm_shape *shape)
{
    int64_t n_strips = (shape->n + GEMM_STRIP_COLS - 1) / GEMM_STRIP_COLS;
    int64_t n_panels = (shape->n + GEMM_NC - 1) / GEMM_NC; /* of about equal width */
    return (n_strips + n_panels - 1) / n_panels * GEMM_STRIP_COLS;
}

#endif
