/*
 * fast_attention.c -- self-attention, causal or of all to all, and its gradient, block by block.
 *
 * The T x T matrix of scores never exists: a block of 64 queries meets the blocks of 64 keys that
 * it may see, one after the other, and everything that two blocks need stays in the second cache.
 * A row of qkv holds q, k and v of all heads; blocks of one head are copied to fp32 first.
 *
 * Forward, for a block of queries: scores are kept transposed (a row per key, a column per query),
 * so that the running maximum and sum of each query are vector operations over the columns:
 *
 *     S^T = K (scale Q)^T    m' = max(m, S)    P = exp(S - m')    O = O exp(m - m') + P V
 *
 * Backward, for a block of keys, over the queries that see it (P = exp(S - lse) at once):
 *
 *     S = Q (scale K)^T    dP = dY V^T    dS = scale P (dP - delta)    delta_t = dY_t . Y_t
 *     dV += P^T dY    dK += dS^T Q    dQ += dS K
 *
 * dK and dV of the block are finished when the queries are through; dQ of the head is kept in fp32
 * until all blocks of keys are.
 *
 * With dropout, the mask M (0 or 1 / (1 - rate)) is made where two blocks meet, forward and backward:
 * P in O and in dV, and dP, are times M; the sum of exponentials and P in dS are not.
 *
 * On a CPU with tiles, bf16 without dropout goes another way (attention16.h).  Which is decided when
 * the op is prepared; the workspace is enough for both.
 *
 * GFLOP/s per core, Zen 4 with an fp32 peak of 116, T = 1024, D = 64, counting only what the causal
 * mask leaves (f32; 16-bit types within 4%, but f16 at base, which converts one by one):
 *
 *     v4  forward 76 (66% of peak)  backward 85 (73%)      v3  71, 82      base  27, 31
 */
#include <float.h>

#include "cpu/attention16.h"
#include "cpu/dropout.h"
#include "cpu/fast_common.h"
#include "cpu/fast_tile.h"

enum { BLOCK = 64 }; /* queries or keys */

/* ---- one head ---------------------------------------------------------------------------- */

struct shape_of_attention {
    int64_t n_time, width, n_heads, n_batch;
    int depth, pitch; /* of a head: D, and D rounded up to whole vectors */
    int64_t n_blocks; /* of queries, or of keys */
    float scale;
    struct dropout dropout;
    bool causal; /* a query sees no later keys */
};

static struct shape_of_attention sizes_of(const struct shape *qkv, const struct attrs *attrs)
{
    struct shape_of_attention sizes = {.n_time = qkv->dim[qkv->n_dims - 2],
                                       .width = shape_last(qkv) / 3,
                                       .n_heads = attrs->heads,
                                       .causal = attrs->causal != 0};
    sizes.n_batch = shape_rows(qkv) / sizes.n_time;
    sizes.depth = (int)(sizes.width / sizes.n_heads);
    sizes.pitch = (int)padded_floats(sizes.depth);
    sizes.n_blocks = divide_up(sizes.n_time, BLOCK);
    sizes.scale = (float)(1.0 / sqrt((double)sizes.depth));
    return sizes;
}

enum third { THIRD_q, THIRD_k, THIRD_v };

/* A head's columns in a tensor with rows of row_elems: where time 0 begins. */
struct columns {
    enum dtype dtype;
    void *data;
    int64_t begin, row_elems;
};

static struct columns head_of_qkv(const struct shape_of_attention *sizes, const struct operand *qkv,
                                  int64_t head, enum third third)
{
    int64_t b = head / sizes->n_heads, h = head % sizes->n_heads, row_elems = 3 * sizes->width;
    return (struct columns){qkv->tensor->dtype, qkv->data,
                            b * sizes->n_time * row_elems + third * sizes->width + h * sizes->depth,
                            row_elems};
}

static struct columns head_of_y(const struct shape_of_attention *sizes, const struct operand *y,
                                int64_t head)
{
    int64_t b = head / sizes->n_heads, h = head % sizes->n_heads;
    return (struct columns){y->tensor->dtype, y->data,
                            b * sizes->n_time * sizes->width + h * sizes->depth, sizes->width};
}

