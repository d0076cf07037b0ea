/*
 * self.c -- the comm of a single rank, which has no peers.
 */
#include "comm/comm.h"

#include <stdlib.h>

static enum snug_status transfer(struct comm *comm, const struct comm_message *messages, int n,
                                 struct snug_error *err)
{
    (void)comm, (void)messages;
    return n == 0 ? SNUG_OK
                  : snug_fail(err, SNUG_BAD_ARGUMENT, "a single rank has no peer to send to");
}

static void close_self(struct comm *comm, bool orderly)
{
    (void)orderly;
    free(comm);
}

static const struct comm_table table = {
    .name = "self",
    .transfer = transfer,
    .all_reduce = collect_all_reduce,
    .reduce_scatter = collect_reduce_scatter,
    .all_gather = collect_all_gather,
    .close = close_self,
};

enum snug_status comm_open_self(struct comm **comm, struct snug_error *err)
{
    *comm = calloc(1, sizeof **comm);
    if (*comm == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    **comm = (struct comm){.table = &table, .n_ranks = 1};
    return SNUG_OK;
}
