/*
 * simd_attention_grad.c -- the gradient of self-attention, one block of keys at a time
 * (simd_attention.h).
 */
#include "cpu/simd/simd_attention.h"

enum { BACKWARD_PANELS = 6, QKV = ATTENTION_GRAD_FIRST + ATTENTION_Q };

struct backward_work {                  /* of one part */
    float *q, *dy, *dq;                 /* of a head: n_time x pitch each */
    float *lse, *delta;                 /* of a head; lse in units of ln 2 */
    float *k, *k_t, *v, *v_t, *dk, *dv; /* BLOCK x pitch each */
    float *y;                           /* a row */
    float *p, *ds;                      /* BLOCK x BLOCK, a row per query */
};

static int64_t backward_floats(const struct shape_of_attention *sizes)
{
    return (int64_t)BLOCK * (BACKWARD_PANELS * sizes->pitch + 2 * BLOCK) + sizes->pitch +
           3 * sizes->n_time * sizes->pitch + 2 * padded_floats(sizes->n_time);
}

static struct backward_work backward_work_of(const struct shape_of_attention *sizes, float *work,
                                             int part)
{
    int64_t panel = (int64_t)BLOCK * sizes->pitch, whole = sizes->n_time * sizes->pitch;
    float *at = work + part * backward_floats(sizes);
    float *lse = at + 3 * whole;
    float *delta = lse + padded_floats(sizes->n_time);
    float *panels = delta + padded_floats(sizes->n_time);
    float *y = panels + BACKWARD_PANELS * panel;
    return (struct backward_work){.q = at,
                                  .dy = at + whole,
                                  .dq = at + 2 * whole,
                                  .lse = lse,
                                  .delta = delta,
                                  .k = panels,
                                  .k_t = panels + panel,
                                  .v = panels + 2 * panel,
                                  .v_t = panels + 3 * panel,
                                  .dk = panels + 4 * panel,
                                  .dv = panels + 5 * panel,
                                  .y = y,
                                  .p = y + sizes->pitch,
                                  .ds = y + sizes->pitch + BLOCK * BLOCK};
}

/* P = 2^(factor S - lse) and dS = scale P (dP - delta) of one query, for n keys.  A mask multiplies
 * dP before and P afterwards. */
static inline __attribute__((always_inline)) void soften_row(float *p_row, float *ds_row, int n,
                                                             float scale, float lse, float delta,
                                                             const float *mask)
{
    vec factor = vec_all(scale * LOG2_E);
    for (int k = 0; k < n; k += VEC_ELEMS) {
        vec p = vec_exp2(vec_fmadd(vec_load(p_row + k), factor, vec_all(-lse)));
        vec dp = vec_load(ds_row + k);
        if (mask != NULL)
            dp *= vec_load(mask + k);
        vec_store(ds_row + k, p * scale * (dp - delta));
        vec_store(p_row + k, mask != NULL ? p * vec_load(mask + k) : p);
    }
}

/* Turns scores and dP into P and dS.  On the diagonal, query q sees keys 0 to q. */
static void soften_grad(const struct shape_of_attention *sizes, const struct backward_work *w,
                        const struct block_pair *m, const float *lse, const float *delta)
{
    float mask[BLOCK];
    for (int q = 0; q < m->n_queries; q++) {
        float *p = w->p + q * BLOCK, *ds = w->ds + q * BLOCK;
        int n_seen = m->diagonal ? (int)least(q + 1, m->n_keys) : m->n_keys;
        if (sizes->dropout.below > 0) {
            uint64_t first = m->mask + (uint64_t)q * (uint64_t)sizes->n_time;
            dropout_factors(&sizes->dropout, first, 1, in_squares(n_seen), mask);
            soften_row(p, ds, n_seen, sizes->scale, lse[q], delta[q], mask);
        } else {
            soften_row(p, ds, n_seen, sizes->scale, lse[q], delta[q], NULL);
        }
        memset(p + n_seen, 0, (size_t)(BLOCK - n_seen) * sizeof *p);
        memset(ds + n_seen, 0, (size_t)(BLOCK - n_seen) * sizeof *ds);
    }
}

/* Processes a block of queries with a block of keys.  The first queries initialize dk and dv, the
 * first keys dq. */
static void backward_pair(const struct shape_of_attention *sizes, const struct backward_work *w,
                          const struct block_pair *m, int64_t first_query, bool first_of_keys,
                          bool first_of_queries)
{
    int pitch = sizes->pitch;
    const float *q = w->q + first_query * pitch, *dy = w->dy + first_query * pitch;
    struct gemm scores = {.n_rows = m->n_queries,
                          .n_cols = in_squares(m->n_keys),
                          .n_inner = sizes->depth,
                          .a_pitch = pitch,
                          .b_pitch = BLOCK,
                          .c_pitch = BLOCK,
                          .trim = m->diagonal ? TRIM_COLS_TO_ROW : TRIM_NONE};
    scores.a = q, scores.b = w->k_t, scores.c = w->p;
    multiply(&scores);
    scores.a = dy, scores.b = w->v_t, scores.c = w->ds;
    multiply(&scores);
    soften_grad(sizes, w, m, w->lse + first_query, w->delta + first_query);

    struct gemm sums = {.n_rows = m->n_keys,
                        .n_cols = pitch,
                        .n_inner = m->n_queries,
                        .a_pitch = BLOCK,
                        .a_transposed = true,
                        .b_pitch = pitch,
                        .c_pitch = pitch,
                        .add = !first_of_queries,
                        .trim = m->diagonal ? TRIM_INNER_FROM_ROW : TRIM_NONE};
    sums.a = w->p, sums.b = dy, sums.c = w->dv;
    multiply(&sums);
    sums.a = w->ds, sums.b = q, sums.c = w->dk;
    multiply(&sums);
    multiply(&(struct gemm){.n_rows = m->n_queries,
                            .n_cols = pitch,
                            .n_inner = m->n_keys,
                            .a = w->ds,
                            .a_pitch = BLOCK,
                            .b = w->k,
                            .b_pitch = pitch,
                            .c = w->dq + first_query * pitch,
                            .c_pitch = pitch,
                            .add = !first_of_keys,
                            .trim = m->diagonal ? TRIM_INNER_TO_ROW : TRIM_NONE});
}