/* to[n, pitch] = rows first .. first + n of a head, padded with zeros. */
static void load_rows(const struct shape_of_attention *sizes, struct columns from, int64_t first,
                      int n, float *to)
{
    size_t pad_bytes = (size_t)(sizes->pitch - sizes->depth) * sizeof(float);
    for (int i = 0; i < n; i++) {
        float *row = to + (int64_t)i * sizes->pitch;
        load_f32(from.dtype, from.data, from.begin + (first + i) * from.row_elems, sizes->depth,
                 row);
        memset(row + sizes->depth, 0, pad_bytes);
    }
}

static void store_rows(const struct shape_of_attention *sizes, struct columns to, int64_t first,
                       int n, const float *from)
{
    for (int i = 0; i < n; i++)
        store_f32(to.dtype, to.data, to.begin + (first + i) * to.row_elems, sizes->depth,
                  from + (int64_t)i * sizes->pitch);
}

/* to[depth, BLOCK] = factor * rows[n, pitch]^T; columns from n on are zeros. */
static void transpose(const struct shape_of_attention *sizes, const float *rows_of, int n,
                      float factor, float *to)
{
    for (int d = 0; d < sizes->depth; d++) {
        float *line = to + (int64_t)d * BLOCK;
        for (int i = 0; i < n; i++)
            line[i] = factor * rows_of[(int64_t)i * sizes->pitch + d];
        for (int i = n; i < BLOCK; i++)
            line[i] = 0.0f;
    }
}

/* ---- forward ----------------------------------------------------------------------------- */

struct forward_work {           /* of one part */
    float *q, *q_t, *k, *v, *o; /* BLOCK x pitch each */
    float *s;                   /* BLOCK x BLOCK, a row per key */
    float *top, *sum, *factor;  /* BLOCK each, per query */
};

enum { FORWARD_PANELS = 5, BACKWARD_PANELS = 8 };

static int64_t forward_floats(const struct shape_of_attention *sizes)
{
    return (int64_t)BLOCK * (FORWARD_PANELS * sizes->pitch + BLOCK + 3);
}

static struct forward_work forward_work_of(const struct shape_of_attention *sizes, float *work,
                                           int part)
{
    int64_t panel = (int64_t)BLOCK * sizes->pitch;
    float *at = work + part * forward_floats(sizes);
    float *s = at + FORWARD_PANELS * panel;
    float *top = s + BLOCK * BLOCK;
    return (struct forward_work){at, at + panel, at + 2 * panel, at + 3 * panel, at + 4 * panel,
                                 s,  top,        top + BLOCK,    top + 2 * BLOCK};
}

/* Turns scores into exp(score - new maximum), updates maximum and sum, leaves in `factor` what old
 * sums have to be multiplied by.  On the diagonal, key k is seen by queries k and later. */
static void soften(const struct forward_work *w, int n_keys, bool diagonal)
{
    float *restrict top = w->top, *restrict sum = w->sum, *restrict factor = w->factor;
    memcpy(factor, top, BLOCK * sizeof *factor);
    for (int k = 0; k < n_keys; k++) {
        const float *restrict s = w->s + k * BLOCK;
#pragma omp simd
        for (int q = diagonal ? k : 0; q < BLOCK; q++)
            top[q] = s[q] > top[q] ? s[q] : top[q];
    }
#pragma omp simd
    for (int q = 0; q < BLOCK; q++) {
        factor[q] = exp_f32(factor[q] - top[q]);
        sum[q] *= factor[q];
    }
    for (int k = 0; k < n_keys; k++) {
        float *restrict s = w->s + k * BLOCK;
        int first = diagonal ? k : 0;
        memset(s, 0, (size_t)first * sizeof *s);
#pragma omp simd
        for (int q = first; q < BLOCK; q++) {
            s[q] = exp_f32(s[q] - top[q]);
            sum[q] += s[q];
        }
    }
}

/* Where the mask of a query's row begins: it is numbered by head, query and key. */
static uint64_t mask_row(const struct shape_of_attention *sizes, int64_t head, int64_t query)
{
    return (uint64_t)((head * sizes->n_time + query) * sizes->n_time);
}

/* Drops some of the block's softened scores, and scales the others. */
static void drop_scores(const struct shape_of_attention *sizes, const struct forward_work *w,
                        int n_keys, uint64_t first_index)
{
    struct dropout dropout = sizes->dropout;
    uint64_t step = (uint64_t)sizes->n_time;
    for (int k = 0; k < n_keys; k++) {
        float *restrict s = w->s + k * BLOCK;
#pragma omp simd
        for (int q = 0; q < BLOCK; q++)
            s[q] *= dropout_factor(&dropout, first_index + (uint64_t)k + (uint64_t)q * step);
    }
}

