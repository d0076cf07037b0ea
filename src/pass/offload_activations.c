/*
 * offload_activations.c -- move saved activations to the offload pool until the backward half.
 *
 * The largest gap between two consecutive uses of an activation is usually the one between its
 * last use forward and its first use backward.  If the gap is long and the activation is large, we
 * evict it after the first of these uses and prefetch it ahead of the second; later ops read the
 * prefetched copy.  Activations that are reused soon (those of the last layers) stay in the arena.
 *
 *     forward     op a, evict A, ... op b, evict B, ... wait_copy A, op c, evict C
 *     backward    prefetch C, ... prefetch B | op that reads C, ...
 *
 * The bytes of an evicted tensor become free once the copy is waited for.  A wait_copy does that
 * two evictions later, so at most two evictions are in flight in the forward half.
 *
 * Where the backward half runs twice (in_backward.c), an activation is evicted once and prefetched
 * for each of them.
 */
#include "pass/offload.h"

#include <stdlib.h>

enum {
    MIN_BYTES = 1 << 16, /* smaller activations are not offloaded */
    AHEAD_OPS = 12,      /* from a prefetch to its first reader: about a transformer block */
    FAR_OPS = 36,        /* shorter gaps are not worth a copy */
    N_GAPS = 2,          /* one that ends in the body, one that ends after it */
    NO_EVICTION = -1
};

struct use {  /* the uses of a tensor, found by walking the ops */
    int last; /* the last op that touched it, -1 if none */
    struct {
        int from, to; /* the two consecutive uses that are furthest apart */
    } gaps[N_GAPS];
    bool unfit; /* cannot be offloaded */
};

struct span { /* an activation offloaded over one gap */
    tensor_id original, offloaded, fetched;
    int evict_after;              /* op; NO_EVICTION if an earlier gap evicts it */
    int prefetch_before, read_at; /* ops */
};

struct late_copy { /* the copy that ops from read_at on read */
    tensor_id id;  /* or TENSOR_NONE */
    int read_at;
};

struct offloading {
    struct rewriter rw;
    struct arena *scratch;
    struct span *spans;
    struct late_copy (*copies)[N_GAPS]; /* per tensor */
    int n_spans;
};

static void note_use(struct use *use, int i, int gap)
{
    if (use->last >= 0 && i - use->last > use->gaps[gap].to - use->gaps[gap].from) {
        use->gaps[gap].from = use->last;
        use->gaps[gap].to = i;
    }
    use->last = i;
}

/* A tensor that is written after its gap cannot be replaced by a copy. */
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
                        tensor_bytes(prog, t) < MIN_BYTES;
    }
    for (int t = 0; t < prog->n_tensors; t++)
        if (prog->tensors[t].base != TENSOR_NONE) /* a base with views is unfit */
            uses[prog->tensors[t].base].unfit = true;
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        for (int k = 0; k < op->n_in + op->n_out; k++) {
            tensor_id id = k < op->n_in ? op->in[k] : op->out[k - op->n_in];
            if (id == TENSOR_NONE)
                continue;
            note_use(&uses[id], i, i >= body_end);
            uses[id].unfit |= i >= body_end && prog->n_repeat > 1;
        }
        note_writes(uses, op);
    }
}

static int by_fetch(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->prefetch_before != y->prefetch_before)
        return x->prefetch_before - y->prefetch_before;
    return x->read_at != y->read_at ? x->read_at - y->read_at : x->original - y->original;
}

static int by_eviction(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->evict_after != y->evict_after ? x->evict_after - y->evict_after
                                            : x->original - y->original;
}

/* Records the eviction, unless an earlier gap already evicts the tensor, and the prefetch. */
static enum snug_status offload_gap(struct offloading *s, const struct use *use, tensor_id t,
                                    int gap, tensor_id *offloaded)
{
    struct span *span = &s->spans[s->n_spans++];
    *span =
        (struct span){.original = t,
                      .evict_after = *offloaded == TENSOR_NONE ? use->gaps[gap].from : NO_EVICTION,
                      .prefetch_before = use->gaps[gap].to - AHEAD_OPS,
                      .read_at = use->gaps[gap].to};
    if (*offloaded == TENSOR_NONE)
        TRY(offload_add_like(&s->rw, s->scratch, "kept", t, ROLE_activation, true, offloaded));
    TRY(offload_add_like(&s->rw, s->scratch, "fetched", t, ROLE_temporary, false, &span->fetched));
    span->offloaded = *offloaded;
    s->copies[t][gap] = (struct late_copy){span->fetched, span->read_at};
    return SNUG_OK;
}

static enum snug_status choose(struct offloading *s, const struct use *uses, int n_tensors)
{
    for (int t = 0; t < n_tensors; t++) {
        tensor_id offloaded = TENSOR_NONE;
        for (int gap = 0; gap < N_GAPS; gap++) {
            s->copies[t][gap].id = TENSOR_NONE;
            if (!uses[t].unfit && uses[t].gaps[gap].to - uses[t].gaps[gap].from >= FAR_OPS)
                TRY(offload_gap(s, &uses[t], t, gap, &offloaded));
        }
    }
    return SNUG_OK;
}

/* The tensor that op i reads in place of `id`. */
static tensor_id copy_at(const struct offloading *s, tensor_id id, int i)
{
    for (int gap = N_GAPS - 1; gap >= 0; gap--)
        if (s->copies[id][gap].id != TENSOR_NONE && i >= s->copies[id][gap].read_at)
            return s->copies[id][gap].id;
    return id;
}

/* Appends the evictions due after op i; each first waits for the one before the previous. */
static enum snug_status append_evictions(struct offloading *s, const struct span *by_time,
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

static enum snug_status append_all(struct offloading *s, const struct span *by_time,
                                   int n_evictions, int n_tensors)
{
    struct program *prog = s->rw.prog;
    int n_evicted = 0, n_fetched = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        rewriter_reach(&s->rw, i);
        for (; n_fetched < s->n_spans && s->spans[n_fetched].prefetch_before == i; n_fetched++)
            TRY(offload_add_copy(&s->rw, OP_prefetch, s->spans[n_fetched].offloaded,
                                 s->spans[n_fetched].fetched, false));
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
    struct offloading s = {.rw = rewriter_begin(prog, "offload", env->err),
                           .scratch = env->scratch};
    int n_tensors = prog->n_tensors, n_evictions = 0;
    size_t n = (size_t)n_tensors + 1;
    struct use *uses = arena_alloc(env->scratch, n * sizeof *uses);
    struct span *by_time = arena_alloc(env->scratch, n * sizeof *by_time);
    s.spans = arena_alloc(env->scratch, N_GAPS * n * sizeof *s.spans);
    s.copies = arena_alloc(env->scratch, n * sizeof *s.copies);
    if (uses == NULL || by_time == NULL || s.spans == NULL || s.copies == NULL)
        return offload_no_memory(&s.rw);
    note_uses(prog, uses);
    enum snug_status status = choose(&s, uses, n_tensors);
    for (int i = 0; i < s.n_spans; i++)
        if (s.spans[i].evict_after != NO_EVICTION)
            by_time[n_evictions++] = s.spans[i];
    qsort(by_time, (size_t)n_evictions, sizeof *by_time, by_eviction);
    qsort(s.spans, (size_t)s.n_spans, sizeof *s.spans, by_fetch);
    if (status == SNUG_OK)
        status = append_all(&s, by_time, n_evictions, n_tensors);
    return rewriter_finish(&s.rw, status);
}
