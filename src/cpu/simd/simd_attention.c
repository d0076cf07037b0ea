/*
 * simd_attention.c -- attention forward, one block of queries at a time (simd_attention.h).
 */
#include <float.h>

#include "cpu/simd/simd_attention.h"

struct forward_work {        /* of one part */
    float *k, *v;            /* of a head: n_keys x pitch each */
    float *q, *q_t, *o;      /* BLOCK x pitch each */
    float *s;                /* BLOCK x BLOCK, a row per key */
    float *top, *sum, *grow; /* BLOCK each, per query; grow: factor of the old sums */
    int64_t packed_head;     /* the head of k and v that they hold, or -1 */
};

enum { FORWARD_PANELS = 3 };

static int64_t forward_floats(const struct shape_of_attention *sizes)
{
    return 2 * sizes->n_keys * sizes->pitch +
           (int64_t)BLOCK * (FORWARD_PANELS * sizes->pitch + BLOCK + 3);
}

static struct forward_work forward_work_of(const struct shape_of_attention *sizes, float *work,
                                           int part)
{
    int64_t panel = (int64_t)BLOCK * sizes->pitch, whole = sizes->n_keys * sizes->pitch;
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

/* Masks the scores of keys that a query does not see. */
static void hide_unseen(const struct forward_work *w, const struct block_pair *m)
{
    for (int k = 0; k < m->n_keys; k++) {
        float *restrict s = w->s + k * BLOCK;
#pragma omp simd
        for (int q = 0; q < m->n_queries; q++)
            s[q] = k >= m->seen[q].from && k < m->seen[q].to ? s[q] : -FLT_MAX;
    }
}

/* Drops some of the weights, and scales the others. */
static void drop_weights(const struct shape_of_attention *sizes, const struct forward_work *w,
                         const struct block_pair *m)
{
    float factors[BLOCK];
    for (int k = 0; k < m->n_keys; k++) {
        float *restrict s = w->s + k * BLOCK;
        dropout_factors(&sizes->view.dropout, m->mask + (uint64_t)k, (uint64_t)sizes->n_keys,
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

/* Processes a block of queries with a block of keys and values.  The first keys initialize o. */
static void forward_pair(const struct shape_of_attention *sizes, const struct forward_work *w,
                         const struct block_pair *m, int64_t first_key, bool first_of_keys)
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
    if (m->ragged)
        hide_unseen(w, m);
    if (raise_top(w, m, factor) && !first_of_keys)
        scale_rows(sizes, m->n_queries, w->o, w->grow);
    soften(w, m, factor);
    if (sizes->view.dropout.below > 0)
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
                            .add = !first_of_keys,
                            .trim = m->diagonal ? TRIM_INNER_TO_ROW : TRIM_NONE});
}

/* Writes y and lse of a block of queries.  A query that sees no key has y = 0 and lse = -inf. */
static void finish_block(const struct kernel_call *call, const struct shape_of_attention *sizes,
                         const struct sequence *sequence, int64_t head, int64_t first,
                         int n_queries, const struct forward_work *w)
{
    float *lse = (float *)call->out[1].data + head_query(&sizes->view, head, first);
    for (int q = 0; q < n_queries; q++)
        w->grow[q] = 1.0f / w->sum[q];
    scale_rows(sizes, n_queries, w->o, w->grow);
    for (int q = 0; q < n_queries; q++) {
        lse[q] = w->top[q] * LN_2 + logf(w->sum[q]);
        if (sees_nothing(sequence, first + q)) {
            memset(w->o + (int64_t)q * sizes->pitch, 0, (size_t)sizes->pitch * sizeof *w->o);
            lse[q] = -INFINITY;
        }
    }
    store_rows(sizes, columns_of(&call->out[0], head_columns_y(&sizes->view, head)), first,
               n_queries, w->o);
}

static void forward_block(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          int64_t head, int64_t block, const struct forward_work *w)
{
    struct sequence sequence = sequence_of_head(&sizes->view, head);
    int64_t first = block * BLOCK;
    int n_queries = (int)least(BLOCK, sizes->n_queries - first);
    struct key_span span = key_span_of(&sequence, first, n_queries);
    load_rows(sizes, columns_of(attention_qkv(call, 0), head_columns_q(&sizes->view, head)), first,
              n_queries, w->q);
    transpose(sizes, w->q, n_queries, w->q_t);
    for (int q = 0; q < BLOCK; q++) {
        w->top[q] = NO_TOP;
        w->sum[q] = 0.0f;
    }
    int64_t begin = span.begin / BLOCK * BLOCK;
    for (int64_t keys = begin; keys < span.end; keys += BLOCK) {
        struct block_pair m;
        set_block_pair(sizes, &sequence, &span, head, first, keys, &m);
        forward_pair(sizes, w, &m, keys, keys == begin);
    }
    finish_block(call, sizes, &sequence, head, first, n_queries, w);
}

static void pack_head(const struct kernel_call *call, const struct shape_of_attention *sizes,
                      int64_t head, struct forward_work *w)
{
    const struct attention_view *view = &sizes->view;
    int64_t kv_head = head / view->group, n_keys = sequence_of_head(view, head).n_keys;
    if (w->packed_head == kv_head)
        return;
    load_rows(sizes, columns_of(attention_qkv(call, 1), head_columns_k(view, kv_head)), 0, n_keys,
              w->k);
    load_rows(sizes, columns_of(attention_qkv(call, 2), head_columns_v(view, kv_head)), 0, n_keys,
              w->v);
    w->packed_head = kv_head;
}

static bool attention_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, other_inputs(op), 0, 1u << 1);
}

/* A job is every n_slices-th block of queries of a head, so the jobs of a causal head cost about
 * the same.  There is one slice unless threads would wait long for each other, because each slice
 * packs the head's keys and values again. */
static int64_t slices_of(const struct shape_of_attention *sizes, int threads)
{
    int64_t n_heads = sizes->view.sizes.n_batch * sizes->view.sizes.heads;
    int64_t n_slices = n_heads % threads == 0 ? 1 : divide_up(4 * threads, n_heads);
    return least(n_slices, sizes->n_blocks);
}

static int64_t count_jobs(const struct shape_of_attention *sizes, int threads)
{
    return sizes->view.sizes.n_batch * sizes->view.sizes.heads * slices_of(sizes, threads);
}

static size_t attention_work_bytes(const struct program *prog, const struct op *op,
                                   const struct device_facts *facts)
{
    struct shape_of_attention sizes = sizes_of(attention_view(attention_sizes_of(prog, op)));
    size_t bytes =
        f32_bytes(parts_of(facts, count_jobs(&sizes, facts->threads)) * forward_floats(&sizes));
    struct attention_bf16_plan plan = attention_bf16_plan(&sizes.view, facts->threads);
    bool may_use_tiles = suits_tiles(prog, op) && attention_bf16_serves(&sizes.view);
    return may_use_tiles ? larger(bytes, (size_t)plan.n_parts * plan.part_bytes) : bytes;
}

static enum snug_status run_attention(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct shape_of_attention sizes = sizes_of(attention_view_of_call(call));
    const struct attention_bf16_fns *fns = call->prepared;
    if (fns != NULL) {
        struct attention_bf16_qkv qkv = {attention_qkv(call, 0)->data, attention_qkv(call, 1)->data,
                                         attention_qkv(call, 2)->data};
        fns->forward(&sizes.view, call->facts->threads, &qkv, call->out[0].data, call->out[1].data,
                     call->work);
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