/* Each row of o times its query's factor. */
static void scale_rows(const struct shape_of_attention *sizes, float *o, const float *factor)
{
    for (int q = 0; q < BLOCK; q++)
#pragma omp simd
        for (int d = 0; d < sizes->pitch; d++)
            o[(int64_t)q * sizes->pitch + d] *= factor[q];
}

static void forward_block(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          int64_t head, int64_t block, const struct forward_work *w)
{
    int64_t first = block * BLOCK;
    int n_queries = (int)least(BLOCK, sizes->n_time - first), pitch = sizes->pitch;
    load_rows(sizes, head_of_qkv(sizes, &call->in[0], head, THIRD_q), first, n_queries, w->q);
    transpose(sizes, w->q, n_queries, sizes->scale, w->q_t);
    memset(w->o, 0, (size_t)BLOCK * (size_t)pitch * sizeof(float));
    for (int q = 0; q < BLOCK; q++) {
        w->top[q] = -FLT_MAX;
        w->sum[q] = 0.0f;
    }
    int64_t last = sizes->causal ? block : sizes->n_blocks - 1;
    for (int64_t other = 0; other <= last; other++) {
        bool diagonal = sizes->causal && other == block;
        int n_keys = (int)least(BLOCK, sizes->n_time - other * BLOCK);
        load_rows(sizes, head_of_qkv(sizes, &call->in[0], head, THIRD_k), other * BLOCK, n_keys,
                  w->k);
        load_rows(sizes, head_of_qkv(sizes, &call->in[0], head, THIRD_v), other * BLOCK, n_keys,
                  w->v);
        multiply(&(struct product){.n_rows = n_keys,
                                   .n_cols = BLOCK,
                                   .n_inner = sizes->depth,
                                   .a = w->k,
                                   .a_pitch = pitch,
                                   .b = w->q_t,
                                   .b_pitch = BLOCK,
                                   .c = w->s,
                                   .c_pitch = BLOCK,
                                   .trim = diagonal ? TRIM_COLS_FROM_ROW : TRIM_NONE});
        soften(w, n_keys, diagonal);
        if (sizes->dropout.below > 0)
            drop_scores(sizes, w, n_keys, mask_row(sizes, head, first) + (uint64_t)(other * BLOCK));
        scale_rows(sizes, w->o, w->factor);
        multiply(&(struct product){.n_rows = n_queries,
                                   .n_cols = pitch,
                                   .n_inner = n_keys,
                                   .a = w->s,
                                   .a_pitch = BLOCK,
                                   .a_transposed = true,
                                   .b = w->v,
                                   .b_pitch = pitch,
                                   .c = w->o,
                                   .c_pitch = pitch,
                                   .add = true,
                                   .trim = diagonal ? TRIM_INNER_TO_ROW : TRIM_NONE});
    }
    for (int q = 0; q < BLOCK; q++)
        w->factor[q] = 1.0f / w->sum[q];
    scale_rows(sizes, w->o, w->factor);
    store_rows(sizes, head_of_y(sizes, &call->out[0], head), first, n_queries, w->o);
    float *lse = (float *)call->out[1].data + head * sizes->n_time + first;
    for (int q = 0; q < n_queries; q++)
        lse[q] = w->top[q] + logf(w->sum[q]);
}

static bool attention_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 1, 0, 1u << 1);
}

/* Work is handed out in pairs of blocks of queries, the i-th and the i-th from the end: the second
 * makes up for what the first one does not see, so all pairs cost the same. */
static int64_t count_pairs(const struct shape_of_attention *sizes)
{
    return sizes->n_batch * sizes->n_heads * divide_up(sizes->n_blocks, 2);
}

static int parts_of(const struct device_facts *facts, int64_t n_jobs)
{
    int64_t parts = least(facts->threads, n_jobs);
    return parts < 1 ? 1 : (int)parts;
}

/* On tiles: causal, nothing is dropped, and every tensor but lse is bf16. */
static bool suits_tiles(const struct program *prog, const struct op *op)
{
    if (!op->attrs.causal || op->attrs.dropout > 0)
        return false;
    for (int k = 0; k < op->n_in; k++)
        if (program_tensor(prog, op->in[k])->dtype != DTYPE_bf16 &&
            !(op->kind == OP_attention_grad && k == 3))
            return false;
    return program_tensor(prog, op->out[0])->dtype == DTYPE_bf16;
}

