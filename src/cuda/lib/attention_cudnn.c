/*
 * attention_cudnn.c -- attention with cuDNN 9, forward and backward: the pattern of matmuls, mask
 * and softmax that its fused engines recognize.
 *
 *     S = scale Q K^T, -inf above the diagonal    P = softmax(S)    Y = P V    lse = max + log sum
 *
 *     delta = rowsum(dY Y)       P = exp(S - lse)         dV = P^T dY
 *     dS = scale P (dY V^T - delta)                       dK = dS^T Q         dQ = dS K
 *
 * The engines recognize the pattern by its structure: which operations, in which order, in which
 * types.  K is passed as K^T, and in the gradient V as V^T, through strides alone.  T x T matrices
 * are virtual.
 *
 * dQ is a sum over blocks of keys.  An engine that accumulates the blocks in fp32 as they arrive is
 * nondeterministic.  The engine that writes dQ directly keeps dS in its workspace, T x T per head,
 * and is deterministic; we use that one.  If it needs more workspace than is planned, sequences, or
 * the heads of one sequence, are split over several runs.  --deterministic no selects the other
 * engine.
 */
#include "cuda/lib/attention_cudnn.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "cuda/lib/cudnn_graph.h"
#include "cuda/dispatch/workspace.h"

enum uid {
    UID_q = 1,
    UID_k,
    UID_v,
    UID_y,
    UID_lse,
    UID_dy,
    UID_dq,
    UID_dk,
    UID_dv,
    UID_delta,  /* [B,H,T] in the workspace */
    UID_dq_sum, /* fp32, in the workspace; only if nondeterministic */
    UID_scale,
    UID_one,
    UID_masked,
    N_UIDS
};

struct part { /* the sequences and heads of one run */
    int64_t n_batch, n_heads;
    struct dnn_plan *plan;
};

struct cuda_attention {
    struct cuda_attention_shape shape;
    bool nondeterministic;
    float scale, masked;
    struct part full, tail; /* the tail has fewer sequences, or fewer heads */
};

/* ---- the graphs ----------------------------------------------------------------------------- */

struct extents { /* of a part */
    struct dnn_extent qkv, y, lse, scores;
};

static struct extents extents_of(const struct cuda_attention_shape *s, const struct part *part)
{
    int64_t width = s->n_heads * s->depth, b = part->n_batch, h = part->n_heads;
    struct dnn_extent lse = {{b, h, s->n_time, 1}, {s->n_heads * s->n_time, s->n_time, 1, 1}};
    return (struct extents){
        .qkv = {{b, h, s->n_time, s->depth}, {3 * width * s->n_time, s->depth, 3 * width, 1}},
        .y = {{b, h, s->n_time, s->depth}, {width * s->n_time, s->depth, width, 1}},
        .lse = lse,
        .scores = dnn_packed(b, h, s->n_time, s->n_time)};
}

static dnn_object virtual_float(struct dnn_graph *g, struct dnn_extent extent)
{
    return dnn_virtual(g, CUDNN_DATA_FLOAT, extent);
}

/* y = mode(x, b), T x T per head */
static dnn_object scores_of(struct dnn_graph *g, const struct extents *e, cudnnPointwiseMode_t mode,
                            dnn_object x, dnn_object b)
{
    dnn_object y = virtual_float(g, e->scores);
    dnn_float(g, mode, x, b, y);
    return y;
}

/* Sets the scores of keys after the query to `masked`. */
static dnn_object mask_of(struct dnn_graph *g, const struct extents *e, dnn_object scores,
                          dnn_object masked)
{
    dnn_object row = dnn_virtual(g, CUDNN_DATA_INT32, e->scores);
    dnn_object column = dnn_virtual(g, CUDNN_DATA_INT32, e->scores);
    dnn_object seen = dnn_virtual(g, CUDNN_DATA_BOOLEAN, e->scores);
    dnn_object result = virtual_float(g, e->scores);
    dnn_pointwise(g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_GEN_INDEX,
                                             .math = CUDNN_DATA_FLOAT,
                                             .axis = 2,
                                             .x = scores,
                                             .y = row});
    dnn_pointwise(g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_GEN_INDEX,
                                             .math = CUDNN_DATA_FLOAT,
                                             .axis = 3,
                                             .x = scores,
                                             .y = column});
    dnn_pointwise(g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_CMP_GE,
                                             .math = CUDNN_DATA_BOOLEAN,
                                             .x = row,
                                             .b = column,
                                             .y = seen});
    dnn_pointwise(g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                             .math = CUDNN_DATA_FLOAT,
                                             .x = scores,
                                             .b = masked,
                                             .t = seen,
                                             .y = result});
    return result;
}

