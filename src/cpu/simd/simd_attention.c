/*
 * simd_attention.c -- self-attention forward, one block of queries at a time (simd_attention.h).
 */
#include <float.h>

#include "cpu/simd/simd_attention.h"

struct forward_work {        /* of one part */
    float *k, *v;            /* of a head: n_time x pitch each */
    float *q, *q_t, *o;      /* BLOCK x pitch each */
    float *s;                /* BLOCK x BLOCK, a row per key */
    float *top, *sum, *grow; /* BLOCK each, per query; grow: factor of the old sums */
    int64_t packed_head;     /* the head that k and v belong to, or -1 */
};

enum { FORWARD_PANELS = 3 };

static int64_t forward_floats(const struct shape_of_attention *sizes)
{
    return 2 * sizes->n_time * sizes->pitch +
           (int64_t)BLOCK * (FORWARD_PANELS * sizes->pitch + BLOCK + 3);
}

static struct forward_work forward_work_of(const struct shape_of_attention *sizes, float *work,
                                           int part)
{
    int64_t panel = (int64_t)BLOCK * sizes->pitch, whole = sizes->n_time * sizes->pitch;
    float *at = work + part * forward_floats(sizes);
    float *panels = at + 2 * whole;
    float *s = panels + FORWARD_PANELS * panel;
    float *top = s + BLOCK * BLOCK;
    return (struct forward_work){.k = at,
                                 .v = at + whole,
                                 .q = panels,
                                 .q_t = panels + panel,
                                 .o = panels + 2 * panel,
                                 .s = s,
                                 .top = top,
                                 .sum = top + BLOCK,
                                 .grow = top + 2 * BLOCK,
                                 .packed_head = -1};
}

/* The number of keys that the queries col .. col + VEC_ELEMS may see. */
static int keys_for(const struct block_pair *m, int col)
{
    return m->diagonal ? (int)least(m->n_keys, col + VEC_ELEMS) : m->n_keys;
}

/* Raises the maximum of every query to include these keys, if one of them is more than 2^8 times
 * above the old one: any value near the maximum will do, and the sums must be rescaled whenever it
 * moves.  The first keys always raise it.  Returns whether it did. */
static bool raise_top(const struct forward_work *w, const struct block_pair *m, float factor)
{
    float largest[BLOCK];
    bool any = false;
    for (int col = 0; col < m->n_queries; col += VEC_ELEMS) {
        vec even = vec_load(w->s + col), odd = even;
        int n_keys = keys_for(m, col), k = 1;
        for (; k + 1 < n_keys; k += 2) {
            even = vec_max(vec_load(w->s + k * BLOCK + col), even);
            odd = vec_max(vec_load(w->s + (k + 1) * BLOCK + col), odd);
        }
        if (k < n_keys)
            even = vec_max(vec_load(w->s + k * BLOCK + col), even);
        vec_store(largest + col, vec_max(even, odd) * factor);
    }
    for (int q = 0; q < m->n_queries; q++)
        any |= largest[q] > w->top[q] + 8.0f;
    for (int col = 0; any && col < m->n_queries; col += VEC_ELEMS) {
        vec old = vec_load(w->top + col), top = vec_max(vec_load(largest + col), old);
        vec grow = vec_exp2(old - top);
        vec_store(w->top + col, top);
        vec_store(w->grow + col, grow);
        vec_store(w->sum + col, vec_load(w->sum + col) * grow);
    }
    return any;
}

/* Turns scores into weights, 2^(factor score - top), and adds them to the sums. */
static void soften(const struct forward_work *w, const struct block_pair *m, float factor)
{
    for (int col = 0; col < m->n_queries; col += VEC_ELEMS) {
        vec top = vec_load(w->top + col), sum = vec_load(w->sum + col);
        int n_keys = keys_for(m, col);
        for (int k = 0; k < n_keys; k++) {
            float *s = w->s + k * BLOCK + col;
            vec p = vec_exp2(vec_fmadd(vec_load(s), vec_all(factor), -top));
            sum += p;
            vec_store(s, p);
        }
        for (int k = n_keys; k < m->n_keys; k++)
            vec_store(w->s + k * BLOCK + col, vec_all(0.0f));
        vec_store(w->sum + col, sum);
    }
}

