/*
 * shard_updates.c -- sum gradients over the ranks as they complete; each rank updates what it owns.
 *
 *     ddp        all_reduce       every rank has all sums and updates all weights
 *     zero 1     reduce_scatter   in place: a rank sums and updates its range, then all_gather
 *     zero 2     reduce_scatter   into a gradient shard; the whole gradient is freed
 *     zero 3     as zero 2, without the all_gather: weights stay sharded (shard_weights.c)
 *     ps         as zero 1, with rank 0 owning everything
 *
 * The collective of a bucket is issued after the op that completes the bucket and overlaps with the
 * ops that follow.
 *
 * With several micro-batches, ddp, zero 1 and ps accumulate whole gradients and sum them over the
 * ranks in the last micro-batch.  zero 2 and 3 do not keep whole gradients: they reduce_scatter in
 * every micro-batch and accumulate shards.  A gradient written by the op that also accumulates the
 * loss (the LM head) has to stay whole, because an op accumulates either all its outputs or none.
 *
 * The norm is summed from the ranks' parts in every scheme, so it is the same in all of them.  In a
 * pipeline, gradients are summed over the ranks of one stage, the norm and the loss over all ranks.
 */
#include "ir/update_range.h"
#include "optim/optim.h"
#include "pass/shard.h"

/* ---- gradients ------------------------------------------------------------------------------- */

static bool keeps_pieces(const struct pass_env *env)
{
    return env->config.ranks.zero >= 2;
}

static int weight_written(const struct sharding *s, const struct op *op, int k)
{
    return op->out[k] == TENSOR_NONE ? -1 : s->of_grad[op->out[k]];
}

/* Does this op write the loss or a gradient that has to stay whole? */
static bool is_held(const struct sharding *s, const struct op *op)
{
    for (int k = 0; k < op->n_out; k++) {
        int weight = weight_written(s, op, k);
        if (op->out[k] == s->prog->loss || (weight >= 0 && !s->weights[weight].each_micro))
            return true;
    }
    return false;
}

/* Decides which gradients are summed in every micro-batch: of an op's gradients, all or none. */
static void choose_each_micro(struct sharding *s)
{
    bool changed = true;
    for (int i = 0; i < s->n_weights; i++)
        s->weights[i].each_micro = keeps_pieces(s->env) && s->prog->n_repeat > 1;
    while (changed) {
        changed = false;
        for (int i = 0; i < program_body_end(s->prog); i++)
            for (int k = 0; is_held(s, &s->prog->ops[i]) && k < s->prog->ops[i].n_out; k++) {
                int weight = weight_written(s, &s->prog->ops[i], k);
                changed |= weight >= 0 && s->weights[weight].each_micro;
                if (weight >= 0)
                    s->weights[weight].each_micro = false;
            }
    }
}

static void find_complete(struct sharding *s)
{
    for (int i = 0; i < program_body_end(s->prog); i++)
        for (int k = 0; k < s->prog->ops[i].n_out; k++) {
            int weight = weight_written(s, &s->prog->ops[i], k);
            if (weight < 0)
                continue;
            s->weights[weight].complete = i;
            if (s->weights[weight].each_micro &&
                s->prog->ops[i].attrs.accumulate == ACC_after_first)
                s->prog->ops[i].attrs.accumulate = ACC_no;
        }
}

/* Adds a view of this rank's range of `whole`, or uses `whole` itself if the rank owns it all. */
static enum snug_status add_view(struct sharding *s, const struct shared_weight *w, tensor_id whole,
                                 tensor_id *id)
{
    const struct tensor *t = &s->prog->tensors[whole];
    struct tensor view = {.dtype = t->dtype,
                          .role = t->role,
                          .base = whole,
                          .offset_elems = w->own.from,
                          .shape = {1, {w->own.count}}};
    *id = w->own.count > 0 ? whole : TENSOR_NONE;
    if (w->own.count == 0 || w->own.count == shape_elems(&w->shape))
        return SNUG_OK;
    view.name = arena_format(s->env->scratch, "%s.own", t->name);
    return view.name == NULL ? shard_no_memory(s)
                             : program_add_tensor(s->prog, &view, id, s->env->err);
}

