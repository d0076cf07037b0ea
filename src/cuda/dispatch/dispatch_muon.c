/*
 * dispatch_muon.c -- orthogonalize (src/optim/muon.c): Newton-Schulz by products of bf16 matrices.
 *
 *     A = bf16(X X^T)      B = bf16(2.0315 A A - 4.7750 A)      Y = bf16(3.4445 X + B X)
 *
 * Each line is one product, rounded once; the next step reads Y for X.  A tall X is not transposed: with
 * A = X^T X, which is as symmetric as its rounding, X B is the transpose of B X^T.  The products are made
 * in a step that is skipped, too: what they read is garbage then, and nobody reads what they write.
 */
#include <stdlib.h>

#include "cuda/optim/matrix_steps.h"
#include "cuda/lib/cuda_gemm.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/dispatch/workspace.h"
#include "ir/matrix_operands.h"

enum { GRAM, SQUARE, TIMES, N_PRODUCTS };

struct muon_layout {
    int64_t n, side; /* elements of X, rows of A */
    bool tall;
    struct cuda_product_shape shape[N_PRODUCTS];
    size_t parts, x, y, a, b, product, bytes; /* places in the workspace */
};

static struct muon_layout layout_of(const struct shape *shape)
{
    struct matrix w = matrix_of(shape, 1);
    struct muon_layout l = {.n = w.rows * w.cols, .tall = w.rows > w.cols};
    int64_t length = l.tall ? w.rows : w.cols;
    size_t most = 0, total = 0;
    l.side = l.tall ? w.cols : w.rows;
    l.shape[GRAM] = (struct cuda_product_shape){
        .m = l.side, .n = l.side, .k = length, .a_transposed = l.tall, .b_transposed = !l.tall};
    l.shape[SQUARE] = (struct cuda_product_shape){.m = l.side, .n = l.side, .k = l.side};
    l.shape[TIMES] = (struct cuda_product_shape){.m = w.rows, .n = w.cols, .k = l.side};
    for (int i = 0; i < N_PRODUCTS; i++) {
        l.shape[i].type = l.shape[i].c_type = DTYPE_bf16;
        l.shape[i].alignment = CUDA_WORK_ALIGNMENT;
        size_t bytes = cuda_product_work_bytes(&l.shape[i]);
        most = bytes > most ? bytes : most;
    }
    l.parts = cuda_work_take(&total, (size_t)parts_count(l.n) * sizeof(double));
    l.x = cuda_work_take(&total, (size_t)l.n * sizeof(uint16_t));
    l.y = cuda_work_take(&total, (size_t)l.n * sizeof(uint16_t));
    l.a = cuda_work_take(&total, (size_t)(l.side * l.side) * sizeof(uint16_t));
    l.b = cuda_work_take(&total, (size_t)(l.side * l.side) * sizeof(uint16_t));
    l.product = cuda_work_take(&total, most);
    l.bytes = cuda_work_bytes(total);
    return l;
}

static bool supports(const struct program *prog, const struct op *op)
{
    return cuda_floats_fit(prog, op, 1u << MATRIX_SCALARS, 0) &&
           prog->tensors[op->in[MATRIX_STATES]].dtype == DTYPE_f32;
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    (void)facts;
    return layout_of(&program_tensor(prog, op->out[0])->shape).bytes;
}

static void release(void *prepared)
{
    struct cuda_product **products = prepared;
    for (int i = 0; products != NULL && i < N_PRODUCTS; i++)
        cuda_product_release(products[i]);
    free(products);
}

static enum snug_status prepare(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err)
{
    (void)facts;
    struct muon_layout l = layout_of(&program_tensor(prog, op->out[0])->shape);
    struct cuda_product **products = calloc(N_PRODUCTS, sizeof(struct cuda_product *));
    if (products == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "orthogonalize: no memory to prepare it");
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < N_PRODUCTS && status == SNUG_OK; i++)
        status = cuda_product_prepare(&l.shape[i], &products[i], err);
    if (status == SNUG_OK)
        *prepared = products;
    else
        release(products);
    return status;
}

/* One step of the iteration: y from x. */
static enum snug_status iterate(const struct kernel_call *call, const struct muon_layout *l,
                                void *x, void *y, struct snug_error *err)
{
    struct cuda_product *const *products = call->prepared;
    void *a = cuda_work_at(call->work, l->a), *b = cuda_work_at(call->work, l->b);
    struct cuda_product_call todo[N_PRODUCTS] = {
        [GRAM] = {.a = x, .b = x, .c = a, .alpha = 1},
        [SQUARE] = {.a = a, .b = a, .c = b, .r = a, .alpha = 2.0315f, .beta = -4.7750f},
        [TIMES] = {.a = l->tall ? x : b,
                   .b = l->tall ? b : x,
                   .c = y,
                   .r = x,
                   .alpha = 1,
                   .beta = 3.4445f}};
    for (int i = 0; i < N_PRODUCTS; i++) {
        todo[i].work = cuda_work_at(call->work, l->product);
        todo[i].stream = call->stream;
        TRY(cuda_product_run(products[i], &todo[i], err));
    }
    return SNUG_OK;
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *u = &call->out[0];
    const double *options = call->op->attrs.options.value;
    const double *scalars = call->in[MATRIX_SCALARS].data, mu = options[ORTHOGONALIZE_mu];
    struct cuda_array g = cuda_array_of(&call->in[MATRIX_GRADIENT]);
    struct muon_layout l = layout_of(&u->tensor->shape);
    float *m = call->in[MATRIX_STATES].data;
    double *parts = cuda_work_at(call->work, l.parts);
    void *x = cuda_work_at(call->work, l.x), *y = cuda_work_at(call->work, l.y);
    int error = cuda_muon_momentum(mu, scalars, l.n, g, m, parts, call->stream);
    if (error == 0)
        error = cuda_muon_begin(mu, scalars, l.n, g, m, parts, x, call->stream);
    TRY(cuda_done(call, error, err));
    for (int i = 0; i < (int)options[ORTHOGONALIZE_steps]; i++) {
        void *before = x;
        TRY(iterate(call, &l, x, y, err));
        x = y;
        y = before;
    }
    return cuda_done(call, cuda_muon_end(scalars, l.n, x, cuda_array_of(u), call->stream), err);
}

CUDA_ROWS(muon) = {
    {.kind = OP_orthogonalize,
     .name = PRODUCT_NAME,
     .supports = supports,
     .workspace_bytes = workspace_bytes,
     .prepare = prepare,
     .release = release,
     .run = run},
};
CUDA_ROWS_END(muon)
