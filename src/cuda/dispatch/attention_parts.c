/*
 * attention_parts.c -- attention with cuDNN: formulations, parts and the workspace.
 *
 * Several formulations of the gradient compute the same sums.  If k and v have fewer heads than q,
 * cuDNN is first asked for a graph that also sums dk and dv over the heads of q.  If it has none,
 * the graph writes dk and dv of every head of q to the workspace, and our kernel sums them.
 *
 * If a graph needs more workspace than is planned, it runs on some sequences at a time, or on some
 * heads of one sequence: whole groups of heads that share k and v if that is possible, else heads
 * of one group, which only the second formulation can do.
 *
 *     workspace:  | dk of all heads of q | dv | the graph's own |      the first two if we sum
 */
#include "cuda/dispatch/attention_parts.h"

#include <stdlib.h>

#include "cuda/dispatch/workspace.h"
#include "cuda/attention/head_sums.h"
#include "cuda/lib/attention_cudnn.h"

struct planned_part {
    struct attention_part part; /* n_batch or n_heads is 0 if there is no such part */
    struct attention_engine *engine;
};

struct cuda_attention {
    struct cuda_attention_shape shape;
    enum attention_sums sums;
    struct planned_part full, tail; /* the tail has fewer sequences, or fewer heads */
};

/* ---- the workspace -------------------------------------------------------------------------- */

static int64_t group_of(const struct cuda_attention_shape *s)
{
    return s->n_heads / s->n_kv_heads;
}

/* dk, or dv, of every head of q of these sequences */
static size_t unsummed_bytes(const struct cuda_attention_shape *s, int64_t n_batch)
{
    return (size_t)(n_batch * s->n_heads * s->n_time * s->depth) * dtype_bytes(s->type);
}

/* Forward, an engine needs a few counters.  Backward, it needs delta of each row, and dS of as many
 * heads as 1 GiB holds, with rows rounded up to 128 and columns to 64; if heads share k and v, also
 * their dk and dv.  More heads are split into parts.  A head that takes more than 1 GiB gets what
 * it takes, up to 4 GiB.  Parts cost time: the gradient of 32 sequences
 * of GPT-2 took 0.70 ms with 256 MiB, 0.62 with 512, 0.58 in one part (H200). */
size_t cuda_attention_work_bytes(const struct cuda_attention_shape *s)
{
    const size_t counters = (size_t)1 << 20, most = (size_t)1 << 30, most_of_head = (size_t)4 << 30;
    if (!s->is_grad)
        return counters;
    size_t n_heads = (size_t)(s->n_batch * s->n_heads), n_time = (size_t)s->n_time;
    size_t head = (n_time + 127) / 128 * 128 * ((n_time + 63) / 64 * 64) * dtype_bytes(s->type);
    size_t unsummed = group_of(s) > 1 ? 2 * unsummed_bytes(s, 1) : 0; /* of a sequence */
    size_t all = n_heads * head + (size_t)s->n_batch * unsummed, least = head + unsummed;
    size_t scores = all < most ? all : least > most ? least : most;
    if (least > most_of_head) /* our own kernel takes so long sequences: it needs delta alone */
        scores = 0;
    return counters + n_heads * n_time * sizeof(float) + scores;
}

struct pieces { /* offsets into the workspace */
    size_t dk, dv, engine;
};

static struct pieces pieces_of(const struct cuda_attention *a, int64_t n_batch)
{
    size_t total = 0, bytes = 0;
    if (a->sums == ATTENTION_SUMS_own)
        bytes = unsummed_bytes(&a->shape, n_batch);
    struct pieces pieces = {.dk = cuda_work_take(&total, bytes)};
    pieces.dv = cuda_work_take(&total, bytes);
    pieces.engine = total;
    return pieces;
}

/* ---- planning ------------------------------------------------------------------------------- */

static bool exists(const struct planned_part *part)
{
    return part->part.n_batch > 0 && part->part.n_heads > 0;
}

/* engine stays NULL if cuDNN rejects the part; *work_bytes is what the whole workspace needed if
 * that was too much, else 0. */
static enum snug_status plan_part(const struct cuda_attention *a, struct planned_part *planned,
                                  size_t most_work_bytes, size_t *work_bytes,
                                  struct snug_error *err)
{
    size_t before = pieces_of(a, planned->part.n_batch).engine;
    *work_bytes = before + 1;
    if (before > most_work_bytes)
        return SNUG_OK;
    TRY(attention_engine_prepare(&a->shape, &planned->part, most_work_bytes - before,
                                 &planned->engine, work_bytes, err));
    if (*work_bytes > 0)
        *work_bytes += before;
    return SNUG_OK;
}

