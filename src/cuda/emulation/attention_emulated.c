/*
 * attention_emulated.c -- attention_cudnn.h with plain loops in host memory, for the emulation.
 *
 * The formulas are those of cpu/ref/ref_attention.c in fp32, with the roundings of the library: P
 * and dS are rounded to the type of q before they are multiplied, and so are dK and dV of a head
 * before they are summed over heads.  As in the library, the nondeterministic gradient is a
 * different engine: it does not round P and dS, so the bits show which one ran.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/lib/attention_cudnn.h"
#include "cuda/emulation/stand_in.h"

enum { MOST_DEPTH = 256 }; /* larger than any head size that supports() allows */

struct attention_engine {
    struct cuda_attention_shape shape;
    struct attention_part part;
    size_t work_bytes;
};

struct work {
    struct attention_engine engine;
    struct attention_operands at;
};

/* As in the library: dS of every head. */
static size_t work_bytes_of(const struct cuda_attention_shape *s, const struct attention_part *part)
{
    size_t scores = (size_t)(part->n_batch * part->n_heads * s->n_time * s->n_time);
    return s->is_grad ? scores * dtype_bytes(s->type) : 0;
}

/* Some shapes are rejected, as a library might: this tests the fallback kernel, and sums over heads
 * that the graph does not compute. */
static bool is_rejected(const struct cuda_attention_shape *s, const struct attention_part *part)
{
    return s->depth % 16 != 0 || (part->sums == ATTENTION_SUMS_library && s->n_time % 2 != 0);
}

enum snug_status attention_engine_prepare(const struct cuda_attention_shape *shape,
                                          const struct attention_part *part, size_t most_work_bytes,
                                          struct attention_engine **engine, size_t *work_bytes,
                                          struct snug_error *err)
{
    *engine = NULL;
    *work_bytes = 0;
    if (is_rejected(shape, part))
        return SNUG_OK;
    size_t needed = work_bytes_of(shape, part);
    if (needed > most_work_bytes) {
        *work_bytes = needed;
        return SNUG_OK;
    }
    *engine = malloc(sizeof **engine);
    if (*engine == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory while preparing it");
    **engine = (struct attention_engine){*shape, *part, needed};
    return SNUG_OK;
}

void attention_engine_release(struct attention_engine *engine)
{
    free(engine);
}

static float load(const struct work *w, const void *data, int64_t at)
{
    return (float)dtype_load(w->engine.shape.type, data, at);
}

static void store(const struct work *w, void *data, int64_t at, float value)
{
    dtype_store(w->engine.shape.type, data, at, (double)value);
}

static float rounded(const struct work *w, float value)
{
    uint16_t bits = 0;
    store(w, &bits, 0, value);
    return load(w, &bits, 0);
}

static int64_t q_at(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->engine.shape;
    return (b * s->n_time + t) * s->q_row + h * s->depth;
}

static int64_t group_of(const struct work *w)
{
    return w->engine.part.n_heads / w->engine.part.n_kv_heads;
}

/* The key and value that head h of q reads. */
static int64_t kv_at(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->engine.shape;
    return (b * s->n_time + t) * s->kv_row + h / group_of(w) * s->depth;
}

static int64_t y_at(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->engine.shape;
    return ((b * s->n_time + t) * s->n_heads + h) * s->depth;
}

static int64_t lse_at(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->engine.shape;
    return (b * s->n_heads + h) * s->n_time + t;
}

static float dot(const struct work *w, const void *x, int64_t x_at, const void *y, int64_t at)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < w->engine.shape.depth; d++)
        sum += load(w, x, x_at + d) * load(w, y, at + d);
    return sum;
}

static float score(const struct work *w, int64_t b, int64_t h, int64_t t, int64_t j)
{
    return dot(w, w->at.q, q_at(w, b, h, t), w->at.k, kv_at(w, b, h, j)) /
           sqrtf((float)w->engine.shape.depth);
}

/* Query t sees the keys from first_key to end_key - 1. */
static int64_t first_key(const struct work *w, int64_t t)
{
    int64_t window = w->engine.shape.window;
    return window > 0 && t >= window ? t - window + 1 : 0;
}

static int64_t end_key(const struct work *w, int64_t t)
{
    return w->engine.shape.causal ? t + 1 : w->engine.shape.n_time;
}

static void attend(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->engine.shape;
    float most = -INFINITY, sum = 0.0f, y[MOST_DEPTH] = {0};
    for (int64_t j = first_key(w, t); j < end_key(w, t); j++)
        most = fmaxf(most, score(w, b, h, t, j));
    for (int64_t j = first_key(w, t); j < end_key(w, t); j++)
        sum += expf(score(w, b, h, t, j) - most);
    w->at.lse[lse_at(w, b, h, t)] = most + logf(sum);
    for (int64_t j = first_key(w, t); j < end_key(w, t); j++) {
        float p = rounded(w, expf(score(w, b, h, t, j) - most) / sum);
        for (int64_t d = 0; d < s->depth; d++)
            y[d] += p * load(w, w->at.v, kv_at(w, b, h, j) + d);
    }
    for (int64_t d = 0; d < s->depth; d++)
        store(w, w->at.y, y_at(w, b, h, t) + d, y[d]);
}

