/*
 * lifetime.c -- finds the lifetime of every tensor, and which tensors can share a block in place.
 *
 * A tensor is alive from its first writer to its last reader; a base is alive as long as any of its
 * views.  Inputs are alive from the start of the body.  Tensors that accumulate over micro-batches
 * are alive throughout the body.
 *
 * The operands of a copy are alive until the copy is complete, which is at a later op
 * (ir/program_waits.h).  Offloaded tensors are not in the arena and have no lifetime here.
 *
 * In place: if ops.def allows output 0 of an op to alias input k, and the op is the last use of an
 * input of the same size, the two share one block.  An op that runs only in the last micro-batch
 * can also be the last use of a tensor that accumulates over micro-batches.
 */
#include "ir/program_waits.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

static void touch(const struct program *prog, struct plan *plan, tensor_id root, int op)
{
    if (prog->tensors[root].offloaded)
        return;
    if (plan->alive_from[root] < 0 || op < plan->alive_from[root])
        plan->alive_from[root] = op;
    if (op > plan->alive_to[root])
        plan->alive_to[root] = op;
}

static void touch_operands(const struct program *prog, struct plan *plan, const struct op *op,
                           int at)
{
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE)
            touch(prog, plan, tensor_root(prog, op->in[k]), at);
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE)
            touch(prog, plan, tensor_root(prog, op->out[k]), at);
    if (op->work != TENSOR_NONE)
        touch(prog, plan, tensor_root(prog, op->work), at);
}

/* The copies from op `first` to op `last` are complete when op `done` starts. */
static void extend_copies(const struct program *prog, struct plan *plan, int first, int last,
                          int done)
{
    for (int i = first; i <= last; i++)
        if (op_has(&prog->ops[i], TRAIT_copy))
            touch_operands(prog, plan, &prog->ops[i], done);
}

/* Extends lifetimes for one micro-batch: the last one, or an earlier one, in which the ops that are
 * in_last do not run.  waits_for is from program_find_waits for the same micro-batch. */
static void extend_in_round(const struct program *prog, struct plan *plan, const int *waits_for,
                            bool is_last_round)
{
    int oldest = 0, newest = -1; /* copies in flight */
    for (int i = 0; i < prog->n_ops; i++) {
        if (prog->ops[i].in_last && !is_last_round) {
            ; /* does not run */
        } else if (op_has(&prog->ops[i], TRAIT_copy)) {
            newest = i;
        } else if (waits_for[i] >= oldest) {
            extend_copies(prog, plan, oldest, waits_for[i], i);
            oldest = waits_for[i] + 1;
        }
        if (i == program_section_last(prog, i)) {
            extend_copies(prog, plan, oldest, newest, i);
            oldest = i + 1;
        }
    }
}

static bool has_copies(const struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (op_has(&prog->ops[i], TRAIT_copy))
            return true;
    return false;
}

static enum snug_status extend_by_copies(const struct program *prog, struct plan *plan,
                                         struct snug_error *err)
{
    if (!has_copies(prog))
        return SNUG_OK;
    int *waits_for = malloc((size_t)prog->n_ops * sizeof *waits_for);
    int *scratch = malloc(2 * ((size_t)prog->n_tensors + 1) * sizeof *scratch);
    enum snug_status status = SNUG_OK;
    if (waits_for == NULL || scratch == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "plan: no memory for %d ops", prog->n_ops);
    for (int round = prog->n_repeat > 1 ? 0 : 1; round < 2 && status == SNUG_OK; round++) {
        bool is_last_round = round == 1;
        program_find_waits(prog, is_last_round, waits_for, scratch);
        extend_in_round(prog, plan, waits_for, is_last_round);
    }
    free(waits_for);
    free(scratch);
    return status;
}

static void use(int *last_use, tensor_id root, int i)
{
    if (i > last_use[root])
        last_use[root] = i;
}

/* last_use: per root, the last op that uses it or waits for a copy of it */
static void find_lifetimes(const struct program *prog, struct plan *plan, int *last_use)
{
    int body_end = program_body_end(prog);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE) {
                touch(prog, plan, tensor_root(prog, op->in[k]), i);
                use(last_use, tensor_root(prog, op->in[k]), i);
            }
        for (int k = 0; k < op->n_out; k++) {
            if (op->out[k] == TENSOR_NONE)
                continue;
            tensor_id root = tensor_root(prog, op->out[k]);
            touch(prog, plan, root, i);
            use(last_use, root, i);
            if ((op_infos[op->kind].accumulates >> k & 1) &&
                op->attrs.accumulate == ACC_after_first) {
                touch(prog, plan, root, 0);
                touch(prog, plan, root, body_end - 1);
            }
        }
        if (op->work != TENSOR_NONE)
            touch(prog, plan, tensor_root(prog, op->work), i);
    }
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        tensor_id root = tensor_root(prog, i);
        if (t->is_output && plan->alive_from[root] >= 0) /* a view that is an output too */
            touch(prog, plan, root, prog->n_ops - 1);
        if (t->base != TENSOR_NONE || t->offloaded)
            continue;
        if (t->role == ROLE_input && plan->alive_from[i] >= 0)
            touch(prog, plan, i, 0);
        if (t->persistent) {
            plan->alive_from[i] = 0;
            plan->alive_to[i] = prog->n_ops > 0 ? prog->n_ops - 1 : 0;
        }
    }
}

