/*
 * gemm.h -- fp32 matmuls, prepared before the step:  C[m,n] (+)= op(A)[m,k] op(B)[k,n]
 *
 * Row-major, with leading dimensions.  Made by oneDNN where the build has it (large ones by our own
 * loops, where those are faster), else by our own loops.  Workspace is booked from the
 * shape and the thread count alone; no implementation may use more.  The same matmul on the same
 * thread count gives the same bits; with our own loops and with oneDNN (which sums k in order;
 * tests/ops/test_threads.c watches it) on any thread count and however the rows of C are cut, if
 * chosen_by_m is the same.
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
    bool may_add;                    /* gemm_run may be asked to add */
    int64_t chosen_by_m; /* the way to make it is chosen by so many rows, or by m where this is 0: a
                          * caller whose chunks of rows vary says the same for all of them */
};

struct gemm;
struct cpu_loops;

/* The name of the rows that are made with it, whoever makes a matmul of theirs. */
#if defined(SNUG_ONEDNN)
#define GEMM_NAME "onednn"
#else
#define GEMM_NAME "plain"
#endif

size_t gemm_work_bytes(const struct gemm_shape *shape, int threads);
/* loops: of the compiled step's instructions, for what our own make. */
enum snug_status gemm_prepare(const struct gemm_shape *shape, int threads,
                              const struct cpu_loops *loops, struct gemm **gemm,
                              struct snug_error *err);
void gemm_release(struct gemm *gemm); /* NULL is fine */
/* add: +=, else =.  work: what gemm_work_bytes said, 64-byte aligned. */
enum snug_status gemm_run(const struct gemm *gemm, const float *a, const float *b, float *c,
                          bool add, void *work, struct snug_error *err);

/* A matmul that one thread makes in less time than it takes to wake another is left to one. */
static inline int gemm_threads(const struct gemm_shape *shape, int threads)
{
    const double least_flops_to_share = 4e6;
    double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
    return flops < least_flops_to_share ? 1 : threads;
}

struct text;
void gemm_describe(struct text *out); /* one line a library */

/* Our own loops (simd_gemm.c), which every build has: bits do not depend on the thread count. */
size_t gemm_plain_work_bytes(const struct gemm_shape *shape, int threads);

/* A panel of B is up to KC x NC, in whole strips; of A, a thread packs ITEM_ROWS at a time.  The
 * same at every level, whose strips of B are 48, 16 or 8 wide and of A 8, 6 or 4. */
enum { GEMM_KC = 384, GEMM_NC = 768, GEMM_STRIP_COLS = 48, GEMM_ITEM_ROWS = 24 };
static inline int64_t gemm_panel_cols(const struct gemm_shape *shape)
{
    int64_t n_strips = (shape->n + GEMM_STRIP_COLS - 1) / GEMM_STRIP_COLS;
    int64_t n_panels = (shape->n + GEMM_NC - 1) / GEMM_NC; /* about equally wide */
    return (n_strips + n_panels - 1) / n_panels * GEMM_STRIP_COLS;
}

#endif
