/*
 * custom.c -- the model builder of snug.h: the user adds layers one by one.
 *
 * After the first error all later calls do nothing, and snug_model_finish reports it.  So the user
 * has to check for errors only once.
 */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

snug_model *snug_model_new(const char *name)
{
    snug_model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->family = MODEL_custom;
    snprintf(m->name, sizeof m->name, "%s", name == NULL || *name == '\0' ? "model" : name);
    if (program_init(&m->built, m->name, NULL) != SNUG_OK) {
        free(m);
        return NULL;
    }
    return m;
}

void snug_model_free(snug_model *model)
{
    if (model == NULL)
        return;
    program_free(&model->built);
    free(model->config_source);
    free(model->folder);
    free(model->weights_folder);
    free(model);
}

static bool usable(snug_model *m, snug_tensor x, const char *what)
{
    if (m == NULL || m->err.status != SNUG_OK)
        return false;
    if (m->family != MODEL_custom || m->finished)
        snug_fail(&m->err, SNUG_BAD_ARGUMENT, "%s: the model is finished, no layer can be added",
                  what);
    else if (m->built.loss != TENSOR_NONE)
        snug_fail(&m->err, SNUG_BAD_ARGUMENT, "%s: no layer can follow the loss", what);
    else if (x < 0 || x >= m->built.n_tensors)
        snug_fail(&m->err, SNUG_BAD_ARGUMENT, "%s: its input is not a tensor of this model", what);
    return m->err.status == SNUG_OK;
}

static snug_tensor result(const snug_model *m, tensor_id id)
{
    return m->err.status == SNUG_OK ? id : TENSOR_NONE;
}

snug_tensor snug_input(snug_model *m, const char *name, enum snug_type type, int n_dims,
                       const int64_t *dims)
{
    tensor_id id = TENSOR_NONE;
    if (m == NULL || m->err.status != SNUG_OK)
        return TENSOR_NONE;
    if (n_dims < 0 || n_dims >= MAX_DIMS || m->built.n_ops > 0) {
        snug_fail(&m->err, SNUG_BAD_ARGUMENT, "input %s: %s", name,
                  m->built.n_ops > 0 ? "add inputs before layers" : "too many dimensions");
        return TENSOR_NONE;
    }
    struct shape shape = {n_dims + 1, {1}};
    for (int d = 0; d < n_dims; d++) {
        shape.dim[d + 1] = dims[d];
        if (dims[d] < 1)
            snug_fail(&m->err, SNUG_BAD_ARGUMENT, "input %s: dimension %d is below 1", name, d);
    }
    if (m->err.status == SNUG_OK)
        build_input(&m->built, name, type == SNUG_TYPE_I32 ? DTYPE_i32 : DTYPE_f32, &shape, &id,
                    &m->err);
    return result(m, id);
}

snug_tensor snug_linear(snug_model *m, snug_tensor x, const char *name, int64_t n_out)
{
    tensor_id y = TENSOR_NONE;
    if (!usable(m, x, name))
        return TENSOR_NONE;
    if (n_out < 1) {
        snug_fail(&m->err, SNUG_BAD_ARGUMENT, "linear %s: %lld outputs, must be at least 1", name,
                  (long long)n_out);
        return TENSOR_NONE;
    }
    double bound = 1 / sqrt((double)shape_last(&m->built.tensors[x].shape));
    struct linear_spec spec = {.name = name,
                               .n_out = n_out,
                               .init = INIT_uniform,
                               .init_scale = bound,
                               .bias_scale = bound};
    build_linear(&m->built, x, &spec, &y, &m->err);
    return result(m, y);
}

static snug_tensor emit(snug_model *m, enum op_kind kind, const struct attrs *attrs, int n_in,
                        const tensor_id *in, const char *name, int n_out)
{
    tensor_id out[MAX_OUTPUTS] = {TENSOR_NONE};
    program_emit(&m->built, kind, attrs, n_in, in, name, n_out, out, &m->err);
    return result(m, out[0]);
}

snug_tensor snug_activate(snug_model *m, snug_tensor x, enum snug_activation fn)
{
    static const enum act acts[] = {ACT_none, ACT_relu, ACT_gelu, ACT_sigmoid, ACT_tanh};
    if (!usable(m, x, "activate"))
        return TENSOR_NONE;
    if ((unsigned)fn >= sizeof acts / sizeof *acts) {
        snug_fail(&m->err, SNUG_BAD_ARGUMENT, "activate: %d is not an activation", (int)fn);
        return TENSOR_NONE;
    }
    if (fn == SNUG_NONE)
        return x;
    struct attrs attrs = ATTRS(common, .act = acts[fn]);
    return emit(m, OP_act, &attrs, 1, &x, "act", 1);
}

snug_tensor snug_add(snug_model *m, snug_tensor a, snug_tensor b)
{
    if (!usable(m, a, "add") || !usable(m, b, "add"))
        return TENSOR_NONE;
    return emit(m, OP_add, NULL, 2, (tensor_id[]){a, b}, "sum", 1);
}

