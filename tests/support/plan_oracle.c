/*
 * plan_oracle.c -- lists all reads and writes of two steps, and searches for the last writer of each
 * byte of every read.  O(reads x writes x bytes).
 */
#include "support/plan_oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct access {
    tensor_id id;
    int time; /* an op reads at even times and writes at the odd time after */
    bool writes, is_work;
};

struct history {
    const struct program *prog;
    const int64_t *offset;
    struct access *list;
    int n, capacity, now;
};

static int64_t begin_of(const struct history *h, tensor_id id)
{
    return h->offset[id];
}

static int64_t end_of(const struct history *h, tensor_id id)
{
    return h->offset[id] + tensor_bytes(h->prog, id);
}

static bool meet(const struct history *h, tensor_id a, tensor_id b)
{
    return begin_of(h, a) < end_of(h, b) && begin_of(h, b) < end_of(h, a);
}

static void note(struct history *h, tensor_id id, int time, bool writes, bool is_work)
{
    if (id == TENSOR_NONE)
        return;
    if (h->n == h->capacity) {
        h->capacity = 2 * h->capacity + 64;
        h->list = realloc(h->list, (size_t)h->capacity * sizeof *h->list);
        assert_non_null(h->list);
    }
    h->list[h->n++] = (struct access){id, time, writes, is_work};
}

static void note_op(struct history *h, const struct op *op, int round)
{
    for (int k = 0; k < op->n_in; k++)
        note(h, op->in[k], h->now, false, false);
    for (int k = 0; k < op->n_out; k++) {
        bool adds = (op_infos[op->kind].accumulates & 1u << k) &&
                    (op->attrs.accumulate == ACC_yes ||
                     (op->attrs.accumulate == ACC_after_first && round > 0));
        if (adds)
            note(h, op->out[k], h->now, false, false);
        note(h, op->out[k], h->now + 1, true, false);
    }
    note(h, op->work, h->now + 1, true, true);
    h->now += 2;
}

static void note_all(struct history *h)
{
    const struct program *prog = h->prog;
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].persistent && prog->tensors[i].base == TENSOR_NONE &&
            h->offset[i] >= 0)
            note(h, i, h->now++, true, false);
    for (int step = 0; step < 2; step++) {
        for (int round = 0; round < prog->n_repeat; round++) {
            for (int i = 0; i < prog->n_tensors; i++)
                if (prog->tensors[i].role == ROLE_input && h->offset[i] >= 0)
                    note(h, i, h->now++, true, false);
            for (int i = 0; i < program_body_end(prog); i++)
                if (!prog->ops[i].in_last || round + 1 == prog->n_repeat)
                    note_op(h, &prog->ops[i], round);
        }
        for (int i = program_body_end(prog); i < prog->n_ops; i++)
            note_op(h, &prog->ops[i], 0);
        for (int i = 0; i < prog->n_tensors; i++)
            if ((prog->tensors[i].persistent || prog->tensors[i].is_output) && h->offset[i] >= 0)
                note(h, i, h->now, false, false);
        h->now += 2;
    }
}

/* Was every byte that list[r] reads last written as the same tensor? */
static bool reads_its_own(const struct history *h, int r, bool *seen)
{
    const struct access *read = &h->list[r];
    int64_t begin = begin_of(h, read->id), left = end_of(h, read->id) - begin;
    memset(seen, 0, (size_t)left);
    for (int w = h->n - 1; w >= 0 && left > 0; w--) {
        const struct access *write = &h->list[w];
        if (!write->writes || write->time >= read->time || !meet(h, read->id, write->id))
            continue;
        bool own =
            !write->is_work && tensor_root(h->prog, write->id) == tensor_root(h->prog, read->id);
        for (int64_t at = begin_of(h, write->id); at < end_of(h, write->id); at++) {
            if (at < begin || at >= end_of(h, read->id) || seen[at - begin])
                continue;
            if (!own)
                return false;
            seen[at - begin] = true;
            left--;
        }
    }
    return left == 0;
}

