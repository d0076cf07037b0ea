/*
 * amx_attention.c -- self-attention, causal or not, and its gradient for bf16 on AMX tiles.
 *
 * The algorithm is that of simd_attention.h, on strips of 32 keys and strips of 32 queries: all
 * matmuls multiply two strips (amx_panels.h) into a 32 x 32 square.  Scores are transposed, with a
 * row per key and a column per query, so the values of the queries (maximum, sum, lse, delta) are
 * vectors along each row.  A head is packed once:
 *
 *   forward, by strip of queries      S^T = K Q^T     O^T += V^T P^T
 *   backward, by block of keys        S^T = K Q^T     dP^T = V dY^T
 *                                     dV += P^T dY    dK += dS^T Q    dQ^T += K^T dS^T
 *
 * P and dS are rounded to bf16 when they become operands; sums over them are fp32.  A row of P^T or
 * dS^T interleaves queries i and i + 16, because that takes a shift instead of a shuffle; dY and Q
 * are packed to match.  Exponents are in units of ln 2, and their factor includes the scale of the
 * scores.  The scale of dS is applied to dQ and dK.
 *
 * With dropout, the mask of two strips is computed next to their scores and applied in registers.
 *
 * Forward, the maximum of a query is raised only if the exponential of a score is 2^8 times above
 * it: any value near the maximum will do, and the sums must be rescaled whenever it moves.
 *
 * The tiles and the vector unit work at the same time: the scores of the next strip are issued
 * before the exponentials of this strip.  A core starts a 16 x 16 x 32 tile matmul every 16 cycles
 * and two vector operations each cycle.  By that count, 16 x 16 scores at D = 64 take, forward, 4
 * matmuls (64 cycles) and 16 exponentials with maximum, sum and rounding (88); backward, 10
 * matmuls (160) and 16 exponentials with derivatives and two roundings (112).
 */
#include <stdatomic.h>

#include "cpu/amx/amx_attention.h"

#define LN_2 0.693147181f

/* ---- forward ------------------------------------------------------------------------------- */

struct forward {
    const struct attention_bf16 *shape;
    struct attention_bf16_plan plan;
    const uint16_t *qkv;
    uint16_t *y;
    float *lse;
    float factor; /* turns scores into exponents of 2 */
};

struct forward_part {
    uint16_t *k, *v_t, *q_t;
    float *scores;                  /* two squares, used alternately */
    uint16_t *weights;              /* P^T as an operand, for key strips not yet multiplied by V */
    float *sums;                    /* O^T: n_wide squares */
    float top[STRIP], total[STRIP]; /* per query: about the largest exponent; sum of weights */
};

static void *part_at(void *work, size_t part_bytes, int part, size_t offset)
{
    return (char *)work + (size_t)part * part_bytes + offset;
}

/* O^T += V^T P^T for the key strips [first, end), or = for the first ones. */
static void add_values(struct tiles *tiles, const struct forward *f, struct forward_part *w,
                       int64_t first, int64_t end)
{
    for (int64_t i = 0; i < f->plan.n_wide; i++)
        multiply_strips(tiles, end - first,
                        w->v_t + (i * f->plan.n_strips + first) * STRIP_DEPTH_ELEMS, w->weights,
                        w->sums + i * SQUARE, STRIP, first > 0);
}

/* Finds the largest exponent of each query.  Returns whether one is so far above `top` that it must
 * be raised. */
static bool find_largest(const float *scores, float factor, const float *top, float *largest)
{
    const struct lanes far = lanes_all(8.0f);
    bool any = false;
    for (int half = 0; half < STRIP; half += TILE_SIDE) {
        struct lanes even = lanes_load(scores + half), odd = lanes_load(scores + STRIP + half);
        for (int k = 2; k < STRIP; k += 2) {
            even = lanes_max(lanes_load(scores + k * STRIP + half), even);
            odd = lanes_max(lanes_load(scores + (k + 1) * STRIP + half), odd);
        }
        struct lanes most = lanes_multiply(lanes_max(even, odd), lanes_all(factor));
        lanes_store(largest + half, most);
        any |= lanes_any_above(most, lanes_add(lanes_load(top + half), far));
    }
    return any;
}

