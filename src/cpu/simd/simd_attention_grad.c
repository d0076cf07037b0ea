/*
 * simd_attention_grad.c -- the gradient of attention, one block of keys at a time
 * (simd_attention.h).
 */
#include "cpu/simd/simd_attention.h"

enum { BACKWARD_PANELS = 4 };

struct backward_work {        /* of one part */
    float *q, *dy, *dq;       /* of a head: n_queries x pitch each */
    float *lse, *delta;       /* of a head; lse in units of ln 2 */
    float *k, *k_t, *v, *v_t; /* BLOCK x pitch each */
    float *dk, *dv;           /* kept_keys() x pitch each */
    float *y;                 /* a row */
    float *p, *ds;            /* BLOCK x BLOCK, a row per query */
};

/* The keys whose dk and dv are in memory at once: a block of them, or all if they are sums over
 * several heads. */
static int64_t kept_keys(const struct shape_of_attention *sizes)
{
    return sizes->view.group > 1 ? sizes->n_keys : BLOCK;
}

static int64_t backward_floats(const struct shape_of_attention *sizes)
{
    return (int64_t)BLOCK * (BACKWARD_PANELS * sizes->pitch + 2 * BLOCK) + sizes->pitch +
           (3 * sizes->n_queries + 2 * kept_keys(sizes)) * sizes->pitch +
           2 * padded_floats(sizes->n_queries);
}

static struct backward_work backward_work_of(const struct shape_of_attention *sizes, float *work,
                                             int part)
{
    int64_t panel = (int64_t)BLOCK * sizes->pitch, whole = sizes->n_queries * sizes->pitch;
    int64_t kept = kept_keys(sizes) * sizes->pitch;
    float *at = work + part * backward_floats(sizes);
    float *lse = at + 3 * whole;
    float *delta = lse + padded_floats(sizes->n_queries);
    float *panels = delta + padded_floats(sizes->n_queries);
    float *dk = panels + BACKWARD_PANELS * panel;
    float *y = dk + 2 * kept;
    return (struct backward_work){.q = at,
                                  .dy = at + whole,
                                  .dq = at + 2 * whole,
                                  .lse = lse,
                                  .delta = delta,
                                  .k = panels,
                                  .k_t = panels + panel,
                                  .v = panels + 2 * panel,
                                  .v_t = panels + 3 * panel,
                                  .dk = dk,
                                  .dv = dk + kept,
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

static struct seen_keys seen_by(const struct block_pair *m, int q)
{
    if (m->ragged)
        return m->seen[q];
    return (struct seen_keys){0, m->diagonal ? (int)least(q + 1, m->n_keys) : m->n_keys};
}

/* Turns scores and dP into P and dS, which are 0 for keys that the query does not see. */
static void soften_grad(const struct shape_of_attention *sizes, const struct backward_work *w,
                        const struct block_pair *m, const float *lse, const float *delta)
{
    float mask[BLOCK];
    for (int q = 0; q < m->n_queries; q++) {
        float *p = w->p + q * BLOCK, *ds = w->ds + q * BLOCK;
        struct seen_keys seen = seen_by(m, q);
        if (sizes->view.dropout.below > 0) {
            uint64_t first = m->mask + (uint64_t)q * (uint64_t)sizes->n_keys;
            dropout_factors(&sizes->view.dropout, first, 1, in_squares(seen.to), mask);
            soften_row(p, ds, seen.to, sizes->scale, lse[q], delta[q], mask);
        } else {
            soften_row(p, ds, seen.to, sizes->scale, lse[q], delta[q], NULL);
        }
        memset(p, 0, (size_t)seen.from * sizeof *p);
        memset(ds, 0, (size_t)seen.from * sizeof *ds);
        memset(p + seen.to, 0, (size_t)(BLOCK - seen.to) * sizeof *p);
        memset(ds + seen.to, 0, (size_t)(BLOCK - seen.to) * sizeof *ds);
    }
}

/* Processes a block of queries with a block of keys.  The first keys of a block of queries do not
 * add to dq, but set it; so do the first queries with dk and dv of the block of keys. */
static void backward_pair(const struct shape_of_attention *sizes, const struct backward_work *w,
                          const struct block_pair *m, int64_t first_query, bool add_dq, float *dk,
                          float *dv, bool add_dkv)
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
                        .add = add_dkv,
                        .trim = m->diagonal ? TRIM_INNER_FROM_ROW : TRIM_NONE};
    sums.a = w->p, sums.b = dy, sums.c = dv;
    multiply(&sums);
    sums.a = w->ds, sums.b = q, sums.c = dk;
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
                            .add = add_dq,
                            .trim = m->diagonal ? TRIM_INNER_TO_ROW : TRIM_NONE});
}

