/*
 * fuse.c -- merge pairs of ops that have a fused kernel.
 *
 * Each rewrite matches an op and the earlier op that writes one of its inputs:
 *
 *     s = add a, b; y = layernorm s            ->  s, y = add_layernorm a, b
 *     ...; b = dropout c; add_layernorm a, b   ->  s, y = add_layernorm a, c {dropout}
 *     the same with rmsnorm                    ->  the same with add_rmsnorm
 *     p = linear x, w; y = act p               ->  y, p = linear x, w {act}
 *     d = layernorm_grad ...; s = add r, d     ->  s = layernorm_grad ..., r; rmsnorm_grad too
 *     d = linear_grad_x ...; s = add r, d      ->  s = linear_grad_x ..., r
 *     d = linear_grad_x ...; e = act_grad d, p ->  e = linear_grad_x ..., p {act}
 *     linear_cross_entropy; its _grad          ->  linear_cross_entropy_train (logits once)
 *     y = swiglu g, u; dw = linear_grad_w y ...; ...; dg, du = swiglu_grad d, g, u
 *                   ->  ...; dg, du, y = swiglu_grad d, g, u; dw = linear_grad_w y ...
 *                                                  (a recomputed y costs a write, not two reads)
 *
 * One op of the pair is replaced by the fused op, the other is marked and removed at the end.  An
 * op moves only past ops that neither write what it reads nor touch what it writes.  A view counts
 * as its base.
 *
 * needs: in a training step, autodiff and optimizer done
 * keeps: ids; forward results bit for bit (tests/ops/test_fused.c), backward results up to a
 * rounding that the fused kernel avoids
 * breaks: nothing
 * cost:  O(tensors + ops x distance between the ops, which is short)
 */
#include "pass/pass.h"
#include "pass/rewriter.h"

/* A recomputed op is no further than this from the gradient that it is recomputed for. */
enum { NEAR = 64 };

struct fuse {
    struct program *prog;
    int *n_readers; /* per root: reads of it or its views, plus one per output or persistent view */
    int *writer;    /* per tensor: the op that writes it first, -1 if none */
    bool *removed;  /* per op: merged into another */
};

static void count_uses(struct fuse *f)
{
    for (int i = 0; i < f->prog->n_tensors; i++)
        f->writer[i] = -1;
    for (int i = 0; i < f->prog->n_tensors; i++)
        if (f->prog->tensors[i].is_output || f->prog->tensors[i].persistent)
            f->n_readers[tensor_root(f->prog, i)]++;
    for (int i = 0; i < f->prog->n_ops; i++) {
        const struct op *op = &f->prog->ops[i];
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != TENSOR_NONE)
                f->n_readers[tensor_root(f->prog, op->in[k])]++;
        for (int k = 0; k < op->n_out; k++)
            if (op->out[k] != TENSOR_NONE && f->writer[op->out[k]] < 0)
                f->writer[op->out[k]] = i;
    }
}

static int n_readers(const struct fuse *f, tensor_id id)
{
    return f->n_readers[tensor_root(f->prog, id)];
}

/* Does any of the ops [begin, end) write the tensor, its base or a view of it? */
static bool is_written(const struct fuse *f, tensor_id id, int begin, int end)
{
    for (int i = begin; id != TENSOR_NONE && i < end; i++)
        if (!f->removed[i] && op_names_root(f->prog, f->prog->ops[i].n_out, f->prog->ops[i].out,
                                            tensor_root(f->prog, id)))
            return true;
    return false;
}

static bool is_read(const struct fuse *f, tensor_id id, int begin, int end)
{
    for (int i = begin; id != TENSOR_NONE && i < end; i++)
        if (!f->removed[i] && op_names_root(f->prog, f->prog->ops[i].n_in, f->prog->ops[i].in,
                                            tensor_root(f->prog, id)))
            return true;
    return false;
}

static bool is_touched(const struct fuse *f, tensor_id id, int begin, int end)
{
    return is_read(f, id, begin, end) || is_written(f, id, begin, end);
}

/* Records `at` as the writer of the op's outputs. */
static void set_writer(struct fuse *f, const struct op *op, int at)
{
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE)
            f->writer[op->out[k]] = at;
}