static void raise_top(const struct forward *f, struct forward_part *w, const float *largest,
                      bool has_sums)
{
    for (int half = 0; half < STRIP; half += TILE_SIDE) {
        struct lanes old = lanes_load(w->top + half);
        struct lanes top = lanes_max(lanes_load(largest + half), old);
        struct lanes change = lanes_exp2(old, lanes_all(1.0f), top);
        lanes_store(w->total + half, lanes_multiply(lanes_load(w->total + half), change));
        lanes_store(w->top + half, top);
        for (int64_t d = 0; has_sums && d < f->plan.n_wide * STRIP; d++) {
            float *sums = w->sums + d * STRIP + half;
            lanes_store(sums, lanes_multiply(lanes_load(sums), change));
        }
    }
}

/* Turns scores into weights, 16 pairs of keys for each half of the queries.  Dropped weights still
 * count in the sum. */
static inline __attribute__((always_inline)) void soften_by(const float *scores,
                                                            float scores_factor, const float *top,
                                                            float *total, const float *mask,
                                                            uint32_t *weights)
{
    const struct lanes factor = lanes_all(scores_factor);
    for (int half = 0; half < STRIP; half += TILE_SIDE) {
        struct lanes less = lanes_load(top + half), sum = lanes_load(total + half);
        for (int pair = 0; pair < TILE_SIDE; pair++) {
            int at = 2 * pair * STRIP + half;
            struct lanes even = lanes_exp2(lanes_load(scores + at), factor, less);
            struct lanes odd = lanes_exp2(lanes_load(scores + at + STRIP), factor, less);
            sum = lanes_add(sum, lanes_add(even, odd));
            lanes_store_pairs(weights + (half + pair) * TILE_SIDE, masked(even, mask, at),
                              masked(odd, mask, at + STRIP));
        }
        lanes_store(total + half, sum);
    }
}

static void soften(const float *scores, float factor, const float *top, float *total,
                   const float *mask, uint32_t *weights)
{
    if (mask == NULL)
        soften_by(scores, factor, top, total, NULL, weights);
    else
        soften_by(scores, factor, top, total, mask, weights);
}

static void finish_strip(const struct forward *f, struct forward_part *w, int64_t head,
                         int64_t first)
{
    const struct attention_bf16 *shape = f->shape;
    int64_t n = least(STRIP, shape->n_time - first), row_elems = shape->n_heads * shape->depth;
    float *lse = f->lse + head * shape->n_time + first;
    float factor[STRIP];
    for (int q = 0; q < STRIP; q++)
        factor[q] = 1.0f / w->total[q];
    for (int64_t q = 0; q < n; q++)
        lse[q] = w->top[q] * LN_2 + logf(w->total[q]);
    store_transposed(w->sums, factor, n, shape->depth, row_elems,
                     f->y + y_begin(shape, head) + first * row_elems);
}

static void forward_strip(struct tiles *tiles, const struct forward *f, struct forward_part *w,
                          int64_t head, int64_t strip)
{
    struct rows16 q = head_of_qkv(f->shape, f->qkv, head, THIRD_q);
    int64_t n_wide = f->plan.n_wide, done = 0; /* key strips already in the sums */
    int64_t last = f->shape->causal ? strip : f->plan.n_strips - 1;
    struct packing q_t = along_depth(&q, strip * STRIP, STRIP, true, w->q_t);
    pack_all(&q_t, 1);
    for (int i = 0; i < STRIP; i++) {
        w->top[i] = -FLT_MAX;
        w->total[i] = 0.0f;
    }
    multiply_strips(tiles, n_wide, w->k, w->q_t, w->scores, STRIP, false);
    for (int64_t i = 0; i <= last; i++) {
        float *scores = w->scores + i % 2 * SQUARE, largest[STRIP], mask[SQUARE];
        if (i < last)
            multiply_strips(tiles, n_wide, w->k + (i + 1) * n_wide * STRIP_DEPTH_ELEMS, w->q_t,
                            w->scores + (i + 1) % 2 * SQUARE, STRIP, false);
        hide(f->shape, i, strip, scores);
        if (find_largest(scores, f->factor, w->top, largest)) {
            if (i > done)
                add_values(tiles, f, w, done, i);
            done = i;
            raise_top(f, w, largest, i > 0);
        }
        uint16_t *weights = w->weights + (i - done) * STRIP_DEPTH_ELEMS;
        soften(scores, f->factor, w->top, w->total, mask_of(f->shape, head, i, strip, mask),
               (uint32_t *)(void *)weights);
        if (i + 1 - done == ATTENTION_BF16_PANEL || i == last) {
            add_values(tiles, f, w, done, i + 1);
            done = i + 1;
        }
    }
    finish_strip(f, w, head, strip * STRIP);
}

