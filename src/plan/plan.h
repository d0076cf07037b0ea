/*
 * plan.h -- the memory plan of a program: an offset for every tensor, the peak, and the step time.
 *
 *     plan.c          plan_make and its variants, which run these stages in order
 *     lifetime.c      the lifetime of each tensor, and which tensors share a block in place
 *     place.c         an offset in the arena for every block
 *     offload_pool.c  an offset in the offload pool for every offloaded tensor
 *     ledger.c        bytes of each role at the peak; flops and seconds of a step
 *     time.c          seconds of one op (rates.h)
 *     timeline.c      bytes of each role at every op
 *     check.c         an independent checker, which shares no code with the above
 */
#ifndef SNUG_PLAN_PLAN_H
#define SNUG_PLAN_PLAN_H

#include "ir/program.h"
#include "plan/rates.h"

/* The unit of placement: a tensor, or several tensors that reuse the same bytes in place. */
struct block {
    int64_t bytes;
    int first, last; /* lifetime: ops, inclusive; a persistent block spans all ops */
    bool persistent;
    int64_t offset; /* set by plan_place */
};

struct plan {
    int n_tensors;
    /* Per tensor: its block (that of its base for a view), or -1 if no op uses it. */
    int *block_of;
    /* Per tensor that is not a view: the first and last op where it is alive, or -1. */
    int *alive_from, *alive_to;
    struct block *blocks;
    int n_blocks;
    int64_t *offset; /* per tensor: byte offset in the arena, or -1 */
    int64_t arena_bytes;
    int64_t persistent_bytes; /* end of the last persistent block */
    int64_t *pool_offset;     /* per tensor: byte offset in the offload pool, or -1 */
    int64_t pool_bytes;       /* not part of arena_bytes */

    int64_t lower_bound;         /* the most bytes alive at once: the peak */
    int peak_op;                 /* the op of the peak */
    int64_t at_peak[ROLE_COUNT]; /* bytes of each role at the peak */
    int64_t fragmentation;       /* arena_bytes - lower_bound */
    double recompute_flops, step_flops, step_seconds;
    double body_seconds; /* the part of step_seconds for forward and backward */
};

/* plan.c */
enum snug_status plan_make(const struct program *prog, int alignment,
                           const struct device_rates *rates, struct plan *plan,
                           struct snug_error *err);
/* The ledger without offsets, in a fraction of the time: lower_bound, at_peak and the costs equal
 * those of plan_make; arena_bytes is lower_bound. */
enum snug_status plan_estimate(const struct program *prog, const struct device_rates *rates,
                               struct plan *plan, struct snug_error *err);
/* *is_within is true only if the arena_bytes of plan_make are at most limit_bytes.  It can be false
 * although they are: the test is conservative if the limit is close to the lower bound. */
enum snug_status plan_is_within(const struct program *prog, int alignment, int64_t limit_bytes,
                                bool *is_within, struct snug_error *err);
void plan_free(struct plan *plan);

/* Plans a second program (an evaluation) into the arena of a host program.  Persistent tensors are
 * found by name in the host and have the host's offsets.  All others are placed above
 * host_plan->persistent_bytes, where no tensor of the host is alive between two steps.  arena_bytes
 * is the size that this program needs. */
enum snug_status plan_make_over(const struct program *prog, const struct program *host,
                                const struct plan *host_plan, int alignment, struct plan *plan,
                                struct snug_error *err);

/* The stages of plan_make, in order.  lifetime.c */
enum snug_status plan_lifetimes(const struct program *prog, struct plan *plan,
                                struct snug_error *err);
/* offload_pool.c */
/* Assigns offsets in the offload pool.  With a host program, offloaded tensors are found by name in
 * the host and have its offsets. */
enum snug_status plan_place_offloaded(const struct program *prog, const struct program *host,
                                      const struct plan *host_plan, int alignment,
                                      struct plan *plan, struct snug_error *err);
/* place.c */
/* floor is the first free byte.  Sets *persistent_end to the end of the last persistent block,
 * rounded up to the alignment. */
enum snug_status plan_place(struct block *blocks, int n_blocks, int n_ops, int alignment,
                            int64_t floor, int64_t *persistent_end, int64_t *arena_bytes,
                            struct snug_error *err);
/* *is_within is true only if plan_place with floor 0 needs at most limit_bytes.  Conservative if
 * the limit is close to the lower bound, exact otherwise; mostly much faster than plan_place. */
enum snug_status plan_place_within(struct block *blocks, int n_blocks, int n_ops, int alignment,
                                   int64_t limit_bytes, bool *is_within, struct snug_error *err);
/* ledger.c */
enum snug_status plan_ledger(const struct program *prog, const struct device_rates *rates,
                             struct plan *plan, struct snug_error *err);

/* check.c */
/* Checks, without the code above, that no op reads overwritten bytes and that tensors other than
 * views are aligned to `alignment`.  The error names the op and the two tensors.  `offset` is per
 * tensor, -1 if it is not in the arena. */
enum snug_status plan_check(const struct program *prog, const int64_t *offset, int64_t arena_bytes,
                            int alignment, struct snug_error *err);

/* Checks that offloaded tensors do not overlap in the offload pool, and that all are inside it. */
enum snug_status plan_check_pool(const struct program *prog, const int64_t *pool_offset,
                                 int64_t pool_bytes, struct snug_error *err);

/* plan_check for a program in the arena of a host.  Also checks that its persistent tensors have
 * the host's offsets, and that no other tensor overlaps a persistent tensor of the host. */
enum snug_status plan_check_over(const struct program *prog, const int64_t *offset,
                                 int64_t arena_bytes, int alignment, const struct program *host,
                                 const int64_t *host_offset, struct snug_error *err);

#endif