static enum snug_status add_gradient_piece(struct sharding *s, struct shared_weight *w)
{
    struct tensor piece = s->prog->tensors[w->grad];
    w->grad_piece = TENSOR_NONE;
    if (!keeps_pieces(s->env))
        return add_view(s, w, w->grad, &w->grad_piece);
    if (w->own.count == 0)
        return SNUG_OK;
    piece.name = arena_format(s->env->scratch, "shard.%s", piece.name);
    if (piece.name == NULL)
        return shard_no_memory(s);
    TRY(program_add_tensor(s->prog, &piece, &w->grad_piece, s->env->err));
    shard_in_place(s, w->grad_piece, w->own.from, w->own.count);
    return SNUG_OK;
}

static enum snug_status put_gradient(struct sharding *s, const struct shared_weight *w)
{
    bool in_last = s->prog->n_repeat > 1 && !w->each_micro;
    struct cut over_all = {.unit = 1, .owner = CUT_OVER_ALL};
    if (s->env->config.ranks.n_ranks < 2 && !s->env->config.ranks.collectives_alone)
        return SNUG_OK; /* the other ranks are other stages */
    if (!shards_updates(s->env))
        return bucket_put(s, OP_all_reduce, w->grad, w->grad, over_all, ACC_no, in_last);
    return bucket_put(s, OP_reduce_scatter, w->grad, keeps_pieces(s->env) ? w->grad_piece : w->grad,
                      w->cut, w->each_micro ? ACC_after_first : ACC_no, in_last);
}

enum snug_status shard_gradients(struct sharding *s)
{
    struct program *prog = s->prog;
    int end = program_body_end(prog);
    choose_each_micro(s);
    find_complete(s);
    for (int i = 0; i < s->n_weights; i++)
        TRY(add_gradient_piece(s, &s->weights[i]));
    for (int i = 0; i < end; i++) {
        TRY(rewriter_copy(&s->rw, i));
        for (int k = 0; k < prog->ops[i].n_out; k++) {
            int weight = weight_written(s, &prog->ops[i], k);
            if (weight >= 0 && s->weights[weight].complete == i)
                TRY(put_gradient(s, &s->weights[weight]));
        }
    }
    return bucket_flush(s);
}

/* ---- after the body -------------------------------------------------------------------------- */

static enum snug_status sum_in_place(struct sharding *s, tensor_id id)
{
    TRY(bucket_flush(s));
    return shard_sum_over_all(s, id);
}

static enum snug_status append_norm_part(struct sharding *s, const struct op *old)
{
    struct op op = *old;
    op.in[0] = s->weights[s->of_grad[old->in[0]]].grad_piece;
    if (op.in[0] == TENSOR_NONE) /* this rank has none of it */
        op = op_make(OP_clear, attrs_default(op_infos[OP_clear].family), 0, NULL, 1, old->out);
    return rewriter_add(&s->rw, &op);
}

/* Shards operand k of an update, a state, to match this rank's range of the weight. */
static void shard_state(struct sharding *s, const struct op *op, int k,
                        const struct shared_weight *w)
{
    struct cut_range own = update_range(op, k, w->own);
    shard_in_place(s, op->in[k], own.from, own.count);
}

/* Appends the update of this rank's range, if it has one. */
static enum snug_status append_update(struct sharding *s, const struct op *old,
                                      const struct shared_weight *w)
{
    struct op op = *old;
    if (w->is_elementwise)
        for (int k = UPDATE_MASTER; k < op.n_in; k++)
            if (op.in[k] != TENSOR_NONE)
                shard_state(s, old, k, w);
    if (w->own.count == 0)
        return SNUG_OK;
    for (int k = 0; k < op.n_in; k++)
        op.in[k] = op.in[k] == w->grad     ? w->grad_piece
                   : op.in[k] == w->weight ? w->weight_piece
                                           : op.in[k];
    for (int k = 0; k < op.n_out; k++)
        op.out[k] = op.out[k] == w->weight ? w->weight_piece : op.out[k];
    return rewriter_add(&s->rw, &op);
}

