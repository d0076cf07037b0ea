/*
 * unroll.c -- the micro-batches of a step, one after the other, in the order in which a stage of a
 * pipeline runs their halves.  F is the forward half of a micro-batch, B the backward half:
 *
 *     naive       F0 B0 F1 B1 ...
 *     gpipe       F0 F1 ... F(m-1)  B0 B1 ... B(m-1)
 *     1f1b        F0 ... F(k-1)  B0 Fk  B1 F(k+1) ...      k = p - s at stage s of p
 *     pipedream   as 1f1b, and each B is followed by an update
 *
 * Every micro-batch gets tensors of its own, NAME@1 and so on, so that what several of them have under way
 * at once is in the plan by itself: lifetimes say how long, and nothing has to be told how many.  Gradients
 * of weights are sums over the micro-batches, in their order, whatever the schedule: gpipe, 1f1b and naive
 * give the same bits.
 *
 * A message in either direction is settled before the next one in the same direction leaves.  By then the
 * neighbour has come to receive it, in every schedule above, or is about to.
 *
 * PipeDream.  F of micro-batch j reads the weights as they are; its B, for which others' updates do not
 * wait, reads them as they were.  So before an update, what a later B wants of them is copied (NAME.stash.V:
 * as after V updates), and lives until that B has read it: p - s versions at stage s, with the present one.  A
 * table that is on both ends belongs to the first stage: it sends the version of each F along to the last,
 * which sends the gradient back, so that both halves of a micro-batch see one version of it and one update is
 * made.
 *
 * needs: one body, repeated; in it the forward half, then the backward half    keeps: ids, weights
 * breaks: the shape of inputs, which hold all micro-batches    cost: O(ops x micro-batches)
 */
#include "ir/collective_options.h"
#include "pass/pass.h"
#include "pass/rewriter.h"

#include <stdlib.h>

enum { OPS_MAX = 1000000 /* seconds, and under a gigabyte */, FORWARD = 0, BACKWARD = 1 };

struct unrolling {
    struct program *prog;
    struct pass_env *env;
    int n_tensors;        /* of the program before */
    int n_micro, n_ahead; /* micro-batches; F before the first B */
    int split, body_end;  /* of the old ops: where B begins, where it ends */
    tensor_id *own;       /* per micro-batch and old tensor: its own, TENSOR_NONE: not met yet */
    tensor_id leaving[2]; /* by direction: what was sent and is not settled */
    int micro;            /* that is being unrolled */
    struct rewriter rw;
    /* PipeDream */
    bool *is_stashed;    /* per old tensor: a weight that B reads and updates change */
    tensor_id *versions; /* per number of updates and old tensor: the copy, TENSOR_NONE: none */
    tensor_id loss_sum;
};

static enum snug_status no_memory(const struct unrolling *u)
{
    return snug_fail(u->env->err, SNUG_NO_MEMORY, "unroll: out of memory");
}

static bool is_async(const struct unrolling *u)
{
    return u->env->config.pipeline == PIPELINE_pipedream;
}

static int stages_of(const struct unrolling *u)
{
    return u->env->config.ranks.n_stages > 1 ? u->env->config.ranks.n_stages : 1;
}

static bool is_first(const struct unrolling *u)
{
    return u->env->config.ranks.stage == 0;
}

static bool is_last(const struct unrolling *u)
{
    return u->env->config.ranks.stage == stages_of(u) - 1;
}

static enum snug_status append_new(struct unrolling *u, enum op_kind kind, struct attrs attrs,
                                   tensor_id in, tensor_id out)
{
    struct op op = op_make(kind, attrs, in != TENSOR_NONE, &in, 1, &out);
    op.micro = u->micro;
    return rewriter_add(&u->rw, &op);
}

/* ---- tensors of a micro-batch ---------------------------------------------------------------- */

/* One for all of them: what lives from step to step, and sums. */
static bool is_common(const struct unrolling *u, tensor_id id)
{
    const struct tensor *root = &u->prog->tensors[tensor_root(u->prog, id)];
    return root->persistent || root->role == ROLE_parameter ||
           (!is_async(u) && (root->role == ROLE_gradient || id == u->prog->loss));
}

