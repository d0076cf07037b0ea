/*
 * build.c -- adds layers to a program: the parameters with their initial values, then the op.
 */
#include "model/model.h"

#include <stdio.h>

enum { NAME_MAX_BYTES = 256 };

enum snug_status build_parameter(struct program *prog, const char *name, const struct shape *shape,
                                 enum init init, double scale, tensor_id *id,
                                 struct snug_error *err)
{
    struct tensor t = {TENSOR_INIT,
                       .name = name,
                       .dtype = DTYPE_f32,
                       .role = ROLE_parameter,
                       .shape = *shape,
                       .persistent = true,
                       .decays = shape->n_dims >= 2,
                       .init = init,
                       .init_scale = scale};
    if (program_find(prog, name) != TENSOR_NONE)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "two layers have a parameter \"%s\": give each layer its own name", name);
    return program_add_tensor(prog, &t, id, err);
}

enum snug_status build_input(struct program *prog, const char *name, enum dtype dtype,
                             const struct shape *shape, tensor_id *id, struct snug_error *err)
{
    struct tensor t = {TENSOR_INIT, .name = name, .dtype = dtype, .role = ROLE_input,
                       .shape = *shape};
    return program_add_tensor(prog, &t, id, err);
}

enum snug_status build_class_loss(struct program *prog, tensor_id logits, struct snug_error *err)
{
    tensor_id target, out[2];
    TRY(build_input(prog, "target", DTYPE_i32, &(struct shape){1, {1}}, &target, err));
    TRY(program_emit(prog, OP_cross_entropy, NULL, 2, (tensor_id[]){logits, target}, "loss", 2, out,
                     err));
    prog->loss = out[0];
    prog->tensors[out[0]].is_output = true;
    return SNUG_OK;
}

enum snug_status build_linear(struct program *prog, tensor_id x, const struct linear_spec *spec,
                              tensor_id *y, struct snug_error *err)
{
    char name[NAME_MAX_BYTES];
    tensor_id weight, bias = TENSOR_NONE;
    int64_t n_in = shape_last(&prog->tensors[x].shape);
    struct shape matrix = {2, {spec->n_out, n_in}}, vector = {1, {spec->n_out}};
    if (spec->layout == LAYOUT_in_out)
        matrix = (struct shape){2, {n_in, spec->n_out}};
    snprintf(name, sizeof name, "%s.weight", spec->name);
    TRY(build_parameter(prog, name, &matrix, spec->init, spec->init_scale, &weight, err));
    snprintf(name, sizeof name, "%s.bias", spec->name);
    if (!spec->no_bias)
        TRY(build_parameter(prog, name, &vector, spec->bias_scale == 0 ? INIT_zeros : INIT_uniform,
                            spec->bias_scale, &bias, err));
    struct attrs attrs = ATTRS(linear, .layout = spec->layout);
    return program_emit(prog, OP_linear, &attrs, spec->no_bias ? 2 : 3,
                        (tensor_id[]){x, weight, bias}, spec->name, 1, y, err);
}

enum snug_status build_layernorm(struct program *prog, tensor_id x, const char *name, double eps,
                                 tensor_id *y, struct snug_error *err)
{
    char full[NAME_MAX_BYTES];
    tensor_id gamma, beta, out[3];
    struct shape vector = {1, {shape_last(&prog->tensors[x].shape)}};
    snprintf(full, sizeof full, "%s.weight", name);
    TRY(build_parameter(prog, full, &vector, INIT_ones, 0, &gamma, err));
    snprintf(full, sizeof full, "%s.bias", name);
    TRY(build_parameter(prog, full, &vector, INIT_zeros, 0, &beta, err));
    struct attrs attrs = ATTRS(norm, .eps = eps);
    TRY(program_emit(prog, OP_layernorm, &attrs, 3, (tensor_id[]){x, gamma, beta}, name, 3, out,
                     err));
    *y = out[0];
    return SNUG_OK;
}

enum snug_status build_rmsnorm(struct program *prog, tensor_id x, const char *name, int64_t width,
                               double eps, tensor_id *y, struct snug_error *err)
{
    char full[NAME_MAX_BYTES];
    tensor_id gamma, out[2];
    snprintf(full, sizeof full, "%s.weight", name);
    TRY(build_parameter(prog, full, &(struct shape){1, {width}}, INIT_ones, 0, &gamma, err));
    struct attrs attrs = ATTRS(norm, .eps = eps);
    TRY(program_emit(prog, OP_rmsnorm, &attrs, 2, (tensor_id[]){x, gamma}, name, 2, out, err));
    *y = out[0];
    return SNUG_OK;
}

enum snug_status build_conv(struct program *prog, tensor_id x, const struct conv_spec *spec,
                            tensor_id *y, struct snug_error *err)
{
    char name[NAME_MAX_BYTES];
    tensor_id in[3] = {x};
    struct shape kernel = {
        4, {spec->n_out, shape_last(&prog->tensors[x].shape), spec->kernel_h, spec->kernel_w}};
    snprintf(name, sizeof name, "%s.weight", spec->name);
    TRY(build_parameter(prog, name, &kernel, spec->init, spec->init_scale, &in[1], err));
    snprintf(name, sizeof name, "%s.bias", spec->name);
    if (spec->has_bias)
        TRY(build_parameter(prog, name, &(struct shape){1, {spec->n_out}}, INIT_zeros, 0, &in[2],
                            err));
    struct attrs attrs = ATTRS(image, .stride = spec->stride, .pad = spec->pad);
    return program_emit(prog, OP_conv2d, &attrs, spec->has_bias ? 3 : 2, in, spec->name, 1, y, err);
}

static enum snug_status build_buffer(struct program *prog, const char *name,
                                     const struct shape *shape, enum init init, tensor_id *id,
                                     struct snug_error *err)
{
    struct tensor t = {TENSOR_INIT,     .name = name,       .dtype = DTYPE_f32, .role = ROLE_buffer,
                       .shape = *shape, .persistent = true, .init = init};
    return program_add_tensor(prog, &t, id, err);
}

enum snug_status build_batchnorm(struct program *prog, tensor_id x, const char *name, enum act act,
                                 tensor_id r, tensor_id *y, struct snug_error *err)
{
    char full[NAME_MAX_BYTES];
    tensor_id in[4] = {x, TENSOR_NONE, TENSOR_NONE, r}, out[3], running[2];
    struct shape vector = {1, {shape_last(&prog->tensors[x].shape)}};
    snprintf(full, sizeof full, "%s.weight", name);
    TRY(build_parameter(prog, full, &vector, INIT_ones, 0, &in[1], err));
    snprintf(full, sizeof full, "%s.bias", name);
    TRY(build_parameter(prog, full, &vector, INIT_zeros, 0, &in[2], err));
    snprintf(full, sizeof full, "%s.running_mean", name);
    TRY(build_buffer(prog, full, &vector, INIT_zeros, &running[0], err));
    snprintf(full, sizeof full, "%s.running_var", name);
    TRY(build_buffer(prog, full, &vector, INIT_ones, &running[1], err));
    struct attrs attrs = ATTRS(norm);
    attrs.act = act;
    TRY(program_emit(prog, OP_batchnorm, &attrs, r == TENSOR_NONE ? 3 : 4, in, name, 3, out, err));
    *y = out[0];
    return program_add_op(prog, OP_batchnorm_update, NULL, 5,
                          (tensor_id[]){out[1], out[2], running[0], running[1], x}, 2, running,
                          err);
}
