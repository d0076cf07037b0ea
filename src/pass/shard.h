/*
 * shard.h -- what the files of the pass shard have in common; nobody else includes it.
 */
#ifndef SNUG_PASS_SHARD_H
#define SNUG_PASS_SHARD_H

#include "ir/collective_options.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

struct shared_weight {
    tensor_id weight, grad;
    struct shape shape;     /* of the whole */
    struct cut cut;         /* whose elements are whose */
    struct cut_range own;   /* this rank's */
    tensor_id weight_piece; /* TENSOR_NONE: this rank has none */
    tensor_id grad_piece;
    bool is_elementwise; /* its update can be made in parts */
    bool has_quants;     /* its states are, in blocks */
    bool each_micro;     /* its gradient is summed over ranks in every micro-batch */
    int64_t state_bytes; /* of all its states */
    int complete;        /* the op of the body that writes its gradient last, -1: none */
};

struct sharding {
    struct program *prog;
    struct pass_env *env;
    struct shared_weight *weights;
    int n_weights;
    int *of_weight, *of_grad; /* per tensor: index of the weight, -1: none */
    struct rewriter rw;
    struct bucket *buckets; /* that are being filled */
    int n_buckets, bucket_capacity;
    tensor_id under_way[2]; /* results of the last collectives into pieces, the oldest first */
};

static inline enum snug_status shard_no_memory(const struct sharding *s)
{
    return snug_fail(s->env->err, SNUG_NO_MEMORY, "shard: out of memory");
}

/* Are the updates of a weight made by the rank that has it, and not by all? */
static inline bool shards_updates(const struct pass_env *env)
{
    return env->config.ranks.zero >= 1 || env->config.ranks.parallel == PARALLEL_ps;
}

/* shard.c: a tensor that is this rank's range of `id`, in its place. */
void shard_in_place(struct sharding *s, tensor_id id, int64_t from, int64_t count);

/* shard_kinds.c: sets results.rank_kinds; loads: about how many bytes each rank has. */
enum snug_status shard_find_kinds(struct sharding *s, const int64_t *loads);

/* shard_buckets.c: ops that collective several tensors at once.  Tensors go into the bucket of their like;
 * a bucket that is full becomes an op at the end of the list, the others when all is said. */
struct bucket {
    struct op op;
    int64_t bytes;
};
enum snug_status bucket_put(struct sharding *s, enum op_kind kind, tensor_id in, tensor_id out,
                            struct cut cut, enum accumulate accumulate, bool in_last);
enum snug_status bucket_flush(struct sharding *s);
enum snug_status shard_sum_over_all(struct sharding *s, tensor_id id);

/* shard_weights.c: weights that are sharded are gathered where they are used. */
enum snug_status shard_gather(struct sharding *s);

/* shard_updates.c: the sums of gradients, and what comes after the body. */
int shard_weight_updated(const struct sharding *s, const struct op *op, int before);
enum snug_status shard_gradients(struct sharding *s);
enum snug_status shard_end(struct sharding *s);

#endif