static tensor_id *place_of(const struct unrolling *u, int micro, tensor_id id)
{
    return &u->own[(size_t)micro * (size_t)u->n_tensors + (size_t)id];
}

static enum snug_status add_copy(struct unrolling *u, tensor_id id, struct tensor *copy, int number,
                                 const char *how, tensor_id *made)
{
    copy->name = arena_format(u->env->scratch, how, u->prog->tensors[id].name, number);
    return copy->name == NULL ? no_memory(u) : program_add_tensor(u->prog, copy, made, u->env->err);
}

/* The tensor of this micro-batch that stands for `id`. */
static enum snug_status own_tensor(struct unrolling *u, int micro, tensor_id id, tensor_id *own)
{
    tensor_id *place = place_of(u, micro, id);
    struct tensor copy = u->prog->tensors[id];
    if (is_common(u, id)) {
        *own = id;
        return SNUG_OK;
    }
    if (*place == TENSOR_NONE && copy.role == ROLE_input && u->n_micro > 1) {
        copy.base = id; /* it holds all micro-batches */
        copy.shape.dim[0] /= u->n_micro;
        copy.offset_elems = micro * shape_elems(&copy.shape);
        TRY(add_copy(u, id, &copy, micro, "%s@%d", place));
    } else if (*place == TENSOR_NONE && micro == 0 && id != u->prog->loss) {
        *place = id;
    } else if (*place == TENSOR_NONE) {
        copy.is_output = false;
        if (copy.base != TENSOR_NONE)
            TRY(own_tensor(u, micro, copy.base, &copy.base));
        TRY(add_copy(u, id, &copy, micro, "%s@%d", place));
    }
    *own = *place;
    return SNUG_OK;
}

static void widen_inputs(struct unrolling *u)
{
    for (int i = 0; i < u->n_tensors; i++)
        if (u->prog->tensors[i].role == ROLE_input)
            u->prog->tensors[i].shape.dim[0] *= u->n_micro;
}

/* ---- versions of weights --------------------------------------------------------------------- */

/* How many updates this stage had made when it ran F of a micro-batch. */
static int version_of(const struct unrolling *u, int micro)
{
    return micro < u->n_ahead ? 0 : micro - u->n_ahead + 1;
}

/* The last micro-batch whose F saw the weights after so many updates. */
static int last_with(const struct unrolling *u, int version)
{
    int micro = version + u->n_ahead - 1;
    return micro < u->n_micro ? micro : u->n_micro - 1;
}

static bool is_lent(const struct unrolling *u, tensor_id id)
{
    return is_async(u) && stages_of(u) > 1 && id < u->env->results.n_whole &&
           u->env->results.at_ends[id] && !u->prog->tensors[id].frozen;
}

static tensor_id *version_at(const struct unrolling *u, int version, tensor_id id)
{
    return &u->versions[(size_t)version * (size_t)u->n_tensors + (size_t)id];
}

/* The gradient of a table reads it for its shape alone. */
static void find_stashed(struct unrolling *u)
{
    for (int i = u->split; i < u->body_end; i++)
        for (int k = 0; k < u->prog->ops[i].n_in; k++) {
            tensor_id id = u->prog->ops[i].in[k];
            if (id != TENSOR_NONE && u->prog->ops[i].kind != OP_embedding_grad)
                u->is_stashed[id] = u->prog->tensors[id].role == ROLE_parameter &&
                                    !u->prog->tensors[id].frozen && !is_lent(u, id);
        }
}

static enum snug_status copy_weight(struct unrolling *u, tensor_id id, int version, const char *how,
                                    tensor_id *made)
{
    struct tensor copy = u->prog->tensors[id];
    copy.persistent = false;
    copy.init = INIT_none;
    TRY(add_copy(u, id, &copy, version, how, made));
    return append_new(u, OP_accumulate, ATTRS(), id, *made);
}

/* Before the update that makes them another version. */
static enum snug_status stash_weights(struct unrolling *u, int version)
{
    for (int id = 0; id < u->n_tensors && last_with(u, version) > version; id++)
        if (u->is_stashed[id])
            TRY(copy_weight(u, id, version, "%s.stash.%d", version_at(u, version, id)));
    return SNUG_OK;
}

