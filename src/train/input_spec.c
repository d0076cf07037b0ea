/*
 * input_spec.c -- which data a program wants: read off its loss op, so that presets and networks built by
 * hand are fed alike.
 */
#include "train/trainer.h"

static const struct op *loss_op(const struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_out; k++)
            if (prog->loss != TENSOR_NONE && prog->ops[i].out[k] == prog->loss)
                return &prog->ops[i];
    return NULL;
}

enum snug_status needs_of(const struct program *prog, struct data_needs *needs,
                          struct snug_error *err)
{
    const struct op *op = loss_op(prog);
    int n_inputs = 0;
    *needs = (struct data_needs){
        .input = TENSOR_NONE, .target_input = TENSOR_NONE, .output = TENSOR_NONE};
    if (op == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s has no loss: it can be planned, not trained or evaluated", prog->name);
    bool head_fused =
        op->kind == OP_linear_cross_entropy || op->kind == OP_linear_cross_entropy_train;
    needs->target_input = op->in[head_fused ? 2 : 1];
    if (head_fused) {
        needs->n_classes = prog->tensors[op->in[1]].shape.dim[0];
    } else {
        needs->output = op->in[0];
        needs->n_classes = shape_last(&prog->tensors[op->in[0]].shape);
    }
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].role == ROLE_input && i != needs->target_input) {
            needs->input = i;
            n_inputs++;
        }
    if (n_inputs != 1) {
        needs->input = TENSOR_NONE;
        return SNUG_OK;
    }
    bool tokens = prog->tensors[needs->input].dtype == DTYPE_i32;
    needs->target =
        op->kind == OP_mse ? DATA_TARGET_REAL
        : tokens && tensor_elems(prog, needs->target_input) == tensor_elems(prog, needs->input)
            ? DATA_TARGET_TOKENS
            : DATA_TARGET_CLASS;
    return SNUG_OK;
}

enum snug_status needs_open_data(const struct session *session, const struct data_needs *needs,
                                 const char *spec, const struct snug_recipe *recipe,
                                 struct data **data, struct snug_error *err)
{
    const struct program *prog = session_forward(session);
    if (needs->input == TENSOR_NONE)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s does not have one input and a target: feed it with snug_trainer_step",
                         prog->name);
    struct data_request request = {
        .spec = spec,
        .target = needs->target,
        .sample_elems = tensor_elems(prog, needs->input) / session->micro_batch,
        .target_elems = tensor_elems(prog, needs->target_input) / session->micro_batch,
        .n_classes = needs->n_classes,
        .seed = (uint64_t)recipe->seed,
        .augment = recipe->augment,
        .threads = session->facts.threads,
        .bytes_as_tokens = recipe->tokenizer == TOKENIZER_bytes};
    const struct shape *input = &prog->tensors[needs->input].shape;
    if (input->n_dims == 4) { /* of images; a single plane may be last (see model/vision.c) */
        bool plane_last = input->dim[3] == 1;
        request.channels = plane_last ? 1 : input->dim[1];
        request.height = input->dim[plane_last ? 1 : 2];
        request.width = input->dim[plane_last ? 2 : 3];
    }
    return data_open(&request, data, err);
}