/* Each thread takes the next job when free: the cores of a shared host are not equally fast. */
static void forward_part(const struct forward *f, int part, atomic_llong *next, void *work)
{
    const struct attention_bf16_plan *plan = &f->plan;
    struct forward_part w = {.k = part_at(work, plan->part_bytes, part, plan->k),
                             .v_t = part_at(work, plan->part_bytes, part, plan->v_t),
                             .q_t = part_at(work, plan->part_bytes, part, plan->q_t),
                             .scores = part_at(work, plan->part_bytes, part, plan->scores),
                             .weights = part_at(work, plan->part_bytes, part, plan->weights),
                             .sums = part_at(work, plan->part_bytes, part, plan->sums)};
    int64_t n_jobs = f->shape->n_batch * f->shape->n_heads * plan->n_slices;
    int64_t job, packed = -1;
    struct tiles tiles;
    tiles_begin(&tiles);
    while ((job = atomic_fetch_add(next, 1)) < n_jobs) {
        int64_t head = job / plan->n_slices;
        if (head != packed) {
            struct rows16 k = head_of_qkv(f->shape, f->qkv, head, THIRD_k);
            struct rows16 v = head_of_qkv(f->shape, f->qkv, head, THIRD_v);
            pack_all((struct packing[]){along_depth(&k, 0, k.n_time, false, w.k),
                                        along_time(&v, 0, v.n_time, false, w.v_t)},
                     2);
            packed = head;
        }
        for (int64_t i = job % plan->n_slices; i < plan->n_strips; i += plan->n_slices)
            forward_strip(&tiles, f, &w, head, i);
    }
    tiles_end(&tiles);
}

static float scale_of(const struct attention_bf16 *shape)
{
    return (float)(1.0 / sqrt((double)shape->depth));
}

static void forward(const struct attention_bf16 *shape, int threads, const uint16_t *qkv,
                    uint16_t *y, float *lse, void *work)
{
    struct forward f = {.shape = shape,
                        .plan = attention_bf16_plan(shape, threads),
                        .qkv = qkv,
                        .y = y,
                        .lse = lse,
                        .factor = scale_of(shape) * LOG2_E};
    atomic_llong next;
    atomic_init(&next, 0);
#pragma omp parallel for schedule(static) num_threads(f.plan.n_parts)
    for (int part = 0; part < f.plan.n_parts; part++)
        forward_part(&f, part, &next, work);
}

/* ---- backward ------------------------------------------------------------------------------ */

struct backward {
    const struct attention_bf16 *shape;
    struct attention_bf16_grad_plan plan;
    const uint16_t *dy, *qkv, *y;
    const float *lse;
    uint16_t *dqkv;
    float scale, factor; /* factor turns scores into exponents of 2 */
};

struct backward_part {
    uint16_t *q, *q_t, *dy, *dy_t, *k, *k_t, *v;
    float *dq_t, *dk, *dv;      /* squares: [strip][n_wide] */
    float *lse, *delta;         /* per query; lse in units of ln 2 */
    float *scores;              /* S^T and dP^T, twice, used alternately */
    uint16_t *weights, *slopes; /* P^T and dS^T as A: [keys][ATTENTION_BF16_QUERIES] */
    uint16_t *slopes_t;         /* dS^T as B: [queries][ATTENTION_BF16_KEYS] */
};

/* A block of key strips and query strips. */
struct strip_block {
    struct range keys, queries;
    int64_t head;
    bool causal;
};

static bool sees(const struct strip_block *m, int64_t query_strip, int64_t key_strip)
{
    return !m->causal || query_strip >= key_strip;
}

/* Computes delta_t = dy_t . y_t and copies lse, padded with zeros: missing queries get weights of 1
 * and dS of 0, and are multiplied with rows of zeros. */
