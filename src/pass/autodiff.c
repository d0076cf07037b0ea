/*
 * autodiff.c -- append the backward half to a forward program.
 *
 * We walk the forward ops from last to first.  Each op's rule (gradients.c) emits the ops that
 * compute the gradients of its inputs from those of its outputs.  Saved tensors are not declared:
 * a forward tensor that a backward op reads simply lives that long.
 *
 * A tensor with several readers gets several contributions.  An activation's are summed by an
 * `add`.  A parameter's gradient is one tensor: the first op writes it and the others accumulate
 * (+=).  It is linked to its parameter (LINK_gradient) for later passes.
 *
 * A tensor that depends on no trained parameter gets no gradient.  If a rule asks for one, the op
 * is emitted without that output, or not at all if no output is left.
 *
 * A pipeline stage other than the last ends in a send, whose gradient is received from the next
 * stage.  A tensor received from the previous stage always needs a gradient, to be sent back.
 *
 * needs: a forward program that ends in a loss or a send, or has no ops (model states only)
 * keeps: forward ops, ids    breaks: nothing
 * leaves: results.backward_begin, n_forward, forward_flops; LINK_gradient
 * cost:  O(ops + tensors)
 */
#include "pass/autodiff.h"

tensor_id autodiff_of(const struct autodiff *ad, tensor_id id)
{
    return id == TENSOR_NONE ? TENSOR_NONE : ad->grad[id];
}

bool autodiff_wants(const struct autodiff *ad, tensor_id id)
{
    return id != TENSOR_NONE && ad->wanted[id];
}

static enum snug_status new_gradient(struct autodiff *ad, tensor_id of, bool of_parameter,
                                     tensor_id *id)
{
    const struct tensor *t = &ad->prog->tensors[of];
    bool is_share = !of_parameter && t->role == ROLE_parameter;
    char *name = arena_format(ad->env->scratch, is_share ? "d.%s.share" : "d.%s", t->name);
    if (name == NULL)
        return snug_fail(ad->env->err, SNUG_NO_MEMORY, "autodiff: out of memory");
    struct tensor grad = {TENSOR_INIT, .name = name, .dtype = t->dtype, .shape = t->shape,
                          .role = of_parameter ? ROLE_gradient : ROLE_activation};
    TRY(program_add_tensor(ad->prog, &grad, id, ad->env->err));
    if (of_parameter)
        program_link(ad->prog, *id, LINK_gradient, of);
    return SNUG_OK;
}

enum snug_status autodiff_give(struct autodiff *ad, tensor_id to, tensor_id grad)
{
    if (!autodiff_wants(ad, to) || grad == TENSOR_NONE)
        return SNUG_OK;
    tensor_id before = ad->grad[to], sum;
    if (ad->prog->tensors[to].role == ROLE_parameter) {
        struct attrs attrs = ATTRS(common, .accumulate = before == TENSOR_NONE ? ACC_no : ACC_yes);
        if (before == TENSOR_NONE)
            TRY(new_gradient(ad, to, true, &ad->grad[to]));
        return program_add_op(ad->prog, OP_accumulate, &attrs, 1, &grad, 1, &ad->grad[to],
                              ad->env->err);
    }
    if (before == TENSOR_NONE) {
        ad->grad[to] = grad;
        return SNUG_OK;
    }
    TRY(new_gradient(ad, to, false, &sum));
    ad->grad[to] = sum;
    return program_add_op(ad->prog, OP_add, NULL, 2, (tensor_id[]){before, grad}, 1, &sum,
                          ad->env->err);
}

/* One `accumulate` attribute covers all accumulating outputs of an op.  They can go straight into
 * the gradients only if all belong to parameters and either all of those gradients already exist
 * or none does.  Otherwise each output gets its own temporary tensor, which is never summed over
 * micro-batches. */
static bool outputs_are_alike(const struct autodiff *ad, enum op_kind kind, int n_out,
                              const tensor_id *to, bool *already_exist)
{
    int n_seen = 0;
    for (int k = 0; k < n_out; k++) {
        if ((op_infos[kind].accumulates >> k & 1) == 0 || to[k] == TENSOR_NONE)
            continue;
        bool exists = ad->grad[to[k]] != TENSOR_NONE;
        if (ad->prog->tensors[to[k]].role != ROLE_parameter ||
            (n_seen > 0 && exists != *already_exist))
            return false;
        for (int before = 0; before < k; before++)
            if (to[before] == to[k])
                return false;
        *already_exist = exists;
        n_seen++;
    }
    return true;
}

