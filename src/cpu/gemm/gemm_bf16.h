/*
 * gemm_bf16.h -- matmuls of bf16 matrices on tile instructions:  C[m,n] = op(A)[m,k] op(B)[k,n]
 *
 * amx_gemm.c implements them.  It is compiled with AMX instructions and with an emulation in plain
 * C, which can be tested on any machine.  The workspace size, computed here, is the same for both
 * and depends only on the shape and the thread count.  C itself is never stored: an epilogue (bias,
 * activation, rounding, softmax) processes each row of a block.  Results do not depend on the
 * thread count.
 */
#ifndef SNUG_CPU_GEMM_GEMM_BF16_H
#define SNUG_CPU_GEMM_GEMM_BF16_H

#include "cpu/cpu.h"

enum {
    STRIP = 32 /* rows of A, columns of B: two tiles of 16 */
};

/* C is split into blocks.  A thread that finishes a block takes the next one, because the cores of
 * a shared host are not equally fast.
 *
 * k is split into chunks.  One chunk of a strip of B stays in the L1 cache (48 KiB on CPUs with
 * tiles).  A block of A and the block of C that accumulates the chunks stay in L2 (2 MiB).  For a
 * very long k (the rows of a weight gradient) only the current chunk of a block of A does. */
enum {
    GEMM_BF16_CHUNK_K = 384,
    GEMM_BF16_A_BYTES = 1200 << 10,
    GEMM_BF16_LEAST_ROWS = 192,
    GEMM_BF16_MOST_ROWS = 512,
    GEMM_BF16_COLS = 256,
    GEMM_BF16_LONG_K = 3072, /* k is long from here on; if each thread packs its own B: */
    GEMM_BF16_LONG_ROWS = 384,
    GEMM_BF16_LONG_COLS = 512,
    GEMM_BF16_LONG_SHARED_ROWS = 256, /* ... and if B is packed beforehand: */
    GEMM_BF16_LONG_SHARED_COLS = 768,
    GEMM_BF16_SHARED_BYTES = 8 << 20, /* largest B packed beforehand for a weight gradient */
    GEMM_BF16_KEPT_K = 8192           /* largest k for packing all chunks of a block of A at once */
};

struct gemm_bf16_plan {
    int threads;
    int64_t n_depths, chunk_depths;   /* steps of k: in all and per chunk */
    int64_t block_rows, block_cols;   /* multiples of a strip */
    bool shares_b;                    /* pack all of B beforehand; else each thread as it goes */
    bool keeps_a;                     /* pack all chunks of a block of A at once */
    size_t a_bytes, b_bytes, c_bytes; /* per thread */
    size_t shared_b, own, own_bytes, total;
};

static inline int64_t gemm_bf16_strips(int64_t n)
{
    return (n + STRIP - 1) / STRIP;
}

/* Strips per block if n_strips are split into equal blocks of at most `most`. */
static inline int64_t gemm_bf16_block(int64_t n_strips, int64_t most)
{
    int64_t n_blocks = (n_strips + most - 1) / most;
    return (n_strips + n_blocks - 1) / n_blocks;
}

/* Makes the blocks smaller if there are fewer of them than threads, as in the weight gradient of a
 * narrow layer.  Even the smallest block accumulates four tiles for each tile it packs. */
static inline void gemm_bf16_spread(int64_t strips_m, int64_t strips_n, int threads,
                                    int64_t *block_m, int64_t *block_n)
{
    enum { LEAST_STRIPS = 2 };
    while (((strips_m + *block_m - 1) / *block_m) * ((strips_n + *block_n - 1) / *block_n) <
           threads) {
        int64_t *larger = *block_m >= *block_n ? block_m : block_n;
        if (*larger <= LEAST_STRIPS)
            return;
        *larger = (*larger + 1) / 2;
    }
}

/* Rows of a block if k is not long. */
static inline int64_t gemm_bf16_most_rows(int64_t strip_bytes)
{
    int64_t rows = GEMM_BF16_A_BYTES / strip_bytes * STRIP;
    return rows < GEMM_BF16_LEAST_ROWS  ? GEMM_BF16_LEAST_ROWS
           : rows > GEMM_BF16_MOST_ROWS ? GEMM_BF16_MOST_ROWS
                                        : rows;
}