/* ---- a table of the first stage that the last one reads --------------------------------------- */

static int rank_of_end(const struct unrolling *u)
{
    return rank_at(&u->env->config.ranks, is_first(u) ? stages_of(u) - 1 : 0, 0);
}

/* Before F. */
static enum snug_status lend_table(struct unrolling *u, tensor_id id, int micro)
{
    struct attrs peer = message_attrs(rank_of_end(u));
    int version = version_of(u, micro);
    if (is_last(u)) {
        struct tensor copy = u->prog->tensors[id];
        copy.persistent = false;
        copy.init = INIT_none;
        TRY(add_copy(u, id, &copy, micro, "%s@%d", place_of(u, micro, id)));
        return append_new(u, OP_recv, peer, TENSOR_NONE, *place_of(u, micro, id));
    }
    if (*version_at(u, version, id) == TENSOR_NONE)
        TRY(copy_weight(u, id, version, "%s.lent.%d", version_at(u, version, id)));
    return append_new(u, OP_send, peer, *version_at(u, version, id), TENSOR_NONE);
}

/* After B: the gradient goes home.  That it has arrived is sure when the first stage has sent what it does
 * after it. */
static enum snug_status return_gradient(struct unrolling *u, tensor_id id, int micro)
{
    struct attrs peer = message_attrs(rank_of_end(u));
    tensor_id grad = program_linked(u->prog, id, LINK_gradient), own, other;
    TRY(own_tensor(u, micro, grad, &own));
    if (is_last(u))
        return append_new(u, OP_send, peer, own, TENSOR_NONE);
    struct tensor copy = u->prog->tensors[grad];
    TRY(add_copy(u, grad, &copy, micro, "%s.head@%d", &other));
    TRY(append_new(u, OP_recv, peer, TENSOR_NONE, other));
    return append_new(u, OP_accumulate, ATTRS(common, .accumulate = ACC_yes), other, own);
}

static enum snug_status settle_lent(struct unrolling *u, tensor_id id, bool backward, int micro)
{
    tensor_id own;
    int version = version_of(u, micro), before = micro - stages_of(u);
    if (is_first(u) && backward && last_with(u, version) == micro)
        return append_new(u, OP_sent, ATTRS(), *version_at(u, version, id), TENSOR_NONE);
    if (!is_last(u) || backward || before < 0)
        return SNUG_OK;
    TRY(own_tensor(u, before, program_linked(u->prog, id, LINK_gradient), &own));
    return append_new(u, OP_sent, ATTRS(), own, TENSOR_NONE);
}

static enum snug_status for_lent(struct unrolling *u, bool backward, int micro, bool is_begin)
{
    for (int id = 0; id < u->n_tensors && is_async(u); id++) {
        if (!is_lent(u, id) || (!is_first(u) && !is_last(u)))
            continue;
        if (is_begin && !backward)
            TRY(lend_table(u, id, micro));
        if (!is_begin && backward)
            TRY(return_gradient(u, id, micro));
        if (!is_begin)
            TRY(settle_lent(u, id, backward, micro));
    }
    return SNUG_OK;
}

/* ---- halves of micro-batches ----------------------------------------------------------------- */

static enum snug_status input_of(struct unrolling *u, int micro, bool backward, tensor_id id,
                                 tensor_id *own)
{
    int version = version_of(u, micro);
    if (is_async(u) && is_last(u) && is_lent(u, id))
        *own = *place_of(u, micro, id);
    else if (backward && is_first(u) && is_lent(u, id)) /* what is recomputed in B */
        *own = *version_at(u, version, id);
    else if (is_async(u) && backward && u->is_stashed[id] && version < micro)
        *own = *version_at(u, version, id);
    else
        return own_tensor(u, micro, id, own);
    return SNUG_OK;
}

