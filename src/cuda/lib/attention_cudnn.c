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
 * are virtual.  If k and v have fewer heads than q, the matmuls broadcast them; a window is a
 * second mask after the causal one.
 *
 * dQ is a sum over blocks of keys.  An engine that accumulates the blocks in fp32 as they arrive is
 * nondeterministic.  The engine that writes dQ directly keeps dS in its workspace, T x T per head,
 * and is deterministic; we use that one.  --deterministic no selects the other engine.
 *
 * dK and dV of a head of k and v are sums over the heads of q that read it.  Either the graph ends
 * in a reduction of dK and dV of all heads of q (virtual tensors, in 16 bits), or it stores these.
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
    UID_masked,        /* of the causal mask */
    UID_masked_before, /* of the window */
    UID_window,
    N_UIDS
};

struct attention_engine {
    struct cuda_attention_shape shape;
    struct attention_part part;
    bool nondeterministic;
    float scale, masked;
    struct dnn_plan *plan;
};

/* ---- the graphs ----------------------------------------------------------------------------- */

struct extents { /* of a part */
    struct dnn_extent q, kv, y, lse, scores;
    struct dnn_extent dkv; /* what the graph writes: per head of k and v, or of q */
};

/* Rows of `row` elements, of heads side by side. */
static struct dnn_extent rows_of(int64_t n_batch, int64_t n_heads, int64_t n_time, int64_t depth,
                                 int64_t row)
{
    return (struct dnn_extent){{n_batch, n_heads, n_time, depth}, {row * n_time, depth, row, 1}};
}

static struct extents extents_of(const struct cuda_attention_shape *s,
                                 const struct attention_part *part)
{
    int64_t b = part->n_batch, h = part->n_heads, time = s->n_time, depth = s->depth;
    struct extents e = {.q = rows_of(b, h, time, depth, s->q_row),
                        .kv = rows_of(b, part->n_kv_heads, time, depth, s->kv_row),
                        .y = rows_of(b, h, time, depth, s->n_heads * depth),
                        .lse = {{b, h, time, 1}, {s->n_heads * time, time, 1, 1}},
                        .scores = dnn_packed(b, h, time, time)};
    e.dkv = part->sums == ATTENTION_SUMS_own ? e.y : e.kv;
    return e;
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

/* The row or the column of every score: 2 or 3. */
static dnn_object index_of(struct dnn_graph *g, const struct extents *e, int64_t axis,
                           dnn_object scores)
{
    dnn_object index = dnn_virtual(g, CUDNN_DATA_INT32, e->scores);
    dnn_pointwise(g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_GEN_INDEX,
                                             .math = CUDNN_DATA_FLOAT,
                                             .axis = axis,
                                             .x = scores,
                                             .y = index});
    return index;
}

/* The score where mode(a, b) holds, else `masked`. */
static dnn_object select_where(struct dnn_graph *g, const struct extents *e,
                               cudnnPointwiseMode_t mode, dnn_object a, dnn_object b,
                               dnn_object scores, dnn_object masked)
{
    dnn_object seen = dnn_virtual(g, CUDNN_DATA_BOOLEAN, e->scores);
    dnn_object result = virtual_float(g, e->scores);
    dnn_pointwise(g, &(struct dnn_pointwise){
                         .mode = mode, .math = CUDNN_DATA_BOOLEAN, .x = a, .b = b, .y = seen});
    dnn_pointwise(g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                             .math = CUDNN_DATA_FLOAT,
                                             .x = scores,
                                             .b = masked,
                                             .t = seen,
                                             .y = result});
    return result;
}

/* Masks the keys after the query, then those before its window: of column + window <= row. */
static dnn_object mask_of(struct dnn_graph *g, const struct cuda_attention_shape *s,
                          const struct extents *e, dnn_object scores)
{
    if (!s->causal)
        return scores;
    dnn_object row = index_of(g, e, 2, scores), column = index_of(g, e, 3, scores);
    scores =
        select_where(g, e, CUDNN_POINTWISE_CMP_GE, row, column, scores, dnn_scalar(g, UID_masked));
    if (s->window == 0)
        return scores;
    row = index_of(g, e, 2, scores), column = index_of(g, e, 3, scores);
    dnn_object end = virtual_float(g, e->scores);
    dnn_pointwise(g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_ADD,
                                             .math = CUDNN_DATA_FLOAT,
                                             .x = column,
                                             .b = dnn_scalar(g, UID_window),
                                             .y = end});
    return select_where(g, e, CUDNN_POINTWISE_CMP_GT, end, row, scores,
                        dnn_scalar(g, UID_masked_before));
}