static void prepare_queries(const struct backward *b, int64_t head, struct backward_part *w)
{
    struct rows16 dy = head_of_y(b->shape, b->dy, head), y = head_of_y(b->shape, b->y, head);
    const float *lse = b->lse + head * dy.n_time;
    for (int64_t t = 0; t < b->plan.n_strips * STRIP; t++) {
        struct lanes sum = lanes_all(0.0f);
        for (int64_t d = 0; d < dy.depth && t < dy.n_time; d += TILE_SIDE) {
            int64_t n = least(TILE_SIDE, dy.depth - d);
            struct lanes slope = lanes_load_bf16(dy.first + t * dy.row_elems + d, n);
            struct lanes value = lanes_load_bf16(y.first + t * y.row_elems + d, n);
            sum = lanes_add(sum, lanes_multiply(slope, value));
        }
        w->delta[t] = lanes_sum(sum);
        w->lse[t] = t < dy.n_time ? lse[t] * LOG2_E : 0.0f;
    }
}

/* P = 2^(S - lse) and dS = P (dP - delta) of one key and 16 queries.  A mask multiplies dP and the
 * resulting P. */
struct weight_slope {
    struct lanes p, ds;
};

static inline __attribute__((always_inline)) struct weight_slope
weight_slope(const float *s, const float *dp, const float *mask, int at, struct lanes factor,
             struct lanes lse, struct lanes delta)
{
    struct lanes p = lanes_exp2(lanes_load(s + at), factor, lse);
    struct lanes slope = masked(lanes_load(dp + at), mask, at);
    return (struct weight_slope){masked(p, mask, at),
                                 lanes_multiply(p, lanes_subtract(slope, delta))};
}

/* Processes two keys and 2 x 16 queries at a time, which are adjacent in the operands. */
static inline __attribute__((always_inline)) void
find_slopes_by(const float *s, const float *dp, const float *mask, float scores_factor,
               const float *lse, const float *delta, uint32_t *weights, uint32_t *slopes,
               uint32_t *slopes_t)
{
    enum { HALF = TILE_SIDE, NEXT = STRIP };
    const struct lanes factor = lanes_all(scores_factor);
    const struct lanes lse0 = lanes_load(lse), lse1 = lanes_load(lse + HALF);
    const struct lanes delta0 = lanes_load(delta), delta1 = lanes_load(delta + HALF);
    for (int at = 0; at < SQUARE; at += 2 * STRIP) {
        struct weight_slope a = weight_slope(s, dp, mask, at, factor, lse0, delta0);
        struct weight_slope b = weight_slope(s, dp, mask, at + HALF, factor, lse1, delta1);
        lanes_store_pairs(weights, a.p, b.p);
        lanes_store_pairs(slopes, a.ds, b.ds);
        struct weight_slope c = weight_slope(s, dp, mask, at + NEXT, factor, lse0, delta0);
        struct weight_slope d = weight_slope(s, dp, mask, at + NEXT + HALF, factor, lse1, delta1);
        lanes_store_pairs(weights + TILE_SIDE, c.p, d.p);
        lanes_store_pairs(slopes + TILE_SIDE, c.ds, d.ds);
        lanes_store_pairs(slopes_t, a.ds, c.ds);
        lanes_store_pairs(slopes_t + TILE_SIDE * TILE_SIDE, b.ds, d.ds);
        weights += 2 * TILE_SIDE;
        slopes += 2 * TILE_SIDE;
        slopes_t += TILE_SIDE;
    }
}

static void find_slopes(const float *s, const float *dp, const float *mask, float factor,
                        const float *lse, const float *delta, uint32_t *weights, uint32_t *slopes,
                        uint32_t *slopes_t)
{
    if (mask == NULL)
        find_slopes_by(s, dp, NULL, factor, lse, delta, weights, slopes, slopes_t);
    else
        find_slopes_by(s, dp, mask, factor, lse, delta, weights, slopes, slopes_t);
}

/* S^T and dP^T of one key strip (of the block) and one query strip (of the head). */
static void find_scores(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                        int64_t key, int64_t query, float *scores)
{
    int64_t n_wide = b->plan.n_wide, strip = n_wide * STRIP_DEPTH_ELEMS;
    multiply_strips(tiles, n_wide, w->k + key * strip, w->q_t + query * strip, scores, STRIP,
                    false);
    multiply_strips(tiles, n_wide, w->v + key * strip, w->dy_t + query * strip, scores + SQUARE,
                    STRIP, false);
}

/* Advances to the next pair of strips that see each other.  Returns false after the last. */
static bool next_pair(const struct strip_block *m, int64_t *key, int64_t *query)
{
    do
        if (++*query == m->queries.end) {
            *query = m->queries.begin;
            ++*key;
        }
    while (*key < m->keys.end && !sees(m, *query, *key));
    return *key < m->keys.end;
}