/* Loads q and dy of the whole head and its lse in units of ln 2, and computes delta_t = dy_t .
 * y_t. */
static void prepare_queries(const struct kernel_call *call, const struct shape_of_attention *sizes,
                            int64_t head, const struct backward_work *w)
{
    const struct attention_view *view = &sizes->view;
    struct columns y = columns_of(&call->in[ATTENTION_Y], head_columns_y(view, head));
    struct columns dy = columns_of(&call->in[ATTENTION_DY], head_columns_y(view, head));
    const float *lse = (const float *)call->in[ATTENTION_LSE].data + head_query(view, head, 0);
    load_rows(sizes, columns_of(attention_qkv(call, 0), head_columns_q(view, head)), 0,
              sizes->n_queries, w->q);
    load_rows(sizes, dy, 0, sizes->n_queries, w->dy);
    for (int64_t t = 0; t < sizes->n_queries; t++) {
        const float *dy_row = w->dy + t * sizes->pitch;
        const float *y_row =
            view_f32(y.dtype, y.data, y.at.begin + t * y.at.row_elems, sizes->depth, w->y);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int d = 0; d < sizes->depth; d++)
            sum += dy_row[d] * y_row[d];
        w->delta[t] = sum;
        w->lse[t] = lse[t] * LOG2_E;
    }
}

/* Processes all queries with a block of keys.  Queries of one block see a range of keys, so the
 * first block of it initializes their dq. */
static void backward_keys(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          const struct sequence *sequence, int64_t head, int64_t keys,
                          const struct backward_work *w)
{
    const struct attention_view *view = &sizes->view;
    int64_t kv_head = head / view->group, n_keys = least(BLOCK, sequence->n_keys - keys);
    int64_t first = sequence->causal && keys > sequence->before ? keys - sequence->before : 0;
    float *dk = w->dk, *dv = w->dv;
    if (view->group > 1) {
        dk += keys * sizes->pitch;
        dv += keys * sizes->pitch;
    }
    load_rows(sizes, columns_of(attention_qkv(call, 1), head_columns_k(view, kv_head)), keys,
              n_keys, w->k);
    load_rows(sizes, columns_of(attention_qkv(call, 2), head_columns_v(view, kv_head)), keys,
              n_keys, w->v);
    transpose(sizes, w->k, (int)n_keys, w->k_t);
    transpose(sizes, w->v, (int)n_keys, w->v_t);
    bool add = head % view->group > 0;
    for (int64_t queries = first / BLOCK * BLOCK; queries < sizes->n_queries; queries += BLOCK) {
        struct key_span span =
            key_span_of(sequence, queries, least(BLOCK, sizes->n_queries - queries));
        if (span.begin >= keys + n_keys || span.end <= keys)
            continue;
        struct block_pair m;
        set_block_pair(sizes, sequence, &span, head, queries, keys, &m);
        backward_pair(sizes, w, &m, queries, span.begin < keys, dk, dv, add);
        add = true;
    }
    if (!add) { /* no query sees them */
        memset(dk, 0, (size_t)(n_keys * sizes->pitch) * sizeof *dk);
        memset(dv, 0, (size_t)(n_keys * sizes->pitch) * sizeof *dv);
    }
    if (head % view->group < view->group - 1)
        return;
    store_rows(sizes, columns_of(attention_dqkv(call, 1), head_columns_k(view, kv_head)), keys,
               n_keys, dk);
    store_rows(sizes, columns_of(attention_dqkv(call, 2), head_columns_v(view, kv_head)), keys,
               n_keys, dv);
}