static struct op *live_writer(struct fuse *f, tensor_id id, enum op_kind kind)
{
    int at = f->writer[id];
    return at >= 0 && !f->removed[at] && f->prog->ops[at].kind == kind ? &f->prog->ops[at] : NULL;
}

/* b = dropout c; s, y, ... = add_layernorm a, b, ...: the norm applies dropout. */
static void fuse_dropout(struct fuse *f, int at)
{
    struct op *norm = &f->prog->ops[at];
    for (int k = 0; k < 2; k++) {
        tensor_id part = norm->in[k], rest = norm->in[1 - k];
        struct op *dropout = live_writer(f, part, OP_dropout);
        int place = f->writer[part];
        if (dropout == NULL || n_readers(f, part) != 1 || is_written(f, part, place + 1, at) ||
            is_written(f, dropout->in[0], place, at) || is_written(f, dropout->in[1], place, at))
            continue;
        norm->in[0] = rest;
        norm->in[1] = dropout->in[0];
        norm->in[norm->n_in++] = dropout->in[1];
        attrs_of(norm, norm)->dropout = attrs_of(dropout, dropout)->dropout;
        attrs_of(norm, norm)->site = attrs_of(dropout, dropout)->site;
        f->removed[place] = true;
        return;
    }
}

/* Does the norm cover a head at a time, not a row? */
static bool norms_heads(const struct program *prog, const struct op *norm)
{
    return tensor_elems(prog, norm->in[1]) != shape_last(&prog->tensors[norm->in[0]].shape);
}

/* s = add a, b; y, ... = layernorm s, ...: the fused op replaces the add.  Its operands are those
 * of the norm, with a and b for s, and s before the outputs. */
static void fuse_add_norm(struct fuse *f, int at, enum op_kind fused)
{
    struct op *norm = &f->prog->ops[at];
    struct op *add = live_writer(f, norm->in[0], OP_add);
    int place = f->writer[norm->in[0]];
    if (add == NULL || is_written(f, norm->in[0], place + 1, at) || norms_heads(f->prog, norm))
        return;
    for (int k = 1; k < norm->n_in; k++)
        if (is_written(f, norm->in[k], place, at))
            return;
    for (int k = 0; k < norm->n_out; k++)
        if (is_touched(f, norm->out[k], place, at))
            return;
    tensor_id in[MAX_INPUTS] = {add->in[0], add->in[1]}, out[MAX_OUTPUTS] = {add->out[0]};
    for (int k = 1; k < norm->n_in; k++)
        in[k + 1] = norm->in[k];
    for (int k = 0; k < norm->n_out; k++)
        out[k + 1] = norm->out[k];
    *add = op_make(fused, norm->attrs, norm->n_in + 1, in, norm->n_out + 1, out);
    set_writer(f, add, place);
    f->removed[at] = true;
    fuse_dropout(f, place);
}

/* p = linear x, w, b; y = act p: the fused op replaces the linear.  p becomes its second output if
 * another op reads it. */
static void fuse_linear_act(struct fuse *f, int at)
{
    struct op *act = &f->prog->ops[at];
    struct op *linear = live_writer(f, act->in[0], OP_linear);
    int place = f->writer[act->in[0]];
    if (linear == NULL || linear->attrs.act != ACT_none || linear->n_out > 1 ||
        act->out[0] == TENSOR_NONE || is_written(f, act->in[0], place + 1, at) ||
        is_touched(f, act->out[0], place, at))
        return;
    bool before_is_read = n_readers(f, act->in[0]) > 1;
    linear->attrs.act = act->attrs.act;
    linear->n_out = before_is_read ? 2 : 1;
    linear->out[1] = before_is_read ? linear->out[0] : TENSOR_NONE;
    linear->out[0] = act->out[0];
    set_writer(f, linear, place);
    f->removed[at] = true;
}

/* d, ... = layernorm_grad ...; s = add r, d: layernorm_grad adds r, its last input. */
static void fuse_norm_grad_add(struct fuse *f, int at, enum op_kind kind)
{
    struct op *add = &f->prog->ops[at];
    for (int k = 0; k < 2 && !f->removed[at]; k++) {
        tensor_id part = add->in[k], rest = add->in[1 - k];
        struct op *norm = live_writer(f, part, kind);
        int place = f->writer[part];
        if (norm == NULL || norm->n_in != op_infos[kind].min_in || norm->out[0] != part ||
            n_readers(f, part) != 1 || is_written(f, part, place + 1, at) ||
            is_written(f, rest, place, at) || is_touched(f, add->out[0], place, at))
            continue;
        norm->in[norm->n_in++] = rest;
        norm->out[0] = add->out[0];
        set_writer(f, norm, place);
        f->removed[at] = true;
    }
}