static bool operands_clash(const struct history *h, const struct op *op)
{
    tensor_id mine[MAX_OUTPUTS + 1];
    int n = 0;
    for (int k = 0; k < op->n_out; k++)
        mine[n++] = op->out[k];
    mine[n++] = op->work;
    for (int a = 0; a < n; a++) {
        if (mine[a] == TENSOR_NONE)
            continue;
        for (int b = 0; b < n; b++)
            if (b != a && mine[b] != TENSOR_NONE && meet(h, mine[a], mine[b]))
                return true;
        for (int k = 0; k < op->n_in; k++) {
            if (op->in[k] == TENSOR_NONE || op->in[k] == mine[a] || !meet(h, op->in[k], mine[a]))
                continue;
            bool exact = begin_of(h, op->in[k]) == begin_of(h, mine[a]) &&
                         tensor_bytes(h->prog, op->in[k]) == tensor_bytes(h->prog, mine[a]);
            if (!(a == 0 && exact && (op_infos[op->kind].inplace & 1u << k)))
                return true;
        }
    }
    return false;
}

bool oracle_plan_is_wrong(const struct program *prog, const int64_t *offset, int64_t arena_bytes)
{
    struct history h = {.prog = prog, .offset = offset};
    bool wrong = false;
    int64_t largest = 1;
    for (int i = 0; i < prog->n_tensors; i++) {
        wrong |= offset[i] >= 0 && end_of(&h, i) > arena_bytes;
        largest = tensor_bytes(prog, i) > largest ? tensor_bytes(prog, i) : largest;
    }
    for (int i = 0; i < prog->n_ops; i++)
        wrong |= operands_clash(&h, &prog->ops[i]);
    bool *seen = malloc((size_t)largest * sizeof *seen);
    assert_non_null(seen);
    note_all(&h);
    for (int r = 0; r < h.n && !wrong; r++)
        wrong = !h.list[r].writes && !reads_its_own(&h, r, seen);
    free(seen);
    free(h.list);
    return wrong;
}

static bool names(const struct op *op, tensor_id root, const struct program *prog)
{
    bool found = op->work == root;
    for (int k = 0; k < op->n_in; k++)
        found |= op->in[k] != TENSOR_NONE && tensor_root(prog, op->in[k]) == root;
    for (int k = 0; k < op->n_out; k++)
        found |= op->out[k] != TENSOR_NONE && tensor_root(prog, op->out[k]) == root;
    return found;
}

/* Is a tensor with this root an output, or accumulated from round to round? */
static void life_of(const struct program *prog, tensor_id root, int *first, int *last)
{
    int body_end = program_body_end(prog);
    *first = prog->n_ops, *last = -1;
    for (int i = 0; i < prog->n_ops; i++)
        if (names(&prog->ops[i], root, prog)) {
            *first = i < *first ? i : *first;
            *last = i;
        }
    if (*last < 0)
        return;
    if (prog->tensors[root].role == ROLE_input)
        *first = 0;
    bool whole_body = false;
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_out; k++)
            whole_body |= prog->ops[i].out[k] != TENSOR_NONE &&
                          tensor_root(prog, prog->ops[i].out[k]) == root &&
                          (op_infos[prog->ops[i].kind].accumulates & 1u << k) &&
                          prog->ops[i].attrs.accumulate == ACC_after_first;
    if (whole_body) {
        *first = 0;
        *last = body_end - 1 > *last ? body_end - 1 : *last;
    }
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].is_output && tensor_root(prog, i) == root)
            *last = prog->n_ops - 1;
}

int64_t oracle_most_alive(const struct program *prog, const int64_t *offset, int64_t arena_bytes)
{
    bool *used = malloc((size_t)arena_bytes + 1);
    int *first = malloc(((size_t)prog->n_tensors + 1) * sizeof *first);
    int *last = malloc(((size_t)prog->n_tensors + 1) * sizeof *last);
    int64_t most = 0;
    assert_true(used != NULL && first != NULL && last != NULL);
    for (int i = 0; i < prog->n_tensors; i++) {
        life_of(prog, i, &first[i], &last[i]);
        if (prog->tensors[i].persistent)
            first[i] = 0, last[i] = prog->n_ops;
    }
    for (int at = 0; at < prog->n_ops; at++) {
        int64_t alive = 0;
        memset(used, 0, (size_t)arena_bytes);
        for (int i = 0; i < prog->n_tensors; i++)
            if (prog->tensors[i].base == TENSOR_NONE && first[i] <= at && at <= last[i])
                memset(used + offset[i], 1, (size_t)tensor_bytes(prog, i));
        for (int64_t byte = 0; byte < arena_bytes; byte++)
            alive += used[byte];
        most = alive > most ? alive : most;
    }
    free(used);
    free(first);
    free(last);
    return most;
}
