/*
 * shard.c -- data parallelism: the program of one rank, with the model replicated on every rank
 * (ddp), updated by rank 0 (ps), or sharded (ZeRO 1, 2, 3).
 *
 * Each rank runs forward and backward on its part of the batch.  accumulate.c weighted the loss so
 * that sums over ranks are means over the batch.  Each rank owns a range of the elements of every
 * trained weight (base/cut.h).  shard_updates.c applies that to gradients and updates,
 * shard_weights.c to the weights.
 *
 * An optimizer that needs whole matrices cannot update a range.  Each of its weights is owned
 * whole by one rank, the one with the fewest bytes so far.
 *
 * A program of model states only (psi:N) never runs: we shard its tensors and remove its ops.
 *
 * needs: the final ops, without workspaces, updates at the end    keeps: ids
 * breaks: shapes of weights (ZeRO 3), gradients and states; a shard has tensor.whole set
 * leaves: results.rank, rank_kinds    cost:  O(ops + tensors + weights x ranks)
 */
#include "base/quant_map.h"
#include "optim/optim.h"
#include "pass/shard.h"

#include <stdlib.h>
#include <string.h>

void shard_in_place(struct sharding *s, tensor_id id, int64_t from, int64_t count)
{
    struct tensor *t = &s->prog->tensors[id];
    if (count == shape_elems(&t->shape))
        return;
    t->whole = t->shape;
    t->whole_from = from;
    if (count == 0)
        t->persistent = false; /* this rank has none of it */
    else
        t->shape = (struct shape){1, {count}};
}

/* ---- which rank owns what -------------------------------------------------------------------- */

static enum snug_status find_weights(struct sharding *s)
{
    struct program *prog = s->prog;
    size_t n = (size_t)prog->n_tensors + 1;
    s->of_weight = arena_alloc(s->env->scratch, n * sizeof(int));
    s->of_grad = arena_alloc(s->env->scratch, n * sizeof(int));
    s->weights = arena_zeros(s->env->scratch, n, sizeof *s->weights);
    if (s->of_weight == NULL || s->of_grad == NULL || s->weights == NULL)
        return shard_no_memory(s);
    for (int i = 0; i < prog->n_tensors; i++)
        s->of_weight[i] = s->of_grad[i] = -1;
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        tensor_id grad = program_linked(prog, i, LINK_gradient);
        bool has_grad = grad != TENSOR_NONE;
        if (t->role != ROLE_parameter || t->frozen || (s->env->config.train && !has_grad))
            continue;
        s->weights[s->n_weights] = (struct shared_weight){.weight = i,
                                                          .grad = grad,
                                                          .shape = t->shape,
                                                          .weight_piece = i,
                                                          .grad_piece = TENSOR_NONE,
                                                          .is_elementwise = true,
                                                          .complete = -1};
        s->of_weight[i] = s->n_weights;
        if (has_grad)
            s->of_grad[grad] = s->n_weights;
        s->n_weights++;
    }
    return SNUG_OK;
}

/* Extends the tables to tensors added since find_weights; these belong to no weight. */
static enum snug_status grow_tables(struct sharding *s, int n_before)
{
    size_t n = (size_t)s->prog->n_tensors + 1;
    int *of_weight = arena_alloc(s->env->scratch, n * sizeof(int));
    int *of_grad = arena_alloc(s->env->scratch, n * sizeof(int));
    if (of_weight == NULL || of_grad == NULL)
        return shard_no_memory(s);
    for (int i = 0; i < s->prog->n_tensors; i++) {
        of_weight[i] = i < n_before ? s->of_weight[i] : -1;
        of_grad[i] = i < n_before ? s->of_grad[i] : -1;
    }
    s->of_weight = of_weight;
    s->of_grad = of_grad;
    return SNUG_OK;
}

/* Adds the op's states to state_bytes; each state counts once. */
static void count_states(struct sharding *s, const struct op *op, bool *seen,
                         struct shared_weight *w)
{
    for (int k = 0; k < op->n_in; k++) {
        tensor_id id = op->in[k];
        bool counts = id != TENSOR_NONE && s->prog->tensors[id].role == ROLE_optimizer && !seen[id];
        w->state_bytes += counts ? tensor_bytes(s->prog, id) : 0;
        if (counts)
            seen[id] = true;
    }
}

