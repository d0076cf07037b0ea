/*
 * linear.c -- linear, linear_grad_x and linear_grad_w as matmuls.
 *
 * linear and linear_grad_x share one path: rows times a matrix.  They process chunks of rows, so
 * that bias, activation and rounding find a chunk still in the cache.  16-bit operands are widened
 * to fp32 in the workspace, the matrix once per op and the rows one chunk at a time.  fp32 operands
 * are read and written in place.
 *
 * linear_grad_w sums over rows.  In fp32 it is one matmul.  With a 16-bit operand it is one matmul
 * per chunk, accumulated in dW itself or, if dW is 16-bit, in fp32 in the workspace and rounded
 * once.
 *
 * On CPUs with tiles, matmuls of two bf16 operands run without widening (gemm_bf16.h), on all rows
 * at once and with an epilogue.  The choice is made when an op is prepared.  The workspace suffices
 * for both, so a plan does not depend on the planning machine.
 */
#include "cpu/cpu.h"
#include "cpu/cpu_isa.h"
#include "cpu/gemm/gemm_bf16.h"

#include <stdlib.h>

enum { CACHED_ELEMS = 1 << 20 }; /* larger results use non-temporal stores */

/* The workspace layout of an op on tiles. */
struct tiled {
    bool fits;               /* both operands are bf16 */
    struct gemm_shape shape; /* over all rows */
    size_t bias, gemm, total;
};

/* The shape of an op and its workspace.  An offset is valid only if the op uses that piece. */
struct layout {
    int64_t n_rows, chunk_rows;
    int64_t width_in, width_out; /* of the input and output rows; of x and dy in grad_w */
    struct gemm_shape shape;     /* of a full chunk */
    bool splits_k;               /* rows are the k dimension (grad_w), else m */
    bool acc_in_work;            /* a matmul writes to the workspace, not to the result */
    bool needs_finish;           /* a matmul needs an epilogue pass */
    size_t matrix, bias, left, right, acc, gemm, total;
    struct tiled tiled;
};

struct prepared {
    struct layout layout;
    int threads;
    const struct cpu_loops *loops;
    gemm_bf16_fn *gemm_bf16;  /* NULL if not on tiles */
    struct gemm *full, *tail; /* a chunk, and the shorter last one */
};

static const struct tensor *input(const struct program *prog, const struct op *op, int k)
{
    return k < op->n_in && op->in[k] != TENSOR_NONE ? program_tensor(prog, op->in[k]) : NULL;
}

static const struct tensor *output(const struct program *prog, const struct op *op, int k)
{
    return k < op->n_out && op->out[k] != TENSOR_NONE ? program_tensor(prog, op->out[k]) : NULL;
}

static bool is_f32(const struct tensor *tensor)
{
    return tensor != NULL && tensor->dtype == DTYPE_f32;
}

/* linear_grad_x with column sums is not supported here: linear_grad_w computes them. */
static bool supports(const struct program *prog, const struct op *op)
{
    if (op_column_sums(op) != TENSOR_NONE)
        return false;
    for (int k = 0; k < MAX_INPUTS; k++)
        if (input(prog, op, k) != NULL && !dtype_is_gemm(input(prog, op, k)->dtype))
            return false;
    for (int k = 0; k < MAX_OUTPUTS; k++)
        if (output(prog, op, k) != NULL && !dtype_is_gemm(output(prog, op, k)->dtype))
            return false;
    return true;
}

/* The shape of a matmul over `rows` rows. */
static struct gemm_shape shape_for(const struct layout *layout, int64_t rows)
{
    struct gemm_shape shape = layout->shape;
    *(layout->splits_k ? &shape.k : &shape.m) = rows;
    return shape;
}

static size_t both_work_bytes(const struct layout *layout, int threads)
{
    struct gemm_shape full = shape_for(layout, layout->chunk_rows);
    size_t bytes = gemm_work_bytes(&full, threads);
    int64_t tail_rows = layout->n_rows % layout->chunk_rows;
    if (tail_rows > 0) {
        struct gemm_shape tail = shape_for(layout, tail_rows);
        size_t tail_bytes = gemm_work_bytes(&tail, threads);
        bytes = tail_bytes > bytes ? tail_bytes : bytes;
    }
    return bytes;
}

