/*
 * place.c -- offsets for blocks: an old puzzle (rectangles in a strip: time is fixed, height free).
 *
 * NP-hard, so greedy, and the best of a few orders.  Persistent blocks stand at the bottom of
 * their lane, one on the other.  Every other block, in the order of the day, goes into the tightest gap
 * that the blocks already placed leave free during its life.  Orders tried: large first,
 * long-lived first, area (bytes x life) first, time of birth, two ends.  After each, the block that
 * stands highest goes to the front of the order and all are placed again, a few times: what found no
 * gap when it came last may choose when it comes first.  The first order that reaches the lower bound
 * wins, or is so near that more trying is not worth its time: within a NEAR-th of it.
 *
 * Two ends is for backward halves, in which what was saved dies, the last first, while gradients
 * come to stay.  Gradients pile up from the bottom; what was saved hangs from the lower bound, the
 * longest life on top, so that each death leaves its bytes next to the pile that grows.
 *
 * That costs O(n^2) per order.  Programs with more than GREEDY_MAX blocks take one sweep in order
 * of time instead, best fit over a list of gaps: O(n x gaps).
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

enum { GREEDY_MAX = 12000, LIFT_MAX = 3000, N_LIFTS = 32 }; /* blocks, blocks, tries an order */
enum { NEAR = 10000 };

/* No order piles blocks up to more than twice their sum. */
#define PLACED_BYTES_MAX INT64_C(4500000000000000000)

struct placer {
    struct block *blocks;
    int *order;    /* of the blocks of the present lane, persistent ones excluded */
    int *placed;   /* block indices by offset */
    int64_t *best; /* offsets of the best order so far, per block */
    int n_blocks, alignment;
    int peak;        /* op with the most bytes alive in the present lane */
    int64_t ceiling; /* floor + the most bytes alive, padded */
    int only;        /* -1, or the index of the one order that is tried, once */
};

static int64_t align_up(int64_t bytes, int64_t alignment)
{
    return (bytes + alignment - 1) / alignment * alignment;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static double life(const struct block *b)
{
    return (double)(b->last - b->first + 1);
}

typedef double key_fn(const struct placer *p, const struct block *block); /* larger goes first */

static double key_bytes(const struct placer *p, const struct block *b)
{
    (void)p;
    return (double)b->bytes;
}

static double key_life(const struct placer *p, const struct block *b)
{
    (void)p;
    return life(b) * 1e3 + (double)b->bytes * 1e-15;
}

static double key_area(const struct placer *p, const struct block *b)
{
    (void)p;
    return life(b) * (double)b->bytes;
}

static double key_birth(const struct placer *p, const struct block *b)
{
    (void)p;
    return -(double)b->first;
}

/* More of its life lies after the peak than before. */
static bool is_late(const struct placer *p, const struct block *b)
{
    return b->first + b->last > 2 * p->peak;
}

static double key_two_ends(const struct placer *p, const struct block *b)
{
    return is_late(p, b) ? 1e12 - (double)b->first : life(b);
}

static key_fn *const keys[] = {key_bytes, key_area, key_life, key_birth, key_two_ends};
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
    return x->block - y->block; /* a total order: the same plan everywhere */
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

/* ---- greedy: the tightest gap during the block's life ---------------------------------------- */

/* hang: at the upper end of the gap, and the space under the ceiling is a gap too. */
static int64_t find_gap(const struct placer *p, const struct block *b, int n_placed, int64_t floor,
                        bool hang)
{
    int64_t end = floor, best_start = -1, best_gap = INT64_MAX;
    for (int j = 0; j < n_placed; j++) {
        const struct block *other = &p->blocks[p->placed[j]];
        if (other->last < b->first || other->first > b->last)
            continue;
        int64_t gap = other->offset - end;
        if (gap >= b->bytes && gap < best_gap) {
            best_gap = gap;
            best_start = end;
        }
        int64_t after = align_up(other->offset + other->bytes, p->alignment);
        if (after > end)
            end = after;
    }
    int64_t bytes = align_up(b->bytes, p->alignment);
    if (hang && p->ceiling - end >= bytes && p->ceiling - end < best_gap)
        return p->ceiling - bytes;
    if (best_start < 0)
        return end;
    return hang ? best_start + best_gap - bytes : best_start;
}

static int64_t place_greedy(struct placer *p, int n, int64_t floor, bool two_ends)
{
    int64_t top = floor;
    for (int i = 0; i < n; i++) {
        struct block *b = &p->blocks[p->order[i]];
        b->offset = find_gap(p, b, i, floor, two_ends && !is_late(p, b));
        if (b->offset + b->bytes > top)
            top = b->offset + b->bytes;
        int low = 0, high = i; /* keep placed[] sorted by offset */
        while (low < high) {
            int mid = (low + high) / 2;
            if (p->blocks[p->placed[mid]].offset <= b->offset)
                low = mid + 1;
            else
                high = mid;
        }
        memmove(p->placed + low + 1, p->placed + low, (size_t)(i - low) * sizeof *p->placed);
        p->placed[low] = p->order[i];
    }
    return top;
}

/* ---- sweep: in order of time, for very long programs ----------------------------------------- */

struct gap {
    int64_t start, end;
};

static int by_death(const void *a, const void *b)
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

/* order is by birth.  Returns -1 when out of memory. */
static int64_t place_sweep(struct placer *p, int n, int64_t floor)
{
    struct keyed *deaths = malloc((size_t)n * sizeof *deaths);
    struct gap *gaps = malloc(((size_t)n + 2) * sizeof *gaps);
    int64_t top = floor, used = floor;
    if (deaths == NULL || gaps == NULL) {
        used = -1;
        goto done;
    }
    for (int i = 0; i < n; i++)
        deaths[i] = (struct keyed){p->blocks[p->order[i]].last, p->order[i]};
    qsort(deaths, (size_t)n, sizeof *deaths, by_death);
    int n_gaps = 0, next_death = 0;
    for (int i = 0; i < n; i++) {
        struct block *b = &p->blocks[p->order[i]];
        while (next_death < n && deaths[next_death].key < b->first) {
            const struct block *dead = &p->blocks[deaths[next_death++].block];
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
                gaps[n_gaps - 1].end == top) /* the last gap is at the top: extend it */
                top = gaps[--n_gaps].start;
            b->offset = top;
            top += want;
        }
        if (b->offset + b->bytes > used)
            used = b->offset + b->bytes;
    }
done:
    free(deaths);
    free(gaps);
    return used;
}

