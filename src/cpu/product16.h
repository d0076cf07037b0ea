/*
 * product16.h -- products of bf16 matrices on tile instructions:  C[m,n] (+)= op(A)[m,k] op(B)[k,n]
 *
 * amx_product.c makes them, compiled twice: with the AMX instructions, and with plain C in their
 * place, which any machine can test.  What they book is here and is the same for both, a function
 * of the shape and the thread count alone.  Bits do not depend on the thread count.
 */
#ifndef SNUG_CPU_PRODUCT16_H
#define SNUG_CPU_PRODUCT16_H

#include "cpu/cpu.h"

enum {
    STRIP = 32 /* rows of A, columns of B: two tiles of 16 */
};

/* What a thread works on at a time.  A block of A (all of k) stays in the second cache (2 MiB on
 * the CPUs that have tiles) while groups of columns of B pass by it; of C there is one strip of
 * rows, as wide as a group.  k is never cut: who must cut it (rows of a weight gradient) adds. */
enum {
    PRODUCT16_A_BYTES = 1280 << 10,
    PRODUCT16_B_BYTES = 384 << 10,
    PRODUCT16_MOST_ROWS = 512,
    PRODUCT16_MOST_COLS = 256
};

struct product16_plan {
    int64_t n_depths;               /* steps of k */
    int64_t block_rows, group_cols; /* whole strips */
    size_t b, a, c, total;          /* the packed B, shared; then a block of A and C per thread */
    size_t a_bytes, c_bytes;        /* of one thread */
};

static inline int64_t product16_strips(int64_t n)
{
    return (n + STRIP - 1) / STRIP;
}

/* As many strips as fit into the bytes, at least one, in elements. */
static inline int64_t product16_cut(int64_t n, int64_t most, int64_t bytes, int64_t strip_bytes)
{
    int64_t strips = bytes / strip_bytes;
    strips = strips > most / STRIP ? most / STRIP : strips;
    strips = strips > product16_strips(n) ? product16_strips(n) : strips;
    return (strips > 1 ? strips : 1) * STRIP;
}

static inline struct product16_plan product16_plan(const struct product_shape *shape, int threads)
{
    struct product16_plan plan = {.n_depths = (shape->k + TILE_DEPTH - 1) / TILE_DEPTH};
    int64_t strip_bytes = plan.n_depths * 2 * TILE_ELEMS * 2;
    plan.block_rows = product16_cut(shape->m, PRODUCT16_MOST_ROWS, PRODUCT16_A_BYTES, strip_bytes);
    plan.group_cols = product16_cut(shape->n, PRODUCT16_MOST_COLS, PRODUCT16_B_BYTES, strip_bytes);
    plan.a_bytes = (size_t)(plan.block_rows / STRIP * strip_bytes);
    plan.c_bytes = (size_t)(STRIP * plan.group_cols) * sizeof(float);
    plan.b = work_take(&plan.total, (size_t)(product16_strips(shape->n) * strip_bytes));
    plan.a = work_take(&plan.total, plan.a_bytes * (size_t)threads);
    plan.c = work_take(&plan.total, plan.c_bytes * (size_t)threads);
    return plan;
}

/* Where a product goes: to c (shape.ldc floats between rows), or through `finish` (whose acc is not
 * used) to where that says, a piece at a time while it is in the cache. */
struct product16_out {
    float *c;
    bool add; /* +=, else = */
    const struct linear_finish *finish;
    const struct cpu_loops *loops; /* with finish */
};

/* work: what product16_plan says, 64-byte aligned. */
typedef void product16_fn(int threads, const struct product_shape *shape, const uint16_t *a,
                          const uint16_t *b, const struct product16_out *out, void *work);

product16_fn product16_emulated;
#if defined(SNUG_AMX)
product16_fn product16_amx;
#endif

/* The one in use; NULL: this CPU, or the level asked for, has no tiles. */
product16_fn *cpu_product16(void);

#endif
