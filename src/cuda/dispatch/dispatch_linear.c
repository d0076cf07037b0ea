/*
 * dispatch_linear.c -- linear, linear_grad_x and linear_grad_w with gemms.
 *
 * linear and linear_grad_x multiply rows by a matrix, on one of three paths.  Which one is decided
 * when the op is prepared:
 *
 *   fused   The gemm's epilogue applies the bias, GELU or the derivative of GELU.  GELU then sees
 *           the unrounded value, while the reference rounds it first.
 *   direct  The gemm writes its result with bias and r added, rounded once.  An activation follows
 *           in a separate kernel.
 *   chunks  For whatever the library rejects, and for mixed types: gemms of some rows in fp32 into
 *           the workspace, finished by our own kernels while the data is in the cache.
 *
 * linear_grad_w sums over rows: dW (+)= dy^T x in one gemm, plus column sums of dy for the bias.
 * Where linear_grad_x computes dy with the derivative of GELU, it can sum its columns in the same
 * gemm.
 *
 * The library needs both operands to have the same type.  Mixed types are widened to fp32.
 */
#include <stdlib.h>

#include "cuda/kernels/bias.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/lib/cuda_gemm.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/kernels/sums.h"
#include "cuda/dispatch/workspace.h"

enum path { PATH_chunks, PATH_direct, PATH_fused };

struct layout {
    int64_t n_rows, k, n;
    struct cuda_gemm_shape shape; /* for all rows, with the plain epilogue */
    bool types_fit;               /* the gemm may write the result directly */
    bool widen_a, widen_b;        /* a: the rows, b: the matrix; in grad_w dy and x, or x and dy if
                                   * in_out */
    int64_t chunk_rows;           /* 0: this op never takes the chunks path */
    size_t gemm, a, b, sum, sums, columns, total;
};

struct prepared {
    struct layout layout;
    enum path path;
    struct cuda_gemm *full, *tail; /* for all rows; or for a chunk and the shorter last one */
    bool sums_in_gemm;
};

static const struct tensor *input(const struct program *prog, const struct op *op, int k)
{
    return k < op->n_in && op->in[k] != TENSOR_NONE ? program_tensor(prog, op->in[k]) : NULL;
}

static const struct tensor *output(const struct program *prog, const struct op *op, int k)
{
    return k < op->n_out && op->out[k] != TENSOR_NONE ? program_tensor(prog, op->out[k]) : NULL;
}

static bool supports(const struct program *prog, const struct op *op)
{
    const struct tensor *y = output(prog, op, 0), *pre_act = output(prog, op, 1);
    return cuda_floats_fit(prog, op, 0, 0) &&
           (op_layer(op) != LAYER_forward || pre_act == NULL || pre_act->dtype == y->dtype);
}

static bool has_type(const struct tensor *tensor, enum dtype type)
{
    return tensor == NULL || tensor->dtype == type;
}

