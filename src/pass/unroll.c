/*
 * unroll.c -- writes out the micro-batches of a step in the order in which a pipeline stage runs
 * them.  F is the forward half of a micro-batch, B the backward half:
 *
 *     naive       F0 B0 F1 B1 ...
 *     gpipe       F0 F1 ... F(m-1)  B0 B1 ... B(m-1)
 *     1f1b        F0 ... F(k-1)  B0 Fk  B1 F(k+1) ...      k = p - s at stage s of p
 *     pipedream   as 1f1b, with an update after each B (pipedream.c)
 *
 * Each micro-batch gets its own tensors (NAME@1 and so on).  The lifetimes of these tensors then
 * show the planner how many micro-batches are in flight at once.  Weight gradients are summed over
 * the micro-batches in their order, whatever the schedule, so gpipe, 1f1b and naive give the same
 * bits.
 *
 * Before a stage sends again in a direction it waits for its previous send in that direction.  In
 * every schedule above, the neighbour has posted the matching recv by then or is about to.
 *
 * needs: one repeated body: the forward half, then the backward half    keeps: ids, weights
 * breaks: the shape of inputs, which now hold all micro-batches    cost: O(ops x micro-batches)
 */
#include "pass/unroll.h"

#include "ir/collective_options.h"
#include "pass/pipedream.h"

#include <stdlib.h>

enum { OPS_MAX = 1000000 /* takes seconds and under a gigabyte */, FORWARD = 0, BACKWARD = 1 };

enum snug_status unroll_no_memory(const struct unrolling *u)
{
    return snug_fail(u->env->err, SNUG_NO_MEMORY, "unroll: out of memory");
}

int unroll_n_stages(const struct unrolling *u)
{
    return u->env->config.ranks.n_stages > 1 ? u->env->config.ranks.n_stages : 1;
}

bool unroll_is_first_stage(const struct unrolling *u)
{
    return u->env->config.ranks.stage == 0;
}

bool unroll_is_last_stage(const struct unrolling *u)
{
    return u->env->config.ranks.stage == unroll_n_stages(u) - 1;
}

enum snug_status unroll_append(struct unrolling *u, enum op_kind kind, struct attrs attrs,
                               tensor_id in, tensor_id out)
{
    struct op op = op_make(kind, attrs, in != TENSOR_NONE, &in, 1, &out);
    op.micro = u->micro;
    return rewriter_add(&u->rw, &op);
}

/* ---- tensors of a micro-batch ---------------------------------------------------------------- */

/* Do all micro-batches share the tensor?  They share persistent tensors and sums over
 * micro-batches. */
static bool is_common(const struct unrolling *u, tensor_id id)
{
    const struct tensor *root = &u->prog->tensors[tensor_root(u->prog, id)];
    return root->persistent || root->role == ROLE_parameter ||
           (u->pipedream == NULL && (root->role == ROLE_gradient || id == u->prog->loss));
}

tensor_id *unroll_own_slot(const struct unrolling *u, int micro, tensor_id id)
{
    return &u->own[(size_t)micro * (size_t)u->n_tensors + (size_t)id];
}

enum snug_status unroll_add_copy(struct unrolling *u, tensor_id id, struct tensor *copy, int number,
                                 const char *format, tensor_id *added)
{
    copy->name = arena_format(u->env->scratch, format, u->prog->tensors[id].name, number);
    return copy->name == NULL ? unroll_no_memory(u)
                              : program_add_tensor(u->prog, copy, added, u->env->err);
}

