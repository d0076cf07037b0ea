/*
 * place.c -- gives every block an offset: dynamic storage allocation.  A block is a rectangle whose
 * position in time is fixed and whose offset is free.
 *
 * The problem is NP-hard, so we place greedily in several orders and take the best result.
 * Persistent blocks are stacked at the bottom of the arena.  Every other block goes into the
 * tightest gap that is free during its lifetime.  The orders are: largest first, largest area
 * (bytes x lifetime) first, longest lifetime first, first op first, and two ends.  After each try
 * the block that ends highest moves to the front of the order, and all blocks are placed again, up
 * to N_LIFTS times.  Last comes one sweep in order of time, with best fit over a list of gaps.  The
 * search stops as soon as a result is within 1 / NEAR of the lower bound, in large programs 1 /
 * NEAR_LARGE.
 *
 * The order two ends is for backward, where saved tensors are freed in reverse order while
 * gradients accumulate.  Gradients are stacked from the bottom.  Saved tensors are stacked from the
 * lower bound down, the longest lifetime on top, so that each one leaves its bytes next to the
 * growing stack of gradients.
 *
 * An order costs O(n^2), the sweep O(n x gaps).  Programs with more than GREEDY_MAX blocks are only
 * swept.
 */
#include "plan/placed.h"

#include <stdlib.h>
#include <string.h>

enum {
    GREEDY_MAX = 24000, /* blocks: above it, one sweep */
    LIFT_MAX = 3000,    /* blocks: above it, one try per order */
    N_LIFTS = 32,       /* tries per order */
    NEAR = 10000,
    NEAR_LARGE = 1000, /* from LARGE blocks on */
    LARGE = 6000
};

/* Offsets stay below twice the sum of all blocks, which must fit an int64. */
#define PLACED_BYTES_MAX INT64_C(4500000000000000000)

struct placer {
    struct block *blocks;
    int *order; /* the blocks that are not persistent */
    struct placed placed;
    int64_t *best; /* per block: its offset in the best result so far */
    int n_blocks, alignment;
    int peak;        /* the op with the most bytes alive */
    int64_t ceiling; /* floor + the most bytes alive, blocks padded to the alignment */
    int64_t limit;   /* any end up to here will do; -1: the lowest is wanted */
};