static void write_forward(struct dnn_graph *g, const struct cuda_attention_shape *s,
                          const struct extents *e)
{
    cudnnDataType_t type = dnn_type(s->type);
    struct dnn_extent one_each = dnn_packed(e->lse.dim[0], e->lse.dim[1], s->n_time, 1);
    dnn_object q = dnn_tensor(g, UID_q, type, e->qkv);
    dnn_object k_transposed = dnn_tensor(g, UID_k, type, dnn_transposed(e->qkv));
    dnn_object v = dnn_tensor(g, UID_v, type, e->qkv), y = dnn_tensor(g, UID_y, type, e->y);
    dnn_object lse = dnn_tensor(g, UID_lse, CUDNN_DATA_FLOAT, e->lse);

    dnn_object scores = virtual_float(g, e->scores);
    dnn_gemm(g, q, k_transposed, scores);
    scores = scores_of(g, e, CUDNN_POINTWISE_MUL, scores, dnn_scalar(g, UID_scale));
    if (s->causal)
        scores = mask_of(g, e, scores, dnn_scalar(g, UID_masked));

    dnn_object most = virtual_float(g, one_each), sum = virtual_float(g, one_each);
    dnn_object log_sum = virtual_float(g, one_each), p = dnn_virtual(g, type, e->scores);
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, scores, most);
    dnn_object less = scores_of(g, e, CUDNN_POINTWISE_SUB, scores, most);
    dnn_object exponential = scores_of(g, e, CUDNN_POINTWISE_EXP, less, NULL);
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, exponential, sum);
    dnn_float(g, CUDNN_POINTWISE_LOG, sum, NULL, log_sum);
    dnn_float(g, CUDNN_POINTWISE_ADD, most, log_sum, lse);
    dnn_float(g, CUDNN_POINTWISE_DIV, exponential, sum, p);
    dnn_gemm(g, p, v, y);
}

struct grad_tensors {
    dnn_object q, k_transposed, v_transposed, dy, lse, delta, scale;
};

/* delta = rowsum(dY Y).  It is stored in memory because other rows read it, too. */
static void write_delta(struct dnn_graph *g, const struct cuda_attention_shape *s,
                        const struct extents *e, const struct grad_tensors *t)
{
    int64_t b = e->y.dim[0], h = e->y.dim[1], time = s->n_time, depth = s->depth;
    dnn_object y = dnn_tensor(g, UID_y, dnn_type(s->type), e->y);
    dnn_object product =
        virtual_float(g, (struct dnn_extent){{b, h, time, depth},
                                             {h * time * depth, time * depth, h * depth, 1}});
    dnn_object sum = virtual_float(g, dnn_packed(b, h, time, 1));
    dnn_float(g, CUDNN_POINTWISE_MUL, t->dy, y, product);
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    dnn_float(g, CUDNN_POINTWISE_MUL, sum, dnn_scalar(g, UID_one), t->delta);
}

/* result = left^T right; left is T x T */
static void write_transposed_gemm(struct dnn_graph *g, const struct cuda_attention_shape *s,
                                  const struct extents *e, dnn_object left, dnn_object right,
                                  dnn_object result)
{
    dnn_object transposed = dnn_virtual(g, dnn_type(s->type), dnn_transposed(e->scores));
    dnn_reshape(g, left, transposed);
    dnn_gemm(g, transposed, right, result);
}