enum snug_status unroll_own_tensor(struct unrolling *u, int micro, tensor_id id, tensor_id *own)
{
    tensor_id *place = unroll_own_slot(u, micro, id);
    struct tensor copy = u->prog->tensors[id];
    if (is_common(u, id)) {
        *own = id;
        return SNUG_OK;
    }
    if (*place == TENSOR_NONE && copy.role == ROLE_input && u->n_micro > 1) {
        copy.base = id; /* it holds all micro-batches */
        copy.shape.dim[0] /= u->n_micro;
        copy.offset_elems = micro * shape_elems(&copy.shape);
        TRY(unroll_add_copy(u, id, &copy, micro, "%s@%d", place));
    } else if (*place == TENSOR_NONE && micro == 0 && id != u->prog->loss) {
        *place = id;
    } else if (*place == TENSOR_NONE) {
        copy.is_output = false;
        if (copy.base != TENSOR_NONE)
            TRY(unroll_own_tensor(u, micro, copy.base, &copy.base));
        TRY(unroll_add_copy(u, id, &copy, micro, "%s@%d", place));
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

/* ---- halves of micro-batches ----------------------------------------------------------------- */

static enum snug_status input_of(struct unrolling *u, int micro, bool backward, tensor_id id,
                                 tensor_id *own)
{
    *own = u->pipedream != NULL ? pipedream_version(u, backward, micro, id) : TENSOR_NONE;
    return *own != TENSOR_NONE ? SNUG_OK : unroll_own_tensor(u, micro, id, own);
}

enum snug_status unroll_append_op(struct unrolling *u, int i, int micro)
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
            TRY(unroll_own_tensor(u, micro, op.out[k], &op.out[k]));
    if (op.kind != OP_send)
        return rewriter_add(&u->rw, &op);
    int direction = backward ? BACKWARD : FORWARD;
    if (u->in_flight[direction] != TENSOR_NONE)
        TRY(unroll_append(u, OP_sent, ATTRS(), u->in_flight[direction], TENSOR_NONE));
    u->in_flight[direction] = op.in[0];
    return rewriter_add(&u->rw, &op);
}

static enum snug_status append_half(struct unrolling *u, bool backward, int micro, int n_ops)
{
    int begin = backward ? u->split : 0, end = backward ? u->body_end : u->split;
    u->micro = micro;
    if (u->pipedream != NULL)
        TRY(pipedream_begin_half(u, backward, micro));
    for (int i = begin; i < end; i++)
        TRY(unroll_append_op(u, i, micro));
    return u->pipedream != NULL ? pipedream_end_half(u, backward, micro, n_ops) : SNUG_OK;
}

static enum snug_status append_all(struct unrolling *u, int n_ops)
{
    int next = 0; /* the next F */
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

static enum snug_status wait_for_sends(struct unrolling *u)
{
    for (int direction = 0; direction < 2; direction++)
        if (u->in_flight[direction] != TENSOR_NONE)
            TRY(unroll_append(u, OP_sent, ATTRS(), u->in_flight[direction], TENSOR_NONE));
    return u->pipedream != NULL ? pipedream_wait_sends(u) : SNUG_OK;
}

/* The first and the last stage each hold a copy of a shared weight: its gradients are summed. */
static enum snug_status sum_over_ends(struct unrolling *u)
{
    struct cut over_all = {.unit = 1, .owner = CUT_OVER_ALL};
    for (int id = 0; id < u->env->results.n_whole && u->pipedream == NULL; id++) {
        tensor_id grad = program_linked(u->prog, id, LINK_gradient);
        if (!u->env->results.at_ends[id] || (!unroll_is_first_stage(u) && !unroll_is_last_stage(u)))
            continue;
        if (grad != TENSOR_NONE)
            TRY(unroll_append(u, OP_all_reduce, collective_attrs(2, over_all, GROUP_ENDS), grad,
                              grad));
    }
    return SNUG_OK;
}

/* Only the last stage computes the loss.  The others hold 0, so that the sum over all
 * stages (shard_updates.c) gives every stage the loss. */
static enum snug_status append_loss(struct unrolling *u)
{
    if (!unroll_is_last_stage(u))
        return unroll_append(u, OP_clear, ATTRS(), TENSOR_NONE, u->prog->loss);
    return u->pipedream != NULL ? pipedream_average_loss(u) : SNUG_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* B begins after the send to the next stage; on the last stage, after the loss. */
static int find_split(const struct unrolling *u)
{
    const struct program *prog = u->prog;
    for (int i = 0; i < u->body_end; i++) {
        bool is_loss = false;
        for (int k = 0; k < prog->ops[i].n_out; k++)
            is_loss |= prog->ops[i].out[k] == prog->loss;
        if (is_loss || (prog->ops[i].kind == OP_send && !unroll_is_last_stage(u)))
            return i + 1;
    }
    return u->body_end;
}

static int forwards_ahead(const struct unrolling *u)
{
    int in_flight = unroll_n_stages(u) - u->env->config.ranks.stage;
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

static enum snug_status init(struct unrolling *u, struct pipedream *p)
{
    size_t n_own = ((size_t)u->n_tensors + 1) * ((size_t)u->n_micro + 1);
    if ((int64_t)u->prog->n_ops * u->n_micro > OPS_MAX)
        return snug_fail(u->env->err, SNUG_BAD_ARGUMENT,
                         "%d micro-batches of %d ops are too many for a pipeline: choose a larger "
                         "--micro-batch",
                         u->n_micro, u->prog->n_ops);
    u->own = malloc(n_own * sizeof *u->own);
    if (u->own == NULL)
        return unroll_no_memory(u);
    for (size_t i = 0; i < n_own; i++)
        u->own[i] = TENSOR_NONE;
    u->split = find_split(u);
    u->n_ahead = forwards_ahead(u);
    if (u->env->results.whole != NULL && u->env->results.n_whole == 0) /* else pass stage did */
        TRY(program_copy(u->env->results.whole, u->prog, u->env->err));
    widen_inputs(u);
    return u->env->config.pipeline == PIPELINE_pipedream ? pipedream_init(u, p) : SNUG_OK;
}

static enum snug_status run(struct unrolling *u, struct pipedream *p)
{
    int n_ops = u->prog->n_ops;
    TRY(init(u, p));
    TRY(append_all(u, n_ops));
    u->micro = 0;
    TRY(wait_for_sends(u));
    TRY(sum_over_ends(u));
    TRY(append_loss(u));
    rewriter_end_body(&u->rw);
    for (int i = u->body_end; i < n_ops && u->pipedream == NULL; i++)
        TRY(rewriter_copy(&u->rw, i));
    return SNUG_OK;
}

enum snug_status pass_unroll(struct program *prog, struct pass_env *env)
{
    struct pipedream pipedream = {0};
    struct unrolling u = {.prog = prog,
                          .env = env,
                          .n_tensors = prog->n_tensors,
                          .n_micro = env->config.n_micro,
                          .body_end = program_body_end(prog),
                          .in_flight = {TENSOR_NONE, TENSOR_NONE},
                          .rw = rewriter_begin(prog, "unroll", env->err)};
    if (prog->n_ops == 0 || prog->loss == TENSOR_NONE)
        return SNUG_OK; /* model states alone */
    enum snug_status status = rewriter_finish(&u.rw, run(&u, &pipedream));
    if (status == SNUG_OK)
        prog->n_repeat = 1;
    free(u.own);
    pipedream_free(&pipedream);
    return status;
}
