/*
 * dequantize.c -- frozen matrices in 16, 8 or 4 bits.
 *
 * The matrices that lora.c chose are kept as bf16, or as quantized elements with a scale a block.  Each op that reads
 * one reads a temporary in its place, which an op right before it makes; backward makes it again.  So
 * one matrix at a time has its full size.
 *
 * The quantized elements have the name of the matrix, the scales that name and ".scales".  What the matrix looked like
 * is said by what is decoded.
 *
 * needs: all readers in place    keeps: tensor ids    breaks: nothing
 * cost:  O(ops + tensors)
 */
#include "base/quant_map.h"
#include "pass/pass.h"

#include <stdlib.h>
#include <string.h>

struct matrix_is_quantized {
    struct tensor whole; /* as its readers know it */
    tensor_id scales;    /* TENSOR_NONE: in 16 bits */
};

static enum snug_status make_quants(struct program *prog, struct pass_env *env, tensor_id id,
                                    struct matrix_is_quantized *m)
{
    struct tensor *t = &prog->tensors[id];
    int bits = env->base_bits;
    int64_t n = shape_elems(&t->shape);
    m->whole = *t;
    m->scales = TENSOR_NONE;
    if (bits == 16) {
        t->dtype = DTYPE_bf16;
        return SNUG_OK;
    }
    t->dtype = DTYPE_u8;
    t->shape = (struct shape){1, {quant_bytes(bits, n)}};
    char *name = arena_format(env->scratch, "%s.scales", t->name);
    struct tensor scales = {TENSOR_INIT,
                            .name = name == NULL ? "scales" : name,
                            .dtype = DTYPE_f32,
                            .role = ROLE_parameter,
                            .shape = {1, {quant_blocks(bits, n)}},
                            .persistent = true,
                            .frozen = true};
    return program_add_tensor(prog, &scales, &m->scales, env->err);
}

/* The op that makes the matrix from its quantized elements; *id becomes its result. */
static enum snug_status make_dequantize(struct program *prog, struct pass_env *env,
                                        const struct matrix_is_quantized *m, tensor_id *id,
                                        struct op *dequantize)
{
    tensor_id quants = *id;
    char *name = arena_format(env->scratch, "%s.dequantized", m->whole.name);
    struct tensor t = {TENSOR_INIT, .name = name == NULL ? "decoded" : name,
                       .dtype = m->whole.dtype, .role = ROLE_temporary, .shape = m->whole.shape};
    TRY(program_add_tensor(prog, &t, id, env->err));
    bool is_cast = m->scales == TENSOR_NONE;
    *dequantize = (struct op){.kind = is_cast ? OP_cast : OP_dequantize,
                              .n_in = is_cast ? 1 : 2,
                              .n_out = 1,
                              .in = {quants, m->scales},
                              .out = {*id},
                              .work = TENSOR_NONE,
                              .attrs = ATTRS()};
    if (!is_cast)
        dequantize->attrs = ATTRS(quant, .state_bits = (int8_t)env->base_bits,
                                  .height = t.shape.dim[0], .width = t.shape.dim[1]);
    return SNUG_OK;
}

static enum snug_status rewrite(struct program *prog, struct pass_env *env,
                                const struct matrix_is_quantized *matrices, struct op *ops, int *n)
{
    int body_begin = prog->body_begin, body_end = prog->body_end;
    for (int i = 0; i < prog->n_ops; i++) {
        struct op op = prog->ops[i];
        if (i == body_begin)
            prog->body_begin = *n;
        if (i == body_end && body_end != 0)
            prog->body_end = *n;
        for (int k = 0; k < op.n_in; k++)
            if (op.in[k] >= 0 && op.in[k] < env->n_quantized && env->quantized[op.in[k]])
                TRY(make_dequantize(prog, env, &matrices[op.in[k]], &op.in[k], &ops[(*n)++]));
        ops[(*n)++] = op;
    }
    if (body_end == prog->n_ops && body_end != 0)
        prog->body_end = *n;
    return SNUG_OK;
}

enum snug_status pass_dequantize(struct program *prog, struct pass_env *env)
{
    int n = 0, n_ops = prog->n_ops;
    struct matrix_is_quantized *matrices =
        arena_zeros(env->scratch, (size_t)env->n_quantized + 1, sizeof *matrices);
    struct op *ops = malloc((2 * (size_t)n_ops + 1) * sizeof *ops); /* one matrix an op, at most */
    if (matrices == NULL || ops == NULL) {
        free(ops);
        return snug_fail(env->err, SNUG_NO_MEMORY, "dequantize: no memory for %d ops", 2 * n_ops);
    }
    enum snug_status status = SNUG_OK;
    for (int id = 0; id < env->n_quantized && status == SNUG_OK; id++)
        if (env->quantized[id])
            status = make_quants(prog, env, id, &matrices[id]);
    if (status == SNUG_OK)
        status = rewrite(prog, env, matrices, ops, &n);
    if (status == SNUG_OK)
        program_set_ops(prog, ops, n);
    else
        free(ops);
    return status;
}
