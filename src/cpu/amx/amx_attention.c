/*
 * amx_attention.c -- attention and its gradient for bf16 on AMX tiles.
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
 * Strips of keys that no query of a strip sees are skipped.  If several heads read the same k and
 * v, one thread processes them in order and accumulates dK and dV of all keys.
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
    const struct attention_view *view;
    struct attention_bf16_plan plan;
    const struct attention_bf16_qkv *qkv;
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
    int64_t packed_head;            /* the head of k and v that is packed, or -1 */
    int64_t n_key_strips;           /* of it */
};

static void *part_at(void *work, size_t part_bytes, int part, size_t offset)
{
    return (char *)work + (size_t)part * part_bytes + offset;
}

/* O^T += V^T P^T for the key strips [first, end), or = for the first ones. */
static void add_values(struct tiles *tiles, const struct forward *f, struct forward_part *w,
                       int64_t first, int64_t end, bool add)
{
    for (int64_t i = 0; i < f->plan.n_wide; i++)
        multiply_strips(tiles, end - first,
                        w->v_t + (i * w->n_key_strips + first) * STRIP_DEPTH_ELEMS, w->weights,
                        w->sums + i * SQUARE, STRIP, add);
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

/* A query that sees no key has y = 0 and lse = -inf. */
static void finish_strip(const struct forward *f, struct forward_part *w,
                         const struct sequence *sequence, int64_t head, int64_t first)
{
    const struct attention_view *view = f->view;
    struct head_columns y = head_columns_y(view, head);
    int64_t n = least(STRIP, sequence->n_queries - first);
    float *lse = f->lse + head_query(view, head, first);
    float factor[STRIP];
    for (int q = 0; q < STRIP; q++)
        factor[q] = 1.0f / w->total[q];
    for (int64_t q = 0; q < n; q++) {
        lse[q] = w->top[q] * LN_2 + logf(w->total[q]);
        if (sees_nothing(sequence, first + q)) {
            factor[q] = 0.0f; /* of a sum of zeros */
            lse[q] = -INFINITY;
        }
    }
    store_transposed(w->sums, factor, n, view->sizes.depth, y.row_elems,
                     f->y + y.begin + first * y.row_elems);
}

/* Finds the sums of weights, and of weighted values, over the strips of keys in the span. */
static void attend(struct tiles *tiles, const struct forward *f, struct forward_part *w,
                   const struct sequence *sequence, const struct key_span *span, int64_t head,
                   int64_t strip)
{
    int64_t n_wide = f->plan.n_wide, begin = span->begin / STRIP;
    int64_t last = gemm_bf16_strips(span->end) - 1, done = begin; /* strips already in the sums */
    multiply_strips(tiles, n_wide, w->k + begin * n_wide * STRIP_DEPTH_ELEMS, w->q_t,
                    w->scores + begin % 2 * SQUARE, STRIP, false);
    for (int64_t i = begin; i <= last; i++) {
        float *scores = w->scores + i % 2 * SQUARE, largest[STRIP], mask[SQUARE];
        if (i < last)
            multiply_strips(tiles, n_wide, w->k + (i + 1) * n_wide * STRIP_DEPTH_ELEMS, w->q_t,
                            w->scores + (i + 1) % 2 * SQUARE, STRIP, false);
        hide(sequence, span, i, strip, scores);
        if (find_largest(scores, f->factor, w->top, largest)) {
            if (i > done)
                add_values(tiles, f, w, done, i, done > begin);
            done = i;
            raise_top(f, w, largest, i > begin);
        }
        uint16_t *weights = w->weights + (i - done) * STRIP_DEPTH_ELEMS;
        soften(scores, f->factor, w->top, w->total, mask_of(f->view, head, i, strip, mask),
               (uint32_t *)(void *)weights);
        if (i + 1 - done == ATTENTION_BF16_PANEL || i == last) {
            add_values(tiles, f, w, done, i + 1, done > begin);
            done = i + 1;
        }
    }
}

static void forward_strip(struct tiles *tiles, const struct forward *f, struct forward_part *w,
                          int64_t head, int64_t strip)
{
    const struct attention_view *view = f->view;
    struct sequence sequence = sequence_of_head(view, head);
    struct key_span span = span_of_strip(&sequence, strip);
    struct rows16 q =
        rows16(f->qkv->q, head_columns_q(view, head), sequence.n_queries, view->sizes.depth);
    struct packing q_t = along_depth(&q, strip * STRIP, STRIP, true, w->q_t);
    pack_all(&q_t, 1);
    for (int i = 0; i < STRIP; i++) {
        w->top[i] = NO_TOP;
        w->total[i] = 0.0f;
    }
    if (span.begin < span.end)
        attend(tiles, f, w, &sequence, &span, head, strip);
    else
        memset(w->sums, 0, f32_bytes(f->plan.n_wide * SQUARE));
    finish_strip(f, w, &sequence, head, strip * STRIP);
}

static void pack_head(const struct forward *f, struct forward_part *w, int64_t head)
{
    const struct attention_view *view = f->view;
    int64_t kv_head = head / view->group, n_keys = sequence_of_head(view, head).n_keys;
    if (w->packed_head == kv_head)
        return;
    struct rows16 k = rows16(f->qkv->k, head_columns_k(view, kv_head), n_keys, view->sizes.depth);
    struct rows16 v = rows16(f->qkv->v, head_columns_v(view, kv_head), n_keys, view->sizes.depth);
    pack_all((struct packing[]){along_depth(&k, 0, n_keys, false, w->k),
                                along_time(&v, 0, n_keys, false, w->v_t)},
             2);
    w->packed_head = kv_head;
    w->n_key_strips = gemm_bf16_strips(n_keys);
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
                             .sums = part_at(work, plan->part_bytes, part, plan->sums),
                             .packed_head = -1};
    int64_t n_jobs = f->view->sizes.n_batch * f->view->sizes.heads * plan->n_slices;
    int64_t job;
    struct tiles tiles;
    tiles_begin(&tiles);
    while ((job = atomic_fetch_add(next, 1)) < n_jobs) {
        int64_t head = job / plan->n_slices;
        pack_head(f, &w, head);
        for (int64_t i = job % plan->n_slices; i < plan->n_strips; i += plan->n_slices)
            forward_strip(&tiles, f, &w, head, i);
    }
    tiles_end(&tiles);
}

