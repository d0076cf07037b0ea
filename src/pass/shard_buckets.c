/*
 * shard_buckets.c -- combine small tensors into one collective, to save per-call latency.
 *
 * What goes into a bucket depends only on whole tensors, which are the same on every rank.  So all
 * ranks emit the same collectives in the same order.
 */
#include "pass/shard.h"

enum { BUCKET_BYTES = 4 << 20 }; /* a bucket is emitted when it has at least this many bytes */

/* Can two collectives share a bucket? */
static bool is_alike(const struct sharding *s, const struct op *a, const struct op *b)
{
    struct cut x = collective_cut(a), y = collective_cut(b);
    return a->kind == b->kind && x.unit == y.unit && x.owner == y.owner &&
           a->attrs.accumulate == b->attrs.accumulate && a->in_last == b->in_last &&
           s->prog->tensors[collective_whole(a, 0)].dtype ==
               s->prog->tensors[collective_whole(b, 0)].dtype;
}

static struct op one_collective(const struct sharding *s, enum op_kind kind, tensor_id in,
                                tensor_id out, struct cut cut)
{
    enum collective_group group = s->env->config.ranks.n_stages > 1 ? GROUP_STAGE : GROUP_ALL;
    return op_make(kind, collective_attrs(s->env->config.ranks.n_ranks, cut, group), 1, &in, 1,
                   &out);
}

enum snug_status shard_sum_over_all(struct sharding *s, tensor_id id)
{
    const struct rank_place *ranks = &s->env->config.ranks;
    struct cut over_all = {.unit = 1, .owner = CUT_OVER_ALL};
    struct op op = one_collective(s, OP_all_reduce, id, id, over_all);
    int n_stages = ranks->n_stages > 1 ? ranks->n_stages : 1;
    op.attrs = collective_attrs(rank_at(ranks, n_stages, 0), over_all, GROUP_ALL);
    return rewriter_add(&s->rw, &op);
}

static enum snug_status add_bucket(struct sharding *s, const struct op *op, struct bucket **bucket)
{
    void *grown = s->buckets;
    if (!array_grow(&grown, &s->bucket_capacity, s->n_buckets + 1, sizeof *s->buckets))
        return shard_no_memory(s);
    s->buckets = grown;
    *bucket = &s->buckets[s->n_buckets++];
    **bucket = (struct bucket){.op = *op};
    (*bucket)->op.n_in = (*bucket)->op.n_out = 0;
    return SNUG_OK;
}

static tensor_id first_result(const struct op *op)
{
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE)
            return op->out[k];
    return TENSOR_NONE;
}

/* A reduce_scatter into shards frees the whole gradients once it is waited for.  We allow at most
 * two in flight, so that at most two buckets of whole gradients are alive. */
static enum snug_status append_collective(struct sharding *s, const struct op *op)
{
    tensor_id nothing = TENSOR_NONE;
    struct op wait = op_make(OP_wait_copy, ATTRS(), 1, &s->in_flight[0], 1, &nothing);
    TRY(rewriter_add(&s->rw, op));
    if (op_has(op, TRAIT_gathers) || op->out[0] == op->in[0])
        return SNUG_OK;
    wait.in_last = op->in_last;
    if (wait.in[0] != TENSOR_NONE)
        TRY(rewriter_add(&s->rw, &wait));
    s->in_flight[0] = s->in_flight[1];
    s->in_flight[1] = first_result(op);
    return SNUG_OK;
}

enum snug_status bucket_put(struct sharding *s, enum op_kind kind, tensor_id in, tensor_id out,
                            struct cut cut, enum accumulate accumulate, bool in_last)
{
    struct op op = one_collective(s, kind, in, out, cut);
    struct bucket *bucket = NULL;
    op.attrs.accumulate = accumulate;
    op.in_last = in_last;
    for (int i = 0; i < s->n_buckets && bucket == NULL; i++)
        if (is_alike(s, &s->buckets[i].op, &op))
            bucket = &s->buckets[i];
    if (bucket == NULL)
        TRY(add_bucket(s, &op, &bucket));
    int k = bucket->op.n_in;
    bucket->op.in[k] = in;
    bucket->op.out[k] = out;
    bucket->op.n_in = bucket->op.n_out = k + 1;
    bucket->bytes += tensor_bytes(s->prog, collective_whole(&bucket->op, k));
    if (bucket->bytes < BUCKET_BYTES && bucket->op.n_out < op_infos[kind].max_out)
        return SNUG_OK;
    TRY(append_collective(s, &bucket->op));
    *bucket = s->buckets[--s->n_buckets];
    return SNUG_OK;
}

enum snug_status bucket_flush(struct sharding *s)
{
    for (int i = 0; i < s->n_buckets; i++)
        TRY(append_collective(s, &s->buckets[i].op));
    s->n_buckets = 0;
    return SNUG_OK;
}
