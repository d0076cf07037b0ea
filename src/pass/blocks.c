/*
 * blocks.c -- find where a forward program can be cut, and which pieces are its layers.
 *
 * A program can be cut between two ops if exactly one activation crosses.  The ops after the cut
 * then depend on no other result of the ops before it, so that activation is all that has to be
 * saved to recompute them.
 *
 * Layers are recognized by parameter names, up to the first number: "h.3" in
 * "h.3.attn.c_attn.weight", "layer1.0" in "layer1.0.conv1.weight".  In a network without numbers
 * each matmul (linear, convolution) is a layer.  Two layers are separated between the last op of
 * the first that has parameters and the first op of the second that has them: at the cut with the
 * smallest activation, and at the earliest of equals, so an activation function goes with the
 * layer that reads it.  Layers with no cut between them become one.
 *
 * cost:  O(ops + tensors)
 */
#include "pass/blocks.h"
#include "pass/layer_name.h"

#include <stdlib.h>
#include <string.h>

struct key { /* identifies a layer: a prefix of a parameter's name, or the index of a matmul */
    const char *text;
    size_t length;
    int gemm;
};

struct finder {
    const struct program *prog;
    int n_forward;
    tensor_id *cut; /* per op: the one activation live just before it; TENSOR_NONE: no cut there */
    struct blocks *blocks;
};

bool blocks_may_drop(const struct program *prog, tensor_id id)
{
    const struct tensor *t = &prog->tensors[id];
    return t->role == ROLE_activation && t->base == TENSOR_NONE && !t->persistent &&
           !t->is_output && id != prog->loss;
}

static enum snug_status find_cuts(struct finder *f, struct arena *scratch, struct snug_error *err)
{
    const struct program *prog = f->prog;
    size_t n_tensors = (size_t)prog->n_tensors + 1, n_ops = (size_t)f->n_forward + 2;
    int *written = arena_zeros(scratch, n_tensors, sizeof *written); /* its first writer + 1 */
    int *read = arena_zeros(scratch, n_tensors, sizeof *read);       /* its last reader */
    int *n_crossing = arena_zeros(scratch, n_ops, sizeof *n_crossing);
    int64_t *ids = arena_zeros(scratch, n_ops, sizeof *ids); /* sum of the crossing ids */
    f->cut = arena_zeros(scratch, n_ops, sizeof *f->cut);
    if (written == NULL || read == NULL || n_crossing == NULL || ids == NULL || f->cut == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d ops", f->n_forward);
    for (int i = 0; i < f->n_forward; i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE)
                read[tensor_root(prog, op->in[k])] = i;
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE && written[tensor_root(prog, op->out[k])] == 0)
                written[tensor_root(prog, op->out[k])] = i + 1;
    }
    for (int t = 0; t < prog->n_tensors; t++)
        if (written[t] > 0 && !prog->tensors[t].persistent && read[t] >= written[t]) {
            n_crossing[written[t]]++, ids[written[t]] += t;
            n_crossing[read[t] + 1]--, ids[read[t] + 1] -= t;
        }
    for (int i = 0; i < f->n_forward; i++) {
        if (i > 0)
            n_crossing[i] += n_crossing[i - 1], ids[i] += ids[i - 1];
        bool one = n_crossing[i] == 1 && blocks_may_drop(prog, (tensor_id)ids[i]);
        f->cut[i] = one ? (tensor_id)ids[i] : TENSOR_NONE;
    }
    return SNUG_OK;
}

static bool reads_parameter(const struct program *prog, const struct op *op)
{
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && prog->tensors[op->in[k]].role == ROLE_parameter)
            return true;
    return false;
}

static bool has_key(const struct finder *f, int at, bool by_gemms, struct key *key)
{
    const struct op *op = &f->prog->ops[at];
    if (by_gemms) {
        *key = (struct key){.gemm = at};
        return op_has(op, TRAIT_gemm) && reads_parameter(f->prog, op) && at < f->n_forward - 1;
    }
    for (int k = 0; k < op->n_in; k++) {
        if (op->in[k] == TENSOR_NONE || f->prog->tensors[op->in[k]].role != ROLE_parameter)
            continue;
        const char *name = f->prog->tensors[op->in[k]].name;
        *key = (struct key){.text = name, .length = layer_name_length(name), .gemm = -1};
        if (key->length > 0)
            return true;
    }
    return false;
}

static bool same_key(struct key a, struct key b)
{
    return a.gemm == b.gemm && a.length == b.length &&
           (a.length == 0 || memcmp(a.text, b.text, a.length) == 0);
}

/* The cut in (after, upto] with the smallest activation; -1 if there is none. */
static int best_cut(const struct finder *f, int after, int upto)
{
    int best = -1;
    for (int i = after + 1; i <= upto; i++)
        if (f->cut[i] != TENSOR_NONE &&
            (best < 0 || tensor_bytes(f->prog, f->cut[i]) < tensor_bytes(f->prog, f->cut[best])))
            best = i;
    return best;
}

static void add_block(struct finder *f, int begin)
{
    struct blocks *b = f->blocks;
    if (b->n > 0)
        b->list[b->n - 1].end = begin;
    b->list[b->n++] = (struct forward_block){
        .begin = begin, .end = f->n_forward, .input = begin == 0 ? TENSOR_NONE : f->cut[begin]};
}

/* The first op after `after` that reads a parameter, or else the last op. */
static int tail_op(const struct finder *f, int after)
{
    for (int i = after + 1; i < f->n_forward; i++)
        if (reads_parameter(f->prog, &f->prog->ops[i]))
            return i;
    return f->n_forward - 1;
}

static void make_blocks(struct finder *f, bool by_gemms)
{
    struct blocks *b = f->blocks;
    struct key current = {0}, key;
    int last = -1; /* the current layer's last op so far that has parameters */
    add_block(f, 0);
    for (int i = 0; i < f->n_forward; i++) {
        if (!has_key(f, i, by_gemms, &key))
            continue;
        bool is_first = b->n_layers == 0;
        if (is_first || !same_key(key, current)) {
            int cut = best_cut(f, last, i);
            if (cut > 0)
                add_block(f, cut);
            if (is_first)
                b->first_layer = b->n - 1;
            b->n_layers = b->n - b->first_layer;
        }
        current = key;
        last = i;
    }
    if (b->n_layers == 0)
        b->n_layers = 1;
    int cut = best_cut(f, last, tail_op(f, last));
    if (cut > 0)
        add_block(f, cut); /* else the head and the loss belong to the last layer */
}

enum snug_status blocks_find(const struct program *prog, int n_forward, struct arena *scratch,
                             struct blocks *blocks, struct snug_error *err)
{
    struct finder f = {.prog = prog, .n_forward = n_forward, .blocks = blocks};
    *blocks = (struct blocks){0};
    TRY(find_cuts(&f, scratch, err));
    blocks->list = arena_zeros(scratch, (size_t)n_forward + 2, sizeof *blocks->list);
    if (blocks->list == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "checkpoint: no scratch for %d ops", n_forward);
    bool by_gemms = true;
    for (int i = 0; i < n_forward; i++) {
        struct key key;
        by_gemms = by_gemms && !has_key(&f, i, false, &key);
    }
    make_blocks(&f, by_gemms);
    return SNUG_OK;
}
