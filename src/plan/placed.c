/*
 * placed.c -- the blocks that have an offset already; see placed.h.
 *
 * Most blocks of a step live for a few ops, and few blocks are alive at any op.  The step is cut
 * into windows, which begin n ops apart and are 1.5 n long:
 *
 *     window 0  [==========]
 *     window 1         [==========]
 *     window 2                [==========]
 *
 * A short block lives for at most n / 2 ops, so the window that begins last before it contains all
 * of it.  Every window lists all short blocks that touch it.  So a short block has to be compared
 * only with its window's list and the long blocks, a long block with all blocks.
 *
 * cost:  a short block: O(long blocks + short blocks of a window); a long one: O(n)
 */
#include "plan/placed.h"

#include <stdlib.h>
#include <string.h>

static bool is_short(const struct placed *p, int first, int last)
{
    return last - first <= p->n_ops_of_window / 2;
}

/* The windows that ops [first, last] touch. */
static int first_window(const struct placed *p, int first)
{
    int at = first / p->n_ops_of_window;
    bool before_too = at > 0 && first % p->n_ops_of_window < (p->n_ops_of_window + 1) / 2;
    return before_too ? at - 1 : at;
}

static int last_window(const struct placed *p, int last)
{
    return last / p->n_ops_of_window;
}

bool placed_init(struct placed *p, const struct block *blocks, const int *order, int n, int n_ops)
{
    int counts[PLACED_WINDOWS + 1] = {0};
    size_t n_entries = 2 * (size_t)n + 1; /* the long and the short list */
    *p = (struct placed){.n_ops_of_window = n_ops / PLACED_WINDOWS + 1};
    for (int i = 0; i < n; i++) {
        const struct block *b = &blocks[order[i]];
        for (int w = first_window(p, b->first);
             is_short(p, b->first, b->last) && w <= last_window(p, b->last); w++, n_entries++)
            counts[w]++;
    }
    p->memory = malloc(n_entries * sizeof *p->memory);
    if (p->memory == NULL)
        return false;
    p->longs.list = p->memory;
    p->shorts.list = p->memory + n;
    struct placed_block *next = p->shorts.list + n;
    for (int w = 0; w <= PLACED_WINDOWS; w++) {
        p->windows[w].list = next;
        next += counts[w];
    }
    return true;
}

void placed_free(struct placed *p)
{
    free(p->memory);
    p->memory = NULL;
}

void placed_clear(struct placed *p)
{
    p->longs.n = p->shorts.n = 0;
    for (int w = 0; w <= PLACED_WINDOWS; w++)
        p->windows[w].n = 0;
}

static void insert(struct placed_list *to, const struct placed_block *block)
{
    int low = 0, high = to->n;
    while (low < high) {
        int mid = (low + high) / 2;
        if (to->list[mid].offset <= block->offset)
            low = mid + 1;
        else
            high = mid;
    }
    memmove(to->list + low + 1, to->list + low, (size_t)(to->n - low) * sizeof *to->list);
    to->list[low] = *block;
    to->n++;
}

void placed_add(struct placed *p, const struct block *b, int alignment)
{
    int64_t end = (b->offset + b->bytes + alignment - 1) / alignment * alignment;
    struct placed_block block = {b->offset, end, b->first, b->last};
    if (!is_short(p, b->first, b->last)) {
        insert(&p->longs, &block);
        return;
    }
    insert(&p->shorts, &block);
    for (int w = first_window(p, b->first); w <= last_window(p, b->last); w++)
        insert(&p->windows[w], &block);
}

struct placed_scan placed_during(const struct placed *p, int first, int last)
{
    const struct placed_list *shorts =
        is_short(p, first, last) ? &p->windows[first / p->n_ops_of_window] : &p->shorts;
    return (struct placed_scan){.a = p->longs.list,
                                .a_end = p->longs.list + p->longs.n,
                                .b = shorts->list,
                                .b_end = shorts->list + shorts->n,
                                .first = first,
                                .last = last};
}