static struct attention16 shape16(const struct shape_of_attention *sizes)
{
    return (struct attention16){sizes->n_batch, sizes->n_time, sizes->n_heads, sizes->depth};
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* prepared: the functions on tiles, or NULL. */
static enum snug_status prepare_attention(const struct program *prog, const struct op *op,
                                          const struct device_facts *facts, void **prepared,
                                          struct snug_error *err)
{
    (void)facts, (void)err;
    const struct tensor *qkv = program_tensor(prog, op->in[op->kind == OP_attention ? 0 : 1]);
    struct shape_of_attention sizes = sizes_of(&qkv->shape, &op->attrs);
    struct attention16 shape = shape16(&sizes);
    bool on_tiles = suits_tiles(prog, op) && attention16_serves(&shape);
    *prepared = on_tiles ? (void *)cpu_attention16() : NULL;
    return SNUG_OK;
}

static size_t attention_work_bytes(const struct program *prog, const struct op *op,
                                   const struct device_facts *facts)
{
    struct shape_of_attention sizes = sizes_of(&program_tensor(prog, op->in[0])->shape, &op->attrs);
    size_t bytes = f32_bytes(parts_of(facts, count_pairs(&sizes)) * forward_floats(&sizes));
    struct attention16 shape = shape16(&sizes);
    struct attention16_plan plan = attention16_plan(&shape, facts->threads);
    bool may_use_tiles = suits_tiles(prog, op) && attention16_serves(&shape);
    return may_use_tiles ? larger(bytes, (size_t)plan.n_parts * plan.part_bytes) : bytes;
}

static enum snug_status run_attention(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct shape_of_attention sizes = sizes_of(&call->in[0].tensor->shape, &call->op->attrs);
    const struct attention16_fns *fns = call->prepared;
    if (fns != NULL) {
        struct attention16 shape = shape16(&sizes);
        fns->forward(&shape, call->facts->threads, call->in[0].data, call->out[0].data,
                     call->out[1].data, call->work);
        return SNUG_OK;
    }
    sizes.dropout = dropout_of(call, 1);
    int64_t n_pairs = count_pairs(&sizes), pairs_per_head = divide_up(sizes.n_blocks, 2);
    int n_parts = parts_of(call->facts, n_pairs);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        struct forward_work work = forward_work_of(&sizes, call->work, part);
        struct range range = part_range(n_pairs, n_parts, part, 1);
        for (int64_t pair = range.begin; pair < range.end; pair++) {
            int64_t head = pair / pairs_per_head, block = pair % pairs_per_head;
            int64_t partner = sizes.n_blocks - 1 - block;
            forward_block(call, &sizes, head, block, &work);
            if (partner != block)
                forward_block(call, &sizes, head, partner, &work);
        }
    }
    return SNUG_OK;
}

/* ---- backward ---------------------------------------------------------------------------- */

struct backward_work {                           /* of one part */
    float *k, *k_t, *v, *v_t, *q, *dy, *dk, *dv; /* BLOCK x pitch each */
    float *p, *ds;                               /* BLOCK x BLOCK, a row per query */
    float *dq;                                   /* n_time x pitch */
    float *delta;                                /* n_time */
};

static int64_t backward_floats(const struct shape_of_attention *sizes)
{
    return (int64_t)BLOCK * (BACKWARD_PANELS * sizes->pitch + 2 * BLOCK) +
           sizes->n_time * sizes->pitch + padded_floats(sizes->n_time);
}

static struct backward_work backward_work_of(const struct shape_of_attention *sizes, float *work,
                                             int part)
{
    int64_t panel = (int64_t)BLOCK * sizes->pitch;
    float *at = work + part * backward_floats(sizes);
    float *p = at + BACKWARD_PANELS * panel;
    float *dq = p + 2 * BLOCK * BLOCK;
    return (struct backward_work){at,
                                  at + panel,
                                  at + 2 * panel,
                                  at + 3 * panel,
                                  at + 4 * panel,
                                  at + 5 * panel,
                                  at + 6 * panel,
                                  at + 7 * panel,
                                  p,
                                  p + BLOCK * BLOCK,
                                  dq,
                                  dq + sizes->n_time * sizes->pitch};
}