/* Finds which weights have elementwise updates and quantized states, and their state bytes. */
static enum snug_status inspect_updates(struct sharding *s)
{
    bool *seen = arena_zeros(s->env->scratch, (size_t)s->prog->n_tensors + 1, sizeof *seen);
    if (seen == NULL)
        return shard_no_memory(s);
    int weight = -1, begin = s->prog->loss == TENSOR_NONE ? 0 : program_body_end(s->prog);
    for (int i = begin; i < s->prog->n_ops; i++) {
        const struct op *op = &s->prog->ops[i];
        weight = shard_weight_updated(s, op, weight);
        if (weight < 0 || op->kind == OP_sum_squares)
            continue;
        s->weights[weight].is_elementwise &=
            op_reads_attrs(op, update) && attrs_of(op, update)->direction == DIRECTION_none;
        for (int k = UPDATE_STATES + 1; op_reads_attrs(op, update) && k < op->n_in; k += 2)
            s->weights[weight].has_quants |= op->in[k] != TENSOR_NONE;
        count_states(s, op, seen, &s->weights[weight]);
    }
    return SNUG_OK;
}

static int least_of(const int64_t *loads, int n)
{
    int least = 0;
    for (int i = 1; i < n; i++)
        if (loads[i] < loads[least])
            least = i;
    return least;
}

static int most_of(const int64_t *loads, int n)
{
    int most = 0;
    for (int i = 1; i < n; i++)
        if (loads[i] > loads[most])
            most = i;
    return most;
}

/* Estimated bytes that a rank has of a weight, its gradient and its states. */
static int64_t load_of(const struct sharding *s, const struct shared_weight *w, int rank)
{
    int64_t n = shape_elems(&w->shape);
    int64_t count = cut_of(w->cut, n, s->env->config.ranks.n_ranks, rank).count;
    int64_t width = (int64_t)dtype_bytes(s->prog->tensors[w->weight].dtype);
    return count == n ? w->state_bytes + 2 * width * n : count * (w->state_bytes / n + 2 * width);
}

/* Splits every weight over the ranks.  For rank -1, picks the rank with the most bytes and lists
 * the other kinds of ranks, which may have a higher peak. */
static enum snug_status cut_all(struct sharding *s)
{
    const struct rank_place *ranks = &s->env->config.ranks;
    int *chosen = &s->env->results.rank;
    int64_t *loads = arena_zeros(s->env->scratch, (size_t)ranks->n_ranks, sizeof *loads);
    if (loads == NULL)
        return shard_no_memory(s);
    for (int i = 0; i < s->n_weights; i++) {
        struct shared_weight *w = &s->weights[i];
        w->cut =
            (struct cut){.unit = w->has_quants ? quant_block_elems(s->env->config.state_bits) : 1,
                         .owner = ranks->parallel == PARALLEL_ps ? 0
                                  : w->is_elementwise            ? CUT_OVER_ALL
                                                                 : least_of(loads, ranks->n_ranks)};
        for (int rank = 0; rank < ranks->n_ranks; rank++)
            loads[rank] += load_of(s, w, rank);
    }
    if (ranks->rank < 0 && shards_updates(s->env))
        TRY(shard_find_kinds(s, loads));
    *chosen = ranks->rank < 0 ? most_of(loads, ranks->n_ranks) : ranks->rank;
    for (int i = 0; i < s->n_weights; i++)
        s->weights[i].own =
            cut_of(s->weights[i].cut, shape_elems(&s->weights[i].shape), ranks->n_ranks, *chosen);
    return SNUG_OK;
}

/* Returns, per tensor of `run`, the first all_gather that writes it; NULL when out of memory. */
static const struct op **find_gathers(const struct program *run, struct arena *scratch)
{
    const struct op **gather_of =
        arena_zeros(scratch, (size_t)run->n_tensors + 1, sizeof *gather_of);
    for (int i = run->n_ops - 1; gather_of != NULL && i >= 0; i--)
        for (int k = 0; op_has(&run->ops[i], TRAIT_gathers) && k < run->ops[i].n_out; k++)
            if (run->ops[i].out[k] != TENSOR_NONE)
                gather_of[run->ops[i].out[k]] = &run->ops[i];
    return gather_of;
}

