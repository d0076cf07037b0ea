/*
 * nccl.c -- collectives from GPU to GPU with NCCL.
 *
 * All tensors of an op form one group, which NCCL runs as one kernel.  When all shards of a tensor
 * have the same length, NCCL's reduce_scatter and all_gather are used.  Ragged shards, and weights
 * that one rank owns, take one reduce or broadcast per rank.  A reduce_scatter that accumulates
 * (+=) first reduces into the bucket, as many elements at a time as fit, and then adds the bucket
 * to the shards.
 *
 * NCCL rounds at every step of its sums, in an order that depends on its choice of rings and trees.
 */
#include "cuda/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/elementwise.h"
#include "cuda/dispatch/dispatch.h"
#include "ir/collective_options.h"

struct direct {
    const struct nccl_calls *calls;
    struct ncclComm *comm; /* NULL after an abort */
    int rank, n_ranks;
};

static enum snug_status failure(const struct direct *direct, int result, struct snug_error *err)
{
    const char *more = direct->comm == NULL ? NULL : direct->calls->last_error(direct->comm);
    return snug_fail(err, SNUG_IO_ERROR, "NCCL: %s%s%.200s", direct->calls->error_text(result),
                     more == NULL || more[0] == '\0' ? "" : "; ", more == NULL ? "" : more);
}

static enum snug_status check_result(const struct direct *direct, int result,
                                     struct snug_error *err)
{
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS ? SNUG_OK
                                                                : failure(direct, result, err);
}

/* ---- opening and closing -------------------------------------------------------------------- */

