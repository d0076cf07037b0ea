/*
 * collective.h -- ops that ranks carry out together (ir/collective_options.h).
 *
 *     the arena is the host's      comm moves the tensors themselves
 *     of a device, through the     comm moves what staged_collectives.c brings into a bucket of the host, and messages from
 *     host                         places there (p2p_buffers.c); by the thread of copies
 *     of a device, directly        the device's own library of ranks, on its stream of copies
 */
#ifndef SNUG_EXEC_COLLECTIVE_H
#define SNUG_EXEC_COLLECTIVE_H

#include "comm/comm.h"
#include "exec/backend.h"
#include "ir/collective_options.h"

/* p2p_buffers.c: memory of the host for messages, by op of the program. */
struct message_place {
    int64_t at;
    bool is_there; /* an earlier send has brought it */
};

struct message_room {
    const struct op *ops;
    unsigned char *block; /* NULL: there are no messages */
    int64_t n_bytes;
    struct message_place *places;
};

enum snug_status message_room_open(struct message_room *room, const struct program *prog,
                                   const struct device_hooks *hooks, struct snug_error *err);
void message_room_close(struct message_room *room, const struct device_hooks *hooks);

/* Ranks of the device's own library: by enum collective_group; for messages to the next stage and to the one
 * before; for those between the ends of a longer pipeline. */
enum { DIRECT_UP = COLLECTIVE_GROUPS, DIRECT_DOWN, DIRECT_LAST, DIRECT_FIRST, N_DIRECTS };

struct rank_collectives {
    struct collective_runner collective_runner; /* first: the two are cast into each other */
    struct comm *comm;
    struct comm *const *groups; /* of it, by enum collective_group; NULL: none */
    /* Of a device; NULL: the arena is the host's. */
    const struct device_hooks *hooks;
    struct device *device;
    struct direct *directs[N_DIRECTS]; /* NULL: not needed, or through the host */
    struct comm_reach reach;
    unsigned char *bucket; /* of the host, in place of the one in the arena */
    unsigned char *work;   /* that one, of the call under way */
    int64_t work_bytes;    /* of both */
    struct message_room room;
};

struct rank_collectives rank_collectives_over(struct comm *comm, struct comm *const *groups);

/* staged_collectives.c: from now on through the host, by a bucket of work_bytes and room for messages, in memory that
 * copies are fast from and to. */
enum snug_status rank_collectives_stage(struct rank_collectives *collective_runner,
                                        const struct program *prog, struct snug_error *err);
int64_t rank_collectives_host_bytes(
    const struct rank_collectives *collective_runner); /* 0: not through it */
void rank_collectives_close(struct rank_collectives *collective_runner);

/* device_comm.c: from device to device, as the program wants it.  All ranks come to it.  After an abort nothing
 * goes any more. */
enum snug_status directs_open(struct rank_collectives *collective_runner,
                              const struct program *prog, struct snug_error *err);
bool directs_are_open(const struct rank_collectives *collective_runner);
/* A message that goes by an op, not `sent`: by which of them, and as which of its ranks the other is known. */
struct direct *direct_of_message(const struct rank_collectives *collective_runner,
                                 const struct op *op, int *peer);
bool message_is_far(const struct rank_collectives *collective_runner, const struct op *op);
enum snug_status directs_check(const struct rank_collectives *collective_runner,
                               struct snug_error *err);
void directs_abort(const struct rank_collectives *collective_runner);
void directs_close(struct rank_collectives *collective_runner);

#endif
