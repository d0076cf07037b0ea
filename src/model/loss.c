/*
 * loss.c -- replaces the loss of a model (--loss).
 *
 * A classifier can be trained with the mean squared error against one-hot targets, and a regression
 * network with cross-entropy.  Only the last op and the dtype and shape of the target change.
 */
#include "model/model.h"

static struct op *loss_op(struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (prog->loss != TENSOR_NONE && prog->ops[i].out[0] == prog->loss)
            return &prog->ops[i];
    return NULL;
}

static enum snug_status to_cross_entropy(struct program *prog, struct op *op,
                                         struct snug_error *err)
{
    struct tensor *target = &prog->tensors[op->in[1]];
    struct tensor lse = {TENSOR_INIT, .name = "loss.1", .dtype = DTYPE_f32, .role = ROLE_activation,
                         .shape = {1, {shape_rows(&target->shape)}}};
    target->dtype = DTYPE_i32;
    target->shape.n_dims--;
    tensor_id out[2] = {op->out[0]};
    TRY(program_add_tensor(prog, &lse, &out[1], err));
    *op = op_make(OP_cross_entropy, op->attrs, 2, op->in, 2, out);
    return SNUG_OK;
}

static void to_mse(struct program *prog, struct op *op)
{
    struct tensor *target = &prog->tensors[op->in[1]];
    target->dtype = DTYPE_f32;
    target->shape = prog->tensors[op->in[0]].shape;
    *op = op_make(OP_mse, op->attrs, 2, op->in, 1, op->out); /* without lse */
}

enum snug_status model_set_loss(struct program *prog, enum model_loss loss, struct snug_error *err)
{
    struct op *op = loss_op(prog);
    if (op == NULL) /* a model without a loss, as psi */
        return SNUG_OK;
    if (op_has(op, TRAIT_lm_head) && loss == LOSS_mse)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "--loss mse is not supported for language models: the fused LM head of "
                         "%s never materializes the logits",
                         prog->name);
    if (op->kind == OP_cross_entropy && loss == LOSS_mse)
        to_mse(prog, op);
    else if (op->kind == OP_mse && loss == LOSS_cross_entropy)
        return to_cross_entropy(prog, op, err);
    return SNUG_OK;
}
