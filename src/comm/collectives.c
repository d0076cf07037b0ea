/*
 * collectives.c -- deterministic collectives, built from point-to-point messages.
 *
 * Each rank owns a range of every tensor (base/cut.h).  Its ranges, one tensor after the other, are
 * its list.  An all-reduce runs in two phases, chunk by chunk of the lists, through a bucket of
 * constant size:
 *
 *     reduce   every rank sends each other rank its elements of that rank's list; each rank sums
 *              what it received in rank order, in fp32, and rounds once
 *     gather   every rank sends its list to all others
 *
 *     work:    [ out: a chunk for each rank | in: a chunk for each rank ]
 *
 * Sums are always in rank order, whatever arrives first and however tensors are sharded or
 * bucketed.  So the bits are the same from run to run and for every sharding scheme.  Both phases
 * move (ranks - 1) / ranks of the bytes, as a ring does; but in a ring the order of a sum would
 * depend on the position of an element.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

/* With four ranks a message is one megabyte, for which the network's latency is negligible. */
enum { BUCKET_BYTES = 4 << 20, CHUNK_ELEMS_LEAST = 256, SUM_BLOCK = 512 };

struct job {
    struct comm *comm;
    const struct comm_tensor *tensors;
    int n;
    int64_t elem_bytes, chunk; /* chunk: elements of a list that are sent at once */
    int64_t longest;           /* length of the longest list */
    unsigned char *out, *in;
    struct comm_message *messages;
};

static int64_t list_elems(const struct comm_tensor *tensors, int n, int n_ranks, int rank)
{
    int64_t total = 0;
    for (int t = 0; t < n; t++)
        total += cut_of(tensors[t].cut, tensors[t].n_elems, n_ranks, rank).count;
    return total;
}

/* The longest list of a rank.  Stops at the first list longer than `enough`. */
static int64_t longest_list(const struct comm_tensor *tensors, int n, int n_ranks, int64_t enough)
{
    int64_t longest = 0;
    for (int rank = 0; rank < n_ranks && longest <= enough; rank++) {
        int64_t length = list_elems(tensors, n, n_ranks, rank);
        longest = length > longest ? length : longest;
    }
    return longest;
}

static int64_t chunk_elems(const struct comm_tensor *tensors, int n, int n_ranks)
{
    int64_t most = BUCKET_BYTES / (int64_t)dtype_bytes(tensors[0].dtype) / n_ranks;
    most = most > CHUNK_ELEMS_LEAST ? most : CHUNK_ELEMS_LEAST;
    int64_t longest = longest_list(tensors, n, n_ranks, most);
    return longest < most ? longest : most;
}

int64_t comm_work_bytes(const struct comm_tensor *tensors, int n, int n_ranks)
{
    return 2 * n_ranks * chunk_elems(tensors, n, n_ranks) * (int64_t)dtype_bytes(tensors[0].dtype);
}

static unsigned char *slot(const struct job *job, unsigned char *half, int rank)
{
    return half + rank * job->chunk * job->elem_bytes;
}

/* The number of elements of the chunk at `at` of a rank's list. */
static int64_t chunk_of(const struct job *job, int rank, int64_t at)
{
    int64_t left = list_elems(job->tensors, job->n, job->comm->n_ranks, rank) - at;
    return left <= 0 ? 0 : left < job->chunk ? left : job->chunk;
}

/* ---- between lists and the bucket ------------------------------------------------------------ */

enum move { PACK, UNPACK, UNPACK_ADDING };