static void set_part(const struct cuda_attention *a, struct planned_part *planned, int64_t n_batch,
                     int64_t n_heads)
{
    int64_t group = group_of(&a->shape);
    planned->part = (struct attention_part){.n_batch = n_batch,
                                            .n_heads = n_heads,
                                            .n_kv_heads = n_heads < group ? 1 : n_heads / group,
                                            .sums = a->sums};
}

/* The most heads, up to n_fit, that are whole groups or a part of one that divides it. */
static int64_t heads_of_part(const struct cuda_attention *a, int64_t n_fit)
{
    int64_t group = group_of(&a->shape);
    if (n_fit >= group)
        return n_fit / group * group;
    if (a->sums != ATTENTION_SUMS_own)
        return group;
    int64_t n = n_fit > 1 ? n_fit : 1;
    while (group % n != 0)
        n--;
    return n;
}

/* Chooses the largest part that fits, given that `tried` needs `work_bytes`.  Parts are of about
 * equal size. */
static void choose_parts(struct cuda_attention *a, const struct attention_part *tried,
                         size_t most_work_bytes, size_t work_bytes)
{
    const struct cuda_attention_shape *s = &a->shape;
    int64_t n_most = (int64_t)(most_work_bytes - most_work_bytes / 16); /* margin for rounding up */
    int64_t unsummed =
        (int64_t)pieces_of(a, 1).engine; /* of a sequence, whatever heads a run has */
    int64_t head_bytes = (int64_t)(work_bytes - pieces_of(a, tried->n_batch).engine) /
                             (tried->n_batch * tried->n_heads) +
                         1;
    int64_t n_fit = n_most / (head_bytes + unsummed / s->n_heads + 1) / s->n_heads;
    if (n_fit > 0) {
        int64_t n_parts = (s->n_batch + n_fit - 1) / n_fit;
        int64_t n_batch = (s->n_batch + n_parts - 1) / n_parts;
        set_part(a, &a->full, n_batch, s->n_heads);
        set_part(a, &a->tail, s->n_batch % n_batch, s->n_heads);
    } else {
        n_fit = n_most > unsummed ? (n_most - unsummed) / head_bytes : 0;
        int64_t n_heads = heads_of_part(a, n_fit < s->n_heads ? n_fit : s->n_heads);
        set_part(a, &a->full, 1, n_heads);
        set_part(a, &a->tail, 1, s->n_heads % n_heads);
    }
}

/* Smaller parts are tried as long as the workspace is too small for the last. */
static enum snug_status plan_parts(struct cuda_attention *a, size_t most_work_bytes,
                                   struct snug_error *err)
{
    size_t work_bytes = 0, ignored = 0;
    int64_t n_before = a->shape.n_batch * a->shape.n_heads + 1;
    set_part(a, &a->full, a->shape.n_batch, a->shape.n_heads);
    for (;;) {
        struct attention_part part = a->full.part;
        if (part.n_batch * part.n_heads >= n_before)
            return SNUG_OK; /* even the smallest does not fit */
        n_before = part.n_batch * part.n_heads;
        TRY(plan_part(a, &a->full, most_work_bytes, &work_bytes, err));
        if (a->full.engine != NULL || work_bytes == 0)
            break;
        choose_parts(a, &part, most_work_bytes, work_bytes);
    }
    return a->full.engine != NULL && exists(&a->tail)
               ? plan_part(a, &a->tail, most_work_bytes, &ignored, err)
               : SNUG_OK;
}

static bool is_planned(const struct cuda_attention *a)
{
    return a->full.engine != NULL && (!exists(&a->tail) || a->tail.engine != NULL);
}

static void release_parts(struct cuda_attention *a)
{
    attention_engine_release(a->full.engine);
    attention_engine_release(a->tail.engine);
    a->full = a->tail = (struct planned_part){0};
}

void cuda_attention_release(struct cuda_attention *a)
{
    if (a != NULL)
        release_parts(a);
    free(a);
}

