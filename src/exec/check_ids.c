/*
 * check_ids.c -- check token and class ids on the host before they are copied to a device.
 */
#include "exec/local.h"

/* The number of valid ids if the op reads this tensor as ids, else 0. */
static int64_t n_valid_ids(const struct program *prog, const struct op *op, tensor_id id)
{
    struct op_ids ids = op_infos[op->kind].ids;
    if (ids.dimension == IDS_none || op->in[ids.in] == TENSOR_NONE ||
        tensor_root(prog, op->in[ids.in]) != id)
        return 0;
    const struct shape *shape = &prog->tensors[op->in[ids.of]].shape;
    return ids.dimension == IDS_last ? shape_last(shape) : shape->dim[0];
}

int64_t ids_limit(const struct program *prog, tensor_id input)
{
    int64_t limit = INT64_MAX;
    for (int i = 0; i < prog->n_ops; i++) {
        int64_t n_valid = n_valid_ids(prog, &prog->ops[i], input);
        limit = n_valid > 0 && n_valid < limit ? n_valid : limit;
    }
    return limit;
}

enum snug_status ids_check(const struct tensor *t, int64_t limit, const int32_t *ids,
                           struct snug_error *err)
{
    int64_t n = limit == INT64_MAX ? 0 : shape_elems(&t->shape);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= limit)
            return snug_fail(err, SNUG_BAD_ARGUMENT, "%s[%lld] is %d, not in 0..%lld", t->name,
                             (long long)i, (int)ids[i], (long long)limit - 1);
    return SNUG_OK;
}
