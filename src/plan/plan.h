/*
 * plan.h -- where every tensor lies, for how long, and what it all adds up to.
 *
 *     lifetime.c   when is each tensor alive?  which may share bytes in place?
 *     place.c      give every block an offset in one arena
 *     offload_pool.c      places outside the arena, for what is offloaded
 *     ledger.c     bytes by kind at the moment of the peak
 *     time.c       the seconds of an op (rates.h)
 *     timeline.c   bytes by kind at every op
 *     check.c      does not trust any of the above
 */
#ifndef SNUG_PLAN_PLAN_H
#define SNUG_PLAN_PLAN_H

#include "ir/program.h"
#include "plan/rates.h"

enum { PLAN_LANES_MAX = 8 };

/* What is placed: a tensor, or several that follow each other in place on the same bytes. */
struct block {
    int64_t bytes;
    int first, last; /* ops, inclusive; a persistent block lives over all of them */
    int lane;
    bool persistent;
    int64_t offset; /* set by plan_place */
};

struct plan {
    int n_tensors;
    int *
        block_of; /* per tensor: its block, -1 for a tensor that no op touches; views: their base's */
    int *alive_from; /* per root tensor: first and last op; -1 where none */
    int *alive_to;
    struct block *blocks;
    int n_blocks;
    int64_t *offset; /* per tensor, -1 for none: bytes from the start of the arena */
    int64_t arena_bytes;
    int64_t persistent_bytes; /* where the last persistent block of any lane ends */
    int64_t *pool_offset; /* per tensor, -1 for none: bytes from the start of the offload pool */
    int64_t pool_bytes;   /* beside the arena, and no part of it */

    int64_t lower_bound;         /* most bytes alive at once */
    int peak_op;                 /* where */
    int64_t at_peak[ROLE_COUNT]; /* bytes by role there; inputs apart */
    int64_t fragmentation;       /* arena_bytes - lower_bound */
    double recompute_flops, step_flops, step_seconds;
    double body_seconds; /* of those seconds: forward and backward */
};

enum snug_status plan_make(const struct program *prog, int alignment,
                           const struct device_rates *rates, struct plan *plan,
                           struct snug_error *err);
/* The ledger without offsets: lower_bound, at_peak and the costs are those of plan_make, arena_bytes is
 * the lower bound.  Takes a fraction of the time. */
enum snug_status plan_estimate(const struct program *prog, const struct device_rates *rates,
                               struct plan *plan, struct snug_error *err);
/* True: the arena_bytes of plan_make are at most limit_bytes.  False: they may be more. */
enum snug_status plan_is_within(const struct program *prog, int alignment, int64_t limit_bytes,
                                bool *is_within, struct snug_error *err);
void plan_free(struct plan *plan);

/* A second program (an evaluation) on the arena of a first: persistent tensors are found by name in
 * the host and keep its places, all others lie above the host's persistent bytes of every lane, where
 * nothing of the host is alive between two of its runs.  arena_bytes says how far it reaches. */
enum snug_status plan_make_over(const struct program *prog, const struct program *host,
                                const struct plan *host_plan, int alignment, struct plan *plan,
                                struct snug_error *err);

/* The stages, in order; plan_make runs them all. */
enum snug_status plan_lifetimes(const struct program *prog, struct plan *plan,
                                struct snug_error *err);
/* offload_pool.c: places of the offloaded tensors, one after the other, or those of the host, by name. */
enum snug_status plan_place_offloaded(const struct program *prog, const struct program *host,
                                      const struct plan *host_plan, int alignment,
                                      struct plan *plan, struct snug_error *err);
/* floor: first free byte.  persistent_end: where the last persistent block of any lane ends, rounded
 * up to the alignment. */
enum snug_status plan_place(struct block *blocks, int n_blocks, int n_ops, int alignment,
                            int64_t floor, int64_t *persistent_end, int64_t *arena_bytes,
                            struct snug_error *err);
/* True: the arena_bytes that plan_place finds with floor 0 are at most limit_bytes.  False: they may be
 * more.  For a small part of its time. */
enum snug_status plan_place_within(struct block *blocks, int n_blocks, int n_ops, int alignment,
                                   int64_t limit_bytes, bool *is_within, struct snug_error *err);
enum snug_status plan_ledger(const struct program *prog, const struct device_rates *rates,
                             struct plan *plan, struct snug_error *err);

/* Proves, without the code above, that every op reads what was written for it and that tensors (but
 * for views) begin at multiples of `alignment`: SNUG_OK, or a line that names the op and the two
 * tensors.  offset is per tensor (-1: nowhere). */
enum snug_status plan_check(const struct program *prog, const int64_t *offset, int64_t arena_bytes,
                            int alignment, struct snug_error *err);

/* That no two offloaded tensors share bytes of the offload pool, and all are inside. */
enum snug_status plan_check_pool(const struct program *prog, const int64_t *pool_offset,
                                 int64_t pool_bytes, struct snug_error *err);

/* The same for a program on the arena of a host, and that no tensor lies on a persistent byte of the
 * host, but for the persistent ones, which lie exactly where the host has them. */
enum snug_status plan_check_over(const struct program *prog, const int64_t *offset,
                                 int64_t arena_bytes, int alignment, const struct program *host,
                                 const int64_t *host_offset, struct snug_error *err);

#endif