static bool find(char text[DEVICE_TEXT_MAX])
{
    const struct nccl_calls *calls = nccl_find(text);
    int version = 0;
    if (calls == NULL)
        return false;
    if (calls->get_version(&version) != NCCL_SUCCESS) {
        snprintf(text, DEVICE_TEXT_MAX, "ncclGetVersion failed");
        return false;
    }
    snprintf(text, DEVICE_TEXT_MAX, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return true;
}

static enum snug_status make_id(unsigned char id[DIRECT_ID_BYTES], struct snug_error *err)
{
    char why[DEVICE_TEXT_MAX] = "";
    struct direct direct = {.calls = nccl_find(why)};
    struct nccl_id created = {{0}};
    if (direct.calls == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED, "NCCL: %s", why);
    TRY(check_result(&direct, direct.calls->get_id(&created), err));
    memcpy(id, created.bytes, DIRECT_ID_BYTES);
    return SNUG_OK;
}

static enum snug_status open_direct(struct device *device, const unsigned char id[DIRECT_ID_BYTES],
                                    int rank, int n_ranks, struct direct **out,
                                    struct snug_error *err)
{
    (void)device; /* the calling thread has already selected it */
    char why[DEVICE_TEXT_MAX] = "";
    struct nccl_id common;
    struct direct *direct = calloc(1, sizeof *direct);
    if (direct == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    *direct = (struct direct){.calls = nccl_find(why), .rank = rank, .n_ranks = n_ranks};
    memcpy(common.bytes, id, DIRECT_ID_BYTES);
    enum snug_status status =
        direct->calls == NULL
            ? snug_fail(err, SNUG_UNSUPPORTED, "NCCL: %s", why)
            : check_result(direct, direct->calls->init_rank(&direct->comm, n_ranks, common, rank),
                           err);
    if (status != SNUG_OK) {
        free(direct);
        return status;
    }
    *out = direct;
    return SNUG_OK;
}

static enum snug_status check(struct direct *direct, struct snug_error *err)
{
    int error = NCCL_SUCCESS;
    if (direct->comm == NULL)
        return snug_fail(err, SNUG_IO_ERROR, "NCCL: the communicator of this run was aborted");
    TRY(check_result(direct, direct->calls->async_error(direct->comm, &error), err));
    return check_result(direct, error, err);
}

static void abort_direct(struct direct *direct)
{
    if (direct->comm != NULL)
        (void)direct->calls->abort(direct->comm);
    direct->comm = NULL;
}

static void close_direct(struct direct *direct)
{
    if (direct->comm != NULL)
        (void)direct->calls->destroy(direct->comm);
    free(direct);
}

/* ---- one tensor ----------------------------------------------------------------------------- */

/* A group of NCCL calls.  It keeps the first error, because a group that was started must be
 * ended. */
struct group {
    const struct direct *direct;
    const struct kernel_call *call;
    struct cut cut;
    int result;
    int launch_error; /* of our own kernels */
};

static void note(struct group *g, int result)
{
    if (g->result == NCCL_SUCCESS && result != NCCL_IN_PROGRESS)
        g->result = result;
}

static int nccl_type_of(enum dtype dtype)
{
    return dtype == DTYPE_f32    ? NCCL_F32
           : dtype == DTYPE_f64  ? NCCL_F64
           : dtype == DTYPE_bf16 ? NCCL_BF16
                                 : NCCL_F16;
}

struct sharded { /* operand k: the full tensor, and the shard of this rank */
    unsigned char *full, *shard;
    enum dtype dtype;
    int64_t n_elems, elem_bytes;
};

static struct cut_range range_of(const struct group *g, const struct sharded *x, int rank)
{
    return cut_of(g->cut, x->n_elems, g->direct->n_ranks, rank);
}

static struct sharded sharded_of(const struct group *g, int k)
{
    bool reduces = op_has(g->call->op, TRAIT_reduces);
    const struct operand *full = reduces ? &g->call->in[k] : &g->call->out[k];
    const struct operand *shard = reduces ? &g->call->out[k] : &g->call->in[k];
    struct sharded x = {.full = full->data,
                        .shard = shard->data,
                        .dtype = full->tensor->dtype,
                        .n_elems = shape_elems(&full->tensor->shape),
                        .elem_bytes = (int64_t)dtype_bytes(full->tensor->dtype)};
    if (x.shard == x.full) /* the shard is a range of the full tensor */
        x.shard = x.full + range_of(g, &x, g->direct->rank).from * x.elem_bytes;
    return x;
}

static bool is_even(const struct group *g, const struct sharded *x)
{
    if (g->cut.owner != CUT_OVER_ALL)
        return false;
    int64_t first = range_of(g, x, 0).count;
    for (int rank = 1; rank < g->direct->n_ranks; rank++)
        if (range_of(g, x, rank).count != first)
            return false;
    return first > 0;
}

static void all_reduce(struct group *g, const struct sharded *x)
{
    note(g,
         g->direct->calls->all_reduce(x->full, x->full, (size_t)x->n_elems, nccl_type_of(x->dtype),
                                      NCCL_SUM, g->direct->comm, g->call->stream));
}

/* Reduces elements [at, at + n) of a tensor to `to` on one rank. */
static void reduce_run(struct group *g, const struct sharded *x, int64_t at, int64_t n, int rank,
                       void *to)
{
    unsigned char *from = x->full + at * x->elem_bytes;
    note(g, g->direct->calls->reduce(from, rank == g->direct->rank ? to : from, (size_t)n,
                                     nccl_type_of(x->dtype), NCCL_SUM, rank, g->direct->comm,
                                     g->call->stream));
}

static void reduce_scatter(struct group *g, const struct sharded *x)
{
    if (is_even(g, x)) {
        note(g, g->direct->calls->reduce_scatter(x->full, x->shard, (size_t)range_of(g, x, 0).count,
                                                 nccl_type_of(x->dtype), NCCL_SUM, g->direct->comm,
                                                 g->call->stream));
        return;
    }
    for (int rank = 0; rank < g->direct->n_ranks; rank++) {
        struct cut_range r = range_of(g, x, rank);
        if (r.count > 0)
            reduce_run(g, x, r.from, r.count, rank, x->shard);
    }
}

/* Moves bytes, so it works for any type. */
static void all_gather(struct group *g, const struct sharded *x)
{
    const struct nccl_calls *calls = g->direct->calls;
    if (is_even(g, x)) {
        size_t n = (size_t)(range_of(g, x, 0).count * x->elem_bytes);
        note(g,
             calls->all_gather(x->shard, x->full, n, NCCL_INT8, g->direct->comm, g->call->stream));
        return;
    }
    for (int rank = 0; rank < g->direct->n_ranks; rank++) {
        struct cut_range r = range_of(g, x, rank);
        unsigned char *to = x->full + r.from * x->elem_bytes;
        if (r.count > 0)
            note(g, calls->broadcast(rank == g->direct->rank ? x->shard : to, to,
                                     (size_t)(r.count * x->elem_bytes), NCCL_INT8, rank,
                                     g->direct->comm, g->call->stream));
    }
}

/* ---- reduce_scatter that accumulates
 * ---------------------------------------------------------- */

/* Elements [at, at + n) of a rank's list, which is all its shards one after the other. */
struct span {
    int64_t at, n; /* n: how many elements fit the bucket */
};

typedef void run_fn(struct group *g, const struct sharded *x, int64_t from_in_range, int64_t n,
                    int rank, unsigned char *bucket);

/* Calls fn for each contiguous run of a rank's list inside the span. */
static void for_runs(struct group *g, struct span span, int rank, run_fn *fn)
{
    int64_t before = 0; /* elements of the list so far */
    for (int k = 0; k < g->call->op->n_in; k++) {
        struct sharded x = sharded_of(g, k);
        int64_t count = range_of(g, &x, rank).count;
        int64_t begin = span.at > before ? span.at - before : 0;
        int64_t end = span.at + span.n - before < count ? span.at + span.n - before : count;
        if (begin < end) {
            unsigned char *bucket =
                (unsigned char *)g->call->work + (before + begin - span.at) * x.elem_bytes;
            fn(g, &x, begin, end - begin, rank, bucket);
        }
        before += count;
    }
}

static void sum_run(struct group *g, const struct sharded *x, int64_t from_in_range, int64_t n,
                    int rank, unsigned char *bucket)
{
    reduce_run(g, x, range_of(g, x, rank).from + from_in_range, n, rank, bucket);
}

static void add_run(struct group *g, const struct sharded *x, int64_t from_in_range, int64_t n,
                    int rank, unsigned char *bucket)
{
    (void)rank;
    struct cuda_array to = {.dtype = x->dtype, .data = x->shard + from_in_range * x->elem_bytes};
    struct cuda_array more = {.dtype = x->dtype, .data = bucket};
    int error = cuda_add(n, to, more, to, g->call->stream);
    g->launch_error = g->launch_error != 0 ? g->launch_error : error;
}

static int64_t longest_list(const struct group *g)
{
    int64_t longest = 0;
    for (int rank = 0; rank < g->direct->n_ranks; rank++) {
        int64_t length = 0;
        for (int k = 0; k < g->call->op->n_in; k++) {
            struct sharded x = sharded_of(g, k);
            length += range_of(g, &x, rank).count;
        }
        longest = length > longest ? length : longest;
    }
    return longest;
}

static void sum_and_add(struct group *g, int64_t work_bytes)
{
    const struct nccl_calls *calls = g->direct->calls;
    struct span span = {.n = work_bytes / sharded_of(g, 0).elem_bytes};
    int64_t longest = longest_list(g);
    for (; span.at < longest && g->result == NCCL_SUCCESS; span.at += span.n) {
        note(g, calls->group_start());
        for (int rank = 0; rank < g->direct->n_ranks; rank++)
            for_runs(g, span, rank, sum_run);
        note(g, calls->group_end());
        if (g->result == NCCL_SUCCESS)
            for_runs(g, span, g->direct->rank, add_run);
    }
}

/* ---- an op ---------------------------------------------------------------------------------- */

static void run_group(struct group *g)
{
    const struct nccl_calls *calls = g->direct->calls;
    note(g, calls->group_start());
    for (int k = 0; k < g->call->op->n_in; k++) {
        struct sharded x = sharded_of(g, k);
        switch (g->call->op->kind) {
        case OP_all_reduce:
            all_reduce(g, &x);
            break;
        case OP_reduce_scatter:
            reduce_scatter(g, &x);
            break;
        default:
            all_gather(g, &x);
        }
    }
    note(g, calls->group_end());
}

static enum snug_status run(struct direct *direct, const struct kernel_call *call,
                            int64_t work_bytes, struct snug_error *err)
{
    struct group g = {.direct = direct, .call = call, .cut = collective_cut(call->op)};
    TRY(check(direct, err));
    if (call->add)
        sum_and_add(&g, work_bytes);
    else
        run_group(&g);
    TRY(check_result(direct, g.result, err));
    return cuda_done(call, g.launch_error, err);
}

static enum snug_status pass(struct direct *direct, int to, const void *out, int64_t out_bytes,
                             int from, void *in, int64_t in_bytes, void *stream,
                             struct snug_error *err)
{
    const struct nccl_calls *calls = direct->calls;
    struct group g = {.direct = direct};
    TRY(check(direct, err));
    note(&g, calls->group_start());
    if (out_bytes > 0)
        note(&g, calls->send(out, (size_t)out_bytes, NCCL_INT8, to, direct->comm, stream));
    if (in_bytes > 0)
        note(&g, calls->recv(in, (size_t)in_bytes, NCCL_INT8, from, direct->comm, stream));
    note(&g, calls->group_end());
    return check_result(direct, g.result, err);
}

const struct direct_hooks cuda_direct = {.find = find,
                                         .make_id = make_id,
                                         .open = open_direct,
                                         .run = run,
                                         .pass = pass,
                                         .check = check,
                                         .abort = abort_direct,
                                         .close = close_direct};