static void write_forward(struct dnn_graph *g, const struct cuda_attention_shape *s,
                          const struct extents *e)
{
    cudnnDataType_t type = dnn_type(s->type);
    struct dnn_extent one_each = dnn_packed(e->lse.dim[0], e->lse.dim[1], s->n_time, 1);
    dnn_object q = dnn_tensor(g, UID_q, type, e->q);
    dnn_object k_transposed = dnn_tensor(g, UID_k, type, dnn_transposed(e->kv));
    dnn_object v = dnn_tensor(g, UID_v, type, e->kv), y = dnn_tensor(g, UID_y, type, e->y);
    dnn_object lse = dnn_tensor(g, UID_lse, CUDNN_DATA_FLOAT, e->lse);

    dnn_object scores = virtual_float(g, e->scores);
    dnn_gemm(g, q, k_transposed, scores);
    scores = scores_of(g, e, CUDNN_POINTWISE_MUL, scores, dnn_scalar(g, UID_scale));
    scores = mask_of(g, s, e, scores);

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

/* dK or dV = left^T right; left is T x T */
static void write_dkv(struct dnn_graph *g, const struct cuda_attention_shape *s,
                      const struct extents *e, enum attention_sums sums, dnn_object left,
                      dnn_object right, enum uid uid)
{
    cudnnDataType_t type = dnn_type(s->type);
    dnn_object transposed = dnn_virtual(g, type, dnn_transposed(e->scores));
    dnn_object result = dnn_tensor(g, uid, type, e->dkv);
    dnn_reshape(g, left, transposed);
    if (sums != ATTENTION_SUMS_library) {
        dnn_gemm(g, transposed, right, result);
        return;
    }
    dnn_object of_heads =
        dnn_virtual(g, type, dnn_packed(e->q.dim[0], e->q.dim[1], s->n_time, s->depth));
    dnn_gemm(g, transposed, right, of_heads);
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, of_heads, result);
}

static void write_dq(struct dnn_graph *g, const struct cuda_attention_shape *s,
                     const struct extents *e, const struct grad_tensors *t, dnn_object ds,
                     bool nondeterministic)
{
    dnn_object k = virtual_float(g, e->kv);
    dnn_object dq = dnn_tensor(g, UID_dq, dnn_type(s->type), e->q);
    dnn_reshape(g, t->k_transposed, k);
    if (!nondeterministic) {
        dnn_gemm(g, ds, k, dq);
        return;
    }
    dnn_object sum = dnn_tensor(g, UID_dq_sum, CUDNN_DATA_FLOAT,
                                dnn_packed(e->q.dim[0], e->q.dim[1], s->n_time, s->depth));
    dnn_gemm(g, ds, k, sum);
    dnn_float(g, CUDNN_POINTWISE_IDENTITY, sum, NULL, dq);
}

static void write_grad(struct dnn_graph *g, const struct cuda_attention_shape *s,
                       const struct extents *e, enum attention_sums sums, bool nondeterministic)
{
    cudnnDataType_t type = dnn_type(s->type);
    struct dnn_extent one_each = dnn_packed(e->lse.dim[0], e->lse.dim[1], s->n_time, 1);
    struct grad_tensors t = {.q = dnn_tensor(g, UID_q, type, e->q),
                             .k_transposed = dnn_tensor(g, UID_k, type, dnn_transposed(e->kv)),
                             .v_transposed = dnn_tensor(g, UID_v, type, dnn_transposed(e->kv)),
                             .dy = dnn_tensor(g, UID_dy, type, e->y),
                             .lse = dnn_tensor(g, UID_lse, CUDNN_DATA_FLOAT, e->lse),
                             .delta = dnn_tensor(g, UID_delta, CUDNN_DATA_FLOAT, one_each),
                             .scale = dnn_scalar(g, UID_scale)};
    write_delta(g, s, e, &t);

    dnn_object scores = virtual_float(g, e->scores);
    dnn_gemm(g, t.q, t.k_transposed, scores);
    scores = scores_of(g, e, CUDNN_POINTWISE_MUL, scores, t.scale);
    scores = scores_of(g, e, CUDNN_POINTWISE_SUB, scores, t.lse);
    scores = mask_of(g, s, e, scores);
    dnn_object p = scores_of(g, e, CUDNN_POINTWISE_EXP, scores, NULL);
    write_dkv(g, s, e, sums, p, t.dy, UID_dv);

    dnn_object ds = virtual_float(g, e->scores);
    dnn_gemm(g, t.dy, t.v_transposed, ds);
    ds = scores_of(g, e, CUDNN_POINTWISE_SUB, ds, t.delta);
    ds = scores_of(g, e, CUDNN_POINTWISE_MUL, ds, p);
    ds = scores_of(g, e, CUDNN_POINTWISE_MUL, ds, t.scale);
    write_dkv(g, s, e, sums, ds, t.q, UID_dk);
    write_dq(g, s, e, &t, ds, nondeterministic);
}

/* ---- an engine ------------------------------------------------------------------------------ */

struct pieces { /* offsets into the workspace */
    size_t delta, dq_sum, graph;
};

static struct pieces pieces_of(const struct attention_engine *a)
{
    const struct cuda_attention_shape *s = &a->shape;
    size_t total = 0, n = (size_t)(a->part.n_batch * a->part.n_heads * s->n_time) * sizeof(float);
    struct pieces pieces = {.delta = cuda_work_take(&total, s->is_grad ? n : 0)};
    pieces.dq_sum =
        cuda_work_take(&total, s->is_grad && a->nondeterministic ? n * (size_t)s->depth : 0);
    pieces.graph = total;
    return pieces;
}

