/*
 * mlp.c -- a multilayer perceptron, for classification or regression.
 *
 * Parameters are layers.N.weight [out, in] and layers.N.bias.  They are initialized as in PyTorch's
 * nn.Linear: uniform within 1 / sqrt(fan in).
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>

enum snug_status mlp_forward(const struct mlp_shape *m, struct program *prog,
                             struct snug_error *err)
{
    tensor_id x, target, loss;
    TRY(build_input(prog, "x", DTYPE_f32, &(struct shape){2, {1, m->sizes[0]}}, &x, err));
    struct attrs act = ATTRS(common, .act = m->activation);
    for (int i = 1; i < m->n_sizes; i++) {
        char name[64];
        double bound = 1 / sqrt((double)m->sizes[i - 1]);
        snprintf(name, sizeof name, "layers.%d", i - 1);
        struct linear_spec linear = {.name = name,
                                     .n_out = m->sizes[i],
                                     .init = INIT_uniform,
                                     .init_scale = bound,
                                     .bias_scale = bound};
        TRY(build_linear(prog, x, &linear, &x, err));
        if (i < m->n_sizes - 1)
            TRY(program_emit(prog, OP_act, &act, 1, &x, "act", 1, &x, err));
    }
    int64_t width = m->sizes[m->n_sizes - 1];
    if (m->loss != LOSS_mse)
        return build_class_loss(prog, x, err);
    TRY(build_input(prog, "target", DTYPE_f32, &(struct shape){2, {1, width}}, &target, err));
    TRY(program_emit(prog, OP_mse, NULL, 2, (tensor_id[]){x, target}, "loss", 1, &loss, err));
    prog->loss = loss;
    prog->tensors[loss].is_output = true;
    return SNUG_OK;
}