/* Loads q and dy of the whole head and its lse in units of ln 2, and computes delta_t = dy_t .
 * y_t. */
static void prepare_queries(const struct kernel_call *call, const struct shape_of_attention *sizes,
                            int64_t head, const struct backward_work *w)
{
    struct columns y = head_of_y(sizes, &call->in[ATTENTION_Y], head);
    const float *lse = (const float *)call->in[ATTENTION_LSE].data + head * sizes->n_time;
    load_rows(sizes, head_of_qkv(sizes, &call->in[QKV], head, THIRD_q), 0, sizes->n_time, w->q);
    load_rows(sizes, head_of_y(sizes, &call->in[ATTENTION_DY], head), 0, sizes->n_time, w->dy);
    for (int64_t t = 0; t < sizes->n_time; t++) {
        const float *dy_row = w->dy + t * sizes->pitch;
        const float *y_row =
            view_f32(y.dtype, y.data, y.begin + t * y.row_elems, sizes->depth, w->y);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int d = 0; d < sizes->depth; d++)
            sum += dy_row[d] * y_row[d];
        w->delta[t] = sum;
        w->lse[t] = lse[t] * LOG2_E;
    }
}

static void backward_head(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          int64_t head, const struct backward_work *w)
{
    const struct operand *qkv = &call->in[QKV], *dqkv = &call->out[0];
    int64_t n_time = sizes->n_time;
    prepare_queries(call, sizes, head, w);
    for (int64_t keys = 0; keys < n_time; keys += BLOCK) {
        int n_keys = (int)least(BLOCK, n_time - keys);
        int64_t first = sizes->causal ? keys : 0;
        load_rows(sizes, head_of_qkv(sizes, qkv, head, THIRD_k), keys, n_keys, w->k);
        load_rows(sizes, head_of_qkv(sizes, qkv, head, THIRD_v), keys, n_keys, w->v);
        transpose(sizes, w->k, n_keys, w->k_t);
        transpose(sizes, w->v, n_keys, w->v_t);
        for (int64_t queries = first; queries < n_time; queries += BLOCK) {
            struct block_pair m = block_pair_of(sizes, head, queries, keys);
            backward_pair(sizes, w, &m, queries, keys == 0, queries == first);
        }
        store_rows(sizes, head_of_qkv(sizes, dqkv, head, THIRD_k), keys, n_keys, w->dk);
        store_rows(sizes, head_of_qkv(sizes, dqkv, head, THIRD_v), keys, n_keys, w->dv);
    }
    store_rows(sizes, head_of_qkv(sizes, dqkv, head, THIRD_q), 0, n_time, w->dq);
}

static bool attention_grad_fits(const struct program *prog, const struct op *op)
{
    return attention_is_plain(prog, op) &&
           floats_fit(prog, op, 1u << attention_index(op, ATTENTION_SCALARS), 1u << ATTENTION_LSE, 0);
}

static size_t attention_grad_work_bytes(const struct program *prog, const struct op *op,
                                        const struct device_facts *facts)
{
    struct shape_of_attention sizes =
        sizes_of(&program_tensor(prog, op->in[QKV])->shape, attrs_of(op, attention));
    int n_parts = parts_of(facts, sizes.n_batch * sizes.n_heads);
    size_t bytes = f32_bytes(n_parts * backward_floats(&sizes));
    struct attention_bf16 shape = shape16(&sizes);
    struct attention_bf16_grad_plan plan = attention_bf16_grad_plan(&shape, facts->threads);
    bool may_use_tiles = suits_tiles(prog, op) && attention_bf16_serves(&shape);
    return may_use_tiles ? larger(bytes, (size_t)plan.n_parts * plan.part_bytes) : bytes;
}

static enum snug_status run_attention_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct shape_of_attention sizes =
        sizes_of(&call->in[QKV].tensor->shape, attrs_of(call->op, attention));
    sizes.dropout = dropout_of(call, attention_index(call->op, ATTENTION_SCALARS));
    const struct attention_bf16_fns *fns = call->prepared;
    if (fns != NULL) {
        struct attention_bf16 shape = shape16(&sizes);
        fns->backward(&shape, call->facts->threads, call->in[ATTENTION_DY].data,
                      call->in[QKV].data, call->in[ATTENTION_Y].data, call->in[ATTENTION_LSE].data,
                      call->out[0].data, call->work);
        return SNUG_OK;
    }
    int64_t n_jobs = sizes.n_batch * sizes.n_heads, next = 0;
    int n_parts = parts_of(call->facts, n_jobs);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        struct backward_work work = backward_work_of(&sizes, call->work, part);
        for (int64_t head = next_item(&next); head < n_jobs; head = next_item(&next))
            backward_head(call, &sizes, head, &work);
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
    {.kind = OP_attention_grad,
     .name = KERNEL_NAME,
     .supports = attention_grad_fits,
     .workspace_bytes = attention_grad_work_bytes,
     .prepare = prepare_attention,
     .run = run_attention_grad},
};

const struct kernel *LEVEL(simd_attention_grad_kernels)(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