static void forward(const struct attention_view *view, int threads,
                    const struct attention_bf16_qkv *qkv, uint16_t *y, float *lse, void *work)
{
    struct forward f = {.view = view,
                        .plan = attention_bf16_plan(view, threads),
                        .qkv = qkv,
                        .y = y,
                        .lse = lse,
                        .factor = view->scale * LOG2_E};
    atomic_llong next;
    atomic_init(&next, 0);
#pragma omp parallel for schedule(static) num_threads(f.plan.n_parts)
    for (int part = 0; part < f.plan.n_parts; part++)
        forward_part(&f, part, &next, work);
}

/* ---- backward ------------------------------------------------------------------------------ */

struct backward {
    const struct attention_view *view;
    struct attention_bf16_grad_plan plan;
    const uint16_t *dy, *y;
    const struct attention_bf16_qkv *qkv;
    const struct attention_bf16_dqkv *dqkv;
    const float *lse;
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

/* Computes delta_t = dy_t . y_t and copies lse, padded with zeros: missing queries get weights of 1
 * and dS of 0, and are multiplied with rows of zeros.  Queries that see nothing (lse = -inf) get 0
 * too: then all weights become 0. */
static void prepare_queries(const struct backward *b, int64_t head, struct backward_part *w)
{
    int64_t n_queries = b->view->sizes.n_queries, depth = b->view->sizes.depth;
    struct rows16 dy = rows16(b->dy, head_columns_y(b->view, head), n_queries, depth);
    struct rows16 y = rows16(b->y, head_columns_y(b->view, head), n_queries, depth);
    const float *lse = b->lse + head_query(b->view, head, 0);
    for (int64_t t = 0; t < b->plan.n_strips * STRIP; t++) {
        struct lanes sum = lanes_all(0.0f);
        for (int64_t d = 0; d < dy.depth && t < dy.n_time; d += TILE_SIDE) {
            int64_t n = least(TILE_SIDE, dy.depth - d);
            struct lanes slope = lanes_load_bf16(dy.first + t * dy.row_elems + d, n);
            struct lanes value = lanes_load_bf16(y.first + t * y.row_elems + d, n);
            sum = lanes_add(sum, lanes_multiply(slope, value));
        }
        w->delta[t] = lanes_sum(sum);
        w->lse[t] = t < dy.n_time && lse[t] > -INFINITY ? lse[t] * LOG2_E : 0.0f;
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

static void find_operands(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                          const struct strip_block *m)
{
    int64_t key = m->keys.begin, query = m->seen_by[0].begin - 1;
    float *scores = w->scores, *others = w->scores + 2 * SQUARE, mask[SQUARE];
    next_pair(m, &key, &query);
    find_scores(tiles, b, w, key - m->keys.begin, query, scores);
    for (bool more = true; more;) {
        int64_t now_key = key, now_query = query;
        more = next_pair(m, &key, &query);
        if (more)
            find_scores(tiles, b, w, key - m->keys.begin, query, others);
        int64_t i = now_key - m->keys.begin, j = now_query - m->queries.begin;
        hide(m->sequence, &m->spans[j], now_key, now_query, scores);
        int64_t as_a = (i * ATTENTION_BF16_QUERIES + j) * STRIP_DEPTH_ELEMS;
        int64_t as_b = (j * ATTENTION_BF16_KEYS + i) * STRIP_DEPTH_ELEMS;
        find_slopes(scores, scores + SQUARE, mask_of(b->view, m->head, now_key, now_query, mask),
                    b->factor, w->lse + now_query * STRIP, w->delta + now_query * STRIP,
                    (uint32_t *)(void *)(w->weights + as_a), (uint32_t *)(void *)(w->slopes + as_a),
                    (uint32_t *)(void *)(w->slopes_t + as_b));
        float *swap = scores;
        scores = others;
        others = swap;
    }
}

/* dV += P^T dY, dK += dS^T Q, dQ^T += K^T dS^T.  The first queries and the first keys use =.  dk
 * and dv are those of the block. */
static void add_gradients(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                          const struct strip_block *m, float *dk, float *dv)
{
    int64_t n_wide = b->plan.n_wide, n_strips = b->plan.n_strips;
    for (int64_t i = 0; i < m->keys.end - m->keys.begin; i++) {
        int64_t from = m->seen_by[i].begin, n = m->seen_by[i].end - from;
        int64_t a = (i * ATTENTION_BF16_QUERIES + from - m->queries.begin) * STRIP_DEPTH_ELEMS;
        float *dv_strip = dv + i * n_wide * SQUARE, *dk_strip = dk + i * n_wide * SQUARE;
        if (n == 0 && !m->add) {
            memset(dv_strip, 0, f32_bytes(n_wide * SQUARE));
            memset(dk_strip, 0, f32_bytes(n_wide * SQUARE));
        }
        for (int64_t d = 0; d < n_wide && n > 0; d++) {
            int64_t other = (d * n_strips + from) * STRIP_DEPTH_ELEMS;
            multiply_strips(tiles, n, w->weights + a, w->dy + other, dv_strip + d * SQUARE, STRIP,
                            m->add);
            multiply_strips(tiles, n, w->slopes + a, w->q + other, dk_strip + d * SQUARE, STRIP,
                            m->add);
        }
    }
    for (int64_t query = m->queries.begin; query < m->queries.end; query++) {
        int64_t j = query - m->queries.begin, n_keys = m->keys.end - m->keys.begin;
        const struct key_span *span = &m->spans[j];
        int64_t begin = span->begin / STRIP, end = gemm_bf16_strips(span->end);
        int64_t from = begin > m->keys.begin ? begin - m->keys.begin : 0;
        int64_t n = least(m->keys.end, end) - m->keys.begin - from;
        for (int64_t d = 0; d < n_wide && n > 0; d++)
            multiply_strips(tiles, n, w->k_t + (d * n_keys + from) * STRIP_DEPTH_ELEMS,
                            w->slopes_t + (j * ATTENTION_BF16_KEYS + from) * STRIP_DEPTH_ELEMS,
                            w->dq_t + (query * n_wide + d) * SQUARE, STRIP, begin < m->keys.begin);
    }
}

/* Stores squares with a row per key, times a factor, as rows first .. end of a head. */
static void store_keys(const struct backward *b, const float *squares, float factor,
                       struct head_columns at, int64_t first, int64_t end, uint16_t *to)
{
    int64_t n_wide = b->plan.n_wide, depth = b->view->sizes.depth;
    for (int64_t t = first; t < end; t++) {
        const float *row = squares + (t - first) / STRIP * n_wide * SQUARE + t % STRIP * STRIP;
        for (int64_t d = 0; d < depth; d += TILE_SIDE) {
            struct lanes values = lanes_load(row + d / STRIP * SQUARE + d % STRIP);
            lanes_store_bf16(to + at.begin + t * at.row_elems + d,
                             lanes_multiply(values, lanes_all(factor)),
                             least(TILE_SIDE, depth - d));
        }
    }
}

static void store_queries(const struct backward *b, const struct backward_part *w,
                          const struct sequence *sequence, int64_t head)
{
    struct head_columns at = head_columns_q(b->view, head);
    int64_t n_wide = b->plan.n_wide;
    float factor[STRIP];
    for (int q = 0; q < STRIP; q++)
        factor[q] = b->scale;
    for (int64_t i = 0; i < b->plan.n_strips; i++) {
        struct key_span span = span_of_strip(sequence, i);
        if (span.begin >= span.end)
            memset(w->dq_t + i * n_wide * SQUARE, 0, f32_bytes(n_wide * SQUARE));
        store_transposed(w->dq_t + i * n_wide * SQUARE, factor,
                         least(STRIP, sequence->n_queries - i * STRIP), b->view->sizes.depth,
                         at.row_elems, b->dqkv->q + at.begin + i * STRIP * at.row_elems);
    }
}

/* Processes all queries of a head with a block of keys.  The first head that reads the keys begins
 * dk and dv, the last one stores them. */
static void backward_keys(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                          const struct sequence *sequence, int64_t head, struct range keys)
{
    const struct attention_view *view = b->view;
    int64_t kv_head = head / view->group, first = keys.begin * STRIP, n_wide = b->plan.n_wide;
    int64_t depth = view->sizes.depth, n = (keys.end - keys.begin) * STRIP;
    struct head_columns k_at = head_columns_k(view, kv_head), v_at = head_columns_v(view, kv_head);
    struct rows16 k = rows16(b->qkv->k, k_at, sequence->n_keys, depth);
    struct rows16 v = rows16(b->qkv->v, v_at, sequence->n_keys, depth);
    int64_t kept = view->group > 1 ? keys.begin * n_wide * SQUARE : 0;
    int64_t query = sequence->causal && first > sequence->before ? first - sequence->before : 0;
    pack_all((struct packing[]){along_depth(&k, first, n, false, w->k),
                                along_time(&k, first, n, false, w->k_t),
                                along_depth(&v, first, n, false, w->v)},
             3);
    struct strip_block m = {
        .keys = keys, .head = head, .sequence = sequence, .add = head % view->group > 0};
    for (query /= STRIP; query < b->plan.n_strips; query += ATTENTION_BF16_QUERIES) {
        m.queries = (struct range){query, least(query + ATTENTION_BF16_QUERIES, b->plan.n_strips)};
        if (!find_seen(&m))
            continue;
        find_operands(tiles, b, w, &m);
        add_gradients(tiles, b, w, &m, w->dk + kept, w->dv + kept);
        m.add = true;
    }
    if (!m.add) { /* no query sees them */
        memset(w->dk + kept, 0, f32_bytes((keys.end - keys.begin) * n_wide * SQUARE));
        memset(w->dv + kept, 0, f32_bytes((keys.end - keys.begin) * n_wide * SQUARE));
    }
    if (head % view->group == view->group - 1) {
        int64_t end = least(keys.end * STRIP, sequence->n_keys);
        store_keys(b, w->dk + kept, b->scale, k_at, first, end, b->dqkv->k);
        store_keys(b, w->dv + kept, 1.0f, v_at, first, end, b->dqkv->v);
    }
}

static void backward_head(struct tiles *tiles, const struct backward *b, struct backward_part *w,
                          int64_t head)
{
    const struct attention_view *view = b->view;
    struct sequence sequence = sequence_of_head(view, head);
    int64_t n_queries = sequence.n_queries, depth = view->sizes.depth;
    int64_t n_key_strips = gemm_bf16_strips(sequence.n_keys);
    struct rows16 q = rows16(b->qkv->q, head_columns_q(view, head), n_queries, depth);
    struct rows16 dy = rows16(b->dy, head_columns_y(view, head), n_queries, depth);
    pack_all((struct packing[]){along_depth(&q, 0, n_queries, true, w->q_t),
                                along_time(&q, 0, n_queries, true, w->q),
                                along_depth(&dy, 0, n_queries, true, w->dy_t),
                                along_time(&dy, 0, n_queries, true, w->dy)},
             4);
    prepare_queries(b, head, w);
    for (int64_t key = 0; key < n_key_strips; key += ATTENTION_BF16_KEYS)
        backward_keys(tiles, b, w, &sequence, head,
                      (struct range){key, least(key + ATTENTION_BF16_KEYS, n_key_strips)});
    store_queries(b, w, &sequence, head);
}

/* Zeros dk and dv of keys that are not filled. */
static void clear_missing_keys(const struct backward *b, int64_t kv_head)
{
    const struct attention_view *view = b->view;
    struct head_columns k = head_columns_k(view, kv_head), v = head_columns_v(view, kv_head);
    size_t row_bytes = (size_t)view->sizes.depth * sizeof(uint16_t);
    for (int64_t t = sequence_of_head(view, kv_head * view->group).n_keys; t < view->sizes.n_keys;
         t++) {
        memset(b->dqkv->k + k.begin + t * k.row_elems, 0, row_bytes);
        memset(b->dqkv->v + v.begin + t * v.row_elems, 0, row_bytes);
    }
}

static void backward_part(const struct backward *b, int part, atomic_llong *next, void *work)
{
    const struct attention_bf16_grad_plan *plan = &b->plan;
#define AT(name) .name = part_at(work, plan->part_bytes, part, plan->name)
    struct backward_part w = {AT(q),      AT(q_t),     AT(dy),     AT(dy_t),    AT(k),   AT(k_t),
                              AT(v),      AT(dq_t),    AT(dk),     AT(dv),      AT(lse), AT(delta),
                              AT(scores), AT(weights), AT(slopes), AT(slopes_t)};
#undef AT
    int64_t job, n_jobs = b->view->sizes.n_batch * b->view->sizes.kv_heads, group = b->view->group;
    struct tiles tiles;
    tiles_begin(&tiles);
    while ((job = atomic_fetch_add(next, 1)) < n_jobs) {
        for (int64_t head = job * group; head < (job + 1) * group; head++)
            backward_head(&tiles, b, &w, head);
        clear_missing_keys(b, job);
    }
    tiles_end(&tiles);
}

static void backward(const struct attention_view *view, int threads, const uint16_t *dy,
                     const struct attention_bf16_qkv *qkv, const uint16_t *y, const float *lse,
                     const struct attention_bf16_dqkv *dqkv, void *work)
{
    struct backward b = {.view = view,
                         .plan = attention_bf16_grad_plan(view, threads),
                         .dy = dy,
                         .qkv = qkv,
                         .y = y,
                         .lse = lse,
                         .dqkv = dqkv,
                         .scale = view->scale,
                         .factor = view->scale * LOG2_E};
    atomic_llong next;
    atomic_init(&next, 0);
#pragma omp parallel for schedule(static) num_threads(b.plan.n_parts)
    for (int part = 0; part < b.plan.n_parts; part++)
        backward_part(&b, part, &next, work);
}

const struct attention_bf16_fns TILED(attention_bf16) = {forward, backward};