static void add_to(enum dtype dtype, void *to, const void *from, int64_t n)
{
    if (dtype == DTYPE_f32) {
        float *sum = to;
        const float *more = from;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            sum[i] += more[i];
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dtype_store(dtype, to, i, dtype_load(dtype, to, i) + dtype_load(dtype, from, i));
}

static enum snug_status move_staged(const struct job *job, void *tensor, void *bucket, int64_t n,
                                    enum move move, struct snug_error *err)
{
    struct comm_staging *staging = job->tensors[0].staging;
    if (move == PACK)
        return staging->get(staging, bucket, tensor, n * job->elem_bytes, err);
    if (move == UNPACK)
        return staging->put(staging, tensor, bucket, n * job->elem_bytes, err);
    return staging->add(staging, job->tensors[0].dtype, tensor, bucket, n, err);
}

static enum snug_status move_run(const struct job *job, void *tensor, void *bucket, int64_t n,
                                 enum move move, struct snug_error *err)
{
    size_t n_bytes = (size_t)(n * job->elem_bytes);
    if (job->tensors[0].staging != NULL)
        return move_staged(job, tensor, bucket, n, move, err);
    if (move == PACK)
        memcpy(bucket, tensor, n_bytes);
    else if (move == UNPACK)
        memcpy(tensor, bucket, n_bytes);
    else
        add_to(job->tensors[0].dtype, tensor, bucket, n);
    return SNUG_OK;
}

/* Waits until all moves are done. */
static enum snug_status finish_moves(const struct job *job, struct snug_error *err)
{
    struct comm_staging *staging = job->tensors[0].staging;
    return staging == NULL ? SNUG_OK : staging->finish(staging, err);
}

/* Moves elements [at, at + n) of a rank's list between the tensors and the bucket.  in_pieces: the
 * elements are in `piece`, if there is one, not in `whole`. */
static enum snug_status move_list(const struct job *job, int rank, int64_t at, int64_t n,
                                  bool in_pieces, unsigned char *bucket, enum move move,
                                  struct snug_error *err)
{
    for (int t = 0; t < job->n && n > 0; t++) {
        const struct comm_tensor *x = &job->tensors[t];
        struct cut_range r = cut_of(x->cut, x->n_elems, job->comm->n_ranks, rank);
        if (at >= r.count) {
            at -= r.count;
            continue;
        }
        int64_t run = r.count - at < n ? r.count - at : n;
        bool in_piece = in_pieces && x->piece != NULL;
        unsigned char *from = in_piece ? x->piece : x->whole;
        TRY(move_run(job, from + (at + (in_piece ? 0 : r.from)) * job->elem_bytes, bucket, run,
                     move, err));
        bucket += run * job->elem_bytes;
        n -= run;
        at = 0;
    }
    return SNUG_OK;
}

/* ---- the two phases -------------------------------------------------------------------------- */

static void add_message(struct job *job, int *n, int peer, void *data, int64_t n_elems,
                        bool receives)
{
    if (n_elems > 0 && peer != job->comm->rank)
        job->messages[(*n)++] = (struct comm_message){
            .peer = peer, .data = data, .n_bytes = n_elems * job->elem_bytes, .receives = receives};
}

/* Types narrower than fp32 are summed in fp32. */
#define SUM_IN(type)                                                             \
    type sum[SUM_BLOCK];                                                         \
    for (int64_t i = 0; i < n; i++)                                              \
        sum[i] = (type)dtype_load(dtype, slot(job, job->in, 0), at + i);         \
    for (int rank = 1; rank < job->comm->n_ranks; rank++)                        \
        for (int64_t i = 0; i < n; i++)                                          \
            sum[i] += (type)dtype_load(dtype, slot(job, job->in, rank), at + i); \
    for (int64_t i = 0; i < n; i++)                                              \
    dtype_store(dtype, to, at + i, (double)sum[i])

static void sum_f64(const struct job *job, enum dtype dtype, unsigned char *to, int64_t at,
                    int64_t n)
{
    SUM_IN(double);
}

static void sum_narrow(const struct job *job, enum dtype dtype, unsigned char *to, int64_t at,
                       int64_t n)
{
    SUM_IN(float);
}

/* sum_narrow for bf16, the type of most gradients: widening it is a shift. */
static void sum_bf16(const struct job *job, uint16_t *to, int64_t at, int64_t n)
{
    float sum[SUM_BLOCK];
    for (int rank = 0; rank < job->comm->n_ranks; rank++) {
        const uint16_t *from = (const uint16_t *)(const void *)slot(job, job->in, rank) + at;
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = (uint32_t)from[i] << 16;
            float x;
            memcpy(&x, &bits, sizeof x);
            sum[i] = rank == 0 ? x : sum[i] + x;
        }
    }
    for (int64_t i = 0; i < n; i++)
        to[at + i] = bf16_from_f32(sum[i]);
}

static void sum_f32(const struct job *job, float *to, int64_t n)
{
    memcpy(to, slot(job, job->in, 0), (size_t)n * sizeof *to);
    for (int rank = 1; rank < job->comm->n_ranks; rank++) {
        const float *from = (const float *)(const void *)slot(job, job->in, rank);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            to[i] += from[i];
    }
}