snug_tensor snug_layernorm(snug_model *m, snug_tensor x, const char *name)
{
    tensor_id y = TENSOR_NONE;
    if (!usable(m, x, name))
        return TENSOR_NONE;
    build_layernorm(&m->built, x, name, 1e-5, &y, &m->err);
    return result(m, y);
}

static tensor_id table(snug_model *m, const char *name, int64_t rows, int64_t width)
{
    tensor_id id = TENSOR_NONE;
    if (rows < 1 || width < 1)
        snug_fail(&m->err, SNUG_BAD_ARGUMENT,
                  "embedding %s: %lld rows of width %lld, both must be at least 1", name,
                  (long long)rows, (long long)width);
    else
        build_parameter(&m->built, name, &(struct shape){2, {rows, width}}, INIT_normal, 0.02, &id,
                        &m->err);
    return id;
}

snug_tensor snug_embedding(snug_model *m, snug_tensor ids, const char *name, int64_t rows,
                           int64_t width)
{
    if (!usable(m, ids, name))
        return TENSOR_NONE;
    tensor_id rows_id = table(m, name, rows, width);
    if (m->err.status != SNUG_OK)
        return TENSOR_NONE;
    return emit(m, OP_embedding, NULL, 2, (tensor_id[]){ids, rows_id}, "embedding", 1);
}

snug_tensor snug_embedding_with_positions(snug_model *m, snug_tensor ids, const char *name,
                                          int64_t rows, const char *positions_name,
                                          int64_t max_positions, int64_t width)
{
    if (!usable(m, ids, name))
        return TENSOR_NONE;
    tensor_id rows_id = table(m, name, rows, width);
    tensor_id positions =
        m->err.status != SNUG_OK ? TENSOR_NONE : table(m, positions_name, max_positions, width);
    if (m->err.status != SNUG_OK)
        return TENSOR_NONE;
    return emit(m, OP_embedding, NULL, 3, (tensor_id[]){ids, rows_id, positions}, "embedding", 1);
}

snug_tensor snug_attention(snug_model *m, snug_tensor qkv, int64_t heads)
{
    if (!usable(m, qkv, "attention"))
        return TENSOR_NONE;
    struct attrs attrs = ATTRS(attention, .heads = heads);
    return emit(m, OP_attention, &attrs, 1, &qkv, "attention", 2);
}

static snug_tensor add_loss(snug_model *m, snug_tensor x, enum op_kind kind, enum dtype dtype,
                            const struct shape *target_shape, int n_out)
{
    tensor_id target;
    if (build_input(&m->built, "target", dtype, target_shape, &target, &m->err) != SNUG_OK)
        return TENSOR_NONE;
    snug_tensor loss = emit(m, kind, NULL, 2, (tensor_id[]){x, target}, "loss", n_out);
    if (loss >= 0) {
        m->built.loss = loss;
        m->built.tensors[loss].is_output = true;
    }
    return loss;
}

snug_tensor snug_cross_entropy(snug_model *m, snug_tensor logits)
{
    if (!usable(m, logits, "cross_entropy"))
        return TENSOR_NONE;
    struct shape rows = m->built.tensors[logits].shape;
    rows.n_dims--; /* one class id per row */
    return add_loss(m, logits, OP_cross_entropy, DTYPE_i32, &rows, 2);
}

snug_tensor snug_mean_squared_error(snug_model *m, snug_tensor output)
{
    if (!usable(m, output, "mean_squared_error"))
        return TENSOR_NONE;
    struct shape shape = m->built.tensors[output].shape;
    return add_loss(m, output, OP_mse, DTYPE_f32, &shape, 1);
}

static void check_inputs_are_read(snug_model *m)
{
    const struct program *prog = &m->built;
    for (int id = 0; id < prog->n_tensors; id++) {
        bool read = prog->tensors[id].role != ROLE_input;
        for (int i = 0; i < prog->n_ops && !read; i++)
            for (int k = 0; k < prog->ops[i].n_in; k++)
                read |= prog->ops[i].in[k] == id;
        if (!read)
            snug_fail(&m->err, SNUG_BAD_ARGUMENT, "%s: nothing reads the input \"%s\"", m->name,
                      prog->tensors[id].name);
    }
}

enum snug_status snug_model_finish(snug_model *m, struct snug_error *err)
{
    if (m == NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "snug_model_finish: the model is NULL");
    if (m->err.status == SNUG_OK && m->built.loss == TENSOR_NONE)
        snug_fail(&m->err, SNUG_BAD_ARGUMENT, "%s: end the model with a loss", m->name);
    if (m->err.status == SNUG_OK)
        program_verify(&m->built, &m->err);
    if (m->err.status == SNUG_OK)
        check_inputs_are_read(m);
    if (m->err.status != SNUG_OK) {
        if (err != NULL)
            *err = m->err;
        return m->err.status;
    }
    m->finished = true;
    return SNUG_OK;
}