static enum snug_status append_op(struct unrolling *u, int i, int micro)
{
    struct op op = u->prog->ops[i];
    bool backward = i >= u->split && i < u->body_end;
    op.micro = micro;
    if (op.attrs.accumulate == ACC_after_first)
        op.attrs.accumulate = micro == 0 ? ACC_no : ACC_yes;
    for (int k = 0; k < op.n_in; k++)
        if (op.in[k] != TENSOR_NONE)
            TRY(input_of(u, micro, backward, op.in[k], &op.in[k]));
    for (int k = 0; k < op.n_out; k++)
        if (op.out[k] != TENSOR_NONE)
            TRY(own_tensor(u, micro, op.out[k], &op.out[k]));
    if (op.kind != OP_send)
        return rewriter_add(&u->rw, &op);
    int direction = backward ? BACKWARD : FORWARD;
    if (u->leaving[direction] != TENSOR_NONE)
        TRY(append_new(u, OP_sent, ATTRS(), u->leaving[direction], TENSOR_NONE));
    u->leaving[direction] = op.in[0];
    return rewriter_add(&u->rw, &op);
}

/* PipeDream: what else came after the body comes after each B. */
static enum snug_status append_update(struct unrolling *u, int micro, int n_ops)
{
    tensor_id loss;
    TRY(stash_weights(u, micro));
    for (int i = u->body_end; i < n_ops; i++)
        TRY(append_op(u, i, micro));
    if (!is_last(u))
        return SNUG_OK;
    TRY(own_tensor(u, micro, u->prog->loss, &loss));
    return append_new(u, OP_accumulate, ATTRS(common, .accumulate = micro == 0 ? ACC_no : ACC_yes),
                      loss, u->loss_sum);
}

static enum snug_status append_half(struct unrolling *u, bool backward, int micro, int n_ops)
{
    int begin = backward ? u->split : 0, end = backward ? u->body_end : u->split;
    u->micro = micro;
    TRY(for_lent(u, backward, micro, true));
    for (int i = begin; i < end; i++)
        TRY(append_op(u, i, micro));
    TRY(for_lent(u, backward, micro, false));
    return backward && is_async(u) ? append_update(u, micro, n_ops) : SNUG_OK;
}

static enum snug_status append_all(struct unrolling *u, int n_ops)
{
    int next = 0; /* the F to come */
    for (; next < u->n_ahead; next++)
        TRY(append_half(u, false, next, n_ops));
    for (int micro = 0; micro < u->n_micro; micro++) {
        TRY(append_half(u, true, micro, n_ops));
        if (next < u->n_micro)
            TRY(append_half(u, false, next++, n_ops));
    }
    return SNUG_OK;
}

/* ---- the end of the body --------------------------------------------------------------------- */

static enum snug_status settle_all(struct unrolling *u)
{
    for (int direction = 0; direction < 2; direction++)
        if (u->leaving[direction] != TENSOR_NONE)
            TRY(append_new(u, OP_sent, ATTRS(), u->leaving[direction], TENSOR_NONE));
    for (int id = 0; id < u->n_tensors && is_last(u); id++)
        for (int micro = u->n_micro - stages_of(u); micro < u->n_micro && is_lent(u, id); micro++) {
            tensor_id own;
            if (micro < 0)
                continue;
            TRY(own_tensor(u, micro, program_linked(u->prog, id, LINK_gradient), &own));
            TRY(append_new(u, OP_sent, ATTRS(), own, TENSOR_NONE));
        }
    return SNUG_OK;
}

/* A weight that is on both ends: its gradients are added up. */
static enum snug_status sum_over_ends(struct unrolling *u)
{
    struct cut over_all = {.unit = 1, .owner = CUT_OVER_ALL};
    for (int id = 0; id < u->env->results.n_whole && !is_async(u); id++) {
        tensor_id grad = program_linked(u->prog, id, LINK_gradient);
        if (!u->env->results.at_ends[id] || (!is_first(u) && !is_last(u)))
            continue;
        if (grad != TENSOR_NONE)
            TRY(append_new(u, OP_all_reduce, collective_attrs(2, over_all, GROUP_ENDS), grad,
                           grad));
    }
    return SNUG_OK;
}

