/*
 * ref_attention.c -- reference: self-attention, causal or not, one row of scores at a time.
 *
 * A row of qkv holds q, k and v, C elements each.  Head h owns columns h*D .. (h+1)*D of each:
 *
 *     [ q: h0 h1 .. | k: h0 h1 .. | v: h0 h1 .. ]       D = C / H, scale = 1 / sqrt(D)
 *
 *     p[t,j] = exp(scale q_t . k_j - lse_t)  for j <= t if causal,  y_t = sum over j of p[t,j] v_j
 *
 * Gradient, with delta_t = dy_t . y_t and  ds[t,j] = scale p[t,j] (dy_t . v_j - delta_t):
 *     dq_t = sum_j ds[t,j] k_j     dk_j = sum_t ds[t,j] q_t     dv_j = sum_t p[t,j] dy_t
 *
 * With dropout, m[t,j] is 0 or 1 / (1 - rate); it multiplies p in y and in dv, and dy_t . v_j.
 *
 * p, ds and m are recomputed wherever they are needed.  No T x T matrix is ever stored.
 */
#include <math.h>

#include "cpu/dropout_mask.h"
#include "cpu/ref/ref_common.h"

struct head { /* one head of one sequence */
    const struct operand *qkv;
    int64_t n_time, width, depth; /* T, C, D */
    int64_t first_row, column;    /* first row of the sequence; first column of the head in C */
    double scale;
    bool causal;
    struct dropout dropout;
    int64_t index; /* of the head in the batch */
};

/* m[t,j] */
static double mask_factor(const struct head *head, int64_t t, int64_t j)
{
    return (double)dropout_factor(&head->dropout,
                                  (uint64_t)((head->index * head->n_time + t) * head->n_time + j));
}

static struct head head_at(const struct operand *qkv, const struct attention_attrs *attrs,
                           int64_t b, int64_t h, struct dropout dropout)
{
    struct head head = {.qkv = qkv,
                        .n_time = qkv->tensor->shape.dim[1],
                        .width = last(qkv) / 3,
                        .causal = attrs->causal != 0,
                        .dropout = dropout,
                        .index = b * attrs->heads + h};
    head.depth = head.width / attrs->heads;
    head.first_row = b * head.n_time;
    head.column = h * head.depth;
    head.scale = 1.0 / sqrt((double)head.depth);
    return head;
}

/* The number of keys that query t sees. */
static int64_t keys_of(const struct head *head, int64_t t)
{
    return head->causal ? t + 1 : head->n_time;
}

/* The first query that sees key j. */
static int64_t first_query(const struct head *head, int64_t j)
{
    return head->causal ? j : 0;
}

enum part { PART_q, PART_k, PART_v };

/* Start of a part of row t in qkv and dqkv. */
static int64_t at(const struct head *head, enum part part, int64_t t)
{
    return (head->first_row + t) * 3 * head->width + part * head->width + head->column;
}

/* Start of the head's columns of row t in y and dy. */
static int64_t y_at(const struct head *head, int64_t t)
{
    return (head->first_row + t) * head->width + head->column;
}

static double score(const struct head *head, int64_t t, int64_t j)
{
    return head->scale *
           dot(head->qkv, at(head, PART_q, t), 1, head->qkv, at(head, PART_k, j), 1, head->depth);
}

int64_t ref_attention_work_elems(const struct shape *qkv)
{
    return qkv->dim[1]; /* one row of scores */
}

static void attend(const struct head *head, const struct operand *y, const struct operand *lse,
                   int64_t lse_begin, double *p)
{
    for (int64_t t = 0; t < head->n_time; t++) {
        struct log_sum sum = {0};
        for (int64_t j = 0; j < keys_of(head, t); j++) {
            p[j] = score(head, t, j);
            log_sum_add(&sum, p[j]);
        }
        double log_total = log_sum_value(&sum);
        for (int64_t j = 0; j < keys_of(head, t); j++)
            p[j] = mask_factor(head, t, j) * exp(p[j] - log_total);
        for (int64_t d = 0; d < head->depth; d++) {
            double value = 0.0;
            for (int64_t j = 0; j < keys_of(head, t); j++)
                value += p[j] * load(head->qkv, at(head, PART_v, j) + d);
            store(y, y_at(head, t) + d, value);
        }
        store(lse, lse_begin + t, log_total);
    }
}

