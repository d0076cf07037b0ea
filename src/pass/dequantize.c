/*
 * dequantize.c -- store frozen matrices in 16, 8 or 4 bits.
 *
 * The matrices that lora.c chose are stored as bf16, or as quantized elements with one scale per
 * quant block.  Before each op that reads one we insert an op that dequantizes it into a
 * temporary, forward and backward alike.  So only the matrices of one op exist in full size at a
 * time.
 *
 * The quantized elements keep the tensor and the name of the matrix; the scales are named
 * NAME.scales.  The original shape and dtype are those of the temporary.
 *
 * needs: results.quantized (lora.c), all readers in place    keeps: ids
 * breaks: shape and dtype of the quantized matrices
 * cost:  O(ops + tensors)
 */
#include "base/quant_map.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

struct quantized_matrix {
    struct tensor whole; /* as it was, and as its readers see it */
    tensor_id scales;    /* TENSOR_NONE: stored in 16 bits */
};

static enum snug_status store_quantized(struct program *prog, struct pass_env *env, tensor_id id,
                                        struct quantized_matrix *m)
{
    struct tensor *t = &prog->tensors[id];
    int bits = env->config.base_bits;
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

/* Adds the op that dequantizes matrix *id, and sets *id to its result. */
static enum snug_status add_dequantize(struct rewriter *rw, struct pass_env *env,
                                       const struct quantized_matrix *m, tensor_id *id)
{
    tensor_id quants = *id;
    char *name = arena_format(env->scratch, "%s.dequantized", m->whole.name);
    struct tensor t = {TENSOR_INIT, .name = name == NULL ? "decoded" : name,
                       .dtype = m->whole.dtype, .role = ROLE_temporary, .shape = m->whole.shape};
    TRY(program_add_tensor(rw->prog, &t, id, env->err));
    bool is_cast = m->scales == TENSOR_NONE;
    struct attrs attrs = ATTRS();
    if (!is_cast)
        attrs = ATTRS(quant, .state_bits = (int8_t)env->config.base_bits, .height = t.shape.dim[0],
                      .width = t.shape.dim[1]);
    struct op op = op_make(is_cast ? OP_cast : OP_dequantize, attrs, is_cast ? 1 : 2,
                           (tensor_id[]){quants, m->scales}, 1, id);
    return rewriter_add(rw, &op);
}

static enum snug_status rewrite(struct rewriter *rw, struct pass_env *env,
                                const struct quantized_matrix *matrices)
{
    for (int i = 0; i < rw->prog->n_ops; i++) {
        struct op op = rw->prog->ops[i];
        rewriter_reach(rw, i);
        for (int k = 0; k < op.n_in; k++)
            if (op.in[k] >= 0 && op.in[k] < env->results.n_quantized &&
                env->results.quantized[op.in[k]])
                TRY(add_dequantize(rw, env, &matrices[op.in[k]], &op.in[k]));
        TRY(rewriter_replace(rw, i, &op));
    }
    return SNUG_OK;
}

enum snug_status pass_dequantize(struct program *prog, struct pass_env *env)
{
    struct quantized_matrix *matrices =
        arena_zeros(env->scratch, (size_t)env->results.n_quantized + 1, sizeof *matrices);
    if (matrices == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "dequantize: no memory for %d tensors",
                         env->results.n_quantized);
    for (int id = 0; id < env->results.n_quantized; id++)
        if (env->results.quantized[id])
            TRY(store_quantized(prog, env, id, &matrices[id]));
    struct rewriter rw = rewriter_begin(prog, "dequantize", env->err);
    return rewriter_finish(&rw, rewrite(&rw, env, matrices));
}