/* Is the tensor or a view of it an output of the program? */
static bool is_read_after_step(const struct program *prog, tensor_id root)
{
    for (int t = 0; t < prog->n_tensors; t++)
        if (prog->tensors[t].is_output && tensor_root(prog, t) == root)
            return true;
    return false;
}

/* May output 0 of op i alias its input k? */
static bool may_alias(const struct program *prog, const struct plan *plan, const int *last_use,
                      int i, int k)
{
    const struct op *op = &prog->ops[i];
    tensor_id in = op->in[k], out = op->out[0];
    if (k >= op->n_in || in == TENSOR_NONE || out == TENSOR_NONE || in == out)
        return false;
    const struct tensor *from = &prog->tensors[in], *to = &prog->tensors[out];
    for (int other = 0; other < op->n_in; other++)
        if (other != k && op->in[other] != TENSOR_NONE && tensor_root(prog, op->in[other]) == in)
            return false;
    if (prog->n_repeat > 1 && i == program_body_end(prog) - 1 && !op->in_last &&
        plan->alive_from[in] == 0)
        return false; /* alive throughout the body: the next micro-batch reads it again */
    bool dies_in_last =
        op->in_last && last_use[in] == i && plan->alive_to[in] < program_body_end(prog);
    bool dies = plan->alive_to[in] == i || dies_in_last;
    bool ends_step = i == prog->n_ops - 1 || dies_in_last; /* an output may end here too */
    return (op_infos[op->kind].inplace >> k & 1) && !op->no_alias && from->base == TENSOR_NONE &&
           to->base == TENSOR_NONE && !from->persistent && !to->persistent &&
           from->role != ROLE_input && dies && plan->alive_from[out] == i &&
           tensor_bytes(prog, in) == tensor_bytes(prog, out) &&
           !(ends_step && is_read_after_step(prog, in));
}

static void add_block(const struct program *prog, struct plan *plan, tensor_id root)
{
    const struct tensor *t = &prog->tensors[root];
    if (t->offloaded)
        return;
    plan->block_of[root] = plan->n_blocks;
    plan->blocks[plan->n_blocks++] = (struct block){.bytes = tensor_bytes(prog, root),
                                                    .first = plan->alive_from[root],
                                                    .last = plan->alive_to[root],
                                                    .persistent = t->persistent};
}

static void make_blocks(const struct program *prog, struct plan *plan, const int *last_use)
{
    for (int i = 0; i < prog->n_tensors; i++) /* in the order of the tensors, as in the arena */
        if (prog->tensors[i].persistent && prog->tensors[i].base == TENSOR_NONE)
            add_block(prog, plan, i);
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < MAX_INPUTS && op->n_out > 0; k++)
            if (may_alias(prog, plan, last_use, i, k) && plan->block_of[op->in[k]] >= 0 &&
                plan->block_of[op->out[0]] < 0) {
                struct block *shared = &plan->blocks[plan->block_of[op->in[k]]];
                plan->block_of[op->out[0]] = plan->block_of[op->in[k]];
                if (plan->alive_to[op->out[0]] > shared->last)
                    shared->last = plan->alive_to[op->out[0]];
            }
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE && plan->block_of[tensor_root(prog, op->in[k])] < 0)
                add_block(prog, plan, tensor_root(prog, op->in[k]));
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE && plan->block_of[tensor_root(prog, op->out[k])] < 0)
                add_block(prog, plan, tensor_root(prog, op->out[k]));
        if (op->work != TENSOR_NONE && plan->block_of[tensor_root(prog, op->work)] < 0)
            add_block(prog, plan, tensor_root(prog, op->work));
    }
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].base != TENSOR_NONE)
            plan->block_of[i] = plan->block_of[prog->tensors[i].base];
}

enum snug_status plan_lifetimes(const struct program *prog, struct plan *plan,
                                struct snug_error *err)
{
    size_t n = (size_t)prog->n_tensors + 1;
    plan->n_tensors = prog->n_tensors;
    plan->block_of = malloc(n * sizeof *plan->block_of);
    plan->alive_from = malloc(n * sizeof *plan->alive_from);
    plan->alive_to = malloc(n * sizeof *plan->alive_to);
    plan->blocks = malloc(n * sizeof *plan->blocks);
    int *last_use = calloc(n, sizeof *last_use);
    if (plan->block_of == NULL || plan->alive_from == NULL || plan->alive_to == NULL ||
        plan->blocks == NULL || last_use == NULL) {
        free(last_use);
        return snug_fail(err, SNUG_NO_MEMORY, "plan: no memory for %d tensors", prog->n_tensors);
    }
    for (int i = 0; i < prog->n_tensors; i++)
        plan->block_of[i] = plan->alive_from[i] = plan->alive_to[i] = -1;
    enum snug_status status = extend_by_copies(prog, plan, err);
    if (status != SNUG_OK) {
        free(last_use);
        return status;
    }
    memcpy(last_use, plan->alive_to, (size_t)prog->n_tensors * sizeof *last_use);
    find_lifetimes(prog, plan, last_use);
    make_blocks(prog, plan, last_use);
    free(last_use);
    return SNUG_OK;
}
