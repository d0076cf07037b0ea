/*
 * placed.h -- the blocks that have an offset already, for place.c: which of them are alive at the
 * same time as a block, in order of offset.
 */
#ifndef SNUG_PLAN_PLACED_H
#define SNUG_PLAN_PLACED_H

#include "plan/plan.h"

struct placed_block {
    int64_t offset, end; /* end: aligned */
    int first, last;
};

/* Sorted by offset. */
struct placed_list {
    struct placed_block *list;
    int n;
};

enum { PLACED_WINDOWS = 64 };

struct placed {
    int n_ops_of_window;
    struct placed_list longs, shorts;               /* of the whole step */
    struct placed_list windows[PLACED_WINDOWS + 1]; /* the short blocks again, by time */
    struct placed_block *memory;
};

/* Reserves room for the blocks of `order`, all of which may be added.  False when out of memory. */
bool placed_init(struct placed *placed, const struct block *blocks, const int *order, int n,
                 int n_ops);
void placed_free(struct placed *placed);
/* Forgets all blocks. */
void placed_clear(struct placed *placed);
void placed_add(struct placed *placed, const struct block *block, int alignment);

/* Visits the placed blocks that are alive during [first, last], lowest offset first. */
struct placed_scan {
    const struct placed_block *a, *a_end, *b, *b_end;
    int first, last;
};
struct placed_scan placed_during(const struct placed *placed, int first, int last);

/* The first entry that is alive during the scan. */
static inline const struct placed_block *placed_skip(const struct placed_scan *scan,
                                                     const struct placed_block *at,
                                                     const struct placed_block *end)
{
    while (at < end && (at->last < scan->first || at->first > scan->last))
        at++;
    return at;
}

/* The next block, or NULL. */
static inline const struct placed_block *placed_next(struct placed_scan *scan)
{
    scan->a = placed_skip(scan, scan->a, scan->a_end);
    scan->b = placed_skip(scan, scan->b, scan->b_end);
    bool has_a = scan->a < scan->a_end, has_b = scan->b < scan->b_end;
    if (has_a && (!has_b || scan->a->offset <= scan->b->offset))
        return scan->a++;
    return has_b ? scan->b++ : NULL;
}

#endif
