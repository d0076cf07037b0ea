/*
 * op_list.h -- what passes do with ops: the list that one writes anew, op after op, in place of the program's,
 * ops of two operands, and whether operands name a tensor.
 */
#ifndef SNUG_PASS_OP_LIST_H
#define SNUG_PASS_OP_LIST_H

#include "ir/program.h"

struct op_list {
    struct op *ops; /* for program_set_ops, or to be freed */
    int n_ops, capacity;
};

/* `pass` is named where there is no memory. */
static inline enum snug_status op_list_append(struct op_list *list, const struct op *op,
                                              const char *pass, struct snug_error *err)
{
    void *grown = list->ops;
    if (!array_grow(&grown, &list->capacity, list->n_ops + 1, sizeof *list->ops))
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory", pass);
    list->ops = grown;
    list->ops[list->n_ops++] = *op;
    return SNUG_OK;
}

/* Is one of the operands this tensor, or a part of it? */
static inline bool op_names_root(const struct program *prog, int n, const tensor_id *ids,
                                 tensor_id root)
{
    for (int k = 0; k < n; k++)
        if (ids[k] != TENSOR_NONE && tensor_root(prog, ids[k]) == root)
            return true;
    return false;
}

/* An op that has one operand on either side, or none of those: TENSOR_NONE. */
static inline struct op op_of_two(enum op_kind kind, struct attrs attrs, tensor_id in,
                                  tensor_id out)
{
    struct op op = {.kind = kind,
                    .n_in = op_infos[kind].max_in > 0,
                    .n_out = 1,
                    .work = TENSOR_NONE,
                    .attrs = attrs};
    for (int k = 0; k < MAX_INPUTS; k++)
        op.in[k] = TENSOR_NONE;
    for (int k = 0; k < MAX_OUTPUTS; k++)
        op.out[k] = TENSOR_NONE;
    op.in[0] = in;
    op.out[0] = out;
    return op;
}

#endif