static void write_dq(struct dnn_graph *g, const struct cuda_attention_shape *s,
                     const struct extents *e, const struct grad_tensors *t, dnn_object ds,
                     bool nondeterministic)
{
    dnn_object k = virtual_float(g, e->qkv);
    dnn_object dq = dnn_tensor(g, UID_dq, dnn_type(s->type), e->qkv);
    dnn_reshape(g, t->k_transposed, k);
    if (!nondeterministic) {
        dnn_gemm(g, ds, k, dq);
        return;
    }
    dnn_object sum = dnn_tensor(g, UID_dq_sum, CUDNN_DATA_FLOAT,
                                dnn_packed(e->qkv.dim[0], e->qkv.dim[1], s->n_time, s->depth));
    dnn_gemm(g, ds, k, sum);
    dnn_float(g, CUDNN_POINTWISE_IDENTITY, sum, NULL, dq);
}

static void write_grad(struct dnn_graph *g, const struct cuda_attention_shape *s,
                       const struct extents *e, bool nondeterministic)
{
    cudnnDataType_t type = dnn_type(s->type);
    struct dnn_extent one_each = dnn_packed(e->lse.dim[0], e->lse.dim[1], s->n_time, 1);
    struct grad_tensors t = {.q = dnn_tensor(g, UID_q, type, e->qkv),
                             .k_transposed = dnn_tensor(g, UID_k, type, dnn_transposed(e->qkv)),
                             .v_transposed = dnn_tensor(g, UID_v, type, dnn_transposed(e->qkv)),
                             .dy = dnn_tensor(g, UID_dy, type, e->y),
                             .lse = dnn_tensor(g, UID_lse, CUDNN_DATA_FLOAT, e->lse),
                             .delta = dnn_tensor(g, UID_delta, CUDNN_DATA_FLOAT, one_each),
                             .scale = dnn_scalar(g, UID_scale)};
    write_delta(g, s, e, &t);

    dnn_object scores = virtual_float(g, e->scores);
    dnn_gemm(g, t.q, t.k_transposed, scores);
    scores = scores_of(g, e, CUDNN_POINTWISE_MUL, scores, t.scale);
    scores = scores_of(g, e, CUDNN_POINTWISE_SUB, scores, t.lse);
    if (s->causal)
        scores = mask_of(g, e, scores, dnn_scalar(g, UID_masked));
    dnn_object p = scores_of(g, e, CUDNN_POINTWISE_EXP, scores, NULL);
    write_transposed_gemm(g, s, e, p, t.dy, dnn_tensor(g, UID_dv, type, e->qkv));

    dnn_object ds = virtual_float(g, e->scores);
    dnn_gemm(g, t.dy, t.v_transposed, ds);
    ds = scores_of(g, e, CUDNN_POINTWISE_SUB, ds, t.delta);
    ds = scores_of(g, e, CUDNN_POINTWISE_MUL, ds, p);
    ds = scores_of(g, e, CUDNN_POINTWISE_MUL, ds, t.scale);
    write_transposed_gemm(g, s, e, ds, t.q, dnn_tensor(g, UID_dk, type, e->qkv));
    write_dq(g, s, e, &t, ds, nondeterministic);
}

/* ---- parts ---------------------------------------------------------------------------------- */

struct pieces { /* offsets into the workspace */
    size_t delta, dq_sum, engine;
};

static struct pieces pieces_of(const struct cuda_attention *a, const struct part *part)
{
    const struct cuda_attention_shape *s = &a->shape;
    size_t total = 0, n = (size_t)(part->n_batch * part->n_heads * s->n_time) * sizeof(float);
    struct pieces pieces = {.delta = cuda_work_take(&total, s->is_grad ? n : 0)};
    pieces.dq_sum =
        cuda_work_take(&total, s->is_grad && a->nondeterministic ? n * (size_t)s->depth : 0);
    pieces.engine = total;
    return pieces;
}

/* part->plan stays NULL if cuDNN rejects the graph.  *engine_bytes is what an engine needed if that
 * was too much, else 0. */
