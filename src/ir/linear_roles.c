/*
 * linear_roles.c -- see linear_roles.h.
 *
 * One walk over the ops in order.  An attention, an activation function or a swiglu gives their
 * roles to the linear layers that it reads; a linear layer that reads one of them is `o` or `down`.
 * Dropout, rope and rmsnorm between them are skipped.
 */
#include "ir/linear_roles.h"

#include "ir/attention_operands.h"

struct walk {
    const struct program *prog;
    int *writer; /* per tensor: the op that last wrote output 0 to it, or -1 */
    enum linear_role *roles;
};

/* The op that computes the tensor, or -1. */
static int source_of(const struct walk *w, tensor_id id)
{
    int at = id == TENSOR_NONE ? -1 : w->writer[id];
    while (at >= 0) {
        const struct op *op = &w->prog->ops[at];
        if (op->kind != OP_dropout && op->kind != OP_rope && op->kind != OP_rmsnorm)
            break;
        at = w->writer[op->in[0]];
    }
    return at;
}

static bool is_kind(const struct walk *w, int at, enum op_kind kind)
{
    return at >= 0 && w->prog->ops[at].kind == kind;
}

/* Attention comes first: a layer between an attention and an activation function is an `o`. */
static void give(struct walk *w, tensor_id id, enum linear_role role)
{
    int at = source_of(w, id);
    if (is_kind(w, at, OP_linear) && (role <= LINEAR_qkv || w->roles[at] == LINEAR_other))
        w->roles[at] = role;
}

static void visit(struct walk *w, int at)
{
    const struct op *op = &w->prog->ops[at];
    switch (op->kind) {
    case OP_attention: {
        bool is_packed = attention_input(op, ATTENTION_K) == TENSOR_NONE;
        give(w, op->in[ATTENTION_Q], is_packed ? LINEAR_qkv : LINEAR_q);
        give(w, attention_input(op, ATTENTION_K), LINEAR_k);
        give(w, attention_input(op, ATTENTION_V), LINEAR_v);
        break;
    }
    case OP_act:
        give(w, op->in[0], LINEAR_up);
        break;
    case OP_swiglu:
        give(w, op->in[0], LINEAR_gate);
        give(w, op->in[1], LINEAR_up);
        break;
    case OP_linear: {
        int source = source_of(w, op->in[0]);
        if (is_kind(w, source, OP_attention))
            w->roles[at] = LINEAR_o;
        else if (is_kind(w, source, OP_act) || is_kind(w, source, OP_swiglu))
            w->roles[at] = LINEAR_down;
        else if (op->attrs.act != ACT_none)
            w->roles[at] = LINEAR_up;
        break;
    }
    default:
        break;
    }
}

const char *linear_role_name(enum linear_role role)
{
    static const char *const names[] = {NULL,
#define ROLE_NAME(name) #name,
                                        LINEAR_ROLE_LIST(ROLE_NAME)
#undef ROLE_NAME
    };
    return names[role];
}

enum snug_status linear_roles_find(const struct program *prog, struct arena *arena,
                                   enum linear_role **roles, struct snug_error *err)
{
    struct walk w = {.prog = prog};
    w.writer = arena_alloc(arena, ((size_t)prog->n_tensors + 1) * sizeof *w.writer);
    w.roles = *roles = arena_zeros(arena, (size_t)prog->n_ops + 1, sizeof *w.roles);
    if (w.writer == NULL || w.roles == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "no memory for the roles of %d ops", prog->n_ops);
    for (int i = 0; i < prog->n_tensors; i++)
        w.writer[i] = -1;
    for (int i = 0; i < prog->n_ops; i++) {
        visit(&w, i);
        if (prog->ops[i].n_out > 0 && prog->ops[i].out[0] != TENSOR_NONE)
            w.writer[prog->ops[i].out[0]] = i;
    }
    return SNUG_OK;
}