/* `bias` is the number of elements of the fp32 copy of the bias, or 0. */
static void book_tiled(struct layout *layout, int64_t bias, const struct tensor *left,
                       const struct tensor *right, int threads)
{
    struct tiled *tiled = &layout->tiled;
    tiled->fits = left->dtype == DTYPE_bf16 && right->dtype == DTYPE_bf16;
    if (!tiled->fits)
        return;
    tiled->shape = shape_for(layout, layout->n_rows);
    tiled->bias = work_take(&tiled->total, f32_bytes(bias));
    tiled->gemm = work_take(&tiled->total, gemm_bf16_plan(&tiled->shape, threads).total);
    layout->total = tiled->total > layout->total ? tiled->total : layout->total;
}

/* linear: rows x [I] times W^T; linear_grad_x: rows dy [O] times W. */
static struct layout times_matrix_layout(const struct program *prog, const struct op *op,
                                         const struct device_facts *facts)
{
    const struct tensor *rows_in = input(prog, op, 0), *matrix = input(prog, op, 1);
    const struct tensor *third = input(prog, op, 2);
    bool is_forward = op_layer(op) == LAYER_forward;
    const struct tensor *bias = is_forward ? third : NULL, *slope_at = is_forward ? NULL : third;
    const struct tensor *y = output(prog, op, 0), *before = output(prog, op, 1);
    int64_t k = shape_last(&rows_in->shape), n = shape_last(&y->shape);
    struct layout layout = {.n_rows = shape_rows(&rows_in->shape), .width_in = k, .width_out = n};

    /* A short chunk stays in the cache, but every thread needs a share of it and each matmul packs
     * the matrix again.  So chunks are longer if nothing is widened, and there is only one if no
     * epilogue is needed either.  The split does not change the results: each row is its own sum
     * over k. */
    enum { LEAST_CHUNK = 256 };
    bool all_f32 = is_f32(rows_in) && is_f32(matrix) && is_f32(y);
    int64_t most_rows = facts->threads <= 2 ? LEAST_CHUNK : LEAST_CHUNK / 2 * facts->threads;
    layout.acc_in_work =
        slope_at != NULL || input(prog, op, 3) != NULL || (!is_f32(y) && !is_f32(before));
    layout.needs_finish = layout.acc_in_work || !is_f32(y) || bias != NULL || before != NULL ||
                          (is_forward && op->attrs.act != ACT_none);
    if (all_f32)
        most_rows = layout.needs_finish ? 4 * most_rows : layout.n_rows;
    int64_t n_chunks = (layout.n_rows + most_rows - 1) / most_rows; /* of about equal length */
    layout.chunk_rows = (layout.n_rows + n_chunks - 1) / n_chunks;
    bool matrix_is_n_k = is_forward != (attrs_of(op, linear)->layout == LAYOUT_in_out);
    layout.shape = (struct gemm_shape){.m = layout.chunk_rows,
                                       .n = n,
                                       .k = k,
                                       .b_transposed = matrix_is_n_k,
                                       .lda = k,
                                       .ldb = matrix_is_n_k ? k : n,
                                       .ldc = n,
                                       /* widened chunks vary in length: use the shortest */
                                       .chosen_by_m = all_f32 ? layout.n_rows : LEAST_CHUNK};
    if (!is_f32(matrix))
        layout.matrix = work_take(&layout.total, f32_bytes(n * k));
    if (bias != NULL && !is_f32(bias))
        layout.bias = work_take(&layout.total, f32_bytes(n));
    if (!is_f32(rows_in))
        layout.left = work_take(&layout.total, f32_bytes(layout.chunk_rows * k));
    if (layout.acc_in_work)
        layout.acc = work_take(&layout.total, f32_bytes(layout.chunk_rows * n));
    layout.gemm = work_take(&layout.total, both_work_bytes(&layout, facts->threads));
    book_tiled(&layout, bias != NULL && !is_f32(bias) ? n : 0, rows_in, matrix, facts->threads);
    return layout;
}