enum snug_status cuda_attention_prepare(const struct cuda_attention_shape *shape,
                                        size_t most_work_bytes, struct cuda_attention **attention,
                                        struct snug_error *err)
{
    bool sums = shape->is_grad && group_of(shape) > 1;
    enum attention_sums first = sums ? ATTENTION_SUMS_library : ATTENTION_SUMS_none;
    enum attention_sums last = sums ? ATTENTION_SUMS_own : ATTENTION_SUMS_none;
    *attention = NULL;
    struct cuda_attention *a = calloc(1, sizeof *a);
    if (a == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory while preparing it");
    a->shape = *shape;
    enum snug_status status = SNUG_OK;
    for (int sum = sums && shape->own_sums ? (int)last : (int)first;
         sum <= (int)last && status == SNUG_OK && !is_planned(a); sum++) {
        release_parts(a);
        a->sums = (enum attention_sums)sum;
        status = plan_parts(a, most_work_bytes, err);
    }
    if (status == SNUG_OK && is_planned(a))
        *attention = a;
    else
        cuda_attention_release(a);
    return status;
}

bool cuda_attention_sums_heads(const struct cuda_attention *a)
{
    return a->sums == ATTENTION_SUMS_own;
}

int64_t cuda_attention_n_parts(const struct cuda_attention *a)
{
    const struct attention_part *part = &a->full.part;
    return ((a->shape.n_batch + part->n_batch - 1) / part->n_batch) *
           ((a->shape.n_heads + part->n_heads - 1) / part->n_heads);
}

/* ---- running -------------------------------------------------------------------------------- */

static const void *from(const struct cuda_attention *a, const void *data, int64_t n_elems)
{
    return data == NULL ? NULL : (const char *)data + n_elems * (int64_t)dtype_bytes(a->shape.type);
}

static void *into(const struct cuda_attention *a, void *data, int64_t n_elems)
{
    return data == NULL ? NULL : (char *)data + n_elems * (int64_t)dtype_bytes(a->shape.type);
}

/* Runs a part: the sequences from `b` on, the heads from `h` on. */
static enum snug_status run_part(const struct cuda_attention *a, const struct planned_part *planned,
                                 const struct pieces *pieces, int64_t b, int64_t h,
                                 const struct cuda_attention_call *call, struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    int64_t time = s->n_time, y_at = (b * time * s->n_heads + h) * s->depth;
    int64_t q_at = b * time * s->q_row + h * s->depth;
    int64_t kv_at = b * time * s->kv_row + h / group_of(s) * s->depth;
    char *work = call->work;
    struct attention_operands operands = {.q = from(a, call->q, q_at),
                                          .k = from(a, call->k, kv_at),
                                          .v = from(a, call->v, kv_at),
                                          .dy = from(a, call->dy, y_at),
                                          .y = into(a, call->y, y_at),
                                          .lse = call->lse + (b * s->n_heads + h) * time,
                                          .dq = into(a, call->dq, q_at),
                                          .dk = into(a, call->dk, kv_at),
                                          .dv = into(a, call->dv, kv_at),
                                          .work = work + pieces->engine,
                                          .stream = call->stream};
    if (a->sums == ATTENTION_SUMS_own) {
        operands.dk = into(a, work + pieces->dk, h * s->depth);
        operands.dv = into(a, work + pieces->dv, h * s->depth);
    }
    return attention_engine_run(planned->engine, &operands, err);
}

/* dk and dv of n_batch sequences from `b` on. */
static enum snug_status sum_heads(const struct cuda_attention *a, const struct pieces *pieces,
                                  int64_t b, int64_t n_batch,
                                  const struct cuda_attention_call *call, struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    char *work = call->work;
    struct cuda_head_sums sums = {.n_rows = n_batch * s->n_time,
                                  .n_sums = s->n_kv_heads,
                                  .group = group_of(s),
                                  .depth = s->depth,
                                  .y_row = s->kv_row,
                                  .dtype = s->type,
                                  .x = {work + pieces->dk, work + pieces->dv},
                                  .y = {into(a, call->dk, b * s->n_time * s->kv_row),
                                        into(a, call->dv, b * s->n_time * s->kv_row)}};
    int error = cuda_sum_heads(&sums, call->stream);
    return error == 0 ? SNUG_OK
                      : snug_fail(err, SNUG_BAD_PROGRAM, "attention: summing over heads: %s",
                                  cuda_error_text(error));
}

enum snug_status cuda_attention_run(const struct cuda_attention *a,
                                    const struct cuda_attention_call *call, struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    const struct attention_part *full = &a->full.part;
    for (int64_t b = 0; b < s->n_batch; b += full->n_batch) {
        int64_t n_batch = b + full->n_batch <= s->n_batch ? full->n_batch : s->n_batch - b;
        struct pieces pieces = pieces_of(a, n_batch);
        for (int64_t h = 0; h < s->n_heads; h += full->n_heads) {
            bool is_full = n_batch == full->n_batch && h + full->n_heads <= s->n_heads;
            TRY(run_part(a, is_full ? &a->full : &a->tail, &pieces, b, h, call, err));
        }
        if (a->sums == ATTENTION_SUMS_own)
            TRY(sum_heads(a, &pieces, b, n_batch, call, err));
    }
    return SNUG_OK;
}
