/*
 * staged_collectives.c -- collectives of a device's tensors through the host, for ranks that share a device and where there
 * is nothing better.
 *
 * comm's bucket lies in pinned memory.  Runs of tensors are copied into it and out of it on the stream of
 * copies; in between it is as on the CPU: the same messages, and sums in the order of the ranks.  So the
 * bits are those that do not depend on who comes first.  What is to be added to a tensor goes to the
 * same place of the bucket in the arena first.
 */
#include "exec/collective.h"

static struct rank_collectives *of_reach(struct comm_reach *reach)
{
    return (struct rank_collectives *)((char *)reach - offsetof(struct rank_collectives, reach));
}

static enum snug_status get(struct comm_reach *reach, void *bucket, const void *tensor,
                            int64_t n_bytes, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_reach(reach);
    return ranks->hooks->copy(ranks->device, bucket, tensor, n_bytes, err);
}

static enum snug_status put(struct comm_reach *reach, void *tensor, const void *bucket,
                            int64_t n_bytes, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_reach(reach);
    return ranks->hooks->copy(ranks->device, tensor, bucket, n_bytes, err);
}

static enum snug_status add(struct comm_reach *reach, enum dtype dtype, void *tensor,
                            const void *bucket, int64_t n_elems, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_reach(reach);
    int64_t at = (const unsigned char *)bucket - ranks->bucket;
    int64_t n_bytes = n_elems * (int64_t)dtype_bytes(dtype);
    TRY(ranks->hooks->copy(ranks->device, ranks->work + at, bucket, n_bytes, err));
    return ranks->hooks->add(ranks->device, dtype, tensor, ranks->work + at, n_elems, err);
}

static enum snug_status settle(struct comm_reach *reach, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_reach(reach);
    return ranks->hooks->finish_copies(ranks->device, err);
}

enum snug_status rank_collectives_stage(struct rank_collectives *ranks, const struct program *prog,
                                        struct snug_error *err)
{
    ranks->reach = (struct comm_reach){.get = get, .put = put, .add = add, .settle = settle};
    TRY(message_room_open(&ranks->room, prog, ranks->hooks, err));
    if (ranks->work_bytes > 0)
        ranks->bucket = ranks->hooks->alloc_host((size_t)ranks->work_bytes);
    return ranks->bucket != NULL || ranks->work_bytes == 0
               ? SNUG_OK
               : snug_fail(err, SNUG_NO_MEMORY,
                           "the host does not give %lld bytes of pinned memory for what ranks "
                           "a collective",
                           (long long)ranks->work_bytes);
}

void rank_collectives_close(struct rank_collectives *ranks)
{
    if (ranks->bucket != NULL)
        ranks->hooks->release_host(ranks->bucket);
    ranks->bucket = NULL;
    message_room_close(&ranks->room, ranks->hooks);
}

int64_t rank_collectives_host_bytes(const struct rank_collectives *ranks)
{
    return (ranks->bucket == NULL ? 0 : ranks->work_bytes) + ranks->room.n_bytes;
}