/* dW [O,I] = dy^T x, or in the layout [I,O] dW = x^T dy.  Both are left^T right. */
static struct layout grad_w_layout(const struct program *prog, const struct op *op,
                                   const struct device_facts *facts)
{
    const struct tensor *x = input(prog, op, 0), *dy = input(prog, op, 1);
    const struct tensor *dw = output(prog, op, 0);
    struct layout layout = {.n_rows = shape_rows(&x->shape),
                            .width_in = shape_last(&x->shape),
                            .width_out = shape_last(&dy->shape),
                            .splits_k = true};
    int64_t m = attrs_of(op, linear)->layout ? layout.width_in : layout.width_out;
    int64_t n = attrs_of(op, linear)->layout ? layout.width_out : layout.width_in;

    layout.chunk_rows = is_f32(x) && is_f32(dy) ? layout.n_rows : least(layout.n_rows, 512);
    layout.shape = (struct gemm_shape){.m = m,
                                       .n = n,
                                       .k = layout.chunk_rows,
                                       .a_transposed = true,
                                       .lda = m,
                                       .ldb = n,
                                       .ldc = n,
                                       .may_add = true};
    if (dw == NULL)
        return layout; /* a bias alone needs no matmul */
    if (!is_f32(x))
        layout.left = work_take(&layout.total, f32_bytes(layout.chunk_rows * layout.width_in));
    if (!is_f32(dy))
        layout.right = work_take(&layout.total, f32_bytes(layout.chunk_rows * layout.width_out));
    if (!is_f32(dw))
        layout.acc = work_take(&layout.total, f32_bytes(m * n));
    layout.gemm = work_take(&layout.total, both_work_bytes(&layout, facts->threads));
    book_tiled(&layout, 0, x, dy, facts->threads);
    return layout;
}

static struct layout layout_of(const struct program *prog, const struct op *op,
                               const struct device_facts *facts)
{
    return op_layer(op) == LAYER_grad_w ? grad_w_layout(prog, op, facts)
                                        : times_matrix_layout(prog, op, facts);
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    return layout_of(prog, op, facts).total;
}

static void release(void *prepared)
{
    struct prepared *p = prepared;
    if (p != NULL) {
        gemm_release(p->full);
        gemm_release(p->tail);
    }
    free(p);
}

static enum snug_status prepare(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err)
{
    struct prepared *p = calloc(1, sizeof *p);
    if (p == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory preparing the op",
                         op_infos[op->kind].name);
    p->layout = layout_of(prog, op, facts);
    const struct cpu_isa *isa = facts->isa;
    p->threads = facts->threads;
    p->loops = isa->loops;
    p->gemm_bf16 = p->layout.tiled.fits ? isa->gemm_bf16 : NULL;
    enum snug_status status = SNUG_OK;
    int64_t tail_rows = p->layout.n_rows % p->layout.chunk_rows;
    if (output(prog, op, 0) != NULL && p->gemm_bf16 == NULL) {
        struct gemm_shape full = shape_for(&p->layout, p->layout.chunk_rows);
        struct gemm_shape tail = shape_for(&p->layout, tail_rows);
        status = gemm_prepare(&full, p->threads, p->loops, &p->full, err);
        if (status == SNUG_OK && tail_rows > 0)
            status = gemm_prepare(&tail, p->threads, p->loops, &p->tail, err);
    }
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

/* The destination of a chunk's matmul: an fp32 output, `before` or y; or the workspace if y may
 * alias an input that is still to be read, or if neither output is fp32. */
static float *chunk_target(const struct kernel_call *call, const struct layout *layout, int64_t row)
{
    const struct operand *y = &call->out[0], *before = &call->out[1];
    if (layout->acc_in_work)
        return work_at(call->work, layout->acc);
    bool to_before = before->data != NULL && is_f32(before->tensor);
    return (float *)(to_before ? before : y)->data + row * layout->width_out;
}

/* The epilogue over all rows: bias, residual, and the activation or its derivative. */
static struct linear_finish finish_of(const struct kernel_call *call, size_t bias_copy)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    const struct operand *third = &call->in[2];
    bool is_forward = op_layer(call->op) == LAYER_forward;
    struct linear_finish finish = {.n_rows = layout->n_rows,
                                   .width = layout->width_out,
                                   .act = is_forward || third->data != NULL ? call->op->attrs.act
                                                                            : ACT_none,
                                   .more = span_of(&call->in[3], 0),
                                   .before = span_of(&call->out[1], 0),
                                   .y = span_of(&call->out[0], 0)};
    if (third->data != NULL && is_forward)
        finish.bias = span_view(p->loops, p->threads, span_of(third, 0), layout->width_out,
                                work_at(call->work, bias_copy));
    else if (third->data != NULL)
        finish.slope_at = span_of(third, 0);
    return finish;
}

static void run_times_matrix_tiled(const struct kernel_call *call)
{
    const struct prepared *p = call->prepared;
    const struct tiled *tiled = &p->layout.tiled;
    struct linear_finish finish = finish_of(call, tiled->bias);
    struct gemm_bf16_out out = {.how = FINISH_store,
                                .pitch = finish.width,
                                .bias = finish.bias,
                                .act = finish.act,
                                .before = finish.before,
                                .slope_at = finish.slope_at,
                                .more = finish.more,
                                .y = finish.y,
                                .around_cache = finish.n_rows * finish.width > CACHED_ELEMS};
    p->gemm_bf16(p->threads, &tiled->shape, call->in[0].data, call->in[1].data, &out,
                 work_at(call->work, tiled->gemm));
}

