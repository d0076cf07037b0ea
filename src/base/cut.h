/*
 * cut.h -- how a tensor is sharded: which elements belong to which rank.
 *
 * Either one rank, the owner, has all elements, or each rank has a contiguous range.  Ranges
 * consist of whole units (one element, or one quant block) and are as equal as possible.  A tensor
 * with fewer units than ranks leaves some ranks without elements.
 */
#ifndef SNUG_BASE_CUT_H
#define SNUG_BASE_CUT_H

#include <stdint.h>

enum { CUT_OVER_ALL = -1 };

struct cut {
    int64_t unit; /* in elements */
    int owner;    /* the rank that has all elements, or CUT_OVER_ALL */
};

struct cut_range {
    int64_t from, count; /* in elements */
};

/* The first unit of rank k: n_units * k / n_ranks, computed so that the product cannot overflow. */
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
