/*
 * ref_loss.c -- reference: cross-entropy, mean squared error, and the fused LM head, which computes
 * its logits one at a time.
 *
 * Losses are weight * mean.  Their gradients are also multiplied by loss_scale of the scalar table.
 */
#include <math.h>

#include "cpu/ref/ref_common.h"

static double grad_factor(const struct kernel_call *call, const struct operand *scalars, int64_t n)
{
    return attrs_of(call->op, loss)->weight * load(scalars, SCALAR_loss_scale) / (double)n;
}

/* The label of a class with label smoothing. */
static double label(const struct kernel_call *call, int64_t n_classes, bool is_target)
{
    double smoothing = attrs_of(call->op, loss)->smoothing;
    return smoothing / (double)n_classes + (is_target ? 1.0 - smoothing : 0.0);
}

enum snug_status ref_cross_entropy(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *logits = &call->in[0], *targets = &call->in[1];
    const int32_t *target = targets->data;
    int64_t n_rows = rows(logits), n_classes = last(logits);
    double total = 0.0;

    TRY(ref_check_ids(targets, n_classes, err));
    for (int64_t n = 0; n < n_rows; n++) {
        struct log_sum sum = {0};
        double right = 0.0; /* the logits weighted by the labels */
        for (int64_t k = 0; k < n_classes; k++) {
            double value = load(logits, n * n_classes + k);
            log_sum_add(&sum, value);
            right += label(call, n_classes, k == target[n]) * value;
        }
        total += log_sum_value(&sum) - right;
        store(&call->out[1], n, log_sum_value(&sum));
    }
    store_or_add(&call->out[0], 0, attrs_of(call->op, loss)->weight * total / (double)n_rows,
                 call->add);
    return SNUG_OK;
}

enum snug_status ref_cross_entropy_grad(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *logits = &call->in[0], *targets = &call->in[1], *lse = &call->in[2];
    const int32_t *target = targets->data;
    int64_t n_rows = rows(logits), n_classes = last(logits);
    double factor = grad_factor(call, &call->in[3], n_rows);

    TRY(ref_check_ids(targets, n_classes, err));
    for (int64_t n = 0; n < n_rows; n++)
        for (int64_t k = 0; k < n_classes; k++) {
            int64_t i = n * n_classes + k;
            double p = exp(load(logits, i) - load(lse, n));
            store(&call->out[0], i, factor * (p - label(call, n_classes, k == target[n])));
        }
    return SNUG_OK;
}

enum snug_status ref_mse(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *target = &call->in[1];
    int64_t n = elems(x);
    double total = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double off = load(x, i) - load(target, i);
        total += off * off;
    }
    store_or_add(&call->out[0], 0, attrs_of(call->op, loss)->weight * total / (double)n, call->add);
    return SNUG_OK;
}

enum snug_status ref_mse_grad(const struct kernel_call *call, struct snug_error *err)
{
    (void)err;
    const struct operand *x = &call->in[0], *target = &call->in[1];
    int64_t n = elems(x);
    double factor = 2.0 * grad_factor(call, &call->in[2], n);
    for (int64_t i = 0; i < n; i++)
        store(&call->out[0], i, factor * (load(x, i) - load(target, i)));
    return SNUG_OK;
}

/* ---- the LM head: logits = x W^T, never stored ----------------------------------------------- */

struct lm_head {
    const struct kernel_call *call;
    const struct operand *x, *w, *targets, *lse;
    const int32_t *target;
    int64_t n_rows, n_classes, width;
};

static struct lm_head head_of(const struct kernel_call *call, const struct operand *lse)
{
    const struct operand *x = &call->in[0], *w = &call->in[1], *targets = &call->in[2];
    return (struct lm_head){call, x, w, targets, lse, targets->data, rows(x), rows(w), last(x)};
}

static double logit(const struct lm_head *head, int64_t n, int64_t v)
{
    return dot(head->x, n * head->width, 1, head->w, v * head->width, 1, head->width);
}

static enum snug_status head_loss(const struct kernel_call *call, const struct lm_head *head,
                                  const struct operand *loss, struct snug_error *err)
{
    double total = 0.0;
    TRY(ref_check_ids(head->targets, head->n_classes, err));
    for (int64_t n = 0; n < head->n_rows; n++) {
        struct log_sum sum = {0};
        double right = 0.0;
        for (int64_t v = 0; v < head->n_classes; v++) {
            double value = logit(head, n, v);
            log_sum_add(&sum, value);
            right += label(call, head->n_classes, v == head->target[n]) * value;
        }
        total += log_sum_value(&sum) - right;
        store(head->lse, n, log_sum_value(&sum));
    }
    store_or_add(loss, 0, attrs_of(call->op, loss)->weight * total / (double)head->n_rows,
                 call->add);
    return SNUG_OK;
}

/* The derivative of the loss with respect to logit (n,v), without the factor. */
static double logit_grad(const struct lm_head *head, int64_t n, int64_t v)
{
    return exp(logit(head, n, v) - load(head->lse, n)) -
           label(head->call, head->n_classes, v == head->target[n]);
}

int64_t ref_head_grad_work_elems(const struct shape *x)
{
    return shape_last(x); /* one row of dx or of dW */
}

/*
 * Row `fixed` of dx, summed over the classes, if by_row; else row `fixed` of dW, summed over the
 * rows of x.  Each term is a logit's gradient times a row of the other matrix.
 */
static void head_grad_row(const struct lm_head *head, bool by_row, int64_t fixed, double *acc)
{
    const struct operand *other = by_row ? head->w : head->x;
    int64_t count = by_row ? head->n_classes : head->n_rows;
    for (int64_t c = 0; c < head->width; c++)
        acc[c] = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double slope = by_row ? logit_grad(head, fixed, i) : logit_grad(head, i, fixed);
        for (int64_t c = 0; c < head->width; c++)
            acc[c] += slope * load(other, i * head->width + c);
    }
}

static enum snug_status head_grad(const struct kernel_call *call, const struct lm_head *head,
                                  const struct operand *scalars, const struct operand *dx,
                                  const struct operand *dw, struct snug_error *err)
{
    double factor = grad_factor(call, scalars, head->n_rows), *acc = call->work;
    TRY(ref_check_ids(head->targets, head->n_classes, err));
    for (int64_t n = 0; present(dx) && n < head->n_rows; n++) {
        head_grad_row(head, true, n, acc);
        for (int64_t c = 0; c < head->width; c++)
            store(dx, n * head->width + c, factor * acc[c]);
    }
    for (int64_t v = 0; present(dw) && v < head->n_classes; v++) {
        head_grad_row(head, false, v, acc);
        for (int64_t c = 0; c < head->width; c++)
            store_or_add(dw, v * head->width + c, factor * acc[c], call->add);
    }
    return SNUG_OK;
}

enum snug_status ref_linear_cross_entropy(const struct kernel_call *call, struct snug_error *err)
{
    struct lm_head head = head_of(call, &call->out[1]);
    return head_loss(call, &head, &call->out[0], err);
}

enum snug_status ref_linear_cross_entropy_grad(const struct kernel_call *call,
                                               struct snug_error *err)
{
    struct lm_head head = head_of(call, &call->in[3]);
    return head_grad(call, &head, &call->in[4], &call->out[0], &call->out[1], err);
}

enum snug_status ref_linear_cross_entropy_train(const struct kernel_call *call,
                                                struct snug_error *err)
{
    struct lm_head head = head_of(call, &call->out[1]);
    TRY(head_loss(call, &head, &call->out[0], err));
    return head_grad(call, &head, &call->in[3], &call->out[2], &call->out[3], err);
}
