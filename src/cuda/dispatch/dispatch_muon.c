/*
 * dispatch_muon.c -- orthogonalize (src/optim/muon.c): Newton-Schulz iterations as bf16 gemms.
 *
 *     A = bf16(X X^T)      B = bf16(2.0315 A A - 4.7750 A)      Y = bf16(3.4445 X + B X)
 *
 * Each line is one gemm, rounded once; the next iteration reads Y as X.  A tall X is not
 * transposed: with A = X^T X, which is symmetric up to rounding, X B is the transpose of B X^T.
 * Skipped steps run the gemms, too: they read garbage, and nothing reads their results.
 */
#include <stdlib.h>

#include "cuda/optim/matrix_steps.h"
#include "cuda/lib/cuda_gemm.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/dispatch/workspace.h"
#include "ir/matrix_operands.h"

enum { GRAM, SQUARE, TIMES, N_GEMMS };

struct muon_layout {
    int64_t n, side; /* elements of X, rows of A */
    bool tall;
    struct cuda_gemm_shape shape[N_GEMMS];
    size_t parts, x, y, a, b, gemm, bytes; /* offsets into the workspace */
};

static struct muon_layout layout_of(const struct shape *shape)
{
    struct matrix w = matrix_of(shape, 1);
    struct muon_layout l = {.n = w.rows * w.cols, .tall = w.rows > w.cols};
    int64_t length = l.tall ? w.rows : w.cols;
    size_t most = 0, total = 0;
    l.side = l.tall ? w.cols : w.rows;
    l.shape[GRAM] = (struct cuda_gemm_shape){
        .m = l.side, .n = l.side, .k = length, .a_transposed = l.tall, .b_transposed = !l.tall};
    l.shape[SQUARE] = (struct cuda_gemm_shape){.m = l.side, .n = l.side, .k = l.side};
    l.shape[TIMES] = (struct cuda_gemm_shape){.m = w.rows, .n = w.cols, .k = l.side};
    for (int i = 0; i < N_GEMMS; i++) {
        l.shape[i].type = l.shape[i].c_type = DTYPE_bf16;
        l.shape[i].alignment = CUDA_WORK_ALIGNMENT;
        size_t bytes = cuda_gemm_work_bytes(&l.shape[i]);
        most = bytes > most ? bytes : most;
    }
    l.parts = cuda_work_take(&total, (size_t)parts_count(l.n) * sizeof(double));
    l.x = cuda_work_take(&total, (size_t)l.n * sizeof(uint16_t));
    l.y = cuda_work_take(&total, (size_t)l.n * sizeof(uint16_t));
    l.a = cuda_work_take(&total, (size_t)(l.side * l.side) * sizeof(uint16_t));
    l.b = cuda_work_take(&total, (size_t)(l.side * l.side) * sizeof(uint16_t));
    l.gemm = cuda_work_take(&total, most);
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
    struct cuda_gemm **gemms = prepared;
    for (int i = 0; gemms != NULL && i < N_GEMMS; i++)
        cuda_gemm_release(gemms[i]);
    free(gemms);
}

static enum snug_status prepare(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err)
{
    (void)facts;
    struct muon_layout l = layout_of(&program_tensor(prog, op->out[0])->shape);
    struct cuda_gemm **gemms = calloc(N_GEMMS, sizeof(struct cuda_gemm *));
    if (gemms == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "orthogonalize: out of memory while preparing it");
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < N_GEMMS && status == SNUG_OK; i++)
        status = cuda_gemm_prepare(&l.shape[i], &gemms[i], err);
    if (status == SNUG_OK)
        *prepared = gemms;
    else
        release(gemms);
    return status;
}

/* One iteration: y from x. */
static enum snug_status iterate(const struct kernel_call *call, const struct muon_layout *l,
                                void *x, void *y, struct snug_error *err)
{
    struct cuda_gemm *const *gemms = call->prepared;
    void *a = cuda_work_at(call->work, l->a), *b = cuda_work_at(call->work, l->b);
    struct cuda_gemm_call todo[N_GEMMS] = {
        [GRAM] = {.a = x, .b = x, .c = a, .alpha = 1},
        [SQUARE] = {.a = a, .b = a, .c = b, .r = a, .alpha = 2.0315f, .beta = -4.7750f},
        [TIMES] = {.a = l->tall ? x : b,
                   .b = l->tall ? b : x,
                   .c = y,
                   .r = x,
                   .alpha = 1,
                   .beta = 3.4445f}};
    for (int i = 0; i < N_GEMMS; i++) {
        todo[i].work = cuda_work_at(call->work, l->gemm);
        todo[i].stream = call->stream;
        TRY(cuda_gemm_run(gemms[i], &todo[i], err));
    }
    return SNUG_OK;
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    const struct operand *u = &call->out[0];
    const double *options = attrs_of(call->op, options)->options.value;
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

CUDA_KERNELS(muon) = {
    {.kind = OP_orthogonalize,
     .name = GEMM_NAME,
     .supports = supports,
     .workspace_bytes = workspace_bytes,
     .prepare = prepare,
     .release = release,
     .run = run},
};
CUDA_KERNELS_END(muon)