/* ---- one lane -------------------------------------------------------------------------------- */

/* The most bytes alive at once, blocks padded to `alignment`, and where. */
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

/* The block that stands highest becomes the first of the order. */
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

/* One order only: what all tries reach is not above what is returned, since they end at `enough` or go
 * through that one, too. */
static int64_t place_lane(struct placer *p, int n, int64_t floor, int64_t lower)
{
    int64_t best_top = -1, enough = floor + lower + lower / NEAR;
    int n_tries = n <= LIFT_MAX && p->only < 0 ? N_LIFTS : 1;
    size_t first = p->only < 0 ? 0 : (size_t)p->only, end = p->only < 0 ? N_ORDERS : first + 1;
    if (n > GREEDY_MAX)
        return sort_order(p, n, key_birth) ? place_sweep(p, n, floor) : -1;
    for (size_t k = first; k < end && !(best_top >= 0 && best_top <= enough); k++) {
        if (!sort_order(p, n, keys[k]))
            return -1;
        for (int try = 0; try < n_tries && !(best_top >= 0 && best_top <= enough); try++) {
            int64_t top = place_greedy(p, n, floor, keys[k] == key_two_ends);
            if (best_top < 0 || top < best_top) {
                best_top = top;
                for (int i = 0; i < n; i++)
                    p->best[p->order[i]] = p->blocks[p->order[i]].offset;
            }
            lift_highest(p, n);
        }
    }
    for (int i = 0; i < n; i++)
        p->blocks[p->order[i]].offset = p->best[p->order[i]];
    return p->only >= 0 && best_top < enough ? enough : best_top;
}

static enum snug_status check_blocks(const struct block *blocks, int n_blocks, int alignment,
                                     int64_t floor, struct snug_error *err)
{
    int64_t sum = floor;
    for (int i = 0; i < n_blocks; i++) {
        if (blocks[i].lane < 0 || blocks[i].lane >= PLAN_LANES_MAX)
            return snug_fail(err, SNUG_BAD_PROGRAM, "plan: there is no lane %d, only 0 to %d",
                             blocks[i].lane, PLAN_LANES_MAX - 1);
        if (__builtin_add_overflow(sum, blocks[i].bytes, &sum) ||
            __builtin_add_overflow(sum, alignment, &sum) || sum > PLACED_BYTES_MAX)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "plan: the tensors are more than %.2g bytes: choose a smaller --batch "
                             "or --seq",
                             (double)PLACED_BYTES_MAX);
    }
    return SNUG_OK;
}

static enum snug_status place(struct block *blocks, int n_blocks, int n_ops, int alignment,
                              int64_t floor, int only, int64_t *persistent_end,
                              int64_t *arena_bytes, struct snug_error *err)
{
    struct placer p = {
        .blocks = blocks, .n_blocks = n_blocks, .alignment = alignment, .only = only};
    enum snug_status status = check_blocks(blocks, n_blocks, alignment, floor, err);
    if (status != SNUG_OK)
        return status;
    int64_t top = floor;
    int64_t *delta = malloc(((size_t)n_ops + 2) * sizeof *delta);
    p.order = malloc(((size_t)n_blocks + 1) * sizeof *p.order);
    p.placed = malloc(((size_t)n_blocks + 1) * sizeof *p.placed);
    p.best = malloc(((size_t)n_blocks + 1) * sizeof *p.best);
    if (delta == NULL || p.order == NULL || p.placed == NULL || p.best == NULL) {
        status = snug_fail(err, SNUG_NO_MEMORY, "plan: no memory to place %d blocks", n_blocks);
        goto done;
    }
    *persistent_end = align_up(floor, alignment);
    for (int lane = 0; lane < PLAN_LANES_MAX; lane++) {
        int n = 0;
        for (int i = 0; i < n_blocks; i++) {
            if (blocks[i].lane != lane)
                continue;
            if (blocks[i].persistent) {
                blocks[i].offset = align_up(top, alignment);
                top = blocks[i].offset + blocks[i].bytes;
                *persistent_end = align_up(top, alignment);
            } else {
                p.order[n++] = i;
            }
        }
        if (n == 0)
            continue;
        int64_t base = align_up(top, alignment);
        p.ceiling = base + most_alive(&p, n, n_ops, alignment, delta, &p.peak);
        top = place_lane(&p, n, base, most_alive(&p, n, n_ops, 1, delta, &p.peak));
        if (top < 0) {
            status = snug_fail(err, SNUG_NO_MEMORY, "plan: no memory to place %d blocks", n);
            goto done;
        }
    }
    *arena_bytes = top;
done:
    free(delta);
    free(p.order);
    free(p.placed);
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
    *is_within = false;
    for (int k = 0; k < N_ORDERS && !*is_within; k++) {
        int64_t persistent_end, most_bytes = 0;
        TRY(place(blocks, n_blocks, n_ops, alignment, 0, k, &persistent_end, &most_bytes, err));
        *is_within = most_bytes <= limit_bytes;
    }
    return SNUG_OK;
}