static int64_t align_up(int64_t bytes, int64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static double lifetime(const struct block *b)
{
    return (double)(b->last - b->first + 1);
}

typedef double key_fn(const struct placer *p, const struct block *block); /* descending */

static double key_bytes(const struct placer *p, const struct block *b)
{
    (void)p;
    return (double)b->bytes;
}

static double key_lifetime(const struct placer *p, const struct block *b)
{
    (void)p;
    return lifetime(b) * 1e3 + (double)b->bytes * 1e-15;
}

static double key_area(const struct placer *p, const struct block *b)
{
    (void)p;
    return lifetime(b) * (double)b->bytes;
}

static double key_first_op(const struct placer *p, const struct block *b)
{
    (void)p;
    return -(double)b->first;
}

/* Is the middle of its lifetime after the peak? */
static bool is_late(const struct placer *p, const struct block *b)
{
    return b->first + b->last > 2 * p->peak;
}

static double key_two_ends(const struct placer *p, const struct block *b)
{
    return is_late(p, b) ? 1e12 - (double)b->first : lifetime(b);
}

static key_fn *const keys[] = {key_bytes, key_area, key_lifetime, key_first_op, key_two_ends};
enum { N_ORDERS = sizeof keys / sizeof *keys };

struct keyed {
    double key;
    int block;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->block - y->block; /* a total order, so that qsort is deterministic */
}

static bool sort_order(struct placer *p, int n, key_fn *key)
{
    struct keyed *keyed = malloc((size_t)n * sizeof *keyed);
    if (keyed == NULL)
        return false;
    for (int i = 0; i < n; i++)
        keyed[i] = (struct keyed){key(p, &p->blocks[p->order[i]]), p->order[i]};
    qsort(keyed, (size_t)n, sizeof *keyed, by_key);
    for (int i = 0; i < n; i++)
        p->order[i] = keyed[i].block;
    free(keyed);
    return true;
}

/* ---- greedy: the tightest gap during the block's lifetime ------------------------------------ */

/* from_top uses the upper end of the gap, and counts the space below the ceiling as a gap. */
static int64_t find_gap(const struct placer *p, const struct block *b, int64_t floor, bool from_top)
{
    int64_t end = floor, best_start = -1, best_gap = INT64_MAX;
    struct placed_scan scan = placed_during(&p->placed, b->first, b->last);
    for (const struct placed_block *other; (other = placed_next(&scan)) != NULL;) {
        int64_t gap = other->offset - end;
        if (gap >= b->bytes && gap < best_gap) {
            best_gap = gap;
            best_start = end;
        }
        if (other->end > end)
            end = other->end;
    }
    int64_t bytes = align_up(b->bytes, p->alignment);
    if (from_top && p->ceiling - end >= bytes && p->ceiling - end < best_gap)
        return p->ceiling - bytes;
    if (best_start < 0)
        return end;
    return from_top ? best_start + best_gap - bytes : best_start;
}

static int64_t place_greedy(struct placer *p, int n, int64_t floor, bool two_ends)
{
    int64_t top = floor;
    placed_clear(&p->placed);
    for (int i = 0; i < n; i++) {
        struct block *b = &p->blocks[p->order[i]];
        b->offset = find_gap(p, b, floor, two_ends && !is_late(p, b));
        if (b->offset + b->bytes > top)
            top = b->offset + b->bytes;
        placed_add(&p->placed, b, p->alignment);
    }
    return top;
}

/* ---- sweep in order of time, for very long programs ------------------------------------------ */

struct gap {
    int64_t start, end;
};

static int by_last_op(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->block - y->block;
}

static void release(struct gap *gaps, int *n_gaps, int64_t start, int64_t end)
{
    int low = 0, high = *n_gaps;
    while (low < high) {
        int mid = (low + high) / 2;
        if (gaps[mid].start < start)
            low = mid + 1;
        else
            high = mid;
    }
    bool joins_left = low > 0 && gaps[low - 1].end == start;
    bool joins_right = low < *n_gaps && gaps[low].start == end;
    if (joins_left && joins_right) {
        gaps[low - 1].end = gaps[low].end;
        memmove(gaps + low, gaps + low + 1, (size_t)(--*n_gaps - low) * sizeof *gaps);
    } else if (joins_left) {
        gaps[low - 1].end = end;
    } else if (joins_right) {
        gaps[low].start = start;
    } else {
        memmove(gaps + low + 1, gaps + low, (size_t)(*n_gaps - low) * sizeof *gaps);
        gaps[low] = (struct gap){start, end};
        ++*n_gaps;
    }
}

/* The order must be by first op.  Returns -1 when out of memory. */
static int64_t place_sweep(struct placer *p, int n, int64_t floor)
{
    struct keyed *ends = malloc((size_t)n * sizeof *ends);
    struct gap *gaps = malloc(((size_t)n + 2) * sizeof *gaps);
    int64_t top = floor, used = floor;
    if (ends == NULL || gaps == NULL) {
        used = -1;
        goto done;
    }
    for (int i = 0; i < n; i++)
        ends[i] = (struct keyed){p->blocks[p->order[i]].last, p->order[i]};
    qsort(ends, (size_t)n, sizeof *ends, by_last_op);
    int n_gaps = 0, next_end = 0;
    for (int i = 0; i < n; i++) {
        struct block *b = &p->blocks[p->order[i]];
        while (next_end < n && ends[next_end].key < b->first) {
            const struct block *dead = &p->blocks[ends[next_end++].block];
            release(gaps, &n_gaps, dead->offset,
                    dead->offset + align_up(dead->bytes, p->alignment));
        }
        int64_t want = align_up(b->bytes, p->alignment);
        int best = -1;
        for (int g = 0; g < n_gaps; g++)
            if (gaps[g].end - gaps[g].start >= want &&
                (best < 0 || gaps[g].end - gaps[g].start < gaps[best].end - gaps[best].start))
                best = g;
        if (best >= 0) {
            b->offset = gaps[best].start;
            gaps[best].start += want;
            if (gaps[best].start == gaps[best].end)
                memmove(gaps + best, gaps + best + 1, (size_t)(--n_gaps - best) * sizeof *gaps);
        } else {
            if (n_gaps > 0 &&
                gaps[n_gaps - 1].end == top) /* the last gap is at the top: use it too */
                top = gaps[--n_gaps].start;
            b->offset = top;
            top += want;
        }
        if (b->offset + b->bytes > used)
            used = b->offset + b->bytes;
    }
done:
    free(ends);
    free(gaps);
    return used;
}

/* ---- all blocks ------------------------------------------------------------------------------ */

/* Returns the most bytes alive at once, blocks padded to `alignment`, and the op in *peak. */
static int64_t most_alive(const struct placer *p, int n, int n_ops, int alignment, int64_t *delta,
                          int *peak)
{
    memset(delta, 0, ((size_t)n_ops + 2) * sizeof *delta);
    for (int i = 0; i < n; i++) {
        const struct block *b = &p->blocks[p->order[i]];
        delta[b->first] += align_up(b->bytes, alignment);
        delta[b->last + 1] -= align_up(b->bytes, alignment);
    }
    int64_t alive = 0, most = 0;
    for (int i = 0; i <= n_ops; i++) {
        alive += delta[i];
        if (alive > most) {
            most = alive;
            *peak = i;
        }
    }
    return most;
}

/* Moves the block that ends highest to the front of the order. */
static void lift_highest(struct placer *p, int n)
{
    int highest = 0;
    for (int i = 1; i < n; i++) {
        const struct block *b = &p->blocks[p->order[i]], *most = &p->blocks[p->order[highest]];
        if (b->offset + b->bytes > most->offset + most->bytes)
            highest = i;
    }
    int block = p->order[highest];
    memmove(p->order + 1, p->order, (size_t)highest * sizeof *p->order);
    p->order[0] = block;
}

/* Keeps the offsets of a result if it is the best so far. */
static void keep_if_best(struct placer *p, int n, int64_t top, int64_t *best_top)
{
    if (*best_top >= 0 && top >= *best_top)
        return;
    *best_top = top;
    for (int i = 0; i < n; i++)
        p->best[p->order[i]] = p->blocks[p->order[i]].offset;
}

static bool is_enough(int64_t best_top, int64_t enough)
{
    return best_top >= 0 && best_top <= enough;
}

/* Tries an order up to N_LIFTS times.  False when out of memory. */
static bool try_order(struct placer *p, int n, int64_t floor, key_fn *key, int64_t enough,
                      int64_t *best_top)
{
    if (!sort_order(p, n, key))
        return false;
    for (int try = 0; try < (n <= LIFT_MAX ? N_LIFTS : 1) && !is_enough(*best_top, enough); try++) {
        keep_if_best(p, n, place_greedy(p, n, floor, key == key_two_ends), best_top);
        lift_highest(p, n);
    }
    return true;
}

static bool try_sweep(struct placer *p, int n, int64_t floor, int64_t *best_top)
{
    int64_t top = sort_order(p, n, key_first_op) ? place_sweep(p, n, floor) : -1;
    if (top >= 0)
        keep_if_best(p, n, top, best_top);
    return top >= 0;
}

/* Places the n blocks of p->order above `floor` and returns their end, or -1 when out of memory.
 * With a limit, an end up to it means that the search without a limit ends there too: either with
 * this result, or with a better one, or at `enough`.  The sweep, which is the fastest, then comes
 * first. */
static int64_t place_ordered(struct placer *p, int n, int64_t floor, int64_t lower)
{
    int64_t best_top = -1, enough = floor + lower + lower / (n < LARGE ? NEAR : NEAR_LARGE);
    bool has_limit = p->limit >= 0, is_swept = has_limit || n > GREEDY_MAX;
    if (has_limit && p->limit < enough)
        return enough;
    if (has_limit)
        enough = p->limit;
    if (is_swept && !try_sweep(p, n, floor, &best_top))
        return -1;
    for (int k = 0; k < N_ORDERS && n <= GREEDY_MAX && !is_enough(best_top, enough); k++)
        if (!try_order(p, n, floor, keys[k], enough, &best_top))
            return -1;
    if (!is_swept && !is_enough(best_top, enough) && !try_sweep(p, n, floor, &best_top))
        return -1;
    for (int i = 0; i < n; i++)
        p->blocks[p->order[i]].offset = p->best[p->order[i]];
    return best_top;
}

static enum snug_status check_blocks(const struct block *blocks, int n_blocks, int alignment,
                                     int64_t floor, struct snug_error *err)
{
    int64_t sum = floor;
    for (int i = 0; i < n_blocks; i++)
        if (__builtin_add_overflow(sum, blocks[i].bytes, &sum) ||
            __builtin_add_overflow(sum, alignment, &sum) || sum > PLACED_BYTES_MAX)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "plan: the tensors need more than %.2g bytes: choose a smaller "
                             "--batch or --seq",
                             (double)PLACED_BYTES_MAX);
    return SNUG_OK;
}

