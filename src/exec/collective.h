/*
 * collective.h -- ops that ranks run together: collectives, send and recv
 * (ir/collective_options.h).
 *
 *     host arena                comm moves the tensors in place
 *     device, through the host  the copy thread stages tensors in pinned memory, a bucket for
 *                               collectives (staged_collectives.c) and buffers for send and recv
 *                               (p2p_buffers.c); comm moves those
 *     device to device          NCCL, on the device's copy streams (device_comm.c)
 */
#ifndef SNUG_EXEC_COLLECTIVE_H
#define SNUG_EXEC_COLLECTIVE_H

#include "comm/comm.h"
#include "exec/backend.h"
#include "ir/collective_options.h"

/* p2p_buffers.c: pinned host buffers for send and recv, one per op of the program. */
struct p2p_buffer {
    int64_t at;
    bool is_filled; /* an earlier send has already copied the tensor here */
};

struct p2p_buffers {
    const struct op *ops;
    unsigned char *block; /* NULL if the program has no send or recv */
    int64_t n_bytes;
    struct p2p_buffer *buffers; /* per op */
};

enum snug_status p2p_buffers_open(struct p2p_buffers *p2p, const struct program *prog,
                                  const struct device_hooks *hooks, struct snug_error *err);
void p2p_buffers_close(struct p2p_buffers *p2p, const struct device_hooks *hooks);

/* The NCCL communicators: one per enum collective_group; for sends to the next and to the previous
 * stage; for sends between the two ends of a longer pipeline. */
enum { DIRECT_UP = COLLECTIVE_GROUPS, DIRECT_DOWN, DIRECT_LAST, DIRECT_FIRST, N_DIRECTS };

struct rank_collectives {
    struct collective_runner collective_runner; /* first member: the two are cast into each other */
    struct comm *comm;
    struct comm *const *groups; /* groups of comm, by enum collective_group; or NULL */
    /* The device; NULL if the arena is host memory. */
    const struct device_hooks *hooks;
    struct device *device;
    struct direct *directs[N_DIRECTS]; /* NULL: not needed, or through the host */
    struct comm_staging staging;
    unsigned char *bucket; /* in pinned host memory, instead of the one in the arena */
    unsigned char *work;   /* the one in the arena, of the current call */
    int64_t work_bytes;    /* of either */
    struct p2p_buffers p2p;
};

struct rank_collectives rank_collectives_over(struct comm *comm, struct comm *const *groups);

/* staged_collectives.c: switches to communication through the host; allocates a bucket of
 * work_bytes and the p2p buffers in pinned memory. */
enum snug_status rank_collectives_stage(struct rank_collectives *collective_runner,
                                        const struct program *prog, struct snug_error *err);
/* The pinned bytes; 0 if not through the host. */
int64_t rank_collectives_host_bytes(const struct rank_collectives *collective_runner);
void rank_collectives_close(struct rank_collectives *collective_runner);

/* device_comm.c: opens the NCCL communicators that the program needs.  All ranks must call it.
 * After directs_abort they cannot be used any more. */
enum snug_status directs_open(struct rank_collectives *collective_runner,
                              const struct program *prog, struct snug_error *err);
bool directs_are_open(const struct rank_collectives *collective_runner);
/* The communicator of a send or recv, and the peer's rank in it. */
struct direct *direct_of_p2p(const struct rank_collectives *collective_runner, const struct op *op,
                             int *peer);
/* Is the peer of a send or recv not in a neighbouring stage? */
bool p2p_is_far(const struct rank_collectives *collective_runner, const struct op *op);
enum snug_status directs_check(const struct rank_collectives *collective_runner,
                               struct snug_error *err);
void directs_abort(const struct rank_collectives *collective_runner);
void directs_close(struct rank_collectives *collective_runner);

#endif
