/*
 * attention_emulated.c -- attention_cudnn.h with plain loops in host memory, for the emulation.
 *
 * The formulas are those of cpu/ref/ref_attention.c in fp32, with the roundings of the library: P
 * and dS are rounded to the type of q before they are multiplied.  As in the library, the
 * nondeterministic gradient is a different engine: it does not round P and dS, so the bits show
 * which one ran.
 */
#include <math.h>
#include <stdlib.h>

#include "cuda/lib/attention_cudnn.h"
#include "cuda/emulation/stand_in.h"

struct cuda_attention {
    struct cuda_attention_shape shape;
};

struct work {
    struct cuda_attention_shape shape;
    struct cuda_attention_call call;
};

enum part { PART_q, PART_k, PART_v };

enum snug_status cuda_attention_prepare(const struct cuda_attention_shape *shape,
                                        size_t most_work_bytes, struct cuda_attention **attention,
                                        struct snug_error *err)
{
    (void)most_work_bytes;
    *attention = NULL;
    if (shape->depth % 16 != 0) /* rejected, as a library might: this tests the fallback */
        return SNUG_OK;
    *attention = malloc(sizeof **attention);
    if (*attention == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory while preparing it");
    (*attention)->shape = *shape;
    return SNUG_OK;
}

void cuda_attention_release(struct cuda_attention *attention)
{
    free(attention);
}

static float load(const struct work *w, const void *data, int64_t at)
{
    return (float)dtype_load(w->shape.type, data, at);
}

static void store(const struct work *w, void *data, int64_t at, float value)
{
    dtype_store(w->shape.type, data, at, (double)value);
}

static float rounded(const struct work *w, float value)
{
    uint16_t bits = 0;
    store(w, &bits, 0, value);
    return load(w, &bits, 0);
}

static int64_t y_at(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->shape;
    return ((b * s->n_time + t) * s->n_heads + h) * s->depth;
}

static int64_t qkv_at(const struct work *w, enum part part, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->shape;
    return (((b * s->n_time + t) * 3 + part) * s->n_heads + h) * s->depth;
}

static float dot(const struct work *w, const void *x, int64_t x_at, const void *y, int64_t at)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < w->shape.depth; d++)
        sum += load(w, x, x_at + d) * load(w, y, at + d);
    return sum;
}

static float score(const struct work *w, int64_t b, int64_t h, int64_t t, int64_t j)
{
    return dot(w, w->call.qkv, qkv_at(w, PART_q, b, h, t), w->call.qkv,
               qkv_at(w, PART_k, b, h, j)) /
           sqrtf((float)w->shape.depth);
}

static int64_t keys_of(const struct work *w, int64_t t)
{
    return w->shape.causal ? t + 1 : w->shape.n_time;
}

static void attend(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->shape;
    float most = -INFINITY, sum = 0.0f;
    for (int64_t j = 0; j < keys_of(w, t); j++)
        most = fmaxf(most, score(w, b, h, t, j));
    for (int64_t j = 0; j < keys_of(w, t); j++)
        sum += expf(score(w, b, h, t, j) - most);
    w->call.lse[(b * s->n_heads + h) * s->n_time + t] = most + logf(sum);
    float y[256] = {0}; /* larger than any head size that supports() allows */
    for (int64_t j = 0; j < keys_of(w, t); j++) {
        float p = rounded(w, expf(score(w, b, h, t, j) - most) / sum);
        for (int64_t d = 0; d < s->depth; d++)
            y[d] += p * load(w, w->call.qkv, qkv_at(w, PART_v, b, h, j) + d);
    }
    for (int64_t d = 0; d < s->depth; d++)
        store(w, w->call.y, y_at(w, b, h, t) + d, y[d]);
}

/* P and dS of query t and key j; 0 where the key is masked. */
static void slopes(const struct work *w, int64_t b, int64_t h, int64_t t, int64_t j, float *p,
                   float *ds)
{
    const struct cuda_attention_shape *s = &w->shape;
    *p = *ds = 0.0f;
    if (j >= keys_of(w, t))
        return;
    float delta = dot(w, w->call.dy, y_at(w, b, h, t), w->call.y, y_at(w, b, h, t));
    float dp = dot(w, w->call.dy, y_at(w, b, h, t), w->call.qkv, qkv_at(w, PART_v, b, h, j));
    float whole = expf(score(w, b, h, t, j) - w->call.lse[(b * s->n_heads + h) * s->n_time + t]);
    float slope = whole * (dp - delta) / sqrtf((float)s->depth);
    *p = s->nondeterministic ? whole : rounded(w, whole);
    *ds = s->nondeterministic ? slope : rounded(w, slope);
}

/* dq, dk and dv of position t. */
static void attend_grad(const struct work *w, int64_t b, int64_t h, int64_t t)
{
    const struct cuda_attention_shape *s = &w->shape;
    float grad[3][256] = {{0}};
    for (int64_t other = 0; other < s->n_time; other++) {
        float p, ds, own_p, own_ds;
        slopes(w, b, h, t, other, &own_p, &own_ds); /* as a query */
        slopes(w, b, h, other, t, &p, &ds);         /* as a key */
        for (int64_t d = 0; d < s->depth; d++) {
            grad[PART_q][d] += own_ds * load(w, w->call.qkv, qkv_at(w, PART_k, b, h, other) + d);
            grad[PART_k][d] += ds * load(w, w->call.qkv, qkv_at(w, PART_q, b, h, other) + d);
            grad[PART_v][d] += p * load(w, w->call.dy, y_at(w, b, h, other) + d);
        }
    }
    for (int part = 0; part < 3; part++)
        for (int64_t d = 0; d < s->depth; d++)
            store(w, w->call.dqkv, qkv_at(w, (enum part)part, b, h, t) + d, grad[part][d]);
}

static void run(const void *arguments)
{
    const struct work *w = arguments;
    for (int64_t b = 0; b < w->shape.n_batch; b++)
        for (int64_t h = 0; h < w->shape.n_heads; h++)
            for (int64_t t = 0; t < w->shape.n_time; t++)
                (w->shape.is_grad ? attend_grad : attend)(w, b, h, t);
}

enum snug_status cuda_attention_run(const struct cuda_attention *attention,
                                    const struct cuda_attention_call *call, struct snug_error *err)
{
    if (call->work == NULL || (uintptr_t)call->work % 256 != 0)
        return snug_fail(err, SNUG_BAD_PROGRAM,
                         "attention: the workspace is missing or not 256-byte aligned");
    struct work work = {attention->shape, *call};
    stand_in_submit(call->stream, run, &work, sizeof work);
    return SNUG_OK;
}
