/*
 * cut.h -- which elements of a tensor belong to which rank.
 *
 * The elements, in the order in which they lie, are cut into as many ranges as there are ranks, the
 * ranges as equal as whole units allow: a unit is one element, or a quant block that share a scale.
 * A tensor with fewer units than ranks leaves some ranks without any.  Or one rank, the owner, has all.
 */
#ifndef SNUG_BASE_CUT_H
#define SNUG_BASE_CUT_H

#include <stdint.h>

enum { CUT_OVER_ALL = -1 };

struct cut {
    int64_t unit; /* elements that stay together */
    int owner;    /* the rank that has all of them, or CUT_OVER_ALL */
};

struct cut_range {
    int64_t from, count; /* count 0: none */
};

/* The first unit of rank k, in halves of the matmul: q * k can be more than an int64. */
static inline int64_t cut_first_unit(int64_t n_units, int64_t n_ranks, int64_t k)
{
    return n_units / n_ranks * k + n_units % n_ranks * k / n_ranks;
}

static inline struct cut_range cut_of(struct cut cut, int64_t n_elems, int n_ranks, int rank)
{
    if (cut.owner != CUT_OVER_ALL)
        return (struct cut_range){0, cut.owner == rank ? n_elems : 0};
    int64_t n_units = (n_elems + cut.unit - 1) / cut.unit;
    int64_t from = cut_first_unit(n_units, n_ranks, rank) * cut.unit;
    int64_t to = cut_first_unit(n_units, n_ranks, rank + 1) * cut.unit;
    to = to < n_elems ? to : n_elems;
    return (struct cut_range){from, to > from ? to - from : 0};
}

#endif