enum snug_status autodiff_emit(struct autodiff *ad, enum op_kind kind, const struct attrs *attrs,
                               int n_in, const tensor_id *in, int n_out, const tensor_id *given)
{
    tensor_id out[MAX_OUTPUTS] = {TENSOR_NONE}, to[MAX_OUTPUTS];
    int n_wanted = 0;
    for (int k = 0; k < n_out; k++) {
        to[k] = autodiff_wants(ad, given[k]) ? given[k] : TENSOR_NONE;
        n_wanted += to[k] != TENSOR_NONE;
    }
    if (n_wanted == 0)
        return SNUG_OK;
    bool give[MAX_OUTPUTS] = {false};
    struct attrs own = attrs == NULL ? attrs_default(op_infos[kind].family) : *attrs;

    bool already_exist = false;
    bool all_alike = outputs_are_alike(ad, kind, n_out, to, &already_exist);
    own.accumulate = all_alike && already_exist ? ACC_yes : ACC_no;
    for (int k = 0; k < n_out; k++) {
        out[k] = TENSOR_NONE;
        if (to[k] == TENSOR_NONE)
            continue;
        bool direct = all_alike && (op_infos[kind].accumulates >> k & 1);
        if (direct && already_exist) {
            out[k] = ad->grad[to[k]];
        } else {
            TRY(new_gradient(ad, to[k], direct, &out[k]));
            if (direct)
                ad->grad[to[k]] = out[k];
            else
                give[k] = true;
        }
    }
    TRY(program_add_op(ad->prog, kind, &own, n_in, in, n_out, out, ad->env->err));
    for (int k = 0; k < n_out; k++)
        if (give[k])
            TRY(autodiff_give(ad, to[k], out[k]));
    return SNUG_OK;
}

static void mark_wanted(struct autodiff *ad, int n_tensors, int n_ops)
{
    for (int i = 0; i < n_tensors; i++)
        ad->wanted[i] = ad->prog->tensors[i].role == ROLE_parameter && !ad->prog->tensors[i].frozen;
    for (int i = 0; i < n_ops; i++) {
        const struct op *op = &ad->prog->ops[i];
        bool wanted = op->kind == OP_recv;
        for (int k = 0; k < op->n_in; k++)
            wanted |= autodiff_wants(ad, op->in[k]);
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE)
                ad->wanted[op->out[k]] = wanted;
    }
}

/* A model without ops has only parameters: their gradients exist, but no op writes them. */
static enum snug_status states_only(struct autodiff *ad, int n_tensors)
{
    for (int i = 0; i < n_tensors; i++)
        if (ad->prog->tensors[i].role == ROLE_parameter) {
            TRY(new_gradient(ad, i, true, &ad->grad[i]));
            ad->prog->tensors[ad->grad[i]].persistent = true;
        }
    return SNUG_OK;
}

enum snug_status pass_autodiff(struct program *prog, struct pass_env *env)
{
    int n_tensors = prog->n_tensors, n_ops = prog->n_ops;
    struct autodiff ad = {.prog = prog, .env = env};
    ad.grad = arena_alloc(env->scratch, (size_t)(n_tensors + 1) * sizeof *ad.grad);
    ad.wanted = arena_zeros(env->scratch, (size_t)n_tensors + 1, sizeof *ad.wanted);
    env->results.n_forward = n_ops;
    env->results.forward_flops = 0;
    for (int i = 0; i < n_ops; i++)
        env->results.forward_flops += op_flops(prog, &prog->ops[i]);
    env->results.backward_begin = arena_zeros(env->scratch, (size_t)n_ops + 1, sizeof(int));
    if (ad.grad == NULL || ad.wanted == NULL || env->results.backward_begin == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "autodiff: no scratch for %d tensors",
                         n_tensors);
    for (int i = 0; i < n_tensors; i++)
        ad.grad[i] = TENSOR_NONE;
    if (n_ops == 0)
        return states_only(&ad, n_tensors);
    if (prog->loss == TENSOR_NONE)
        return snug_fail(env->err, SNUG_BAD_PROGRAM, "%s has no loss: end the model with one",
                         prog->name);
    TRY(program_scalars(prog, &ad.scalars, env->err));
    mark_wanted(&ad, n_tensors, n_ops);
    bool ends_in_send = prog->ops[n_ops - 1].kind == OP_send;
    if (!ad.wanted[prog->loss] && !ends_in_send)
        return snug_fail(env->err, SNUG_BAD_PROGRAM,
                         "%s: the loss does not depend on any parameter", prog->name);

    for (int i = n_ops - 1; i >= 0; i--) {
        env->results.backward_begin[i] = prog->n_ops;
        struct op op = prog->ops[i]; /* a copy: the array may move as ops are added */
        bool reached = op.kind == OP_send, wanted = op.kind == OP_recv;
        for (int k = 0; k < op.n_out; k++)
            reached |= op.out[k] == prog->loss || autodiff_of(&ad, op.out[k]) != TENSOR_NONE;
        for (int k = 0; k < op.n_in; k++)
            wanted |= autodiff_wants(&ad, op.in[k]);
        if (!reached || !wanted)
            continue;
        gradient_rule *rule = gradient_rule_of(op.kind);
        if (op.out[0] == prog->loss && !kind_reads(op.kind, weight))
            return snug_fail(
                env->err, SNUG_BAD_PROGRAM,
                "op %d (%s) writes the loss but is not a loss op: end the model with one", i,
                op_infos[op.kind].name);
        if (rule == NULL)
            return snug_fail(env->err, SNUG_BAD_PROGRAM, "op %d (%s) has no gradient", i,
                             op_infos[op.kind].name);
        TRY(rule(&ad, &op));
    }
    return SNUG_OK;
}