static enum snug_status run_times_matrix(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    if (p->gemm_bf16 != NULL) {
        run_times_matrix_tiled(call);
        return SNUG_OK;
    }
    const float *matrix =
        span_view(p->loops, p->threads, span_of(&call->in[1], 0),
                  layout->width_in * layout->width_out, work_at(call->work, layout->matrix));
    struct linear_finish finish = finish_of(call, layout->bias);
    for (int64_t row = 0; row < layout->n_rows; row += layout->chunk_rows) {
        int64_t n = least(layout->chunk_rows, layout->n_rows - row);
        const float *rows_in =
            span_view(p->loops, p->threads, span_of(&call->in[0], row * layout->width_in),
                      n * layout->width_in, work_at(call->work, layout->left));
        int64_t first = row * layout->width_out;
        finish.n_rows = n;
        finish.acc = chunk_target(call, layout, row);
        finish.before.begin = finish.y.begin = finish.slope_at.begin = first;
        finish.more.begin = first;
        TRY(gemm_run(n == layout->chunk_rows ? p->full : p->tail, rows_in, matrix, finish.acc,
                     false, work_at(call->work, layout->gemm), err));
        if (layout->needs_finish)
            p->loops->finish_linear(p->threads, &finish);
    }
    return SNUG_OK;
}

static void run_grad_w_tiled(const struct kernel_call *call)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    bool in_out = attrs_of(call->op, linear)->layout == LAYOUT_in_out;
    const uint16_t *left = call->in[in_out ? 0 : 1].data, *right = call->in[in_out ? 1 : 0].data;
    struct gemm_bf16_out out = {.how = FINISH_store,
                                .pitch = layout->shape.n,
                                .y = span_of(&call->out[0], 0),
                                .add = call->add};
    p->gemm_bf16(p->threads, &layout->tiled.shape, left, right, &out,
                 work_at(call->work, layout->tiled.gemm));
}

static enum snug_status sum_grad_w(const struct kernel_call *call, float *sum, bool add,
                                   struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    bool in_out = attrs_of(call->op, linear)->layout == LAYOUT_in_out;
    for (int64_t row = 0; row < layout->n_rows; row += layout->chunk_rows) {
        int64_t n = least(layout->chunk_rows, layout->n_rows - row);
        const float *x =
            span_view(p->loops, p->threads, span_of(&call->in[0], row * layout->width_in),
                      n * layout->width_in, work_at(call->work, layout->left));
        const float *dy =
            span_view(p->loops, p->threads, span_of(&call->in[1], row * layout->width_out),
                      n * layout->width_out, work_at(call->work, layout->right));
        TRY(gemm_run(n == layout->chunk_rows ? p->full : p->tail, in_out ? x : dy, in_out ? dy : x,
                     sum, add || row > 0, work_at(call->work, layout->gemm), err));
    }
    return SNUG_OK;
}

static enum snug_status run_grad_w(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *layout = &p->layout;
    const struct operand *dy = &call->in[1];
    const struct operand *dw = &call->out[0], *dbias = &call->out[1];

    if (dbias->data != NULL)
        p->loops->sum_columns(p->threads, span_of(dy, 0), layout->n_rows, layout->width_out,
                              span_of(dbias, 0), call->add);
    if (dw->data == NULL)
        return SNUG_OK;
    if (p->gemm_bf16 != NULL) {
        run_grad_w_tiled(call);
        return SNUG_OK;
    }
    bool direct = is_f32(dw->tensor);
    float *sum = direct ? dw->data : work_at(call->work, layout->acc);
    TRY(sum_grad_w(call, sum, direct && call->add, err));
    if (!direct)
        p->loops->narrow(p->threads, span_of(dw, 0), layout->shape.m * layout->shape.n, sum,
                         call->add);
    return SNUG_OK;
}

static const struct kernel kernels[] = {
#define ROW(op_kind, runner)                                                                      \
    {                                                                                             \
        .kind = OP_##op_kind, .name = GEMM_NAME, .supports = supports,                            \
        .workspace_bytes = workspace_bytes, .prepare = prepare, .release = release, .run = runner \
    }
    ROW(linear, run_times_matrix),
    ROW(linear_grad_x, run_times_matrix),
    ROW(linear_grad_w, run_grad_w),
#undef ROW
};

const struct kernel *cpu_linear_kernels(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
