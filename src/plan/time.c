/*
 * time.c -- the seconds of an op: max(flops / rate of its kind, bytes / rate of memory) + launch.
 *
 * A matmul with a small dimension runs at a lower rate.  So the curve of a kind of matmul gives the
 * rate by the smallest dimension.  Between two points the rate is interpolated logarithmically, and
 * beyond the last point it is constant.  Below the first point of a matmul it is proportional to
 * the dimension, because the time is then that of reading the large operand.
 */
#include "plan/rates.h"

#include "ir/collective_options.h"

#include <math.h>

static double least_of(double size, int64_t dimension)
{
    return fmin(size, (double)dimension);
}

static double least_dimension(const struct program *prog, const struct op *op)
{
    double size = INFINITY;
    if (op_has(op, TRAIT_conv) && op_layer(op) == LAYER_grad_w)
        return least_of((double)shape_last(&prog->tensors[op->in[1]].shape),
                        shape_last(&prog->tensors[op->in[0]].shape) *
                            attrs_of(op, image)->kernel_h * attrs_of(op, image)->kernel_w);
    if (op_has(op, TRAIT_conv)) {
        const struct shape *w = &prog->tensors[op->in[1]].shape;
        return least_of((double)w->dim[0], w->dim[1] * w->dim[2] * w->dim[3]);
    }
    for (int k = 0; k < 2; k++) {
        if (op->in[k] == TENSOR_NONE || op->in[k] == prog->scalars)
            continue;
        const struct shape *s = &prog->tensors[op->in[k]].shape;
        size = least_of(least_of(size, shape_rows(s)), shape_last(s));
    }
    return size;
}

double op_size(const struct program *prog, const struct op *op)
{
    if (op_has(op, TRAIT_attention))
        return (double)prog->tensors[op->in[0]].shape.dim[1];
    return op_has(op, TRAIT_gemm) ? least_dimension(prog, op) : op_moved_bytes(prog, op);
}

enum dtype op_dtype(const struct program *prog, const struct op *op)
{
    for (int k = 0; k < op->n_in + op->n_out; k++) {
        tensor_id id = k < op->n_in ? op->in[k] : op->out[k - op->n_in];
        if (id != TENSOR_NONE && id != prog->scalars && dtype_is_float(prog->tensors[id].dtype))
            return prog->tensors[id].dtype;
    }
    return DTYPE_f32;
}

int op_variant(const struct op *op)
{
    return op_reads_attrs(op, update) ? (int)attrs_of(op, update)->state_bits +
                                            (attrs_of(op, update)->stochastic ? 100 : 0)
                                      : 0;
}

double op_work(const struct program *prog, const struct op *op)
{
    return op_has(op, TRAIT_gemm) ? op_flops(prog, op) : op_moved_bytes(prog, op);
}

/* ---- measured devices ------------------------------------------------------------------------ */

/* The measured kind whose curve a kind gets that was not measured. */
static enum op_kind like(enum op_kind kind)
{
    if (kind_has(kind, TRAIT_lm_head) && kind != OP_linear_cross_entropy_train)
        return OP_linear_cross_entropy_train;
    return kind_has(kind, TRAIT_gemm) ? OP_linear : OP_add_layernorm;
}

static const struct rate_curve *find_curve(const struct device_rates *rates, enum op_kind kind,
                                           enum dtype dtype, int variant)
{
    const struct rate_curve *other = NULL; /* another variant of the kind */
    for (int i = 0; i < rates->n_curves; i++) {
        const struct rate_curve *c = &rates->curves[i];
        if (c->kind == kind && c->dtype == dtype && c->variant == variant)
            return c;
        if (c->kind == kind && (other == NULL || c->dtype == dtype))
            other = c;
    }
    return other;
}

static double rate_on(const struct rate_curve *curve, double size, bool is_gemm)
{
    const struct rate_point *p = curve->points;
    int n = curve->n_points, at = 1;
    if (size <= p[0].size)
        return is_gemm ? p[0].rate * size / p[0].size : p[0].rate;
    if (size >= p[n - 1].size)
        return p[n - 1].rate;
    while (p[at].size < size)
        at++;
    double share = log(size / p[at - 1].size) / log(p[at].size / p[at - 1].size);
    return p[at - 1].rate * pow(p[at].rate / p[at - 1].rate, share);
}

/* ---- declared devices ------------------------------------------------------------------------ */

static struct op_share share_of(const struct device_rates *rates, const struct op *op)
{
    for (int i = 0; i < rates->n_shares; i++)
        if (rates->shares[i].kind == op->kind && rates->shares[i].variant == op_variant(op))
            return rates->shares[i];
    return (struct op_share){.share = 1, .n_launches = 1};
}

static double gemm_rate(const struct program *prog, const struct op *op,
                        const struct device_rates *rates)
{
    enum dtype dtype = op_dtype(prog, op);
    double flops = dtype == DTYPE_bf16  ? rates->bf16_flops
                   : dtype == DTYPE_f16 ? rates->f16_flops
                                        : rates->flops;
    double size = op_size(prog, op);
    if (!(flops > 0))
        flops = rates->flops;
    return flops * size / (size + rates->half_size);
}

double op_seconds(const struct program *prog, const struct op *op, const struct device_rates *rates)
{
    bool is_gemm = op_has(op, TRAIT_gemm);
    double work = op_work(prog, op), by_bytes = op_moved_bytes(prog, op) / rates->bytes;
    const struct rate_curve *curve =
        find_curve(rates, op->kind, op_dtype(prog, op), op_variant(op));
    if (curve == NULL)
        curve = find_curve(rates, like(op->kind), op_dtype(prog, op), 0);
    if (!(work > 0))
        return rates->launch_seconds;
    struct op_share own = {.share = 1, .n_launches = 1};
    if (curve == NULL)
        own = share_of(rates, op);
    double seconds = curve != NULL ? work / rate_on(curve, op_size(prog, op), is_gemm)
                     : is_gemm     ? work / (own.share * gemm_rate(prog, op, rates))
                                   : by_bytes / own.share;
    return (is_gemm ? fmax(seconds, by_bytes) : seconds) + own.n_launches * rates->launch_seconds;
}

/* An all_reduce has two phases, the others have one.  In a phase a rank sends one message to each
 * other rank, with the bytes that belong to that rank.  If one rank owns all bytes, its link
 * carries all of them. */
double collective_seconds(const struct program *prog, const struct op *op,
                          const struct device_rates *rates)
{
    double n = collective_ranks(op);
    double phases = op_has(op, TRAIT_reduces) && op_has(op, TRAIT_gathers) ? 2 : 1;
    double share = collective_cut(op).owner == CUT_OVER_ALL ? (n - 1) / n : n - 1;
    if (n < 2 || !(rates->network_bytes > 0))
        return 0;
    return phases * (share * collective_bytes(prog, op) / rates->network_bytes +
                     (n - 1) * rates->message_seconds);
}

double p2p_seconds(const struct program *prog, const struct op *op,
                   const struct device_rates *rates)
{
    if (op->kind != OP_recv || !(rates->network_bytes > 0))
        return 0;
    return (double)tensor_bytes(prog, op->out[0]) / rates->network_bytes + rates->message_seconds;
}