/* p = exp(scores - lse) and ds = scale p (ds - delta); diagonal: query q sees keys 0 to q. */
static void soften_grad(const struct shape_of_attention *sizes, const struct backward_work *w,
                        const float *lse, const float *delta, int n_queries, bool diagonal)
{
    float scale = sizes->scale;
    for (int q = 0; q < n_queries; q++) {
        float *restrict p = w->p + q * BLOCK, *restrict ds = w->ds + q * BLOCK;
        int end = diagonal ? q + 1 : BLOCK;
        float row_lse = lse[q], row_delta = delta[q];
#pragma omp simd
        for (int k = 0; k < end; k++) {
            p[k] = exp_f32(p[k] - row_lse);
            ds[k] = scale * p[k] * (ds[k] - row_delta);
        }
        memset(p + end, 0, (size_t)(BLOCK - end) * sizeof *p);
        memset(ds + end, 0, (size_t)(BLOCK - end) * sizeof *ds);
    }
}

/* dP or P of the block, a row per query, times the mask. */
static void drop_scores_by_query(const struct shape_of_attention *sizes, float *restrict x,
                                 int n_queries, uint64_t first_index)
{
    struct dropout dropout = sizes->dropout;
    for (int q = 0; q < n_queries; q++) {
        uint64_t index = first_index + (uint64_t)q * (uint64_t)sizes->n_time;
#pragma omp simd
        for (int k = 0; k < BLOCK; k++)
            x[q * BLOCK + k] *= dropout_factor(&dropout, index + (uint64_t)k);
    }
}

/* One block of queries against one block of keys. */
static void backward_pair(const struct shape_of_attention *sizes, const struct backward_work *w,
                          const float *lse, int64_t first_query, int n_queries, int n_keys,
                          bool diagonal, uint64_t mask_index)
{
    bool drops = sizes->dropout.below > 0;
    int pitch = sizes->pitch;
    float *dq = w->dq + first_query * pitch;
    struct product scores = {.n_rows = n_queries,
                             .n_cols = BLOCK,
                             .n_inner = sizes->depth,
                             .a_pitch = pitch,
                             .b_pitch = BLOCK,
                             .c_pitch = BLOCK,
                             .trim = diagonal ? TRIM_COLS_TO_ROW : TRIM_NONE};
    scores.a = w->q, scores.b = w->k_t, scores.c = w->p;
    multiply(&scores);
    scores.a = w->dy, scores.b = w->v_t, scores.c = w->ds;
    multiply(&scores);
    if (drops)
        drop_scores_by_query(sizes, w->ds, n_queries, mask_index);
    soften_grad(sizes, w, lse, w->delta + first_query, n_queries, diagonal);
    if (drops)
        drop_scores_by_query(sizes, w->p, n_queries, mask_index);

    struct product sums = {.n_rows = n_keys,
                           .n_cols = pitch,
                           .n_inner = n_queries,
                           .a_pitch = BLOCK,
                           .a_transposed = true,
                           .b_pitch = pitch,
                           .c_pitch = pitch,
                           .add = true,
                           .trim = diagonal ? TRIM_INNER_FROM_ROW : TRIM_NONE};
    sums.a = w->p, sums.b = w->dy, sums.c = w->dv;
    multiply(&sums);
    sums.a = w->ds, sums.b = w->q, sums.c = w->dk;
    multiply(&sums);
    multiply(&(struct product){.n_rows = n_queries,
                               .n_cols = pitch,
                               .n_inner = n_keys,
                               .a = w->ds,
                               .a_pitch = BLOCK,
                               .b = w->k,
                               .b_pitch = pitch,
                               .c = dq,
                               .c_pitch = pitch,
                               .add = true,
                               .trim = diagonal ? TRIM_INNER_TO_ROW : TRIM_NONE});
}

/* delta_t = dy_t . y_t of the whole head. */
static void compute_delta(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          int64_t head, const struct backward_work *w)
{
    struct columns dy = head_of_y(sizes, &call->in[0], head);
    struct columns y = head_of_y(sizes, &call->in[2], head);
    for (int64_t t = 0; t < sizes->n_time; t++) {
        load_rows(sizes, dy, t, 1, w->dy);
        load_rows(sizes, y, t, 1, w->q);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int d = 0; d < sizes->depth; d++)
            sum += w->dy[d] * w->q[d];
        w->delta[t] = sum;
    }
}