static enum snug_status place(struct block *blocks, int n_blocks, int n_ops, int alignment,
                              int64_t floor, int64_t limit, int64_t *persistent_end,
                              int64_t *arena_bytes, struct snug_error *err)
{
    struct placer p = {
        .blocks = blocks, .n_blocks = n_blocks, .alignment = alignment, .limit = limit};
    enum snug_status status = check_blocks(blocks, n_blocks, alignment, floor, err);
    if (status != SNUG_OK)
        return status;
    int64_t top = floor;
    int64_t *delta = malloc(((size_t)n_ops + 2) * sizeof *delta);
    p.order = calloc((size_t)n_blocks + 1, sizeof *p.order);
    p.best = malloc(((size_t)n_blocks + 1) * sizeof *p.best);
    if (delta == NULL || p.order == NULL || p.best == NULL) {
        status = snug_fail(err, SNUG_NO_MEMORY, "plan: no memory to place %d blocks", n_blocks);
        goto done;
    }
    int n = 0;
    for (int i = 0; i < n_blocks; i++)
        if (blocks[i].persistent) {
            blocks[i].offset = align_up(top, alignment);
            top = blocks[i].offset + blocks[i].bytes;
        } else {
            p.order[n++] = i;
        }
    *persistent_end = align_up(top, alignment);
    if (!placed_init(&p.placed, blocks, p.order, n, n_ops)) {
        status = snug_fail(err, SNUG_NO_MEMORY, "plan: no memory to place %d blocks", n);
        goto done;
    }
    if (n > 0) {
        p.ceiling = *persistent_end + most_alive(&p, n, n_ops, alignment, delta, &p.peak);
        top = place_ordered(&p, n, *persistent_end, most_alive(&p, n, n_ops, 1, delta, &p.peak));
    }
    if (top < 0)
        status = snug_fail(err, SNUG_NO_MEMORY, "plan: no memory to place %d blocks", n);
    else
        *arena_bytes = top;
done:
    free(delta);
    free(p.order);
    placed_free(&p.placed);
    free(p.best);
    return status;
}

enum snug_status plan_place(struct block *blocks, int n_blocks, int n_ops, int alignment,
                            int64_t floor, int64_t *persistent_end, int64_t *arena_bytes,
                            struct snug_error *err)
{
    return place(blocks, n_blocks, n_ops, alignment, floor, -1, persistent_end, arena_bytes, err);
}

enum snug_status plan_place_within(struct block *blocks, int n_blocks, int n_ops, int alignment,
                                   int64_t limit_bytes, bool *is_within, struct snug_error *err)
{
    int64_t persistent_end, arena_bytes = 0;
    TRY(place(blocks, n_blocks, n_ops, alignment, 0, limit_bytes, &persistent_end, &arena_bytes,
              err));
    *is_within = arena_bytes <= limit_bytes;
    return SNUG_OK;
}
