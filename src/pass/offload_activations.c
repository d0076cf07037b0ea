/*
 * offload_activations.c -- what is kept for the backward half waits in the offload pool.
 *
 * Of the ops that touch an activation, the two neighbours that are furthest apart are, mostly, its
 * last use forward and its first use backward.  If many ops lie between them and it is large, it is
 * evicted after the one and prefetched ahead of the other; the ops from there on read the copy.  What
 * is used again soon (by the last layers) stays where it is.
 *
 *     forward     op a, evict A, ... op b, evict B, ... wait_copy A, op c, evict C
 *     backward    prefetch C, ... prefetch B | op that reads C, ...
 *
 * The bytes of a evicted tensor are free when somebody waits for its copy: wait_copy does, two evictions
 * later, so that forward never has more than two of them under way.
 *
 * Where the backward half runs twice (in_backward.c), an activation waits for the one and then for
 * the other: it is evicted once and prefetched for each.
 */
#include "pass/offload.h"

#include <stdlib.h>

enum {
    LEAST_BYTES = 1 << 16,
    AHEAD_OPS =
        12, /* that a prefetch stands before its first reader: about a block of a transformer */
    FAR_OPS = 36, /* between two uses, at least: it has to pay */
    N_GAPS = 2,   /* one that ends in the body, one that ends after it */
    NO_EVICTION = -1
};

struct use {  /* of a tensor, while the ops are walked */
    int last; /* op that touched it last, -1: none */
    struct {
        int from, to; /* the two neighbours that are furthest apart */
    } gaps[N_GAPS];
    bool unfit;
};

struct kept { /* one that is offloaded, for one gap */
    tensor_id original, offloaded, fetched;
    int evict_after, prefetch_before,
        read_at; /* ops; NO_EVICTION: it is in the offload pool already */
};

struct late_copy { /* that ops from read_at on read */
    tensor_id id;  /* TENSOR_NONE: there is none */
    int read_at;
};

struct keeping {
    struct rewriter rw;
    struct arena *scratch;
    struct kept *kept;
    struct late_copy (*copies)[N_GAPS]; /* per tensor */
    int n_kept;
};

static void note_use(struct use *use, int i, int gap)
{
    if (use->last >= 0 && i - use->last > use->gaps[gap].to - use->gaps[gap].from) {
        use->gaps[gap].from = use->last;
        use->gaps[gap].to = i;
    }
    use->last = i;
}

/* Writing after the gap is nothing that a copy could stand for. */
static void note_writes(struct use *uses, const struct op *op)
{
    for (int k = 0; k < op->n_out; k++)
        for (int gap = 0; gap < N_GAPS && op->out[k] != TENSOR_NONE; gap++)
            uses[op->out[k]].unfit |= uses[op->out[k]].gaps[gap].to > 0;
}

static void note_uses(const struct program *prog, struct use *uses)
{
    int body_end = program_body_end(prog);
    for (int t = 0; t < prog->n_tensors; t++) {
        const struct tensor *tensor = &prog->tensors[t];
        uses[t] = (struct use){.last = -1};
        uses[t].unfit = tensor->role != ROLE_activation || tensor->persistent ||
                        tensor->is_output || tensor->base != TENSOR_NONE ||
                        tensor_bytes(prog, t) < LEAST_BYTES;
    }
    for (int t = 0; t < prog->n_tensors; t++)
        if (prog->tensors[t].base != TENSOR_NONE) /* has parts */
            uses[prog->tensors[t].base].unfit = true;
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < op->n_in + op->n_out; k++) {
            tensor_id id = k < op->n_in ? op->in[k] : op->out[k - op->n_in];
            if (id == TENSOR_NONE)
                continue;
            note_use(&uses[id], i, i >= body_end);
            uses[id].unfit |= i < prog->body_begin || (i >= body_end && prog->n_repeat > 1);
        }
        note_writes(uses, op);
    }
}

static int by_fetch(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    if (x->prefetch_before != y->prefetch_before)
        return x->prefetch_before - y->prefetch_before;
    return x->read_at != y->read_at ? x->read_at - y->read_at : x->original - y->original;
}

static int by_eviction(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    return x->evict_after != y->evict_after ? x->evict_after - y->evict_after
                                            : x->original - y->original;
}

