/*
 * ref_attention.c -- reference: attention, one row of scores at a time.
 *
 * Head h of q owns columns h*D .. (h+1)*D of a row; it reads head g = h / (heads / kv_heads) of k
 * and v.  If q, k and v are packed, a row holds all three:
 *
 *     [ q: h0 h1 .. | k: g0 g1 .. | v: g0 g1 .. ]       scale = 1 / sqrt(D)
 *
 *     p[t,j] = exp(scale q_t . k_j - lse_t)  for the keys j that t sees,  y_t = sum_j p[t,j] v_j
 *
 * Gradient, with delta_t = dy_t . y_t and  ds[t,j] = scale p[t,j] (dy_t . v_j - delta_t):
 *     dq_t = sum_j ds[t,j] k_j     dk_j = sum_t ds[t,j] q_t     dv_j = sum_t p[t,j] dy_t
 * where dk and dv sum over the heads that read them, too.
 *
 * With dropout, m[t,j] is 0 or 1 / (1 - rate); it multiplies p in y and in dv, and dy_t . v_j.
 *
 * p, ds and m are recomputed wherever they are needed.  No Tq x Tk matrix is ever stored.  A query
 * that sees no key (only possible if keys are missing in a cache) has y = 0 and lse = -inf.
 */
#include <math.h>

#include "cpu/dropout_mask.h"
#include "cpu/ref/ref_common.h"
#include "ir/attention_operands.h"

struct attention { /* the call */
    struct attention_sizes sizes;
    struct attention_layout layout;
    struct operand q, k, v, starts, lengths; /* packed: k and v are q */
    struct dropout dropout;
    double scale;
};

struct head { /* one head of one sequence */
    const struct attention *of;
    int64_t b, h;
    int64_t n_keys; /* that are filled */
    int64_t before; /* position of the first query */
};

static struct attention attention_of(const struct kernel_call *call)
{
    int first = attention_index(call->op, 0);
    const struct operand *in = call->in + first;
    struct attention a = {.q = in[ATTENTION_Q],
                          .k = in[ATTENTION_K],
                          .v = in[ATTENTION_V],
                          .starts = in[ATTENTION_STARTS],
                          .lengths = in[ATTENTION_LENGTHS],
                          .dropout = dropout_of(call, first + ATTENTION_SCALARS)};
    a.sizes = attention_sizes(attrs_of(call->op, attention), &a.q.tensor->shape,
                              present(&a.k) ? &a.k.tensor->shape : NULL);
    a.layout = attention_layout(&a.sizes);
    a.scale = 1.0 / sqrt((double)a.sizes.depth);
    if (a.sizes.packed)
        a.k = a.v = a.q;
    return a;
}

static struct head head_at(const struct attention *a, int64_t b, int64_t h)
{
    struct head head = {.of = a, .b = b, .h = h, .n_keys = a->sizes.n_keys};
    if (present(&a->lengths)) {
        int64_t n = ((const int32_t *)a->lengths.data)[b];
        head.n_keys = n < 0 ? 0 : n < head.n_keys ? n : head.n_keys;
    }
    head.before = head.n_keys - a->sizes.n_queries;
    return head;
}

/* m[t,j] */
static double mask_factor(const struct head *head, int64_t t, int64_t j)
{
    const struct attention_sizes *s = &head->of->sizes;
    int64_t row = (head->b * s->heads + head->h) * s->n_queries + t;
    return (double)dropout_factor(&head->of->dropout, (uint64_t)(row * s->n_keys + j));
}

/* The keys first .. end - 1 that query t sees. */
static int64_t first_key(const struct head *head, int64_t t)
{
    const struct attention *a = head->of;
    int64_t first = 0;
    if (a->sizes.window > 0)
        first = head->before + t - a->sizes.window + 1;
    if (present(&a->starts)) {
        int64_t start = ((const int32_t *)a->starts.data)[head->b * a->sizes.n_queries + t];
        first = start > first ? start : first;
    }
    return first > 0 ? first : 0;
}