/* Sums the `in` slots, one per rank, into this rank's `out` slot. */
static void sum_chunk(const struct job *job, int64_t n)
{
    enum dtype dtype = job->tensors[0].dtype;
    unsigned char *to = slot(job, job->out, job->comm->rank);
    if (dtype == DTYPE_f32) {
        sum_f32(job, (float *)(void *)to, n);
        return;
    }
    for (int64_t at = 0; at < n; at += SUM_BLOCK) {
        int64_t block = n - at < SUM_BLOCK ? n - at : SUM_BLOCK;
        if (dtype == DTYPE_f64)
            sum_f64(job, dtype, to, at, block);
        else if (dtype == DTYPE_bf16)
            sum_bf16(job, (uint16_t *)(void *)to, at, block);
        else
            sum_narrow(job, dtype, to, at, block);
    }
}

static enum snug_status reduce_chunk(struct job *job, int64_t at, struct snug_error *err)
{
    int me = job->comm->rank, n = 0;
    int64_t own = chunk_of(job, me, at);
    for (int peer = 0; peer < job->comm->n_ranks; peer++) {
        int64_t theirs = chunk_of(job, peer, at);
        add_message(job, &n, peer, slot(job, job->in, peer), own, true);
        TRY(move_list(job, peer, at, theirs, false,
                      slot(job, peer == me ? job->in : job->out, peer), PACK, err));
        add_message(job, &n, peer, slot(job, job->out, peer), theirs, false);
    }
    TRY(finish_moves(job, err));
    TRY(job->comm->table->transfer(job->comm, job->messages, n, err));
    sum_chunk(job, own);
    return SNUG_OK;
}

/* Sends this rank's `out` slot to all others. */
static enum snug_status gather_chunk(struct job *job, int64_t at, struct snug_error *err)
{
    int me = job->comm->rank, n = 0;
    int64_t own = chunk_of(job, me, at);
    for (int peer = 0; peer < job->comm->n_ranks; peer++) {
        add_message(job, &n, peer, slot(job, job->in, peer), chunk_of(job, peer, at), true);
        add_message(job, &n, peer, slot(job, job->out, me), own, false);
    }
    TRY(job->comm->table->transfer(job->comm, job->messages, n, err));
    for (int peer = 0; peer < job->comm->n_ranks; peer++)
        TRY(move_list(job, peer, at, chunk_of(job, peer, at), false,
                      slot(job, peer == me ? job->out : job->in, peer), UNPACK, err));
    return finish_moves(job, err);
}

/* ---- the calls ------------------------------------------------------------------------------- */

static struct job make_job(struct comm *comm, const struct comm_tensor *tensors, int n, void *work)
{
    int64_t elem_bytes = (int64_t)dtype_bytes(tensors[0].dtype);
    int64_t chunk = chunk_elems(tensors, n, comm->n_ranks);
    return (struct job){.comm = comm,
                        .tensors = tensors,
                        .n = n,
                        .elem_bytes = elem_bytes,
                        .chunk = chunk,
                        .longest = longest_list(tensors, n, comm->n_ranks, INT64_MAX),
                        .out = work,
                        .in = (unsigned char *)work + comm->n_ranks * chunk * elem_bytes,
                        .messages = comm->messages};
}

enum snug_status collect_all_reduce(struct comm *comm, const struct comm_tensor *tensors, int n,
                                    void *work, struct snug_error *err)
{
    struct job job = make_job(comm, tensors, n, work);
    for (int64_t at = 0; at < job.longest && comm->n_ranks > 1; at += job.chunk) {
        TRY(reduce_chunk(&job, at, err));
        TRY(gather_chunk(&job, at, err));
    }
    return SNUG_OK;
}

enum snug_status collect_reduce_scatter(struct comm *comm, const struct comm_tensor *tensors, int n,
                                        bool add, void *work, struct snug_error *err)
{
    struct job job = make_job(comm, tensors, n, work);
    for (int64_t at = 0; at < job.longest; at += job.chunk) {
        TRY(reduce_chunk(&job, at, err));
        TRY(move_list(&job, comm->rank, at, chunk_of(&job, comm->rank, at), true,
                      slot(&job, job.out, comm->rank), add ? UNPACK_ADDING : UNPACK, err));
        TRY(finish_moves(&job, err));
    }
    return SNUG_OK;
}

enum snug_status collect_all_gather(struct comm *comm, const struct comm_tensor *tensors, int n,
                                    void *work, struct snug_error *err)
{
    struct job job = make_job(comm, tensors, n, work);
    for (int64_t at = 0; at < job.longest; at += job.chunk) {
        TRY(move_list(&job, comm->rank, at, chunk_of(&job, comm->rank, at), true,
                      slot(&job, job.out, comm->rank), PACK, err));
        TRY(finish_moves(&job, err));
        TRY(gather_chunk(&job, at, err));
    }
    return SNUG_OK;
}