static void backward_head(const struct kernel_call *call, const struct shape_of_attention *sizes,
                          int64_t head, const struct backward_work *w)
{
    const struct operand *qkv = &call->in[1], *dqkv = &call->out[0];
    const float *lse = (const float *)call->in[3].data + head * sizes->n_time;
    int64_t n_time = sizes->n_time, panel = (int64_t)BLOCK * sizes->pitch;
    compute_delta(call, sizes, head, w);
    memset(w->dq, 0, (size_t)(n_time * sizes->pitch) * sizeof(float));
    for (int64_t keys = 0; keys < n_time; keys += BLOCK) {
        int n_keys = (int)least(BLOCK, n_time - keys);
        load_rows(sizes, head_of_qkv(sizes, qkv, head, THIRD_k), keys, n_keys, w->k);
        load_rows(sizes, head_of_qkv(sizes, qkv, head, THIRD_v), keys, n_keys, w->v);
        transpose(sizes, w->k, n_keys, sizes->scale, w->k_t);
        transpose(sizes, w->v, n_keys, 1.0f, w->v_t);
        memset(w->dk, 0, (size_t)panel * sizeof(float));
        memset(w->dv, 0, (size_t)panel * sizeof(float));
        for (int64_t queries = sizes->causal ? keys : 0; queries < n_time; queries += BLOCK) {
            int n_queries = (int)least(BLOCK, n_time - queries);
            load_rows(sizes, head_of_qkv(sizes, qkv, head, THIRD_q), queries, n_queries, w->q);
            load_rows(sizes, head_of_y(sizes, &call->in[0], head), queries, n_queries, w->dy);
            backward_pair(sizes, w, lse + queries, queries, n_queries, n_keys,
                          sizes->causal && queries == keys,
                          mask_row(sizes, head, queries) + (uint64_t)keys);
        }
        store_rows(sizes, head_of_qkv(sizes, dqkv, head, THIRD_k), keys, n_keys, w->dk);
        store_rows(sizes, head_of_qkv(sizes, dqkv, head, THIRD_v), keys, n_keys, w->dv);
    }
    store_rows(sizes, head_of_qkv(sizes, dqkv, head, THIRD_q), 0, (int)n_time, w->dq);
}

static bool attention_grad_fits(const struct program *prog, const struct op *op)
{
    return floats_fit(prog, op, 1u << 4, 1u << 3, 0);
}

static size_t attention_grad_work_bytes(const struct program *prog, const struct op *op,
                                        const struct device_facts *facts)
{
    struct shape_of_attention sizes = sizes_of(&program_tensor(prog, op->in[1])->shape, &op->attrs);
    int n_parts = parts_of(facts, sizes.n_batch * sizes.n_heads);
    size_t bytes = f32_bytes(n_parts * backward_floats(&sizes));
    struct attention16 shape = shape16(&sizes);
    struct attention16_grad_plan plan = attention16_grad_plan(&shape, facts->threads);
    bool may_use_tiles = suits_tiles(prog, op) && attention16_serves(&shape);
    return may_use_tiles ? larger(bytes, (size_t)plan.n_parts * plan.part_bytes) : bytes;
}

static enum snug_status run_attention_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct shape_of_attention sizes = sizes_of(&call->in[1].tensor->shape, &call->op->attrs);
    const struct attention16_fns *fns = call->prepared;
    if (fns != NULL) {
        struct attention16 shape = shape16(&sizes);
        fns->backward(&shape, call->facts->threads, call->in[0].data, call->in[1].data,
                      call->in[2].data, call->in[3].data, call->out[0].data, call->work);
        return SNUG_OK;
    }
    sizes.dropout = dropout_of(call, 4);
    int64_t n_jobs = sizes.n_batch * sizes.n_heads;
    int n_parts = parts_of(call->facts, n_jobs);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++) {
        struct backward_work work = backward_work_of(&sizes, call->work, part);
        struct range range = part_range(n_jobs, n_parts, part, 1);
        for (int64_t head = range.begin; head < range.end; head++)
            backward_head(call, &sizes, head, &work);
    }
    return SNUG_OK;
}

static const struct kernel rows[] = {
    {.kind = OP_attention,
     .name = ROW_NAME,
     .supports = attention_fits,
     .workspace_bytes = attention_work_bytes,
     .prepare = prepare_attention,
     .run = run_attention},
    {.kind = OP_attention_grad,
     .name = ROW_NAME,
     .supports = attention_grad_fits,
     .workspace_bytes = attention_grad_work_bytes,
     .prepare = prepare_attention,
     .run = run_attention_grad},
};

const struct kernel *LEVEL(fast_attention_rows)(int *n_rows)
{
    *n_rows = (int)(sizeof rows / sizeof *rows);
    return rows;
}