/* An evaluation uses the run's shards. */
static enum snug_status cut_as_run(struct sharding *s)
{
    const struct program *run = s->env->config.run;
    const struct op **gather_of = find_gathers(run, s->env->scratch);
    if (gather_of == NULL)
        return shard_no_memory(s);
    for (int i = 0; i < s->n_weights; i++) {
        struct shared_weight *w = &s->weights[i];
        const char *weight = s->prog->tensors[w->weight].name;
        tensor_id gathered = program_linked(run, program_find(run, weight), LINK_gathered);
        const struct op *gather = gathered == TENSOR_NONE ? NULL : gather_of[gathered];
        if (gather == NULL)
            return snug_fail(s->env->err, SNUG_BAD_PROGRAM,
                             "shard: the training run does not gather \"%s\"", weight);
        w->cut = collective_cut(gather);
        w->own = cut_of(w->cut, shape_elems(&w->shape), s->env->config.ranks.n_ranks,
                        s->env->config.ranks.rank);
    }
    return SNUG_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static enum snug_status check(const struct pass_env *env)
{
    bool shards = shards_updates(env);
    if (shards &&
        (env->config.optimizer->average != AVERAGE_none || env->config.optimizer->emit_all != NULL))
        return snug_fail(env->err, SNUG_UNSUPPORTED,
                         "--optimizer %s needs the states of all weights on every rank: use "
                         "--parallel ddp with --zero 0",
                         env->config.optimizer->name);
    if (env->config.ranks.zero == 3 && env->config.lora_rank > 0)
        return snug_fail(env->err, SNUG_UNSUPPORTED,
                         "--zero 3 does not support --lora: frozen weights are not sharded; use "
                         "--zero 2");
    return SNUG_OK;
}

/* Model states only: nothing runs, only the sizes of the persistent tensors count. */
static void cut_states_alone(struct sharding *s)
{
    for (int i = 0; i < s->n_weights; i++) {
        const struct shared_weight *w = &s->weights[i];
        if (s->env->config.ranks.zero >= 2)
            shard_in_place(s, w->grad, w->own.from, w->own.count);
        if (s->env->config.ranks.zero == 3)
            shard_in_place(s, w->weight, w->own.from, w->own.count);
    }
}

static enum snug_status shard_states_alone(struct sharding *s)
{
    struct program *prog = s->prog;
    bool *removed = arena_zeros(s->env->scratch, (size_t)prog->n_ops + 1, sizeof *removed);
    if (removed == NULL)
        return shard_no_memory(s);
    if (!shards_updates(s->env))
        return SNUG_OK;
    cut_states_alone(s);
    TRY(shard_end(s)); /* shards the states; its ops are not needed */
    memset(removed, 1, (size_t)prog->n_ops * sizeof *removed);
    rewriter_drop(prog, removed);
    return SNUG_OK;
}

static enum snug_status shard_training(struct sharding *s)
{
    struct program *prog = s->prog;
    int n_tensors = prog->n_tensors;
    if (s->env->config.ranks.zero == 3)
        TRY(shard_gather(s));
    TRY(grow_tables(s, n_tensors));
    TRY(shard_gradients(s));
    rewriter_end_body(&s->rw);
    TRY(shard_end(s));
    return rewriter_finish(&s->rw, SNUG_OK);
}

static enum snug_status run(struct sharding *s)
{
    TRY(find_weights(s));
    if (!s->env->config.train) {
        TRY(cut_as_run(s));
        return shard_gather(s);
    }
    TRY(inspect_updates(s));
    TRY(cut_all(s));
    return s->prog->loss == TENSOR_NONE ? shard_states_alone(s) : shard_training(s);
}

enum snug_status pass_shard(struct program *prog, struct pass_env *env)
{
    struct sharding s = {.prog = prog,
                         .env = env,
                         .rw = rewriter_begin(prog, "shard", env->err),
                         .in_flight = {TENSOR_NONE, TENSOR_NONE}};
    if (env->config.train)
        TRY(check(env));
    else if (env->config.ranks.zero < 3 || env->config.run == NULL || env->config.averages_only)
        return SNUG_OK; /* every rank has whole weights */
    enum snug_status status = run(&s);
    rewriter_free(&s.rw);
    free(s.buckets);
    return status;
}