static enum snug_status plan_part(const struct cuda_attention *a, struct part *part,
                                  size_t most_work_bytes, int64_t *engine_bytes,
                                  struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    size_t own = pieces_of(a, part).engine;
    if (own > most_work_bytes) { /* then split, whatever the engine needs */
        *engine_bytes = 1;
        return SNUG_OK;
    }
    struct dnn_limits limits = {.most_work_bytes = (int64_t)(most_work_bytes - own)};
    struct dnn_key key = {DNN_BY_attention,
                          {s->n_heads, s->n_time, s->depth, s->type, s->causal, s->is_grad,
                           part->n_batch, part->n_heads, a->nondeterministic}};
    if (dnn_plan_find(&key, &limits, &part->plan, engine_bytes))
        return SNUG_OK;
    cudnnHandle_t handle;
    TRY(cuda_library_dnn(NULL, &handle, err));
    struct dnn_graph *g = calloc(1, sizeof *g);
    if (g == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory for its cuDNN graph");
    struct extents e = extents_of(s, part);
    if (s->is_grad)
        write_grad(g, s, &e, a->nondeterministic);
    else
        write_forward(g, s, &e);
    return dnn_plan_make(&key, g, handle, &limits, &part->plan, engine_bytes, err);
}

/* Chooses the largest part that fits, given that the whole needs `engine_bytes`.  Parts are of
 * about equal size. */
static void choose_parts(struct cuda_attention *a, size_t most_work_bytes, int64_t engine_bytes)
{
    const struct cuda_attention_shape *s = &a->shape;
    int64_t n_all = s->n_batch * s->n_heads;
    int64_t head_bytes = engine_bytes / n_all + 1 + (int64_t)pieces_of(a, &a->full).engine / n_all;
    int64_t n_fit = (int64_t)(most_work_bytes - most_work_bytes / 16) / head_bytes; /* margin for
                                                                                     * rounding
                                                                                     * up */
    if (n_fit >= s->n_heads) {
        int64_t n_parts = (s->n_batch + n_fit / s->n_heads - 1) / (n_fit / s->n_heads);
        a->full.n_batch = (s->n_batch + n_parts - 1) / n_parts;
        a->tail = (struct part){.n_batch = s->n_batch % a->full.n_batch, .n_heads = s->n_heads};
    } else {
        a->full = (struct part){.n_batch = 1, .n_heads = n_fit > 0 ? n_fit : 1};
        a->tail = (struct part){.n_batch = 1, .n_heads = s->n_heads % a->full.n_heads};
    }
}

static enum snug_status plan_parts(struct cuda_attention *a, size_t most_work_bytes,
                                   struct snug_error *err)
{
    int64_t engine_bytes = 0;
    TRY(plan_part(a, &a->full, most_work_bytes, &engine_bytes, err));
    if (a->full.plan != NULL || engine_bytes == 0)
        return SNUG_OK;
    choose_parts(a, most_work_bytes, engine_bytes);
    TRY(plan_part(a, &a->full, most_work_bytes, &engine_bytes, err));
    if (a->tail.n_batch > 0 && a->tail.n_heads > 0)
        TRY(plan_part(a, &a->tail, most_work_bytes, &engine_bytes, err));
    return SNUG_OK;
}

static bool is_planned(const struct cuda_attention *a)
{
    bool has_tail = a->tail.n_batch > 0 && a->tail.n_heads > 0;
    return a->full.plan != NULL && (!has_tail || a->tail.plan != NULL);
}

/* Excludes versions known to compute wrong gradients: 9.10.0 and 9.10.1, and up to 9.15 any T that
 * is not a multiple of 128. */
static bool version_fits(const struct cuda_attention_shape *s)
{
    size_t version = cudnnGetVersion();
    return !s->is_grad ||
           (version != 91000 && version != 91001 && (version > 91500 || s->n_time % 128 == 0));
}

void cuda_attention_release(struct cuda_attention *a)
{
    if (a == NULL)
        return;
    dnn_plan_release(a->full.plan);
    dnn_plan_release(a->tail.plan);
    free(a);
}

enum snug_status cuda_attention_prepare(const struct cuda_attention_shape *shape,
                                        size_t most_work_bytes, struct cuda_attention **attention,
                                        struct snug_error *err)
{
    *attention = NULL;
    if (!version_fits(shape))
        return SNUG_OK;
    struct cuda_attention *a = calloc(1, sizeof *a);
    if (a == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory while preparing it");
    a->shape = *shape;
    a->nondeterministic = shape->nondeterministic && cudnnGetVersion() >= 90600;
    a->scale = 1.0f / sqrtf((float)shape->depth);
    a->masked =
        cudnnGetVersion() < 91000 ? -FLT_MAX : -INFINITY; /* the value by which engines recognize a
                                                           * mask */
    a->full = (struct part){.n_batch = shape->n_batch, .n_heads = shape->n_heads};
    enum snug_status status = plan_parts(a, most_work_bytes, err);
    if (status == SNUG_OK && is_planned(a))
        *attention = a;
    else
        cuda_attention_release(a);
    return status;
}

/* ---- running -------------------------------------------------------------------------------- */

static void *offset_by(const void *data, int64_t n_elems, size_t elem_bytes)
{
    return data == NULL ? NULL : (char *)data + n_elems * (int64_t)elem_bytes;
}

/* Runs a part: the sequences from `b` on, the heads from `h` on. */
static enum snug_status run_part(const struct cuda_attention *a, const struct part *part, int64_t b,
                                 int64_t h, const struct cuda_attention_call *call,
                                 struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    struct pieces pieces = pieces_of(a, part);
    size_t bytes = dtype_bytes(s->type);
    int64_t width = s->n_heads * s->depth, time = s->n_time;
    char *qkv = offset_by(call->qkv, b * time * 3 * width + h * s->depth, bytes);
    char *dqkv = offset_by(call->dqkv, b * time * 3 * width + h * s->depth, bytes);
    int64_t y_at = b * time * width + h * s->depth, part_bytes = width * (int64_t)bytes;
    float one = 1.0f, scale = a->scale, masked = a->masked;
    int64_t uids[N_UIDS];
    void *addresses[N_UIDS];
    int n = 0;
#define GIVE(uid, address) (uids[n] = (uid), addresses[n++] = (address))
    GIVE(UID_q, qkv);
    GIVE(UID_k, qkv + part_bytes);
    GIVE(UID_v, qkv + 2 * part_bytes);
    GIVE(UID_y, offset_by(call->y, y_at, bytes));
    GIVE(UID_lse, offset_by(call->lse, (b * s->n_heads + h) * time, sizeof(float)));
    GIVE(UID_scale, &scale);
    if (s->causal)
        GIVE(UID_masked, &masked);
    if (s->is_grad) {
        GIVE(UID_dy, offset_by(call->dy, y_at, bytes));
        GIVE(UID_dq, dqkv);
        GIVE(UID_dk, dqkv + part_bytes);
        GIVE(UID_dv, dqkv + 2 * part_bytes);
        GIVE(UID_delta, (char *)call->work + pieces.delta);
        GIVE(UID_one, &one);
    }
    if (s->is_grad && a->nondeterministic)
        GIVE(UID_dq_sum, (char *)call->work + pieces.dq_sum);
#undef GIVE
    cudnnHandle_t handle;
    TRY(cuda_library_dnn(call->stream, &handle, err));
    return dnn_plan_run(part->plan, handle, n, uids, addresses, (char *)call->work + pieces.engine,
                        err);
}

enum snug_status cuda_attention_run(const struct cuda_attention *a,
                                    const struct cuda_attention_call *call, struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    for (int64_t b = 0; b < s->n_batch; b += a->full.n_batch)
        for (int64_t h = 0; h < s->n_heads; h += a->full.n_heads) {
            bool is_full = b + a->full.n_batch <= s->n_batch && h + a->full.n_heads <= s->n_heads;
            TRY(run_part(a, is_full ? &a->full : &a->tail, b, h, call, err));
        }
    return SNUG_OK;
}