/* Masks, on the diagonal, the scores of queries before the key: their weights become 0. */
static void hide_future(const struct forward_work *w, int n_keys)
{
    for (int k = 0; k < n_keys; k++)
        for (int q = k / VEC_ELEMS * VEC_ELEMS; q < k; q++)
            w->s[k * BLOCK + q] = -FLT_MAX;
}

/* Drops some of the weights, and scales the others. */
static void drop_weights(const struct shape_of_attention *sizes, const struct forward_work *w,
                         const struct block_pair *m)
{
    float factors[BLOCK];
    for (int k = 0; k < m->n_keys; k++) {
        float *restrict s = w->s + k * BLOCK;
        dropout_factors(&sizes->dropout, m->mask + (uint64_t)k, (uint64_t)sizes->n_time,
                        m->n_queries, factors);
#pragma omp simd
        for (int q = 0; q < m->n_queries; q++)
            s[q] *= factors[q];
    }
}

/* Multiplies each row of o by its query's factor. */
static void scale_rows(const struct shape_of_attention *sizes, int n, float *o, const float *factor)
{
    for (int q = 0; q < n; q++)
#pragma omp simd
        for (int d = 0; d < sizes->pitch; d++)
            o[(int64_t)q * sizes->pitch + d] *= factor[q];
}

/* Processes a block of queries with a block of keys and values. */
static void forward_pair(const struct shape_of_attention *sizes, const struct forward_work *w,
                         const struct block_pair *m, int64_t first_key)
{
    int pitch = sizes->pitch;
    float factor = sizes->scale * LOG2_E;
    multiply(&(struct gemm){.n_rows = m->n_keys,
                            .n_cols = in_squares(m->n_queries),
                            .n_inner = sizes->depth,
                            .a = w->k + first_key * pitch,
                            .a_pitch = pitch,
                            .b = w->q_t,
                            .b_pitch = BLOCK,
                            .c = w->s,
                            .c_pitch = BLOCK,
                            .trim = m->diagonal ? TRIM_COLS_FROM_ROW : TRIM_NONE});
    if (m->diagonal)
        hide_future(w, m->n_keys);
    if (raise_top(w, m, factor) && first_key > 0)
        scale_rows(sizes, m->n_queries, w->o, w->grow);
    soften(w, m, factor);
    if (sizes->dropout.below > 0)
        drop_weights(sizes, w, m);
    multiply(&(struct gemm){.n_rows = m->n_queries,
                            .n_cols = pitch,
                            .n_inner = m->n_keys,
                            .a = w->s,
                            .a_pitch = BLOCK,
                            .a_transposed = true,
                            .b = w->v + first_key * pitch,
                            .b_pitch = pitch,
                            .c = w->o,
                            .c_pitch = pitch,
                            .add = first_key > 0,
                            .trim = m->diagonal ? TRIM_INNER_TO_ROW : TRIM_NONE});
}

static void forward_block(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          int64_t head, int64_t block, const struct forward_work *w)
{
    int64_t first = block * BLOCK, last = sizes->causal ? block : sizes->n_blocks - 1;
    int n_queries = (int)least(BLOCK, sizes->n_time - first);
    load_rows(sizes, head_of_qkv(sizes, &call->in[0], head, THIRD_q), first, n_queries, w->q);
    transpose(sizes, w->q, n_queries, w->q_t);
    for (int q = 0; q < BLOCK; q++) {
        w->top[q] = -FLT_MAX;
        w->sum[q] = 0.0f;
    }
    for (int64_t other = 0; other <= last; other++) {
        struct block_pair m = block_pair_of(sizes, head, first, other * BLOCK);
        forward_pair(sizes, w, &m, other * BLOCK);
    }
    for (int q = 0; q < n_queries; q++)
        w->grow[q] = 1.0f / w->sum[q];
    scale_rows(sizes, n_queries, w->o, w->grow);
    store_rows(sizes, head_of_y(sizes, &call->out[0], head), first, n_queries, w->o);
    float *lse = (float *)call->out[1].data + head * sizes->n_time + first;
    for (int q = 0; q < n_queries; q++)
        lse[q] = w->top[q] * LN_2 + logf(w->sum[q]);
}