/* Weights that are whole on every rank are gathered after the ranks have updated their ranges. */
static enum snug_status append_gather(struct sharding *s, const struct shared_weight *w)
{
    bool stays_sharded = s->env->config.ranks.zero == 3;
    return stays_sharded
               ? SNUG_OK
               : bucket_put(s, OP_all_gather, w->weight, w->weight, w->cut, ACC_no, false);
}

static enum snug_status add_weight_pieces(struct sharding *s)
{
    for (int i = 0; i < s->n_weights && s->env->config.ranks.zero != 3; i++)
        TRY(add_view(s, &s->weights[i], s->weights[i].weight, &s->weights[i].weight_piece));
    return SNUG_OK;
}

/* Drops the states of weights that other ranks update. */
static enum snug_status drop_unused_states(struct sharding *s)
{
    bool *used = arena_zeros(s->env->scratch, (size_t)s->prog->n_tensors + 1, sizeof *used);
    if (used == NULL)
        return shard_no_memory(s);
    for (int i = 0; i < s->rw.n_ops; i++)
        for (int k = 0; k < s->rw.ops[i].n_in; k++)
            if (s->rw.ops[i].in[k] != TENSOR_NONE)
                used[tensor_root(s->prog, s->rw.ops[i].in[k])] = true;
    for (int i = 0; i < s->prog->n_tensors; i++)
        if (s->prog->tensors[i].role == ROLE_optimizer && !used[i])
            s->prog->tensors[i].persistent = false;
    return SNUG_OK;
}

/* The weight that this op helps to update: that of the gradient it reads, or else `before`. */
int shard_weight_updated(const struct sharding *s, const struct op *op, int before)
{
    for (int k = 0; k < op->n_in && op->kind != OP_sum_squares; k++)
        if (op->in[k] != TENSOR_NONE && s->of_grad[op->in[k]] >= 0)
            return s->of_grad[op->in[k]];
    return before;
}

static enum snug_status append_end_op(struct sharding *s, const struct op *op, int *weight)
{
    int before = *weight;
    *weight = shard_weight_updated(s, op, before);
    if (before >= 0 && *weight != before)
        TRY(append_gather(s, &s->weights[before]));
    if (op->kind == OP_sum_squares && s->of_grad[op->in[0]] >= 0)
        return append_norm_part(s, op);
    if (op->kind == OP_grad_norm)
        TRY(sum_in_place(s, op->in[0]));
    return *weight < 0 ? rewriter_add(&s->rw, op) : append_update(s, op, &s->weights[*weight]);
}

enum snug_status shard_end(struct sharding *s)
{
    struct program *prog = s->prog;
    bool shards = shards_updates(s->env), has_loss = prog->loss != TENSOR_NONE;
    int weight = -1, begin = has_loss ? program_body_end(prog) : 0;
    if (has_loss)
        TRY(sum_in_place(s, prog->loss));
    if (shards)
        TRY(add_weight_pieces(s));
    for (int i = begin; i < prog->n_ops; i++) {
        struct op op = prog->ops[i];
        if (shards) {
            TRY(append_end_op(s, &op, &weight));
        } else if (op.kind == OP_sum_squares) {
            TRY(append_norm_part(s, &op));
        } else {
            if (op.kind == OP_grad_norm)
                TRY(sum_in_place(s, op.in[0]));
            TRY(rewriter_add(&s->rw, &op));
        }
    }
    if (weight >= 0 && has_loss)
        TRY(append_gather(s, &s->weights[weight]));
    TRY(bucket_flush(s));
    return shards ? drop_unused_states(s) : SNUG_OK;
}