static int64_t end_key(const struct head *head, int64_t t)
{
    return head->of->sizes.causal ? head->before + t + 1 : head->n_keys;
}

static bool sees(const struct head *head, int64_t t, int64_t j)
{
    return j >= first_key(head, t) && j < end_key(head, t);
}

/* Where the head's elements begin: of query t in q, of key j in k and v, of query t in y. */
static int64_t q_at(const struct head *head, int64_t t)
{
    const struct attention *a = head->of;
    return (head->b * a->sizes.n_queries + t) * a->layout.q_row + head->h * a->sizes.depth;
}

static int64_t kv_at(const struct head *head, int64_t column, int64_t j)
{
    const struct attention *a = head->of;
    int64_t kv_head = head->h / (a->sizes.heads / a->sizes.kv_heads);
    return (head->b * a->sizes.n_keys + j) * a->layout.kv_row + column + kv_head * a->sizes.depth;
}

static int64_t k_at(const struct head *head, int64_t j)
{
    return kv_at(head, head->of->layout.k_column, j);
}

static int64_t v_at(const struct head *head, int64_t j)
{
    return kv_at(head, head->of->layout.v_column, j);
}

static int64_t y_at(const struct head *head, int64_t t)
{
    const struct attention_sizes *s = &head->of->sizes;
    return ((head->b * s->n_queries + t) * s->heads + head->h) * s->depth;
}

static int64_t lse_at(const struct head *head, int64_t t)
{
    const struct attention_sizes *s = &head->of->sizes;
    return (head->b * s->heads + head->h) * s->n_queries + t;
}

static double score(const struct head *head, int64_t t, int64_t j)
{
    const struct attention *a = head->of;
    return a->scale * dot(&a->q, q_at(head, t), 1, &a->k, k_at(head, j), 1, a->sizes.depth);
}

int64_t ref_attention_work_elems(const struct attention_sizes *sizes)
{
    return sizes->n_keys; /* one row of scores */
}

static void attend(const struct head *head, const struct operand *y, const struct operand *lse,
                   double *p)
{
    const struct attention *a = head->of;
    for (int64_t t = 0; t < a->sizes.n_queries; t++) {
        int64_t first = first_key(head, t), end = end_key(head, t);
        struct log_sum sum = {0};
        for (int64_t j = first; j < end; j++) {
            p[j] = score(head, t, j);
            log_sum_add(&sum, p[j]);
        }
        double log_total = sum.n > 0 ? log_sum_value(&sum) : -INFINITY;
        for (int64_t j = first; j < end; j++)
            p[j] = mask_factor(head, t, j) * exp(p[j] - log_total);
        for (int64_t d = 0; d < a->sizes.depth; d++) {
            double value = 0.0;
            for (int64_t j = first; j < end; j++)
                value += p[j] * load(&a->v, v_at(head, j) + d);
            store(y, y_at(head, t) + d, value);
        }
        store(lse, lse_at(head, t), log_total);
    }
}

enum snug_status ref_attention(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct attention a = attention_of(call);
    for (int64_t b = 0; b < a.sizes.n_batch; b++)
        for (int64_t h = 0; h < a.sizes.heads; h++) {
            struct head head = head_at(&a, b, h);
            attend(&head, &call->out[0], &call->out[1], call->work);
        }
    return SNUG_OK;
}

int64_t ref_attention_grad_work_elems(const struct attention_sizes *sizes)
{
    return sizes->heads * sizes->n_queries + 2 * sizes->depth; /* delta; two rows of gradients */
}

struct grad {
    struct attention attention;
    struct operand dy, lse, dq, dk, dv; /* packed: dk and dv are dq */
    double *delta;                      /* [heads, Tq] */
    double *acc[2];                     /* [D] each */
};

/* Returns ds[t,j] and stores m[t,j] p[t,j] in *p. */
static double weight_grad(const struct grad *grad, const struct head *head, int64_t t, int64_t j,
                          double *p)
{
    const struct attention *a = head->of;
    double whole = exp(score(head, t, j) - load(&grad->lse, lse_at(head, t)));
    double dp = dot(&grad->dy, y_at(head, t), 1, &a->v, v_at(head, j), 1, a->sizes.depth);
    *p = mask_factor(head, t, j) * whole;
    return a->scale * whole *
           (mask_factor(head, t, j) * dp - grad->delta[head->h * a->sizes.n_queries + t]);
}