static inline struct gemm_bf16_plan gemm_bf16_plan(const struct gemm_shape *shape, int threads)
{
    struct gemm_bf16_plan plan = {.threads = gemm_threads(shape, threads),
                                  .n_depths = (shape->k + TILE_DEPTH - 1) / TILE_DEPTH,
                                  .keeps_a = shape->k <= GEMM_BF16_KEPT_K};
    const int64_t depth_bytes = 2 * TILE_ELEMS * 2; /* of a strip, per step of k */
    int64_t strips_m = gemm_bf16_strips(shape->m), strips_n = gemm_bf16_strips(shape->n);
    bool in_chunks = shape->k > GEMM_BF16_CHUNK_K;
    plan.chunk_depths = in_chunks ? GEMM_BF16_CHUNK_K / TILE_DEPTH : plan.n_depths;

    int64_t strip_bytes = plan.n_depths * depth_bytes;
    bool is_long = shape->k > GEMM_BF16_LONG_K;
    bool may_share = !shape->a_transposed || strips_n * strip_bytes <= GEMM_BF16_SHARED_BYTES;
    int64_t most_rows = !is_long    ? gemm_bf16_most_rows(strip_bytes)
                        : may_share ? GEMM_BF16_LONG_SHARED_ROWS
                                    : GEMM_BF16_LONG_ROWS;
    int64_t most_cols = !is_long    ? GEMM_BF16_COLS
                        : may_share ? GEMM_BF16_LONG_SHARED_COLS
                                    : GEMM_BF16_LONG_COLS;
    int64_t block_m = gemm_bf16_block(strips_m, most_rows / STRIP);
    int64_t block_n = gemm_bf16_block(strips_n, most_cols / STRIP);
    gemm_bf16_spread(strips_m, strips_n, plan.threads, &block_m, &block_n);
    plan.block_rows = block_m * STRIP;
    plan.block_cols = block_n * STRIP;
    plan.shares_b = may_share && strips_m > block_m;

    int64_t a_depths = plan.keeps_a ? plan.n_depths : plan.chunk_depths;
    int64_t n_c = in_chunks ? block_m * block_n : 2;
    plan.a_bytes = (size_t)(block_m * a_depths * depth_bytes);
    plan.b_bytes = plan.shares_b ? 0 : (size_t)(block_n * plan.chunk_depths * depth_bytes);
    plan.c_bytes = (size_t)(n_c * STRIP * STRIP) * sizeof(float);
    plan.own_bytes = plan.a_bytes + plan.b_bytes + plan.c_bytes;
    if (plan.shares_b)
        plan.shared_b = work_take(&plan.total, (size_t)(strips_n * plan.n_depths * depth_bytes));
    plan.own = work_take(&plan.total, plan.own_bytes * (size_t)plan.threads);
    return plan;
}

/* The epilogue of a row of sums v.  The `begin` of a tensor is its element of row 0, column 0; its
 * rows are `pitch` elements apart. */
struct gemm_bf16_out {
    enum {
        FINISH_store, /* v += bias + more; before = v; y (+)= fn(v), or v fn'(slope_at) */
        FINISH_lse,   /* logits: update the running maximum and sum, and pick the target's logit */
        FINISH_exponentials, /* as FINISH_lse, but with a given top instead of the maximum, and
                              * y = exp(v - top) */
        FINISH_softmax       /* logits: y = factor * (exp(v - lse) - labels) */
    } how;
    int64_t pitch;
    /* data is NULL if left out.  y and before are read only by +=.  y may alias more. */
    struct span y, before, slope_at, more;
    const float *bias; /* or NULL */
    enum act act;
    bool add;
    bool around_cache; /* non-temporal stores of y and before: they do not fit in the cache */
    /* LM head only.  Rows count from 0; columns are classes from first_class on. */
    const int32_t *targets;
    int64_t first_class;
    float *running; /* HEAD_LANES maxima, then as many sums, for each slice of columns of a row */
    int64_t n_slices;
    float *picked; /* the target's logit, one per row */
    const float *lse;
    float factor;
    struct labels labels;
};
#define HEAD_LOWEST (-1e30f) /* no logit is lower */
enum { HEAD_LANES = 16, HEAD_SLICE = 1024 /* columns that one thread computes, in order */ };

/* `work` has the bytes of gemm_bf16_plan and is 64-byte aligned. */
typedef void gemm_bf16_fn(int threads, const struct gemm_shape *shape, const uint16_t *a,
                          const uint16_t *b, const struct gemm_bf16_out *out, void *work);

gemm_bf16_fn gemm_bf16_emulated;
#if defined(SNUG_AMX)
gemm_bf16_fn gemm_bf16_emulated_v4, gemm_bf16_amx;
#endif

/* y = gelu(x), bit-identical to the gelu of a matmul epilogue.  y may alias x. */
struct gelu_bf16 {
    void (*run)(int64_t n, const uint16_t *x, uint16_t *y);
};
extern const struct gelu_bf16 gelu_bf16_emulated;
#if defined(SNUG_AMX)
extern const struct gelu_bf16 gelu_bf16_emulated_v4, gelu_bf16_amx;
#endif

#endif