/* The loss is on the last stage, and 0 on the others: a sum over all (shard_updates.c) is it. */
static enum snug_status append_loss(struct unrolling *u)
{
    struct attrs mean = ATTRS(options);
    mean.options.options.value[0] = 1.0 / u->n_micro;
    if (!is_last(u))
        return append_new(u, OP_clear, ATTRS(), TENSOR_NONE, u->prog->loss);
    return is_async(u) ? append_new(u, OP_scale, mean, u->loss_sum, u->prog->loss) : SNUG_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* B begins with what comes from the next stage, or after the loss. */
static int find_split(const struct unrolling *u)
{
    const struct program *prog = u->prog;
    for (int i = 0; i < u->body_end; i++) {
        bool is_loss = false;
        for (int k = 0; k < prog->ops[i].n_out; k++)
            is_loss |= prog->ops[i].out[k] == prog->loss;
        if (is_loss || (prog->ops[i].kind == OP_send && !is_last(u)))
            return i + 1;
    }
    return u->body_end;
}

static int forwards_ahead(const struct unrolling *u)
{
    int in_flight = stages_of(u) - u->env->config.ranks.stage;
    switch (u->env->config.pipeline) {
    case PIPELINE_gpipe:
        return u->n_micro;
    case PIPELINE_1f1b:
    case PIPELINE_pipedream:
        return in_flight < u->n_micro ? in_flight : u->n_micro;
    default:
        return 1;
    }
}

static enum snug_status init(struct unrolling *u)
{
    size_t n = (size_t)u->n_tensors + 1, n_micro = (size_t)u->n_micro;
    size_t n_all = n * (n_micro + 1);
    if ((int64_t)u->prog->n_ops * u->n_micro > OPS_MAX)
        return snug_fail(u->env->err, SNUG_BAD_ARGUMENT,
                         "%d micro-batches of %d ops are too many for a pipeline: choose a larger "
                         "--micro-batch",
                         u->n_micro, u->prog->n_ops);
    u->own = malloc(n_all * sizeof *u->own);
    u->versions = malloc(n_all * sizeof *u->versions);
    u->is_stashed = arena_zeros(u->env->scratch, n, sizeof *u->is_stashed);
    if (u->own == NULL || u->versions == NULL || u->is_stashed == NULL)
        return no_memory(u);
    for (size_t i = 0; i < n_all; i++)
        u->own[i] = u->versions[i] = TENSOR_NONE;
    u->split = find_split(u);
    u->n_ahead = forwards_ahead(u);
    if (u->env->results.whole != NULL && u->env->results.n_whole == 0) /* else stage has */
        TRY(program_copy(u->env->results.whole, u->prog, u->env->err));
    widen_inputs(u);
    if (!is_async(u))
        return SNUG_OK;
    find_stashed(u);
    struct tensor sum = u->prog->tensors[u->prog->loss];
    sum.name = "loss.sum";
    sum.is_output = false;
    for (int id = 0; id < u->n_tensors; id++)
        if (is_lent(u, id) && !is_first(u))
            u->prog->tensors[id].persistent = false;
    return program_add_tensor(u->prog, &sum, &u->loss_sum, u->env->err);
}

static enum snug_status run(struct unrolling *u)
{
    int n_ops = u->prog->n_ops;
    TRY(init(u));
    TRY(append_all(u, n_ops));
    u->micro = 0;
    TRY(settle_all(u));
    TRY(sum_over_ends(u));
    TRY(append_loss(u));
    rewriter_open(&u->rw, SECTION_after);
    for (int i = u->body_end; i < n_ops && !is_async(u); i++)
        TRY(rewriter_copy(&u->rw, i));
    return SNUG_OK;
}

enum snug_status pass_unroll(struct program *prog, struct pass_env *env)
{
    struct unrolling u = {.prog = prog,
                          .env = env,
                          .n_tensors = prog->n_tensors,
                          .n_micro = env->config.n_micro,
                          .body_end = program_body_end(prog),
                          .leaving = {TENSOR_NONE, TENSOR_NONE},
                          .rw = rewriter_begin(prog, "unroll", env->err)};
    if (prog->n_ops == 0 || prog->loss == TENSOR_NONE)
        return SNUG_OK; /* model states alone */
    enum snug_status status = rewriter_finish(&u.rw, run(&u));
    if (status == SNUG_OK)
        prog->n_repeat = 1;
    free(u.own);
    free(u.versions);
    return status;
}