/* a->plan stays NULL if cuDNN rejects the graph. */
static enum snug_status plan(struct attention_engine *a, size_t most_work_bytes, size_t *work_bytes,
                             struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    const struct attention_part *part = &a->part;
    size_t own = pieces_of(a).graph;
    if (own > most_work_bytes) { /* too much, whatever the graph needs */
        *work_bytes = own + 1;
        return SNUG_OK;
    }
    struct dnn_limits limits = {.most_work_bytes = (int64_t)(most_work_bytes - own)};
    struct dnn_key key = {DNN_BY_attention,
                          {s->n_heads, s->n_time, s->depth, s->q_row, s->kv_row, s->window, s->type,
                           s->causal, s->is_grad, part->n_batch, part->n_heads, part->n_kv_heads,
                           part->sums, a->nondeterministic}};
    int64_t graph_bytes = 0;
    if (!dnn_plan_find(&key, &limits, &a->plan, &graph_bytes)) {
        cudnnHandle_t handle;
        TRY(cuda_library_dnn(NULL, &handle, err));
        struct dnn_graph *g = calloc(1, sizeof *g);
        if (g == NULL)
            return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory for its cuDNN graph");
        struct extents e = extents_of(s, part);
        if (s->is_grad)
            write_grad(g, s, &e, part->sums, a->nondeterministic);
        else
            write_forward(g, s, &e);
        TRY(dnn_plan_make(&key, g, handle, &limits, &a->plan, &graph_bytes, err));
    }
    *work_bytes = graph_bytes > 0 ? own + (size_t)graph_bytes : 0;
    return SNUG_OK;
}

/* Excludes versions known to compute wrong gradients: 9.10.0 and 9.10.1, and up to 9.15 any T that
 * is not a multiple of 128. */
static bool version_fits(const struct cuda_attention_shape *s)
{
    size_t version = cudnnGetVersion();
    return !s->is_grad ||
           (version != 91000 && version != 91001 && (version > 91500 || s->n_time % 128 == 0));
}

void attention_engine_release(struct attention_engine *a)
{
    if (a != NULL)
        dnn_plan_release(a->plan);
    free(a);
}

enum snug_status attention_engine_prepare(const struct cuda_attention_shape *shape,
                                          const struct attention_part *part, size_t most_work_bytes,
                                          struct attention_engine **engine, size_t *work_bytes,
                                          struct snug_error *err)
{
    *engine = NULL;
    *work_bytes = 0;
    if (!version_fits(shape))
        return SNUG_OK;
    struct attention_engine *a = calloc(1, sizeof *a);
    if (a == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "attention: out of memory while preparing it");
    a->shape = *shape;
    a->part = *part;
    a->nondeterministic = shape->nondeterministic && cudnnGetVersion() >= 90600;
    a->scale = 1.0f / sqrtf((float)shape->depth);
    a->masked =
        cudnnGetVersion() < 91000 ? -FLT_MAX : -INFINITY; /* the value by which engines recognize a
                                                           * mask */
    enum snug_status status = plan(a, most_work_bytes, work_bytes, err);
    if (status == SNUG_OK && a->plan != NULL)
        *engine = a;
    else
        attention_engine_release(a);
    return status;
}

enum snug_status attention_engine_run(const struct attention_engine *a,
                                      const struct attention_operands *operands,
                                      struct snug_error *err)
{
    const struct cuda_attention_shape *s = &a->shape;
    struct pieces pieces = pieces_of(a);
    char *work = operands->work;
    float one = 1.0f, scale = a->scale, masked = a->masked, window = (float)s->window;
    int64_t uids[N_UIDS];
    const void *addresses[N_UIDS];
    int n = 0;
#define GIVE(uid, address) (uids[n] = (uid), addresses[n++] = (address))
    GIVE(UID_q, operands->q);
    GIVE(UID_k, operands->k);
    GIVE(UID_v, operands->v);
    GIVE(UID_y, operands->y);
    GIVE(UID_lse, operands->lse);
    GIVE(UID_scale, &scale);
    if (s->causal)
        GIVE(UID_masked, &masked);
    if (s->causal && s->window > 0) {
        GIVE(UID_masked_before, &masked);
        GIVE(UID_window, &window);
    }
    if (s->is_grad) {
        GIVE(UID_dy, operands->dy);
        GIVE(UID_dq, operands->dq);
        GIVE(UID_dk, operands->dk);
        GIVE(UID_dv, operands->dv);
        GIVE(UID_delta, work + pieces.delta);
        GIVE(UID_one, &one);
    }
    if (s->is_grad && a->nondeterministic)
        GIVE(UID_dq_sum, work + pieces.dq_sum);
#undef GIVE
    cudnnHandle_t handle;
    TRY(cuda_library_dnn(operands->stream, &handle, err));
    return dnn_plan_run(a->plan, handle, n, uids, addresses, work + pieces.graph, err);
}