/* d = linear_grad_x dy, w; s = add r, d: the gemm's epilogue adds r. */
static void fuse_gemm_add(struct fuse *f, int at)
{
    struct op *add = &f->prog->ops[at];
    for (int k = 0; k < 2; k++) {
        tensor_id part = add->in[k], rest = add->in[1 - k];
        struct op *grad = live_writer(f, part, OP_linear_grad_x);
        int place = f->writer[part];
        if (grad == NULL || grad->n_in != 2 || n_readers(f, part) != 1 ||
            is_written(f, part, place + 1, at) || is_written(f, rest, place, at) ||
            is_touched(f, add->out[0], place, at))
            continue;
        grad->in[2] = TENSOR_NONE;
        grad->in[3] = rest;
        grad->n_in = 4;
        grad->out[0] = add->out[0];
        set_writer(f, grad, place);
        f->removed[at] = true;
        return;
    }
}

/* d = linear_grad_x dy, w; e = act_grad d, p: the gemm's epilogue applies the activation's
 * gradient. */
static void fuse_act_grad(struct fuse *f, int at)
{
    struct op *act = &f->prog->ops[at];
    struct op *grad = live_writer(f, act->in[0], OP_linear_grad_x);
    int place = f->writer[act->in[0]];
    bool has_act = grad != NULL && grad->n_in > 2 && grad->in[2] != TENSOR_NONE;
    if (grad == NULL || has_act || n_readers(f, act->in[0]) != 1 || act->out[0] == TENSOR_NONE ||
        is_written(f, act->in[0], place + 1, at) || is_written(f, act->in[1], place, at) ||
        is_touched(f, act->out[0], place, at))
        return;
    grad->in[2] = act->in[1];
    grad->n_in = grad->n_in < 3 ? 3 : grad->n_in;
    grad->attrs.act = act->attrs.act;
    grad->out[0] = act->out[0];
    set_writer(f, grad, place);
    f->removed[at] = true;
}

/* The LM head computes the same chunks of logits forward and backward.  The fused op computes them
 * once and replaces the gradient op. */
static void fuse_head(struct fuse *f, int at)
{
    struct op *grad = &f->prog->ops[at];
    struct op *head = live_writer(f, grad->in[3], OP_linear_cross_entropy);
    bool is_frozen = grad->out[1] == TENSOR_NONE; /* then only the loss accumulates */
    if (head == NULL || grad->out[0] == TENSOR_NONE ||
        (!is_frozen && head->attrs.accumulate != grad->attrs.accumulate) ||
        attrs_of(head, loss)->weight != attrs_of(grad, loss)->weight ||
        attrs_of(head, loss)->smoothing != attrs_of(grad, loss)->smoothing)
        return;
    int from = f->writer[grad->in[3]];
    for (int k = 0; k < 3; k++)
        if (head->in[k] != grad->in[k] || is_written(f, head->in[k], from, at))
            return;
    for (int k = 0; k < 2; k++)
        if (is_touched(f, head->out[k], from + 1, at))
            return;
    tensor_id in[] = {grad->in[0], grad->in[1], grad->in[2], grad->in[4]};
    tensor_id out[] = {head->out[0], head->out[1], grad->out[0], grad->out[1]};
    *grad = op_make(OP_linear_cross_entropy_train, head->attrs, 4, in, 4, out);
    set_writer(f, grad, at);
    f->removed[from] = true;
}

/* Op `from` is op `to` now.  Only where it is the first writer: `writer` knows no others. */
static void renumber(struct fuse *f, const struct op *op, int from, int to)
{
    for (int k = 0; k < op->n_out; k++)
        if (op->out[k] != TENSOR_NONE && f->writer[op->out[k]] == from)
            f->writer[op->out[k]] = to;
}

