/*
 * program_waits.c -- which copy an op has to wait for.  See program_waits.h.
 */
#include "ir/program_waits.h"

struct lane {
    const struct program *prog;
    int *copied_by;    /* per root: the newest copy that wrote it, or -1 */
    int *sent_by;      /* per tensor: its newest send, or -1 */
    int section_begin; /* the first op of the current section */
    int newest;        /* the newest copy of the current section, or -1 */
};

static int newest_writer(const struct lane *lane, const struct op *op)
{
    int found = -1;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && lane->copied_by[tensor_root(lane->prog, op->in[k])] > found)
            found = lane->copied_by[tensor_root(lane->prog, op->in[k])];
    return found >= lane->section_begin ? found : -1;
}

static int wait_of(const struct lane *lane, int i)
{
    const struct op *op = &lane->prog->ops[i];
    if (op->kind == OP_sent)
        return op->in[0] == TENSOR_NONE ? -1 : lane->sent_by[op->in[0]];
    if (op_has(op, TRAIT_leaves))
        return newest_writer(lane, op);
    if (op_has(op, TRAIT_copy))
        return -1;
    return i == program_section_last(lane->prog, i) ? lane->newest : newest_writer(lane, op);
}

static void issue(struct lane *lane, int i)
{
    const struct op *op = &lane->prog->ops[i];
    lane->newest = i;
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE)
            lane->copied_by[tensor_root(lane->prog, op->out[k])] = i;
    if (op->kind == OP_send && op->in[0] != TENSOR_NONE)
        lane->sent_by[op->in[0]] = i;
}

void program_find_waits(const struct program *prog, bool is_last_round, int *waits_for,
                        int *scratch)
{
    struct lane lane = {
        .prog = prog, .copied_by = scratch, .sent_by = scratch + prog->n_tensors, .newest = -1};
    for (int t = 0; t < 2 * prog->n_tensors; t++)
        scratch[t] = -1;
    for (int i = 0; i < prog->n_ops; i++) {
        bool runs = !prog->ops[i].in_last || is_last_round;
        waits_for[i] = runs ? wait_of(&lane, i) : -1;
        if (runs && op_has(&prog->ops[i], TRAIT_copy))
            issue(&lane, i);
        if (i == program_section_last(prog, i)) {
            lane.section_begin = i + 1;
            lane.newest = -1;
        }
    }
}
