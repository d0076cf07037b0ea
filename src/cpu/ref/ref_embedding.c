/*
 * ref_embedding.c -- reference: embedding lookup plus position embeddings, and the gradient.
 *
 * The position of an id is its index in the last dimension of ids.
 */
#include "cpu/ref/ref_common.h"

static enum snug_status check(const struct operand *ids, const struct operand *table,
                              const struct operand *positions, struct snug_error *err)
{
    if (positions->tensor != NULL && last(ids) > rows(positions))
        return snug_fail(err, SNUG_BAD_ARGUMENT, "%s: %lld positions, but %s has %lld rows",
                         ids->tensor->name, (long long)last(ids), positions->tensor->name,
                         (long long)rows(positions));
    return ref_check_ids(ids, rows(table), err);
}

enum snug_status ref_embedding(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *ids = &call->in[0], *table = &call->in[1], *positions = &call->in[2];
    const struct operand *y = &call->out[0];
    const int32_t *id = ids->data;
    int64_t n_ids = elems(ids), n_time = last(ids), width = last(table);

    TRY(check(ids, table, positions, err));
    for (int64_t n = 0; n < n_ids; n++)
        for (int64_t c = 0; c < width; c++) {
            double value = load(table, id[n] * width + c);
            if (present(positions))
                value += load(positions, n % n_time * width + c);
            store(y, n * width + c, value);
        }
    return SNUG_OK;
}

/* Sums a column of dy over the ids begin, begin + step, ... that equal `wanted`, or over all of
 * them if wanted < 0. */
static double sum_rows(const struct operand *dy, const int32_t *id, int32_t wanted, int64_t begin,
                       int64_t step, int64_t n_ids, int64_t column)
{
    double sum = 0.0;
    for (int64_t n = begin; n < n_ids; n += step)
        if (wanted < 0 || id[n] == wanted)
            sum += load(dy, n * last(dy) + column);
    return sum;
}

/* Loops over the elements of the results, so each is one sum in double, rounded once. */
enum snug_status ref_embedding_grad(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *ids = &call->in[0], *dy = &call->in[1];
    const struct operand *dtable = &call->out[0], *dpositions = &call->out[1];
    const int32_t *id = ids->data;
    int64_t n_ids = elems(ids), n_time = last(ids), width = last(dy);

    TRY(check(ids, dtable->tensor != NULL ? dtable : &call->in[2], dpositions, err));
    for (int64_t v = 0; present(dtable) && v < rows(dtable); v++)
        for (int64_t c = 0; c < width; c++)
            store_or_add(dtable, v * width + c, sum_rows(dy, id, (int32_t)v, 0, 1, n_ids, c),
                         call->add);
    for (int64_t t = 0; present(dpositions) && t < rows(dpositions); t++)
        for (int64_t c = 0; c < width; c++)
            store_or_add(dpositions, t * width + c,
                         t < n_time ? sum_rows(dy, id, -1, t, n_time, n_ids, c) : 0.0, call->add);
    return SNUG_OK;
}
