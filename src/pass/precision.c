/*
 * precision.c -- 16-bit weights and activations.
 *
 * Parameters and activations get the compute dtype, except outputs that ops.def keeps in fp32
 * (statistics, losses).  fp32 inputs are cast once, at the start; a regression target stays fp32.
 * The fp32 master of a weight is an optimizer state, which optimizer.c adds.
 *
 * needs: a forward program    keeps: tensor ids    breaks: dtypes
 * cost:  O(ops + tensors)
 */
#include "pass/pass.h"
#include "pass/rewriter.h"

/* Is input k a regression target: that of a loss whose targets are not ids? */
static bool is_target(const struct op *op, int k)
{
    return op_has(op, TRAIT_loss) && op_infos[op->kind].ids.dimension == IDS_none && k == 1;
}

/* Adds a 16-bit copy of the input and redirects its readers, if it has any. */
static enum snug_status cast_input(struct program *prog, struct pass_env *env, tensor_id input,
                                   tensor_id *cast)
{
    bool used = false;
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_in; k++)
            used |= prog->ops[i].in[k] == input && !is_target(&prog->ops[i], k);
    if (!used)
        return SNUG_OK;
    char *name = arena_format(env->scratch, "%s.%s", prog->tensors[input].name,
                              dtype_name(env->config.compute));
    struct tensor narrow = {TENSOR_INIT, .name = name == NULL ? "cast" : name,
                            .dtype = env->config.compute, .role = ROLE_activation,
                            .shape = prog->tensors[input].shape};
    TRY(program_add_tensor(prog, &narrow, cast, env->err));
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_in; k++)
            if (prog->ops[i].in[k] == input && !is_target(&prog->ops[i], k))
                prog->ops[i].in[k] = *cast;
    return SNUG_OK;
}

/* The casts come before all other ops, last input first. */
static enum snug_status put_casts(struct rewriter *rw, int n_tensors, const tensor_id *cast_of)
{
    for (int i = n_tensors - 1; i >= 0; i--)
        if (cast_of[i] != TENSOR_NONE) {
            struct op cast = op_make(OP_cast, ATTRS(), 1, (tensor_id[]){i}, 1, &cast_of[i]);
            TRY(rewriter_add(rw, &cast));
        }
    for (int i = 0; i < rw->prog->n_ops; i++)
        TRY(rewriter_copy(rw, i));
    return SNUG_OK;
}

enum snug_status pass_precision(struct program *prog, struct pass_env *env)
{
    for (int i = 0; i < prog->n_tensors; i++) {
        struct tensor *t = &prog->tensors[i];
        if (dtype_is_float(t->dtype) && i != prog->scalars &&
            (t->role == ROLE_parameter || t->role == ROLE_activation))
            t->dtype = env->config.compute;
    }
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_out; k++)
            if (prog->ops[i].out[k] != TENSOR_NONE &&
                (op_infos[prog->ops[i].kind].keeps_f32 >> k & 1))
                prog->tensors[prog->ops[i].out[k]].dtype = DTYPE_f32;
    int n_tensors = prog->n_tensors, n_casts = 0;
    tensor_id *cast_of = arena_alloc(env->scratch, ((size_t)n_tensors + 1) * sizeof *cast_of);
    if (cast_of == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "precision: no scratch for %d tensors",
                         n_tensors);
    for (int i = 0; i < n_tensors; i++) {
        cast_of[i] = TENSOR_NONE;
        if (prog->tensors[i].role == ROLE_input && prog->tensors[i].dtype == DTYPE_f32)
            TRY(cast_input(prog, env, i, &cast_of[i]));
        n_casts += cast_of[i] != TENSOR_NONE;
    }
    if (n_casts == 0)
        return SNUG_OK;
    struct rewriter rw = rewriter_begin(prog, "precision", env->err);
    return rewriter_finish(&rw, put_casts(&rw, n_tensors, cast_of));
}
