/*
 * staged_collectives.c -- collectives on device tensors through the host: for ranks that share a
 * GPU, and without NCCL.
 *
 * comm's bucket is in pinned host memory.  Parts of tensors are copied into and out of it on the
 * copy stream; in between, everything is as on the CPU: the same messages, and sums in rank order.
 * So the result is deterministic.  Data to be added to a tensor is first copied to the same offset
 * of the bucket in the arena.
 */
#include "exec/collective.h"

static struct rank_collectives *of_staging(struct comm_staging *staging)
{
    return (struct rank_collectives *)((char *)staging -
                                       offsetof(struct rank_collectives, staging));
}

static enum snug_status get(struct comm_staging *staging, void *bucket, const void *tensor,
                            int64_t n_bytes, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_staging(staging);
    return ranks->hooks->copy(ranks->device, bucket, tensor, n_bytes, err);
}

static enum snug_status put(struct comm_staging *staging, void *tensor, const void *bucket,
                            int64_t n_bytes, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_staging(staging);
    return ranks->hooks->copy(ranks->device, tensor, bucket, n_bytes, err);
}

static enum snug_status add(struct comm_staging *staging, enum dtype dtype, void *tensor,
                            const void *bucket, int64_t n_elems, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_staging(staging);
    int64_t at = (const unsigned char *)bucket - ranks->bucket;
    int64_t n_bytes = n_elems * (int64_t)dtype_bytes(dtype);
    TRY(ranks->hooks->copy(ranks->device, ranks->work + at, bucket, n_bytes, err));
    return ranks->hooks->add(ranks->device, dtype, tensor, ranks->work + at, n_elems, err);
}

static enum snug_status finish(struct comm_staging *staging, struct snug_error *err)
{
    const struct rank_collectives *ranks = of_staging(staging);
    return ranks->hooks->finish_copies(ranks->device, err);
}

enum snug_status rank_collectives_stage(struct rank_collectives *ranks, const struct program *prog,
                                        struct snug_error *err)
{
    ranks->staging = (struct comm_staging){.get = get, .put = put, .add = add, .finish = finish};
    TRY(p2p_buffers_open(&ranks->p2p, prog, ranks->hooks, err));
    if (ranks->work_bytes > 0)
        ranks->bucket = ranks->hooks->alloc_host((size_t)ranks->work_bytes);
    return ranks->bucket != NULL || ranks->work_bytes == 0
               ? SNUG_OK
               : snug_fail(err, SNUG_NO_MEMORY,
                           "cannot allocate %lld bytes of pinned host memory for the bucket of "
                           "collectives",
                           (long long)ranks->work_bytes);
}

void rank_collectives_close(struct rank_collectives *ranks)
{
    if (ranks->bucket != NULL)
        ranks->hooks->release_host(ranks->bucket);
    ranks->bucket = NULL;
    p2p_buffers_close(&ranks->p2p, ranks->hooks);
}

int64_t rank_collectives_host_bytes(const struct rank_collectives *ranks)
{
    return (ranks->bucket == NULL ? 0 : ranks->work_bytes) + ranks->p2p.n_bytes;
}