/* acc += factor * x[begin .. begin + D) */
static void add_scaled(double *acc, double factor, const struct operand *x, int64_t begin,
                       int64_t depth)
{
    for (int64_t d = 0; d < depth; d++)
        acc[d] += factor * load(x, begin + d);
}

static void clear(double *acc, int64_t depth)
{
    for (int64_t d = 0; d < depth; d++)
        acc[d] = 0.0;
}

static void write_row(const struct operand *to, int64_t begin, const double *acc, int64_t depth)
{
    for (int64_t d = 0; d < depth; d++)
        store(to, begin + d, acc[d]);
}

/* dq of one head. */
static void attend_grad_q(const struct grad *grad, const struct head *head)
{
    const struct attention *a = head->of;
    double p;
    for (int64_t t = 0; t < a->sizes.n_queries; t++) {
        clear(grad->acc[0], a->sizes.depth);
        for (int64_t j = first_key(head, t); j < end_key(head, t); j++)
            add_scaled(grad->acc[0], weight_grad(grad, head, t, j, &p), &a->k, k_at(head, j),
                       a->sizes.depth);
        write_row(&grad->dq, q_at(head, t), grad->acc[0], a->sizes.depth);
    }
}

/* dk and dv of one head of k and v: the sums over all heads that read it. */
static void attend_grad_kv(const struct grad *grad, int64_t b, int64_t kv_head)
{
    const struct attention *a = &grad->attention;
    int64_t group = a->sizes.heads / a->sizes.kv_heads, depth = a->sizes.depth;
    struct head head = head_at(a, b, kv_head * group);
    for (int64_t j = 0; j < a->sizes.n_keys; j++) {
        clear(grad->acc[0], depth);
        clear(grad->acc[1], depth);
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            head = head_at(a, b, h);
            for (int64_t t = 0; t < a->sizes.n_queries; t++) {
                if (!sees(&head, t, j))
                    continue;
                double p, ds = weight_grad(grad, &head, t, j, &p);
                add_scaled(grad->acc[0], ds, &a->q, q_at(&head, t), depth);
                add_scaled(grad->acc[1], p, &grad->dy, y_at(&head, t), depth);
            }
        }
        write_row(&grad->dk, k_at(&head, j), grad->acc[0], depth);
        write_row(&grad->dv, v_at(&head, j), grad->acc[1], depth);
    }
}

enum snug_status ref_attention_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    struct grad grad = {.attention = attention_of(call),
                        .dy = call->in[ATTENTION_DY],
                        .lse = call->in[ATTENTION_LSE],
                        .dq = call->out[0],
                        .dk = call->out[1],
                        .dv = call->out[2],
                        .delta = call->work};
    const struct attention_sizes *s = &grad.attention.sizes;
    const struct operand *y = &call->in[ATTENTION_Y];
    if (s->packed)
        grad.dk = grad.dv = grad.dq;
    grad.acc[0] = grad.delta + s->heads * s->n_queries;
    grad.acc[1] = grad.acc[0] + s->depth;
    for (int64_t b = 0; b < s->n_batch; b++) {
        for (int64_t h = 0; h < s->heads; h++) {
            struct head head = head_at(&grad.attention, b, h);
            for (int64_t t = 0; t < s->n_queries; t++)
                grad.delta[h * s->n_queries + t] =
                    dot(&grad.dy, y_at(&head, t), 1, y, y_at(&head, t), 1, s->depth);
        }
        for (int64_t h = 0; h < s->heads; h++) {
            struct head head = head_at(&grad.attention, b, h);
            attend_grad_q(&grad, &head);
        }
        for (int64_t h = 0; h < s->kv_heads; h++)
            attend_grad_kv(&grad, b, h);
    }
    return SNUG_OK;
}
