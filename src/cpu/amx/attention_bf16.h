/*
 * attention_bf16.h -- attention and its gradient for bf16, on tile instructions.
 *
 * amx_attention.c implements them; like amx_gemm.c it is compiled for real and for emulated tiles.
 * The workspace size, computed here, depends only on the shapes and the thread count, so a plan
 * does not depend on the CPU.  Results do not depend on the thread count.
 */
#ifndef SNUG_CPU_AMX_ATTENTION_BF16_H
#define SNUG_CPU_AMX_ATTENTION_BF16_H

#include "cpu/attention_view.h"
#include "cpu/gemm/gemm_bf16.h"

enum {
    ATTENTION_BF16_MOST_DEPTH = 128, /* of a head; larger ones are not supported */
    /* In strips of 32.  Forward: keys whose weights are stored before the matmul with V.  Backward:
     * keys and queries of a block, whose intermediate results stay in the cache. */
    ATTENTION_BF16_PANEL = 8,
    ATTENTION_BF16_KEYS = 2,
    ATTENTION_BF16_QUERIES = 4,
    STRIP_DEPTH_ELEMS = 2 * TILE_ELEMS, /* one step of k of a strip */
    SQUARE = STRIP * STRIP              /* fp32 elements of the matmul of two strips */
};

static inline bool attention_bf16_serves(const struct attention_view *view)
{
    return view->sizes.depth <= ATTENTION_BF16_MOST_DEPTH;
}

static inline size_t attention_bf16_strip_bytes(int64_t n_depths)
{
    return (size_t)(n_depths * STRIP_DEPTH_ELEMS) * sizeof(uint16_t);
}

/* ---- forward ------------------------------------------------------------------------------- */

/* A job is the query strips slice, slice + n_slices, ... of a head.  Slices only distribute the
 * work; results do not depend on them. */
struct attention_bf16_plan {
    int64_t n_strips, n_wide; /* strips of queries; of a head's depth */
    int64_t n_slices;         /* per head */
    int n_parts;
    size_t k, v_t, q_t, scores, weights, sums; /* offsets in a thread's workspace */
    size_t part_bytes;
};

static inline struct attention_bf16_plan attention_bf16_plan(const struct attention_view *view,
                                                             int threads)
{
    struct attention_bf16_plan plan = {.n_strips = gemm_bf16_strips(view->sizes.n_queries),
                                       .n_wide = gemm_bf16_strips(view->sizes.depth),
                                       .n_slices = 1};
    int64_t n_heads = view->sizes.n_batch * view->sizes.heads;
    if (n_heads % threads != 0) { /* finer slices, so that no thread waits long */
        plan.n_slices = (4 * threads + n_heads - 1) / n_heads;
        plan.n_slices = plan.n_slices > plan.n_strips ? plan.n_strips : plan.n_slices;
    }
    int64_t n_jobs = n_heads * plan.n_slices;
    plan.n_parts = threads < n_jobs ? threads : (int)n_jobs;
    int64_t key_strips = gemm_bf16_strips(view->sizes.n_keys);
    size_t head_bytes = attention_bf16_strip_bytes(key_strips * plan.n_wide);
    size_t *at = &plan.part_bytes;
    plan.k = work_take(at, head_bytes);
    plan.v_t = work_take(at, head_bytes);
    plan.q_t = work_take(at, attention_bf16_strip_bytes(plan.n_wide));
    plan.scores = work_take(at, f32_bytes(2 * SQUARE));
    plan.weights = work_take(at, attention_bf16_strip_bytes(ATTENTION_BF16_PANEL));
    plan.sums = work_take(at, f32_bytes(plan.n_wide * SQUARE));
    return plan;
}

/* ---- backward ------------------------------------------------------------------------------ */

/* A job is a head of k and v, with all heads that read it, in order. */
struct attention_bf16_grad_plan {
    int64_t n_strips, n_wide; /* strips of queries; of a head's depth */
    int n_parts;
    size_t q, q_t, dy, dy_t, dq_t, lse, delta; /* of a head */
    size_t k, k_t, v;                          /* of a block of keys */
    size_t dk, dv;                            /* the same; of all keys if several heads read them */
    size_t scores, weights, slopes, slopes_t; /* of a block of keys and of queries */
    size_t part_bytes;
};

static inline struct attention_bf16_grad_plan
attention_bf16_grad_plan(const struct attention_view *view, int threads)
{
    struct attention_bf16_grad_plan plan = {.n_strips = gemm_bf16_strips(view->sizes.n_queries),
                                            .n_wide = gemm_bf16_strips(view->sizes.depth)};
    int64_t n_jobs = view->sizes.n_batch * view->sizes.kv_heads;
    int64_t kept =
        view->group > 1 ? gemm_bf16_strips(view->sizes.n_keys) : (int64_t)ATTENTION_BF16_KEYS;
    plan.n_parts = threads < n_jobs ? threads : (int)n_jobs;
    size_t head_bytes = attention_bf16_strip_bytes(plan.n_strips * plan.n_wide);
    size_t keys_bytes = attention_bf16_strip_bytes(ATTENTION_BF16_KEYS * plan.n_wide);
    size_t pair_bytes = attention_bf16_strip_bytes(ATTENTION_BF16_KEYS * ATTENTION_BF16_QUERIES);
    size_t *at = &plan.part_bytes;
    plan.q = work_take(at, head_bytes);
    plan.q_t = work_take(at, head_bytes);
    plan.dy = work_take(at, head_bytes);
    plan.dy_t = work_take(at, head_bytes);
    plan.dq_t = work_take(at, f32_bytes(plan.n_strips * plan.n_wide * SQUARE));
    plan.lse = work_take(at, f32_bytes(plan.n_strips * STRIP));
    plan.delta = work_take(at, f32_bytes(plan.n_strips * STRIP));
    plan.k = work_take(at, keys_bytes);
    plan.k_t = work_take(at, keys_bytes);
    plan.v = work_take(at, keys_bytes);
    plan.dk = work_take(at, f32_bytes(kept * plan.n_wide * SQUARE));
    plan.dv = work_take(at, f32_bytes(kept * plan.n_wide * SQUARE));
    plan.scores = work_take(at, f32_bytes(4 * SQUARE));
    plan.weights = work_take(at, pair_bytes);
    plan.slopes = work_take(at, pair_bytes);
    plan.slopes_t = work_take(at, pair_bytes);
    return plan;
}

/* ---- the functions ------------------------------------------------------------------------- */

/* Whole tensors, as the ops have them.  Packed ones are all the same. */
struct attention_bf16_qkv {
    const uint16_t *q, *k, *v;
};
struct attention_bf16_dqkv {
    uint16_t *q, *k, *v;
};

struct attention_bf16_fns {
    void (*forward)(const struct attention_view *view, int threads,
                    const struct attention_bf16_qkv *qkv, uint16_t *y, float *lse, void *work);
    void (*backward)(const struct attention_view *view, int threads, const uint16_t *dy,
                     const struct attention_bf16_qkv *qkv, const uint16_t *y, const float *lse,
                     const struct attention_bf16_dqkv *dqkv, void *work);
};

extern const struct attention_bf16_fns attention_bf16_emulated;
#if defined(SNUG_AMX)
extern const struct attention_bf16_fns attention_bf16_emulated_v4, attention_bf16_amx;
#endif

#endif