/* P and dS of query t and key j; 0 where the key is masked. */
static void slopes(const struct work *w, int64_t b, int64_t h, int64_t t, int64_t j, float *p,
                   float *ds)
{
    const struct cuda_attention_shape *s = &w->engine.shape;
    *p = *ds = 0.0f;
    if (j < first_key(w, t) || j >= end_key(w, t))
        return;
    float delta = dot(w, w->at.dy, y_at(w, b, h, t), w->at.y, y_at(w, b, h, t));
    float dp = dot(w, w->at.dy, y_at(w, b, h, t), w->at.v, kv_at(w, b, h, j));
    float whole = expf(score(w, b, h, t, j) - w->at.lse[lse_at(w, b, h, t)]);
    float slope = whole * (dp - delta) / sqrtf((float)s->depth);
    *p = s->nondeterministic ? whole : rounded(w, whole);
    *ds = s->nondeterministic ? slope : rounded(w, slope);
}

struct grads { /* of one head of q at one position */
    float q[MOST_DEPTH], k[MOST_DEPTH], v[MOST_DEPTH];
};

static void grads_of(const struct work *w, int64_t b, int64_t h, int64_t t, struct grads *grads)
{
    *grads = (struct grads){0};
    for (int64_t other = 0; other < w->engine.shape.n_time; other++) {
        float p, ds, own_p, own_ds;
        slopes(w, b, h, t, other, &own_p, &own_ds); /* as a query */
        slopes(w, b, h, other, t, &p, &ds);         /* as a key */
        for (int64_t d = 0; d < w->engine.shape.depth; d++) {
            grads->q[d] += own_ds * load(w, w->at.k, kv_at(w, b, h, other) + d);
            grads->k[d] += ds * load(w, w->at.q, q_at(w, b, h, other) + d);
            grads->v[d] += p * load(w, w->at.dy, y_at(w, b, h, other) + d);
        }
    }
}

/* dq, dk and dv of position t, for the heads of q that read one head of k and v. */
static void attend_grad(const struct work *w, int64_t b, int64_t first, int64_t t)
{
    int64_t depth = w->engine.shape.depth;
    bool sums = w->engine.part.sums == ATTENTION_SUMS_library;
    bool unsummed = w->engine.part.sums == ATTENTION_SUMS_own;
    float dk[MOST_DEPTH] = {0}, dv[MOST_DEPTH] = {0};
    for (int64_t h = first; h < first + group_of(w); h++) {
        struct grads grads;
        grads_of(w, b, h, t, &grads);
        for (int64_t d = 0; d < depth; d++) {
            store(w, w->at.dq, q_at(w, b, h, t) + d, grads.q[d]);
            dk[d] += sums ? rounded(w, grads.k[d]) : grads.k[d];
            dv[d] += sums ? rounded(w, grads.v[d]) : grads.v[d];
            if (unsummed) {
                store(w, w->at.dk, y_at(w, b, h, t) + d, grads.k[d]);
                store(w, w->at.dv, y_at(w, b, h, t) + d, grads.v[d]);
            }
        }
    }
    for (int64_t d = 0; d < depth && !unsummed; d++) {
        store(w, w->at.dk, kv_at(w, b, first, t) + d, dk[d]);
        store(w, w->at.dv, kv_at(w, b, first, t) + d, dv[d]);
    }
}

static void run(const void *arguments)
{
    const struct work *w = arguments;
    const struct attention_part *part = &w->engine.part;
    bool is_grad = w->engine.shape.is_grad;
    for (int64_t b = 0; b < part->n_batch; b++)
        for (int64_t h = 0; h < part->n_heads; h += is_grad ? group_of(w) : 1)
            for (int64_t t = 0; t < w->engine.shape.n_time; t++)
                (is_grad ? attend_grad : attend)(w, b, h, t);
    memset(w->at.work, 0xa5, w->engine.work_bytes); /* whatever was there is gone */
}

enum snug_status attention_engine_run(const struct attention_engine *engine,
                                      const struct attention_operands *operands,
                                      struct snug_error *err)
{
    if (operands->work == NULL || (uintptr_t)operands->work % 256 != 0)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "attention: the workspace is missing or not 256-byte aligned");
    struct work work = {*engine, *operands};
    stand_in_submit(operands->stream, run, &work, sizeof work);
    return SNUG_OK;
}