enum snug_status ref_attention(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *qkv = &call->in[0];
    int64_t n_batch = qkv->tensor->shape.dim[0], n_heads = attrs_of(call->op, attention)->heads;
    for (int64_t b = 0; b < n_batch; b++)
        for (int64_t h = 0; h < n_heads; h++) {
            struct head head =
                head_at(qkv, attrs_of(call->op, attention), b, h, dropout_of(call, 1));
            attend(&head, &call->out[0], &call->out[1], (b * n_heads + h) * head.n_time,
                   call->work);
        }
    return SNUG_OK;
}

int64_t ref_attention_grad_work_elems(const struct shape *qkv, int64_t heads)
{
    return qkv->dim[1] + 2 * (qkv->dim[2] / 3 / heads); /* delta; two rows of gradients */
}

struct head_grad {
    struct head head;
    const struct operand *dy, *lse, *dqkv;
    int64_t lse_begin;
    double *delta;  /* [T] */
    double *acc[2]; /* [D] each */
};

/* Returns ds[t,j] and stores m[t,j] p[t,j] in *p. */
static double weight_grad(const struct head_grad *grad, int64_t t, int64_t j, double *p)
{
    const struct head *head = &grad->head;
    double whole = exp(score(head, t, j) - load(grad->lse, grad->lse_begin + t));
    double dp = dot(grad->dy, y_at(head, t), 1, head->qkv, at(head, PART_v, j), 1, head->depth);
    *p = mask_factor(head, t, j) * whole;
    return head->scale * whole * (mask_factor(head, t, j) * dp - grad->delta[t]);
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

static void write_part(const struct head_grad *grad, enum part part, int64_t t, const double *acc)
{
    for (int64_t d = 0; d < grad->head.depth; d++)
        store(grad->dqkv, at(&grad->head, part, t) + d, acc[d]);
}

static void attend_grad(const struct head_grad *grad, const struct operand *y)
{
    const struct head *head = &grad->head;
    int64_t n_time = head->n_time, depth = head->depth;
    double *acc0 = grad->acc[0], *acc1 = grad->acc[1], p;

    for (int64_t t = 0; t < n_time; t++)
        grad->delta[t] = dot(grad->dy, y_at(head, t), 1, y, y_at(head, t), 1, depth);
    for (int64_t t = 0; t < n_time; t++) {
        clear(acc0, depth);
        for (int64_t j = 0; j < keys_of(head, t); j++)
            add_scaled(acc0, weight_grad(grad, t, j, &p), head->qkv, at(head, PART_k, j), depth);
        write_part(grad, PART_q, t, acc0);
    }
    for (int64_t j = 0; j < n_time; j++) {
        clear(acc0, depth);
        clear(acc1, depth);
        for (int64_t t = first_query(head, j); t < n_time; t++) {
            double ds = weight_grad(grad, t, j, &p);
            add_scaled(acc0, ds, head->qkv, at(head, PART_q, t), depth);
            add_scaled(acc1, p, grad->dy, y_at(head, t), depth);
        }
        write_part(grad, PART_k, j, acc0);
        write_part(grad, PART_v, j, acc1);
    }
}

enum snug_status ref_attention_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *qkv = &call->in[1];
    int64_t n_batch = qkv->tensor->shape.dim[0], n_heads = attrs_of(call->op, attention)->heads;
    struct head_grad grad = {.dy = &call->in[0], .lse = &call->in[3], .dqkv = &call->out[0]};
    for (int64_t b = 0; b < n_batch; b++)
        for (int64_t h = 0; h < n_heads; h++) {
            grad.head = head_at(qkv, attrs_of(call->op, attention), b, h, dropout_of(call, 4));
            grad.lse_begin = (b * n_heads + h) * grad.head.n_time;
            grad.delta = call->work;
            grad.acc[0] = grad.delta + grad.head.n_time;
            grad.acc[1] = grad.acc[0] + grad.head.depth;
            attend_grad(&grad, &call->in[2]);
        }
    return SNUG_OK;
}