/* Moves op `from` behind op `to`, and the ops between one place forward. */
static void move_behind(struct fuse *f, int from, int to)
{
    const int on_the_way = -2;
    struct op moved = f->prog->ops[from];
    renumber(f, &moved, from, on_the_way);
    for (int i = from; i < to; i++) {
        f->prog->ops[i] = f->prog->ops[i + 1];
        f->removed[i] = f->removed[i + 1];
        if (!f->removed[i])
            renumber(f, &f->prog->ops[i], i + 1, i);
    }
    f->prog->ops[to] = moved;
    f->removed[to] = false;
    renumber(f, &moved, on_the_way, to);
}

/* The first op of [begin, end) that reads the tensor, -1 if there is none. */
static int find_reader(const struct fuse *f, tensor_id id, int begin, int end)
{
    for (int i = begin; i < end; i++)
        if (is_read(f, id, i, i + 1))
            return i;
    return -1;
}

static bool is_swiglu_of(const struct fuse *f, int i, tensor_id gate, tensor_id up)
{
    const struct op *op = &f->prog->ops[i];
    return !f->removed[i] && op->kind == OP_swiglu && op->in[0] == gate && op->in[1] == up;
}

/* y = swiglu g, u, recomputed for dw = linear_grad_w y: swiglu_grad, which has to read g and u,
 * writes y, and the gradient of the weight follows it. */
static void fuse_recomputed_swiglu(struct fuse *f, int at)
{
    struct op *grad = &f->prog->ops[at];
    int place = at - 1;
    while (place >= 0 && at - place < NEAR && !is_swiglu_of(f, place, grad->in[1], grad->in[2]))
        place--;
    if (place < 0 || at - place == NEAR || grad->n_out > 2)
        return;
    const struct op *recomputed = &f->prog->ops[place];
    tensor_id y = recomputed->out[0];
    int reader = find_reader(f, y, place + 1, at);
    if (reader < 0 || n_readers(f, y) != 1 || f->prog->ops[reader].kind != OP_linear_grad_w ||
        is_written(f, y, place + 1, at) || is_written(f, grad->in[1], place, at) ||
        is_written(f, grad->in[2], place, at) ||
        program_section_last(f->prog, place) != program_section_last(f->prog, at))
        return;
    const struct op *moved = &f->prog->ops[reader];
    for (int k = 0; k < moved->n_in; k++)
        if (is_written(f, moved->in[k], reader + 1, at + 1))
            return;
    for (int k = 0; k < moved->n_out; k++)
        if (is_touched(f, moved->out[k], reader + 1, at + 1))
            return;
    grad->n_out = 3;
    grad->out[2] = y;
    f->writer[y] = at;
    f->removed[place] = true;
    move_behind(f, reader, at);
}

enum snug_status pass_fuse(struct program *prog, struct pass_env *env)
{
    size_t n_tensors = (size_t)prog->n_tensors + 1;
    struct fuse f = {.prog = prog};
    f.n_readers = arena_zeros(env->scratch, n_tensors, sizeof(int));
    f.writer = arena_zeros(env->scratch, n_tensors, sizeof(int));
    f.removed = arena_zeros(env->scratch, (size_t)prog->n_ops + 1, sizeof *f.removed);
    if (f.n_readers == NULL || f.writer == NULL || f.removed == NULL)
        return snug_fail(env->err, SNUG_NO_MEMORY, "fuse: no scratch for %d tensors",
                         prog->n_tensors);
    count_uses(&f);
    for (int i = 0; i < prog->n_ops; i++)
        switch (prog->ops[i].kind) {
        case OP_layernorm:
            fuse_add_norm(&f, i, OP_add_layernorm);
            break;
        case OP_rmsnorm:
            fuse_add_norm(&f, i, OP_add_rmsnorm);
            break;
        case OP_act:
            fuse_linear_act(&f, i);
            break;
        case OP_add:
            fuse_norm_grad_add(&f, i, OP_layernorm_grad);
            fuse_norm_grad_add(&f, i, OP_rmsnorm_grad);
            if (!f.removed[i])
                fuse_gemm_add(&f, i);
            break;
        case OP_act_grad:
            fuse_act_grad(&f, i);
            break;
        case OP_swiglu_grad:
            fuse_recomputed_swiglu(&f, i);
            break;
        case OP_linear_cross_entropy_grad:
            fuse_head(&f, i);
            break;
        default:
            break;
        }
    rewriter_drop(prog, f.removed);
    return SNUG_OK;
}