static void find_operands(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                          const struct strip_block *m)
{
    int64_t key = m->keys.begin, query = m->queries.begin;
    float *scores = w->scores, *others = w->scores + 2 * SQUARE, mask[SQUARE];
    find_scores(tiles, b, w, 0, query, scores);
    for (bool more = true; more;) {
        int64_t now_key = key, now_query = query;
        more = next_pair(m, &key, &query);
        if (more)
            find_scores(tiles, b, w, key - m->keys.begin, query, others);
        hide(b->shape, now_key, now_query, scores);
        int64_t i = now_key - m->keys.begin, j = now_query - m->queries.begin;
        int64_t as_a = (i * ATTENTION_BF16_QUERIES + j) * STRIP_DEPTH_ELEMS;
        int64_t as_b = (j * ATTENTION_BF16_KEYS + i) * STRIP_DEPTH_ELEMS;
        find_slopes(scores, scores + SQUARE, mask_of(b->shape, m->head, now_key, now_query, mask),
                    b->factor, w->lse + now_query * STRIP, w->delta + now_query * STRIP,
                    (uint32_t *)(void *)(w->weights + as_a), (uint32_t *)(void *)(w->slopes + as_a),
                    (uint32_t *)(void *)(w->slopes_t + as_b));
        float *swap = scores;
        scores = others;
        others = swap;
    }
}

/* dV += P^T dY, dK += dS^T Q, dQ^T += K^T dS^T.  The first queries and the first keys use =. */
static void add_gradients(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                          const struct strip_block *m)
{
    int64_t n_wide = b->plan.n_wide, n_strips = b->plan.n_strips;
    for (int64_t key = m->keys.begin; key < m->keys.end; key++) {
        int64_t i = key - m->keys.begin;
        int64_t from = m->causal && key > m->queries.begin ? key : m->queries.begin;
        int64_t a = (i * ATTENTION_BF16_QUERIES + from - m->queries.begin) * STRIP_DEPTH_ELEMS;
        bool add = m->queries.begin > (m->causal ? m->keys.begin : 0);
        for (int64_t d = 0; d < n_wide && from < m->queries.end; d++) {
            int64_t other = (d * n_strips + from) * STRIP_DEPTH_ELEMS, n = m->queries.end - from;
            float *dv = w->dv + (i * n_wide + d) * SQUARE, *dk = w->dk + (i * n_wide + d) * SQUARE;
            multiply_strips(tiles, n, w->weights + a, w->dy + other, dv, STRIP, add);
            multiply_strips(tiles, n, w->slopes + a, w->q + other, dk, STRIP, add);
        }
    }
    for (int64_t query = m->queries.begin; query < m->queries.end; query++) {
        int64_t j = query - m->queries.begin, n_keys = m->keys.end - m->keys.begin;
        int64_t end = m->causal ? least(m->keys.end, query + 1) : m->keys.end;
        for (int64_t d = 0; d < n_wide; d++)
            multiply_strips(tiles, end - m->keys.begin, w->k_t + d * n_keys * STRIP_DEPTH_ELEMS,
                            w->slopes_t + j * ATTENTION_BF16_KEYS * STRIP_DEPTH_ELEMS,
                            w->dq_t + (query * n_wide + d) * SQUARE, STRIP, m->keys.begin > 0);
    }
}

/* Stores squares with a row per key, times a factor, as rows of dqkv. */
static void store_keys(const struct backward *b, const float *squares, float factor, int64_t head,
                       enum third third, struct range keys)
{
    const struct attention_bf16 *shape = b->shape;
    int64_t n_wide = b->plan.n_wide, row_elems = 3 * shape->n_heads * shape->depth;
    uint16_t *to = b->dqkv + qkv_begin(shape, head, third);
    for (int64_t t = keys.begin * STRIP; t < least(keys.end * STRIP, shape->n_time); t++) {
        const float *row = squares + (t / STRIP - keys.begin) * n_wide * SQUARE + t % STRIP * STRIP;
        for (int64_t d = 0; d < shape->depth; d += TILE_SIDE) {
            struct lanes values = lanes_load(row + d / STRIP * SQUARE + d % STRIP);
            lanes_store_bf16(to + t * row_elems + d, lanes_multiply(values, lanes_all(factor)),
                             least(TILE_SIDE, shape->depth - d));
        }
    }
}