static size_t type_bytes(int64_t n, enum dtype type)
{
    return (size_t)n * dtype_bytes(type);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Derives the types of the gemm from its operands; `result` may be NULL. */
static void choose_types(struct layout *layout, const struct tensor *a, const struct tensor *b,
                         const struct tensor *result)
{
    enum dtype type = a->dtype == b->dtype ? a->dtype : DTYPE_f32;
    layout->widen_a = a->dtype != type;
    layout->widen_b = b->dtype != type;
    layout->shape.type = type;
    layout->types_fit = result != NULL && (result->dtype == type || result->dtype == DTYPE_f32);
    layout->shape.c_type = layout->types_fit ? result->dtype : DTYPE_f32;
}

/* Workspace for column sums, computed in the gemm or separately. */
static void take_sums(struct layout *layout, int64_t width)
{
    layout->sums = cuda_work_take(&layout->total, type_bytes(width, DTYPE_f32));
    layout->columns = cuda_work_take(
        &layout->total, type_bytes(cuda_sum_columns_work(layout->n_rows, width), DTYPE_f32));
}

/* linear: rows x [I] times W^T; linear_grad_x: rows dy [O] times W. */
static struct layout times_matrix_layout(const struct program *prog, const struct op *op)
{
    const struct tensor *rows_in = input(prog, op, 0), *matrix = input(prog, op, 1);
    const struct tensor *third = input(prog, op, 2), *y = output(prog, op, 0);
    const int64_t most_sum_bytes = 16 << 20, least_rows = 16;
    struct layout layout = {.n_rows = shape_rows(&rows_in->shape),
                            .k = shape_last(&rows_in->shape),
                            .n = shape_last(&y->shape)};
    layout.shape =
        (struct cuda_gemm_shape){.m = layout.n_rows,
                                 .n = layout.n,
                                 .k = layout.k,
                                 .b_transposed = (op_layer(op) == LAYER_forward) !=
                                                 (attrs_of(op, linear)->layout == LAYOUT_in_out),
                                 .alignment = cuda_gemm_alignment(prog, op)};
    choose_types(&layout, rows_in, matrix, y);
    layout.types_fit =
        layout.types_fit && has_type(third, y->dtype) && has_type(input(prog, op, 3), y->dtype);
    layout.gemm = cuda_work_take(&layout.total, cuda_gemm_work_bytes(&layout.shape));
    if (layout.widen_a)
        layout.a = cuda_work_take(&layout.total, type_bytes(layout.n_rows * layout.k, DTYPE_f32));
    if (layout.widen_b)
        layout.b = cuda_work_take(&layout.total, type_bytes(layout.n * layout.k, DTYPE_f32));
    if (op_column_sums(op) != TENSOR_NONE)
        take_sums(&layout, layout.n);
    if (third == NULL && layout.types_fit)
        return layout; /* a plain gemm is never rejected */
    int64_t rows = most_sum_bytes / (layout.n * (int64_t)sizeof(float)) / least_rows * least_rows;
    layout.chunk_rows = least(layout.n_rows, rows > least_rows ? rows : least_rows);
    layout.sum = cuda_work_take(&layout.total, type_bytes(layout.chunk_rows * layout.n, DTYPE_f32));
    return layout;
}

/* dW [O,I] = dy^T x, or with in_out dW [I,O] = x^T dy. */
static struct layout grad_w_layout(const struct program *prog, const struct op *op)
{
    const struct tensor *x = input(prog, op, 0), *dy = input(prog, op, 1);
    const struct tensor *dw = output(prog, op, 0), *dbias = output(prog, op, 1);
    const struct tensor *a = attrs_of(op, linear)->layout ? x : dy,
                        *b = attrs_of(op, linear)->layout ? dy : x;
    struct layout layout = {
        .n_rows = shape_rows(&x->shape), .k = shape_last(&a->shape), .n = shape_last(&b->shape)};
    layout.shape = (struct cuda_gemm_shape){.m = layout.k,
                                            .n = layout.n,
                                            .k = layout.n_rows,
                                            .a_transposed = true,
                                            .alignment = cuda_gemm_alignment(prog, op)};
    choose_types(&layout, a, b, dw);
    if (dw != NULL) {
        layout.gemm = cuda_work_take(&layout.total, cuda_gemm_work_bytes(&layout.shape));
        if (layout.widen_a)
            layout.a =
                cuda_work_take(&layout.total, type_bytes(layout.n_rows * layout.k, DTYPE_f32));
        if (layout.widen_b)
            layout.b =
                cuda_work_take(&layout.total, type_bytes(layout.n_rows * layout.n, DTYPE_f32));
        if (!layout.types_fit)
            layout.sum = cuda_work_take(&layout.total, type_bytes(layout.k * layout.n, DTYPE_f32));
    }
    if (dbias != NULL)
        take_sums(&layout, shape_last(&dy->shape));
    return layout;
}

static struct layout layout_of(const struct program *prog, const struct op *op)
{
    return op_layer(op) == LAYER_grad_w ? grad_w_layout(prog, op) : times_matrix_layout(prog, op);
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    (void)facts;
    return cuda_work_bytes(layout_of(prog, op).total);
}

/* ---- preparing ------------------------------------------------------------------------------ */

static enum snug_status prepare_chunks(struct prepared *p, struct snug_error *err)
{
    struct cuda_gemm_shape shape = p->layout.shape;
    shape.c_type = DTYPE_f32;
    shape.m = p->layout.chunk_rows;
    p->path = PATH_chunks;
    TRY(cuda_gemm_prepare(&shape, &p->full, err));
    shape.m = p->layout.n_rows % p->layout.chunk_rows;
    return shape.m > 0 ? cuda_gemm_prepare(&shape, &p->tail, err) : SNUG_OK;
}

/* Keeps the faster of p->full, which is fused, and `direct`, which is followed by a pass over
 * n_bytes.  Either may be NULL. */
static void take_faster(struct prepared *p, struct cuda_gemm *direct, int64_t n_bytes)
{
    if (direct == NULL ||
        (p->full != NULL && cuda_gemm_fused_is_faster(p->full, direct, n_bytes))) {
        cuda_gemm_release(direct);
        return;
    }
    cuda_gemm_release(p->full);
    p->full = direct;
    p->path = PATH_direct;
}

/* Could the epilogue apply the derivative of GELU, as far as the plan can tell? */
static bool may_fuse_dgelu(const struct program *prog, const struct op *op,
                           const struct layout *layout)
{
    struct cuda_gemm_shape shape = layout->shape;
    shape.epilogue = GEMM_dgelu;
    return op_layer(op) == LAYER_grad_x && layout->types_fit && op->attrs.act == ACT_gelu &&
           input(prog, op, 2) != NULL && input(prog, op, 3) == NULL &&
           cuda_gemm_epilogue_fits(&shape);
}

/* The derivative of GELU in the epilogue, with column sums if they are wanted and pay off. */
static enum snug_status prepare_dgelu(const struct program *prog, const struct op *op,
                                      struct prepared *p, struct snug_error *err)
{
    struct cuda_gemm_shape shape = p->layout.shape;
    struct cuda_gemm *summing = NULL;
    shape.epilogue = GEMM_dgelu;
    p->path = PATH_fused;
    TRY(cuda_gemm_prepare(&shape, &p->full, err));
    shape.epilogue = GEMM_dgelu_sums;
    if (op_column_sums(op) != TENSOR_NONE && has_type(output(prog, op, 1), shape.c_type))
        TRY(cuda_gemm_prepare(&shape, &summing, err));
    int64_t n_bytes = shape.m * shape.n * (int64_t)dtype_bytes(shape.c_type);
    if (summing == NULL ||
        (p->full != NULL && !cuda_gemm_fused_is_faster(summing, p->full, n_bytes))) {
        cuda_gemm_release(summing);
        return SNUG_OK;
    }
    cuda_gemm_release(p->full);
    p->full = summing;
    p->sums_in_gemm = true;
    return SNUG_OK;
}

static enum snug_status prepare_times_matrix(const struct program *prog, const struct op *op,
                                             struct prepared *p, struct snug_error *err)
{
    const struct layout *layout = &p->layout;
    bool is_forward = op_layer(op) == LAYER_forward, has_third = input(prog, op, 2) != NULL;
    struct cuda_gemm_shape shape = layout->shape;
    if (may_fuse_dgelu(prog, op, layout))
        TRY(prepare_dgelu(prog, op, p, err));
    if (is_forward && layout->types_fit && op->attrs.act == ACT_gelu &&
        input(prog, op, 3) == NULL) {
        shape.epilogue = GEMM_gelu;
        shape.has_bias = has_third;
        shape.saves_pre_act = output(prog, op, 1) != NULL;
        p->path = PATH_fused;
        TRY(cuda_gemm_prepare(&shape, &p->full, err));
    }
    if (layout->types_fit && (is_forward || !has_third)) {
        struct cuda_gemm *direct = NULL;
        shape = layout->shape;
        shape.epilogue = has_third ? GEMM_bias : GEMM_plain;
        TRY(cuda_gemm_prepare(&shape, &direct, err));
        int64_t n_bytes = 2 * layout->n_rows * layout->n * (int64_t)dtype_bytes(shape.c_type);
        take_faster(p, direct, n_bytes);
    }
    return p->full != NULL ? SNUG_OK : prepare_chunks(p, err);
}

static enum snug_status prepare_grad_w(const struct program *prog, const struct op *op,
                                       struct prepared *p, struct snug_error *err)
{
    const struct tensor *dw = output(prog, op, 0), *dbias = output(prog, op, 1);
    if (dw == NULL)
        return SNUG_OK;
    struct cuda_gemm_shape shape = p->layout.shape;
    if (dbias != NULL && p->layout.types_fit && dbias->dtype == dw->dtype) {
        shape.epilogue = attrs_of(op, linear)->layout ? GEMM_sums_b : GEMM_sums_a;
        p->path = PATH_fused;
        TRY(cuda_gemm_prepare(&shape, &p->full, err));
    }
    struct cuda_gemm *direct = NULL;
    shape.epilogue = GEMM_plain;
    TRY(cuda_gemm_prepare(&shape, &direct, err));
    const struct tensor *dy = input(prog, op, 1);
    take_faster(p, direct, shape_elems(&dy->shape) * (int64_t)dtype_bytes(dy->dtype));
    p->sums_in_gemm = p->path == PATH_fused;
    return SNUG_OK;
}

static void release(void *prepared)
{
    struct prepared *p = prepared;
    if (p != NULL) {
        cuda_gemm_release(p->full);
        cuda_gemm_release(p->tail);
    }
    free(p);
}

static enum snug_status prepare(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err)
{
    (void)facts;
    struct prepared *p = calloc(1, sizeof *p);
    if (p == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory while preparing it",
                         op_infos[op->kind].name);
    p->layout = layout_of(prog, op);
    enum snug_status status = op_layer(op) == LAYER_grad_w ? prepare_grad_w(prog, op, p, err)
                                                           : prepare_times_matrix(prog, op, p, err);
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

/* ---- running -------------------------------------------------------------------------------- */

static struct cuda_array f32_at(const struct kernel_call *call, size_t offset)
{
    return (struct cuda_array){.dtype = DTYPE_f32, .data = cuda_work_at(call->work, offset)};
}

static struct cuda_array from_element(struct cuda_array x, int64_t first)
{
    if (x.data != NULL)
        x.data = (char *)x.data + type_bytes(first, x.dtype);
    return x;
}

/* The operand itself, or an fp32 copy in the workspace. */
static enum snug_status widened(const struct kernel_call *call, const struct operand *x, bool widen,
                                size_t offset, const void **data, struct snug_error *err)
{
    *data = x->data;
    if (!widen)
        return SNUG_OK;
    struct cuda_array copy = f32_at(call, offset);
    *data = copy.data;
    return cuda_done(call, cuda_scale(1.0f, cuda_elems(x), cuda_array_of(x), copy, call->stream),
                     err);
}

static struct cuda_gemm_call gemm_call(const struct kernel_call *call, const void *a, const void *b,
                                       void *c)
{
    const struct prepared *p = call->prepared;
    return (struct cuda_gemm_call){.a = a,
                                   .b = b,
                                   .c = c,
                                   .alpha = 1.0f,
                                   .work = cuda_work_at(call->work, p->layout.gemm),
                                   .stream = call->stream};
}

/* Where the gemm writes its sums.  The library overwrites, so sums that accumulate go to the
 * workspace. */
static struct cuda_array gemm_sums(const struct kernel_call *call, const struct operand *to)
{
    const struct prepared *p = call->prepared;
    struct cuda_array sums = cuda_array_of(to);
    if (sums.data != NULL && call->add)
        sums.data = cuda_work_at(call->work, p->layout.sums);
    return sums;
}

/* to (+)= the column sums of x, which the gemm has computed or which are computed now. */
static int finish_sums(const struct kernel_call *call, const struct operand *x,
                       const struct operand *to)
{
    const struct prepared *p = call->prepared;
    struct cuda_array sums = cuda_array_of(to);
    if (to->data == NULL || (p->sums_in_gemm && !call->add))
        return 0;
    if (p->sums_in_gemm)
        return cuda_add(cuda_elems(to), gemm_sums(call, to), sums, sums, call->stream);
    return cuda_sum_columns(cuda_array_of(x), p->layout.n_rows, shape_last(&x->tensor->shape),
                            cuda_work_at(call->work, p->layout.columns), sums, call->add,
                            call->stream);
}

/* The fused and direct paths: all rows at once, into the result. */
static enum snug_status run_whole(const struct kernel_call *call, const void *a, const void *b,
                                  struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct operand *third = &call->in[2], *r = &call->in[3];
    const struct operand *y = &call->out[0], *pre_act = &call->out[1];
    bool is_forward = op_layer(call->op) == LAYER_forward;
    bool to_pre_act = is_forward && p->path == PATH_direct && pre_act->data != NULL;
    bool acts_after =
        to_pre_act || (is_forward && p->path == PATH_direct && call->op->attrs.act != ACT_none);
    struct cuda_gemm_call gemm = gemm_call(call, a, b, (to_pre_act ? pre_act : y)->data);
    gemm.r = r->data;
    gemm.beta = r->data != NULL ? 1.0f : 0.0f;
    gemm.bias = is_forward ? third->data : NULL;
    gemm.pre_act = is_forward ? pre_act->data : third->data;
    if (p->sums_in_gemm)
        gemm.sums = gemm_sums(call, &call->out[1]).data;
    TRY(cuda_gemm_run(p->full, &gemm, err));
    if (!acts_after)
        return SNUG_OK;
    return cuda_done(call,
                     cuda_act(call->op->attrs.act, cuda_elems(y),
                              cuda_array_of(to_pre_act ? pre_act : y), cuda_array_of(y),
                              call->stream),
                     err);
}

/* Finishes a chunk of n rows, which begins at element `first`. */
static int finish_chunk(const struct kernel_call *call, struct cuda_array sum, int64_t first,
                        int64_t n)
{
    const struct prepared *p = call->prepared;
    int64_t n_elems = n * p->layout.n;
    struct cuda_array third = cuda_array_of(&call->in[2]);
    struct cuda_array r = from_element(cuda_array_of(&call->in[3]), first);
    struct cuda_array y = from_element(cuda_array_of(&call->out[0]), first);
    struct cuda_array pre_act = from_element(cuda_array_of(&call->out[1]), first);
    enum act act = call->op->attrs.act;
    if (op_layer(call->op) == LAYER_forward) {
        struct cuda_array to = pre_act.data != NULL ? pre_act : y;
        int error = cuda_add_bias(n, p->layout.n, sum, third, r, to, call->stream);
        return error != 0 || (act == ACT_none && pre_act.data == NULL)
                   ? error
                   : cuda_act(act, n_elems, to, y, call->stream);
    }
    int error = r.data == NULL ? 0 : cuda_add(n_elems, sum, r, sum, call->stream);
    if (error != 0)
        return error;
    return third.data == NULL
               ? cuda_scale(1.0f, n_elems, sum, y, call->stream)
               : cuda_act_grad(act, n_elems, sum, from_element(third, first), y, call->stream);
}

static enum snug_status run_chunks(const struct kernel_call *call, const void *a, const void *b,
                                   struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    struct cuda_array sum = f32_at(call, layout->sum);
    for (int64_t row = 0; row < layout->n_rows; row += layout->chunk_rows) {
        int64_t n = least(layout->chunk_rows, layout->n_rows - row);
        const void *rows = (const char *)a + type_bytes(row * layout->k, layout->shape.type);
        struct cuda_gemm_call gemm = gemm_call(call, rows, b, sum.data);
        TRY(cuda_gemm_run(n == layout->chunk_rows ? p->full : p->tail, &gemm, err));
        TRY(cuda_done(call, finish_chunk(call, sum, row * layout->n, n), err));
    }
    return SNUG_OK;
}

static enum snug_status run_times_matrix(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    const void *a = NULL, *b = NULL;
    TRY(widened(call, &call->in[0], layout->widen_a, layout->a, &a, err));
    TRY(widened(call, &call->in[1], layout->widen_b, layout->b, &b, err));
    TRY(p->path == PATH_chunks ? run_chunks(call, a, b, err) : run_whole(call, a, b, err));
    return op_layer(call->op) == LAYER_forward
               ? SNUG_OK
               : cuda_done(call, finish_sums(call, &call->out[0], &call->out[1]), err);
}

static enum snug_status run_weights(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    const struct operand *dw = &call->out[0], *dbias = &call->out[1];
    bool in_out = attrs_of(call->op, linear)->layout == LAYOUT_in_out, direct = layout->types_fit;
    struct cuda_array sum = direct ? cuda_array_of(dw) : f32_at(call, layout->sum);
    const void *a = NULL, *b = NULL;
    TRY(widened(call, &call->in[in_out ? 0 : 1], layout->widen_a, layout->a, &a, err));
    TRY(widened(call, &call->in[in_out ? 1 : 0], layout->widen_b, layout->b, &b, err));
    struct cuda_gemm_call gemm = gemm_call(call, a, b, sum.data);
    if (direct && call->add) {
        gemm.r = dw->data;
        gemm.beta = 1.0f;
    }
    gemm.sums = gemm_sums(call, dbias).data;
    TRY(cuda_gemm_run(p->full, &gemm, err));
    int error = 0;
    if (!direct && call->add)
        error = cuda_add(cuda_elems(dw), sum, cuda_array_of(dw), cuda_array_of(dw), call->stream);
    else if (!direct)
        error = cuda_scale(1.0f, cuda_elems(dw), sum, cuda_array_of(dw), call->stream);
    return cuda_done(call, error, err);
}

static enum snug_status run_grad_w(const struct kernel_call *call, struct snug_error *err)
{
    if (call->out[0].data != NULL)
        TRY(run_weights(call, err));
    return cuda_done(call, finish_sums(call, &call->in[1], &call->out[1]), err);
}

/* linear_grad_x: some cuBLASLt algorithms give wrong results if the dgelu epilogue's output aliases
 * its pre-activation input; seen with 24 x 16 x 32. */
static bool grad_x_no_alias(const struct program *prog, const struct op *op)
{
    return input(prog, op, 2) != NULL;
}

static bool sums_columns(const struct program *prog, const struct op *op)
{
    struct layout layout = layout_of(prog, op);
    return op_column_sums(op) != TENSOR_NONE && may_fuse_dgelu(prog, op, &layout) &&
           has_type(output(prog, op, 1), layout.shape.c_type);
}

#define LINEAR_KERNEL(op_kind, runner, alias_rule)                                             \
    {                                                                                          \
        .kind = OP_##op_kind, .name = GEMM_NAME, .supports = supports, .no_alias = alias_rule, \
        .sums_columns = sums_columns, .workspace_bytes = workspace_bytes, .prepare = prepare,  \
        .release = release, .run = runner                                                      \
    }
CUDA_KERNELS(linear) = {
    LINEAR_KERNEL(linear, run_times_matrix, NULL),
    LINEAR_KERNEL(linear_grad_x, run_times_matrix, grad_x_no_alias),
    LINEAR_KERNEL(linear_grad_w, run_grad_w, NULL),
};
CUDA_KERNELS_END(linear)