/* The evict, unless an earlier gap has made it, and the fetch. */
static enum snug_status keep(struct keeping *s, const struct use *use, tensor_id t, int gap,
                             tensor_id *offloaded)
{
    struct kept *kept = &s->kept[s->n_kept++];
    *kept =
        (struct kept){.original = t,
                      .evict_after = *offloaded == TENSOR_NONE ? use->gaps[gap].from : NO_EVICTION,
                      .prefetch_before = use->gaps[gap].to - AHEAD_OPS,
                      .read_at = use->gaps[gap].to};
    if (*offloaded == TENSOR_NONE)
        TRY(offload_add_like(&s->rw, s->scratch, "kept", t, ROLE_activation, true, offloaded));
    TRY(offload_add_like(&s->rw, s->scratch, "fetched", t, ROLE_temporary, false, &kept->fetched));
    kept->offloaded = *offloaded;
    s->copies[t][gap] = (struct late_copy){kept->fetched, kept->read_at};
    return SNUG_OK;
}

static enum snug_status choose(struct keeping *s, const struct use *uses, int n_tensors)
{
    for (int t = 0; t < n_tensors; t++) {
        tensor_id offloaded = TENSOR_NONE;
        for (int gap = 0; gap < N_GAPS; gap++) {
            s->copies[t][gap].id = TENSOR_NONE;
            if (!uses[t].unfit && uses[t].gaps[gap].to - uses[t].gaps[gap].from >= FAR_OPS)
                TRY(keep(s, &uses[t], t, gap, &offloaded));
        }
    }
    return SNUG_OK;
}

/* What op i reads for the tensor. */
static tensor_id copy_at(const struct keeping *s, tensor_id id, int i)
{
    for (int gap = N_GAPS - 1; gap >= 0; gap--)
        if (s->copies[id][gap].id != TENSOR_NONE && i >= s->copies[id][gap].read_at)
            return s->copies[id][gap].id;
    return id;
}

/* Stashes of what op i used last; each waits for the one before the last. */
static enum snug_status append_evictions(struct keeping *s, const struct kept *by_time,
                                         int n_evictions, int *at, int i)
{
    for (; *at < n_evictions && by_time[*at].evict_after == i; ++*at) {
        if (*at >= 2)
            TRY(offload_add_copy(&s->rw, OP_wait_copy, by_time[*at - 2].offloaded, TENSOR_NONE,
                                 false));
        TRY(offload_add_copy(&s->rw, OP_evict, by_time[*at].original, by_time[*at].offloaded,
                             false));
    }
    return SNUG_OK;
}

static enum snug_status append_all(struct keeping *s, const struct kept *by_time, int n_evictions,
                                   int n_tensors)
{
    struct program *prog = s->rw.prog;
    int n_evicted = 0, n_fetched = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        rewriter_reach(&s->rw, i);
        for (; n_fetched < s->n_kept && s->kept[n_fetched].prefetch_before == i; n_fetched++)
            TRY(offload_add_copy(&s->rw, OP_prefetch, s->kept[n_fetched].offloaded,
                                 s->kept[n_fetched].fetched, false));
        struct op op = prog->ops[i];
        for (int k = 0; k < op.n_in; k++)
            if (op.in[k] != TENSOR_NONE && op.in[k] < n_tensors)
                op.in[k] = copy_at(s, op.in[k], i);
        TRY(rewriter_add(&s->rw, &op));
        TRY(append_evictions(s, by_time, n_evictions, &n_evicted, i));
    }
    return SNUG_OK;
}

enum snug_status offload_activations(struct program *prog, struct pass_env *env)
{
    struct keeping s = {.rw = rewriter_begin(prog, "offload", env->err), .scratch = env->scratch};
    int n_tensors = prog->n_tensors, n_evictions = 0;
    size_t n = (size_t)n_tensors + 1;
    struct use *uses = arena_alloc(env->scratch, n * sizeof *uses);
    struct kept *by_time = arena_alloc(env->scratch, n * sizeof *by_time);
    s.kept = arena_alloc(env->scratch, N_GAPS * n * sizeof *s.kept);
    s.copies = arena_alloc(env->scratch, n * sizeof *s.copies);
    if (uses == NULL || by_time == NULL || s.kept == NULL || s.copies == NULL)
        return offload_no_memory(&s.rw);
    note_uses(prog, uses);
    enum snug_status status = choose(&s, uses, n_tensors);
    for (int i = 0; i < s.n_kept; i++)
        if (s.kept[i].evict_after != NO_EVICTION)
            by_time[n_evictions++] = s.kept[i];
    qsort(by_time, (size_t)n_evictions, sizeof *by_time, by_eviction);
    qsort(s.kept, (size_t)s.n_kept, sizeof *s.kept, by_fetch);
    if (status == SNUG_OK)
        status = append_all(&s, by_time, n_evictions, n_tensors);
    return rewriter_finish(&s.rw, status);
}