static void store_queries(const struct backward *b, const struct backward_part *w, int64_t head)
{
    const struct attention_bf16 *shape = b->shape;
    int64_t n_wide = b->plan.n_wide, row_elems = 3 * shape->n_heads * shape->depth;
    uint16_t *to = b->dqkv + qkv_begin(shape, head, THIRD_q);
    float factor[STRIP];
    for (int q = 0; q < STRIP; q++)
        factor[q] = b->scale;
    for (int64_t i = 0; i < b->plan.n_strips; i++)
        store_transposed(w->dq_t + i * n_wide * SQUARE, factor,
                         least(STRIP, shape->n_time - i * STRIP), shape->depth, row_elems,
                         to + i * STRIP * row_elems);
}

static void backward_head(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                          int64_t head)
{
    const struct attention_bf16 *shape = b->shape;
    struct rows16 q = head_of_qkv(shape, b->qkv, head, THIRD_q);
    struct rows16 k = head_of_qkv(shape, b->qkv, head, THIRD_k);
    struct rows16 v = head_of_qkv(shape, b->qkv, head, THIRD_v);
    struct rows16 dy = head_of_y(shape, b->dy, head);
    int64_t n_strips = b->plan.n_strips;
    pack_all((struct packing[]){along_depth(&q, 0, q.n_time, true, w->q_t),
                                along_time(&q, 0, q.n_time, true, w->q),
                                along_depth(&dy, 0, q.n_time, true, w->dy_t),
                                along_time(&dy, 0, q.n_time, true, w->dy)},
             4);
    prepare_queries(b, head, w);
    for (int64_t key = 0; key < n_strips; key += ATTENTION_BF16_KEYS) {
        struct range keys = {key, least(key + ATTENTION_BF16_KEYS, n_strips)};
        int64_t first = key * STRIP, n = (keys.end - key) * STRIP;
        pack_all((struct packing[]){along_depth(&k, first, n, false, w->k),
                                    along_time(&k, first, n, false, w->k_t),
                                    along_depth(&v, first, n, false, w->v)},
                 3);
        for (int64_t query = shape->causal ? key : 0; query < n_strips;
             query += ATTENTION_BF16_QUERIES) {
            struct strip_block m = {keys,
                                    {query, least(query + ATTENTION_BF16_QUERIES, n_strips)},
                                    head,
                                    shape->causal};
            find_operands(tiles, b, w, &m);
            add_gradients(tiles, b, w, &m);
        }
        store_keys(b, w->dk, b->scale, head, THIRD_k, keys);
        store_keys(b, w->dv, 1.0f, head, THIRD_v, keys);
    }
    store_queries(b, w, head);
}

static void backward_part(const struct backward *b, int part, atomic_llong *next, void *work)
{
    const struct attention_bf16_grad_plan *plan = &b->plan;
#define AT(name) .name = part_at(work, plan->part_bytes, part, plan->name)
    struct backward_part w = {AT(q),      AT(q_t),     AT(dy),     AT(dy_t),    AT(k),   AT(k_t),
                              AT(v),      AT(dq_t),    AT(dk),     AT(dv),      AT(lse), AT(delta),
                              AT(scores), AT(weights), AT(slopes), AT(slopes_t)};
#undef AT
    int64_t head, n_heads = b->shape->n_batch * b->shape->n_heads;
    struct tiles tiles;
    tiles_begin(&tiles);
    while ((head = atomic_fetch_add(next, 1)) < n_heads)
        backward_head(&tiles, b, &w, head);
    tiles_end(&tiles);
}

static void backward(const struct attention_bf16 *shape, int threads, const uint16_t *dy,
                     const uint16_t *qkv, const uint16_t *y, const float *lse, uint16_t *dqkv,
                     void *work)
{
    struct backward b = {.shape = shape,
                         .plan = attention_bf16_grad_plan(shape, threads),
                         .dy = dy,
                         .qkv = qkv,
                         .y = y,
                         .lse = lse,
                         .dqkv = dqkv,
                         .scale = scale_of(shape),
                         .factor = scale_of(shape) * LOG2_E};
    atomic_llong next;
    atomic_init(&next, 0);
#pragma omp parallel for schedule(static) num_threads(b.plan.n_parts)
    for (int part = 0; part < b.plan.n_parts; part++)
        backward_part(&b, part, &next, work);
}

const struct attention_bf16_fns TILED(attention_bf16) = {forward, backward};
