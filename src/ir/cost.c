/*
 * cost.c -- the cost of an op: floating-point operations and bytes of its operands.
 *
 * Only the flops of matmuls are exact.  Elementwise ops count one flop per output element, which is
 * good enough because they are memory-bound.
 */
#include "ir/attention_operands.h"
#include "ir/matrix_operands.h"

#include <math.h>

typedef double cost_rule(const struct program *prog, const struct op *op);

static double elems(const struct program *prog, tensor_id id)
{
    return id == TENSOR_NONE ? 0 : (double)tensor_elems(prog, id);
}

static double cost_elementwise(const struct program *prog, const struct op *op)
{
    double n = 0;
    for (int k = 0; k < op->n_out; k++)
        n += elems(prog, op->out[k]);
    return n;
}

static double cost_none(const struct program *prog, const struct op *op)
{
    (void)prog;
    (void)op;
    return 0;
}

static double cost_norm(const struct program *prog, const struct op *op)
{
    return 8 * elems(prog, op->in[0]);
}

static double cost_linear(const struct program *prog, const struct op *op)
{
    return 2 * (double)shape_rows(&prog->tensors[op->in[0]].shape) * elems(prog, op->in[1]);
}

static double cost_linear_w(const struct program *prog, const struct op *op)
{
    return 2 * elems(prog, op->in[0]) * (double)shape_last(&prog->tensors[op->in[1]].shape);
}

/* Matmuls like q k^T and p v: 2 D flops per head and pair of a query and a key. */
static double attention_gemms(const struct program *prog, const struct op *op, double n_gemms)
{
    struct attention_sizes s = attention_sizes_of(prog, op);
    return 2 * n_gemms * (double)s.n_batch * attention_pairs(&s) * (double)(s.heads * s.depth);
}

static double cost_attention(const struct program *prog, const struct op *op)
{
    return attention_gemms(prog, op, 2);
}

static double cost_attention_grad(const struct program *prog, const struct op *op)
{
    return attention_gemms(prog, op, 5);
}

static double cost_head(const struct program *prog, const struct op *op)
{
    return cost_linear(prog, op);
}

/* The logits, and one matmul for each gradient that is wanted: dx, dw. */
static double head_gemms(const struct op *op, int dx)
{
    return 1 + (op->out[dx] != TENSOR_NONE) +
           (dx + 1 < op->n_out && op->out[dx + 1] != TENSOR_NONE);
}

static double cost_head_grad(const struct program *prog, const struct op *op)
{
    return head_gemms(op, 0) * cost_linear(prog, op);
}

static double cost_head_train(const struct program *prog, const struct op *op)
{
    return head_gemms(op, 2) * cost_linear(prog, op);
}

/* Each element of the output image (y in forward, dy in the gradient) is multiplied by all weights
 * of its channel once. */
static double cost_conv2d(const struct program *prog, const struct op *op)
{
    const struct shape *w = &prog->tensors[op->in[1]].shape;
    double n_out = elems(prog, op_layer(op) == LAYER_forward ? op->out[0] : op->in[0]);
    return 2 * n_out * (double)(w->dim[1] * w->dim[2] * w->dim[3]);
}

static double cost_conv2d_grad_w(const struct program *prog, const struct op *op)
{
    const struct image_attrs *a = attrs_of(op, image);
    double channels = (double)shape_last(&prog->tensors[op->in[0]].shape) / (double)a->groups;
    return 2 * elems(prog, op->in[1]) * channels * (double)(a->kernel_h * a->kernel_w);
}

/* Three matmuls per iteration: X X^T, its square, and that times X. */
static double cost_orthogonalize(const struct program *prog, const struct op *op)
{
    struct matrix m = matrix_of(&prog->tensors[op->in[MATRIX_GRADIENT]].shape, 1);
    double n = (double)matrix_least(m.rows, m.cols);
    double elems_of_x = (double)m.rows * (double)m.cols;
    return attrs_of(op, options)->options.value[ORTHOGONALIZE_steps] *
           (4 * n * elems_of_x + 2 * n * n * n);
}

/* Counts the left and right statistics, and the multiplication of the gradient by two matrices.
 * Roots and eigenvectors are not counted: they are not computed in every step. */
static double cost_precondition(const struct program *prog, const struct op *op)
{
    double block = attrs_of(op, options)->options.value[PRECONDITION_block];
    struct matrix m = matrix_of(&prog->tensors[op->in[MATRIX_GRADIENT]].shape, 1);
    double rows = (double)m.rows, cols = (double)m.cols;
    return 4 * rows * cols * (fmin(rows, block) + fmin(cols, block));
}

/* The same, into the eigenbasis and back; a side longer than max_dim is not rotated. */
static double cost_soap(const struct program *prog, const struct op *op)
{
    double most = attrs_of(op, options)->options.value[SOAP_max_dim];
    struct matrix m = matrix_of(&prog->tensors[op->in[MATRIX_GRADIENT]].shape, 1);
    double rows = (double)m.rows, cols = (double)m.cols;
    return 6 * rows * cols * ((rows > most ? 0 : rows) + (cols > most ? 0 : cols));
}

static cost_rule *const rules[OP_COUNT] = {
#define COST(rule)                                    cost_##rule
#define OP(kind, in, out, shape, gradient, cost, ...) [OP_##kind] = cost,
#include "ir/ops.def"
#undef OP
};

double op_flops(const struct program *prog, const struct op *op)
{
    return rules[op->kind](prog, op);
}

/* The most bytes of any one operand that an op moves.  An embedding reads only the rows that it
 * looks up, and batchnorm_update needs only the shape of x. */
static double most_bytes(const struct program *prog, const struct op *op)
{
    if (op->kind == OP_embedding)
        return (double)tensor_bytes(prog, op->out[0]);
    if (op->kind == OP_embedding_grad)
        return (double)tensor_bytes(prog, op->in[1]);
    if (op->kind == OP_batchnorm_update)
        return (double)tensor_bytes(prog, op->in[0]);
    return INFINITY;
}

static double operand_bytes(const struct program *prog, const struct op *op, const tensor_id *ids,
                            int n)
{
    double bytes = 0, most = most_bytes(prog, op);
    if (op->kind == OP_wait_copy) /* does not read its operand */
        return 0;
    for (int k = 0; k < n; k++)
        if (ids[k] != TENSOR_NONE)
            bytes += fmin((double)tensor_bytes(prog, ids[k]), most);
    return bytes;
}

double op_read_bytes(const struct program *prog, const struct op *op)
{
    return operand_bytes(prog, op, op->in, op->n_in);
}

double op_moved_bytes(const struct program *prog, const struct op *op)
{
    return op_read_bytes(prog, op) + operand_bytes(prog, op, op->out, op->n_out);
}