static void pack_head(const struct kernel_call *call, const struct shape_of_attention *sizes,
                      int64_t head, struct forward_work *w)
{
    if (w->packed_head == head)
        return;
    load_rows(sizes, head_of_qkv(sizes, &call->in[0], head, THIRD_k), 0, sizes->n_time, w->k);
    load_rows(sizes, head_of_qkv(sizes, &call->in[0], head, THIRD_v), 0, sizes->n_time, w->v);
    w->packed_head = head;
}

static bool attention_fits(const struct program *prog, const struct op *op)
{
    return attention_is_plain(prog, op) &&
           floats_fit(prog, op, 1u << ATTENTION_SCALARS, 0, 1u << 1);
}

/* A job is every n_slices-th block of queries of a head, so the jobs of a causal head cost about
 * the same.  There is one slice unless threads would wait long for each other, because each slice
 * packs the head's keys and values again. */
static int64_t slices_of(const struct shape_of_attention *sizes, int threads)
{
    int64_t n_heads = sizes->n_batch * sizes->n_heads;
    int64_t n_slices = n_heads % threads == 0 ? 1 : divide_up(4 * threads, n_heads);
    return least(n_slices, sizes->n_blocks);
}

static int64_t count_jobs(const struct shape_of_attention *sizes, int threads)
{
    return sizes->n_batch * sizes->n_heads * slices_of(sizes, threads);
}

static size_t attention_work_bytes(const struct program *prog, const struct op *op,
                                   const struct device_facts *facts)
{
    struct shape_of_attention sizes =
        sizes_of(&program_tensor(prog, op->in[0])->shape, attrs_of(op, attention));
    size_t bytes =
        f32_bytes(parts_of(facts, count_jobs(&sizes, facts->threads)) * forward_floats(&sizes));
    struct attention_bf16 shape = shape16(&sizes);
    struct attention_bf16_plan plan = attention_bf16_plan(&shape, facts->threads);
    bool may_use_tiles = suits_tiles(prog, op) && attention_bf16_serves(&shape);
    return may_use_tiles ? larger(bytes, (size_t)plan.n_parts * plan.part_bytes) : bytes;
}

static enum snug_status run_attention(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct shape_of_attention sizes =
        sizes_of(&call->in[0].tensor->shape, attrs_of(call->op, attention));
    sizes.dropout = dropout_of(call, ATTENTION_SCALARS);
    const struct attention_bf16_fns *fns = call->prepared;
    if (fns != NULL) {
        struct attention_bf16 shape = shape16(&sizes);
        fns->forward(&shape, call->facts->threads, call->in[0].data, call->out[0].data,
                     call->out[1].data, call->work);
        return SNUG_OK;
    }
    int64_t n_slices = slices_of(&sizes, call->facts->threads), next = 0;
    int64_t n_jobs = count_jobs(&sizes, call->facts->threads);
    int n_parts = parts_of(call->facts, n_jobs);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        struct forward_work work = forward_work_of(&sizes, call->work, part);
        for (int64_t job = next_item(&next); job < n_jobs; job = next_item(&next)) {
            int64_t head = job / n_slices;
            pack_head(call, &sizes, head, &work);
            for (int64_t block = job % n_slices; block < sizes.n_blocks; block += n_slices)
                forward_block(call, &sizes, head, block, &work);
        }
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_attention,
     .name = KERNEL_NAME,
     .supports = attention_fits,
     .workspace_bytes = attention_work_bytes,
     .prepare = prepare_attention,
     .run = run_attention},
};

const struct kernel *LEVEL(simd_attention_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
