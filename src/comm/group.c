/*
 * group.c -- a process group: a subset of the ranks, whose messages are sent through the whole
 * comm.
 *
 * All ranks run the collectives of their groups in the same order, so the messages of two groups
 * that have two ranks in common are not confused.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

struct group {
    struct comm comm; /* first member: the two are cast into each other */
    struct comm *whole;
    struct comm_message *translated; /* messages with the ranks of `whole`; two per rank */
    int ranks[];
};

static enum snug_status transfer(struct comm *comm, const struct comm_message *messages, int n,
                                 struct snug_error *err)
{
    struct group *group = (struct group *)comm;
    for (int i = 0; i < n; i++) {
        group->translated[i] = messages[i];
        group->translated[i].peer = group->ranks[messages[i].peer];
    }
    return group->whole->table->transfer(group->whole, group->translated, n, err);
}

static void close_group(struct comm *comm, bool orderly)
{
    (void)orderly;
    free(comm->messages);
    free(comm);
}

static const struct comm_table table = {
    .name = "group",
    .transfer = transfer,
    .all_reduce = collect_all_reduce,
    .reduce_scatter = collect_reduce_scatter,
    .all_gather = collect_all_gather,
    .close = close_group,
};

enum snug_status comm_open_group(struct comm *comm, const int *ranks, int n_ranks,
                                 struct comm **out, struct snug_error *err)
{
    size_t n = (size_t)n_ranks;
    struct group *group = calloc(1, sizeof *group + n * sizeof *ranks);
    *out = NULL;
    struct comm_message *messages = calloc(4 * n, sizeof *messages);
    if (group == NULL || messages == NULL) {
        free(messages);
        free(group);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    group->comm = (struct comm){.table = &table, .n_ranks = n_ranks, .messages = messages};
    group->translated = messages + 2 * n;
    group->whole = comm;
    memcpy(group->ranks, ranks, n * sizeof *ranks);
    while (group->comm.rank < n_ranks - 1 && ranks[group->comm.rank] != comm->rank)
        group->comm.rank++;
    *out = &group->comm;
    return SNUG_OK;
}
