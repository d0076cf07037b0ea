/*
 * dispatch_lm_head.c -- logits, softmax, loss and their gradients, a chunk of rows at a time.
 *
 * The logits of a batch would be by far the largest tensor of a language model.  They exist for one
 * chunk of rows only, in the workspace and in the type of x and W, and their gradient overwrites
 * them:
 *
 *     for each chunk of rows of x:   logits = x W^T
 *                                    lse, losses; logits <- factor * (softmax - labels)     loss.cu
 *                                    dx = logits W;  dW (+)= logits^T x
 *
 * Each chunk reads and writes all of dW once, so chunks should be long.  A 16-bit dW is accumulated
 * in fp32 in the workspace and rounded once, unless there is only one chunk and dW is not
 * accumulated.
 *
 * Gemms are fast when sizes are multiples of 64: with GPT-2's 50,257 classes they ran at a seventh
 * of their rate on an H200.  So W is copied to the workspace and padded with rows of zeros.  The
 * padded logits are 0, the softmax ignores them, and their gradient is 0 too.
 *
 * One loop serves all three ops; each takes the steps it needs, so the fused op gives the bits of
 * the two that it replaces.  The gradient recomputes lse instead of reading it: 16-bit logits are
 * rounded, and the probabilities should sum to 1 for the values as stored.
 */
#include <stdlib.h>

#include "cuda/kernels/elementwise.h"
#include "cuda/kernels/loss.h"
#include "cuda/lib/cuda_gemm.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/kernels/sums.h"
#include "cuda/dispatch/workspace.h"

#define LOGITS_BYTES ((int64_t)832 << 20)
enum { ROWS_MOST = 8192, ROWS_STEP = 128, PITCH_STEP = 64 };

/* Operand indices in the three ops, -1 if absent.  x, W and the targets are inputs 0, 1 and 2. */
struct operand_indices {
    int scalars;           /* input */
    int loss, lse, dx, dw; /* outputs */
};

static struct operand_indices operand_indices_of(enum op_kind kind)
{
    static const struct operand_indices loss = {-1, 0, 1, -1, -1}, grad = {4, -1, -1, 0, 1},
                                        train = {3, 0, 1, 2, 3};
    return kind == OP_linear_cross_entropy        ? loss
           : kind == OP_linear_cross_entropy_grad ? grad
                                                  : train;
}

enum part { PART_logits, PART_dx, PART_dw, PART_COUNT };

struct layout {
    struct operand_indices at;
    int64_t n_rows, width, n_classes, chunk_rows;
    int64_t pitch;   /* classes including the padding */
    enum dtype type; /* of x, W and the logits */
    enum dtype results[PART_COUNT];
    bool wants[PART_COUNT];
    bool pads_w;    /* W is copied to the workspace and padded */
    bool stages_dw; /* computed in the workspace, then copied to the output */
    int alignment;
    size_t logits, lse, losses, w, dw, gemm, total;
};

