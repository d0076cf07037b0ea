/*
 * ref_table.c -- the table of reference kernels, generated from ops.def, and shared helpers.
 */
#include "cpu/ref/ref.h"

#include <math.h>

#include "cpu/ref/ref_common.h"
#include "ir/attention_operands.h"

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    (void)facts;
    int64_t n_doubles = 0;
    struct attention_sizes sizes;
    switch (op->kind) {
    case OP_orthogonalize:
        return ref_orthogonalize_work_bytes(prog, op);
    case OP_shampoo:
    case OP_caspr:
        return ref_blocks_work_bytes(prog, op);
    case OP_soap:
        return ref_soap_work_bytes(prog, op);
    case OP_attention:
        sizes = attention_sizes_of(prog, op);
        n_doubles = ref_attention_work_elems(&sizes);
        break;
    case OP_attention_grad:
        sizes = attention_sizes_of(prog, op);
        n_doubles = ref_attention_grad_work_elems(&sizes);
        break;
    case OP_linear_cross_entropy_grad:
    case OP_linear_cross_entropy_train:
        n_doubles = ref_head_grad_work_elems(&program_tensor(prog, op->in[0])->shape);
        break;
    default:
        break;
    }
    return (size_t)n_doubles * sizeof(double);
}

static const struct kernel table[OP_COUNT] = {
#define OP(op_kind, ...)                                  \
    [OP_##op_kind] = {.kind = OP_##op_kind,               \
                      .name = "reference",                \
                      .workspace_bytes = workspace_bytes, \
                      .run = ref_##op_kind},
#include "ir/ops.def"
#undef OP
};

const struct kernel *ref_kernels(int *n_kernels)
{
    *n_kernels = OP_COUNT;
    return table;
}

const struct kernel *ref_kernel(enum op_kind kind)
{
    return (unsigned)kind < OP_COUNT ? &table[kind] : NULL;
}

enum snug_status ref_check_ids(const struct operand *ids, int64_t limit, struct snug_error *err)
{
    const int32_t *values = ids->data;
    for (int64_t i = 0, n = elems(ids); i < n; i++)
        if (values[i] < 0 || values[i] >= limit)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "%s: id %d at position %lld is outside 0..%lld: check that the data "
                             "matches the model's vocabulary or classes",
                             ids->tensor->name, (int)values[i], (long long)i, (long long)limit - 1);
    return SNUG_OK;
}

void log_sum_add(struct log_sum *acc, double value)
{
    if (acc->n++ == 0) {
        acc->max = value;
        acc->sum = 1.0;
    } else if (value > acc->max) {
        acc->sum = acc->sum * exp(acc->max - value) + 1.0;
        acc->max = value;
    } else {
        acc->sum += exp(value - acc->max);
    }
}

double log_sum_value(const struct log_sum *acc)
{
    return acc->max + log(acc->sum);
}