static void backward_head(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          int64_t head, const struct backward_work *w)
{
    struct sequence sequence = sequence_of_head(&sizes->view, head);
    prepare_queries(call, sizes, head, w);
    for (int64_t queries = 0; queries < sizes->n_queries; queries += BLOCK) {
        int64_t n = least(BLOCK, sizes->n_queries - queries);
        struct key_span span = key_span_of(&sequence, queries, n);
        if (span.begin >= span.end)
            memset(w->dq + queries * sizes->pitch, 0, (size_t)(n * sizes->pitch) * sizeof *w->dq);
    }
    for (int64_t keys = 0; keys < sequence.n_keys; keys += BLOCK)
        backward_keys(call, sizes, &sequence, head, keys, w);
    store_rows(sizes, columns_of(attention_dqkv(call, 0), head_columns_q(&sizes->view, head)), 0,
               sizes->n_queries, w->dq);
}

/* Zeros dk and dv of keys that are not filled. */
static void clear_missing_keys(const struct kernel_call *call,
                               const struct shape_of_attention *sizes, int64_t kv_head,
                               const struct backward_work *w)
{
    const struct attention_view *view = &sizes->view;
    memset(w->y, 0, (size_t)sizes->pitch * sizeof *w->y);
    for (int64_t key = sequence_of_head(view, kv_head * view->group).n_keys; key < sizes->n_keys;
         key++) {
        store_rows(sizes, columns_of(attention_dqkv(call, 1), head_columns_k(view, kv_head)), key,
                   1, w->y);
        store_rows(sizes, columns_of(attention_dqkv(call, 2), head_columns_v(view, kv_head)), key,
                   1, w->y);
    }
}

static bool attention_grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, other_inputs(op), 1u << ATTENTION_LSE, 0);
}

static size_t attention_grad_work_bytes(const struct program *prog, const struct op *op,
                                        const struct device_facts *facts)
{
    struct shape_of_attention sizes = sizes_of(attention_view(attention_sizes_of(prog, op)));
    int n_parts = parts_of(facts, sizes.view.sizes.n_batch * sizes.view.sizes.kv_heads);
    size_t bytes = f32_bytes(n_parts * backward_floats(&sizes));
    struct attention_bf16_grad_plan plan = attention_bf16_grad_plan(&sizes.view, facts->threads);
    bool may_use_tiles = suits_tiles(prog, op) && attention_bf16_serves(&sizes.view);
    return may_use_tiles ? larger(bytes, (size_t)plan.n_parts * plan.part_bytes) : bytes;
}

static void run_on_tiles(const struct kernel_call *call, const struct attention_view *view,
                         const struct attention_bf16_fns *fns)
{
    struct attention_bf16_qkv qkv = {attention_qkv(call, 0)->data, attention_qkv(call, 1)->data,
                                     attention_qkv(call, 2)->data};
    struct attention_bf16_dqkv dqkv = {attention_dqkv(call, 0)->data, attention_dqkv(call, 1)->data,
                                       attention_dqkv(call, 2)->data};
    fns->backward(view, call->facts->threads, call->in[ATTENTION_DY].data, &qkv,
                  call->in[ATTENTION_Y].data, call->in[ATTENTION_LSE].data, &dqkv, call->work);
}

/* A job is a head of k and v, with all heads that read it. */
static enum snug_status run_attention_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct shape_of_attention sizes = sizes_of(attention_view_of_call(call));
    if (call->prepared != NULL) {
        run_on_tiles(call, &sizes.view, call->prepared);
        return SNUG_OK;
    }
    int64_t n_jobs = sizes.view.sizes.n_batch * sizes.view.sizes.kv_heads, next = 0;
    int64_t group = sizes.view.group;
    int n_parts = parts_of(call->facts, n_jobs);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        struct backward_work work = backward_work_of(&sizes, call->work, part);
        for (int64_t job = next_item(&next); job < n_jobs; job = next_item(&next)) {
            for (int64_t head = job * group; head < (job + 1) * group; head++)
                backward_head(call, &sizes, head, &work);
            clear_missing_keys(call, &sizes, job, &work);
        }
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