struct prepared {
    struct layout layout;
    struct cuda_gemm *gemms[PART_COUNT][2]; /* [1]: for the shorter last chunk */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static const struct tensor *output(const struct program *prog, const struct op *op, int k)
{
    return k < 0 || op->out[k] == TENSOR_NONE ? NULL : program_tensor(prog, op->out[k]);
}

/* ---- planning ------------------------------------------------------------------------------- */

static bool supports(const struct program *prog, const struct op *op)
{
    struct operand_indices at = operand_indices_of(op->kind);
    const struct tensor *x = program_tensor(prog, op->in[0]), *w = program_tensor(prog, op->in[1]);
    const struct tensor *lse = output(prog, op, at.lse);
    const struct tensor *loss = output(prog, op, at.loss);
    const struct tensor *gradients[] = {output(prog, op, at.dx), output(prog, op, at.dw)};
    if (x->dtype == DTYPE_f64 || x->dtype != w->dtype || (lse != NULL && lse->dtype != DTYPE_f32) ||
        (loss != NULL && loss->dtype != DTYPE_f32))
        return false;
    for (int i = 0; i < 2; i++)
        if (gradients[i] != NULL && gradients[i]->dtype != x->dtype &&
            gradients[i]->dtype != DTYPE_f32)
            return false;
    return true;
}

static struct cuda_gemm_shape part_shape(const struct layout *l, enum part part, int64_t n_rows)
{
    struct cuda_gemm_shape shape = {
        .n = l->width, .type = l->type, .c_type = l->results[part], .alignment = l->alignment};
    if (part == PART_logits) {
        shape.m = n_rows;
        shape.n = l->pitch;
        shape.k = l->width;
        shape.b_transposed = true;
        shape.ldc = l->pitch;
    } else {
        shape.m = part == PART_dx ? n_rows : l->stages_dw ? l->pitch : l->n_classes;
        shape.k = part == PART_dx ? l->pitch : n_rows;
        shape.a_transposed = part == PART_dw;
        shape.lda = l->pitch;
    }
    return shape;
}

/* The largest workspace of the gemms. */
static size_t gemm_bytes(const struct layout *l)
{
    size_t most = 0;
    for (int part = 0; part < PART_COUNT; part++)
        for (int is_last = 0; is_last < 2; is_last++) {
            int64_t n_rows = is_last ? l->n_rows % l->chunk_rows : l->chunk_rows;
            if (!l->wants[part] || n_rows == 0)
                continue;
            struct cuda_gemm_shape shape = part_shape(l, (enum part)part, n_rows);
            size_t bytes = cuda_gemm_work_bytes(&shape);
            most = bytes > most ? bytes : most;
        }
    return most;
}

static struct layout layout_of(const struct program *prog, const struct op *op)
{
    const struct tensor *x = program_tensor(prog, op->in[0]);
    struct layout l = {.at = operand_indices_of(op->kind),
                       .n_rows = shape_rows(&x->shape),
                       .width = shape_last(&x->shape),
                       .n_classes = shape_rows(&program_tensor(prog, op->in[1])->shape),
                       .type = x->dtype,
                       .alignment = cuda_gemm_alignment(prog, op)};
    const struct tensor *dx = output(prog, op, l.at.dx), *dw = output(prog, op, l.at.dw);
    l.pitch = (l.n_classes + PITCH_STEP - 1) / PITCH_STEP * PITCH_STEP;
    int64_t row_bytes = l.pitch * (int64_t)dtype_bytes(l.type);
    int64_t most = least(ROWS_MOST, LOGITS_BYTES / row_bytes / ROWS_STEP * ROWS_STEP);
    l.chunk_rows = least(l.n_rows, most > ROWS_STEP ? most : ROWS_STEP);
    l.wants[PART_logits] = true;
    l.wants[PART_dx] = dx != NULL;
    l.wants[PART_dw] = dw != NULL;
    l.pads_w = l.pitch > l.n_classes;
    bool has_parts = dw != NULL && dw->dtype != DTYPE_f32 && l.chunk_rows < l.n_rows;
    l.stages_dw = dw != NULL && (has_parts || (l.pads_w && l.type != DTYPE_f32));
    l.results[PART_logits] = l.type;
    l.results[PART_dx] = dx != NULL ? dx->dtype : DTYPE_f32;
    bool is_wide = has_parts || (l.stages_dw && op->attrs.accumulate != ACC_no);
    l.results[PART_dw] = dw != NULL && !is_wide ? dw->dtype : DTYPE_f32;
    l.logits = cuda_work_take(&l.total, (size_t)(l.chunk_rows * row_bytes));
    if (l.at.lse < 0)
        l.lse = cuda_work_take(&l.total, (size_t)l.chunk_rows * sizeof(float));
    if (l.at.loss >= 0)
        l.losses = cuda_work_take(&l.total, (size_t)l.n_rows * sizeof(double));
    if (l.pads_w)
        l.w = cuda_work_take(&l.total, (size_t)(l.pitch * l.width) * dtype_bytes(l.type));
    if (l.stages_dw)
        l.dw =
            cuda_work_take(&l.total, (size_t)(l.pitch * l.width) * dtype_bytes(l.results[PART_dw]));
    l.gemm = cuda_work_take(&l.total, gemm_bytes(&l));
    return l;
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    (void)facts;
    return cuda_work_bytes(layout_of(prog, op).total);
}

static void release(void *prepared)
{
    struct prepared *p = prepared;
    for (int i = 0; p != NULL && i < PART_COUNT * 2; i++)
        cuda_gemm_release(p->gemms[i / 2][i % 2]);
    free(p);
}

static enum snug_status prepare_gemms(struct prepared *p, struct snug_error *err)
{
    const struct layout *l = &p->layout;
    for (int part = 0; part < PART_COUNT; part++)
        for (int is_last = 0; is_last < 2; is_last++) {
            int64_t n_rows = is_last ? l->n_rows % l->chunk_rows : l->chunk_rows;
            if (!l->wants[part] || n_rows == 0)
                continue;
            struct cuda_gemm_shape shape = part_shape(l, (enum part)part, n_rows);
            TRY(cuda_gemm_prepare(&shape, &p->gemms[part][is_last], err));
        }
    return SNUG_OK;
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
    enum snug_status status = prepare_gemms(p, err);
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

/* ---- the loop over chunks
 * --------------------------------------------------------------------- */

/* Row `row` of an operand whose rows are `width` wide. */
static void *row_of(const struct operand *x, int64_t row, int64_t width)
{
    return (char *)x->data + (size_t)(row * width) * dtype_bytes(x->tensor->dtype);
}

/* Runs one of the three gemms for rows row .. row + n; adds: c += instead of c =. */
static enum snug_status multiply(const struct kernel_call *call, enum part part, int64_t row,
                                 int64_t n, void *c, bool adds, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *l = &p->layout;
    const void *x = row_of(&call->in[0], row, l->width);
    const void *logits = cuda_work_at(call->work, l->logits);
    struct cuda_gemm_call gemm = {.a = part == PART_logits ? x : logits,
                                  .b = part == PART_dw ? x
                                       : l->pads_w     ? cuda_work_at(call->work, l->w)
                                                       : call->in[1].data,
                                  .c = c,
                                  .r = adds ? c : NULL,
                                  .alpha = 1.0f,
                                  .beta = adds ? 1.0f : 0.0f,
                                  .work = cuda_work_at(call->work, l->gemm),
                                  .stream = call->stream};
    return cuda_gemm_run(p->gemms[part][n < l->chunk_rows], &gemm, err);
}

static int softmax_chunk(const struct kernel_call *call, int64_t row, int64_t n)
{
    const struct layout *l = &((const struct prepared *)call->prepared)->layout;
    float *lse = l->at.lse >= 0 ? (float *)call->out[l->at.lse].data + row
                                : (float *)cuda_work_at(call->work, l->lse);
    void *logits = cuda_work_at(call->work, l->logits);
    double *losses = cuda_work_at(call->work, l->losses);
    struct cuda_softmax softmax = {
        .n_rows = n,
        .n_classes = l->n_classes,
        .pitch = l->pitch,
        .dtype = l->type,
        .logits = logits,
        .dlogits = l->at.scalars >= 0 ? logits : NULL,
        .targets = (const int32_t *)call->in[2].data + row,
        .lse = lse,
        .makes_lse = true,
        .losses = l->at.loss >= 0 ? losses + row : NULL,
        .smoothing = (float)attrs_of(call->op, loss)->smoothing,
        .grad_factor = attrs_of(call->op, loss)->weight / (double)l->n_rows,
        .scalars = l->at.scalars >= 0 ? call->in[l->at.scalars].data : NULL};
    return cuda_softmax(&softmax, call->stream);
}

static enum snug_status run_chunk(const struct kernel_call *call, int64_t row, int64_t n,
                                  struct snug_error *err)
{
    const struct layout *l = &((const struct prepared *)call->prepared)->layout;
    TRY(multiply(call, PART_logits, row, n, cuda_work_at(call->work, l->logits), false, err));
    TRY(cuda_done(call, softmax_chunk(call, row, n), err));
    if (l->wants[PART_dx])
        TRY(multiply(call, PART_dx, row, n, row_of(&call->out[l->at.dx], row, l->width), false,
                     err));
    if (!l->wants[PART_dw])
        return SNUG_OK;
    void *dw = l->stages_dw ? cuda_work_at(call->work, l->dw) : call->out[l->at.dw].data;
    return multiply(call, PART_dw, row, n, dw, row > 0 || (call->add && !l->stages_dw), err);
}

static int pad_weights(const struct kernel_call *call)
{
    const struct layout *l = &((const struct prepared *)call->prepared)->layout;
    struct cuda_array copy = {.dtype = l->type, .data = cuda_work_at(call->work, l->w)};
    int64_t n = l->n_classes * l->width, n_more = (l->pitch - l->n_classes) * l->width;
    size_t each = dtype_bytes(l->type);
    int error = cuda_scale(1.0f, n, cuda_array_of(&call->in[1]), copy, call->stream);
    return error != 0 ? error
                      : cuda_clear((char *)copy.data + (size_t)n * each, (size_t)n_more * each,
                                   call->stream);
}

/* Copies dW from the workspace to its output, and sums the losses of the rows. */
static int finish(const struct kernel_call *call)
{
    const struct layout *l = &((const struct prepared *)call->prepared)->layout;
    int error = 0;
    if (l->stages_dw) {
        struct cuda_array dw = cuda_array_of(&call->out[l->at.dw]);
        struct cuda_array sums = {.dtype = l->results[PART_dw],
                                  .data = cuda_work_at(call->work, l->dw)};
        int64_t n = l->n_classes * l->width;
        error = call->add ? cuda_add(n, sums, dw, dw, call->stream)
                          : cuda_scale(1.0f, n, sums, dw, call->stream);
    }
    if (error == 0 && l->at.loss >= 0)
        error = cuda_total(cuda_work_at(call->work, l->losses), l->n_rows,
                           attrs_of(call->op, loss)->weight / (double)l->n_rows,
                           cuda_array_of(&call->out[l->at.loss]), call->add, call->stream);
    return error;
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    const struct layout *l = &((const struct prepared *)call->prepared)->layout;
    if (l->pads_w)
        TRY(cuda_done(call, pad_weights(call), err));
    for (int64_t row = 0; row < l->n_rows; row += l->chunk_rows)
        TRY(run_chunk(call, row, least(l->chunk_rows, l->n_rows - row), err));
    return cuda_done(call, finish(call), err);
}

CUDA_KERNELS(lm_head) = {
#define HEAD_KERNEL(op_kind)                                                                   \
    {                                                                                          \
        .kind = OP_##op_kind, .name = GEMM_NAME, .supports = supports,                         \
        .workspace_bytes = workspace_bytes, .prepare = prepare, .release = release, .run = run \
    }
    HEAD_KERNEL(linear_cross_entropy),
    HEAD_KERNEL(linear_cross_entropy_grad),
    HEAD_KERNEL(linear_cross_entropy_train),
#undef HEAD_KERNEL
};
CUDA_KERNELS_END(lm_head)
