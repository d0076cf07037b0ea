/*
 * shard.h -- shared by the files of the shard pass; no other file includes it.
 */
#ifndef SNUG_PASS_SHARD_H
#define SNUG_PASS_SHARD_H

#include "ir/collective_options.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

struct shared_weight {
    tensor_id weight, grad;
    struct shape shape;     /* of the whole weight */
    struct cut cut;         /* how its elements are split over the ranks */
    struct cut_range own;   /* this rank's elements */
    tensor_id weight_piece; /* this rank's shard of the weight, or TENSOR_NONE */
    tensor_id grad_piece;   /* this rank's shard of the gradient, or TENSOR_NONE */
    bool is_elementwise;    /* its update can run on a range of elements */
    bool has_quants;        /* its states are quantized in blocks */
    bool each_micro;        /* its gradient is summed over ranks in every micro-batch */
    int64_t state_bytes;    /* of all its states */
    int complete;           /* the body op that writes its gradient last, or -1 */
};

struct sharding {
    struct program *prog;
    struct pass_env *env;
    struct shared_weight *weights;
    int n_weights;
    int *of_weight, *of_grad; /* per tensor: index of the weight that it is, or belongs to; or -1 */
    struct rewriter rw;
    struct bucket *buckets; /* buckets being filled */
    int n_buckets, bucket_capacity;
    tensor_id in_flight[2]; /* results of the reduce_scatters in flight, the oldest first */
};

static inline enum snug_status shard_no_memory(const struct sharding *s)
{
    return snug_fail(s->env->err, SNUG_NO_MEMORY, "shard: out of memory");
}

/* Does each rank update only its shard of a weight?  (Otherwise all ranks update all of it.) */
static inline bool shards_updates(const struct pass_env *env)
{
    return env->config.ranks.zero >= 1 || env->config.ranks.parallel == PARALLEL_ps;
}

/* shard.c: turns tensor `id` into this rank's shard of it. */
void shard_in_place(struct sharding *s, tensor_id id, int64_t from, int64_t count);

/* shard_kinds.c: sets results.rank_kinds; loads: estimated bytes of each rank. */
enum snug_status shard_find_kinds(struct sharding *s, const int64_t *loads);

/* shard_buckets.c: collectives of several tensors at once.  A tensor goes into the bucket of its
 * kind.  A full bucket is appended to the list as one op; bucket_flush appends the others. */
struct bucket {
    struct op op;
    int64_t bytes;
};
enum snug_status bucket_put(struct sharding *s, enum op_kind kind, tensor_id in, tensor_id out,
                            struct cut cut, enum accumulate accumulate, bool in_last);
enum snug_status bucket_flush(struct sharding *s);
/* Appends an all_reduce of one tensor over all ranks of all stages. */
enum snug_status shard_sum_over_all(struct sharding *s, tensor_id id);

/* shard_weights.c: shards the weights and gathers them where they are used. */
enum snug_status shard_gather(struct sharding *s);

/* shard_updates.c: the sums of gradients, and the ops after the body. */
int shard_weight_updated(const struct sharding *s, const struct op *op, int before);
enum snug_status shard_gradients(struct sharding *s);
enum snug_status shard_end(struct sharding *s);

#endif
