/*
 * lm_head.c -- the fused LM head: logits, softmax, loss and gradients, one chunk of rows at a time.
 *
 * For GPT-2 and 4096 rows the logits would take 785 MiB.  They are computed for one chunk of rows
 * at a time, at most 64 MiB, in the workspace, and the gradient of the softmax overwrites them:
 *
 *     for each chunk of rows of x
 *         for each block of rows of W:   logits[chunk, block] = x W^T
 *         lse, loss; logits <- factor * (softmax - labels)
 *         for each block of W:           dx += dlogits[chunk, block] W;  dW[block] (+)= dlogits^T x
 *
 * An fp32 W is one block, read in place.  (Chunks of 200 MiB would read it and dW a third as often:
 * 6% of the head on two cores of a Xeon, 1.5% of a step of GPT-2, for 136 MiB more in the smallest
 * plan.)  The rows of logits are contiguous, because oneDNN's fast matmuls require it.
 *
 * A 16-bit W is widened one block at a time (16 MiB), once for the logits and once for dx of each
 * chunk.  That takes about 5% of the time and saves an fp32 copy of the whole W.  A 16-bit dW is
 * accumulated in fp32 in the workspace and rounded once: all of it if there are several chunks (4
 * bytes x V x C), else one block at a time.  So if there are few rows, one chunk of more than 64
 * MiB takes less memory: 512 rows of Qwen2.5-0.5B 297 MiB of logits instead of 64 and a dW of 519.
 *
 * With label smoothing the loss also needs the sum of all logits.  It is the dot product of the
 * column sums of x and of W: two passes over the operands instead of one over the logits.
 *
 * If x and W are bf16 and the CPU has tiles, lm_head_bf16.c runs the op instead.  The choice is
 * made when the op is prepared.  The workspace suffices for both.
 *
 * One loop serves all three ops, and each runs only the steps it needs.  So the fused op gives the
 * same bits as the two ops it replaces, except on tiles, where it sums exponentials of other
 * differences.
 */
#include "cpu/cpu.h"
#include "cpu/cpu_isa.h"
#include "cpu/gemm/lm_head_bf16.h"
#include "cpu/ref/ref.h"

#include <stdlib.h>

enum { LOGITS_BYTES = 64 << 20, BLOCK_BYTES = 16 << 20, ROWS_STEP = 16 };

/* Indices of the operands in the three ops. */
struct places {
    bool has_loss, has_gradient;
    int targets, scalars; /* inputs; x is 0 and W is 1 */
    int lse_in, lse_out;  /* -1 if absent */
    int loss, dx, dw;     /* outputs */
};

static struct places places_of(enum op_kind kind)
{
    switch (kind) {
    case OP_linear_cross_entropy:
        return (struct places){true, false, 2, -1, -1, 1, 0, -1, -1};
    case OP_linear_cross_entropy_grad:
        return (struct places){false, true, 2, 4, 3, -1, -1, 0, 1};
    default: /* linear_cross_entropy_train */
        return (struct places){true, true, 2, 3, -1, 1, 0, 2, 3};
    }
}

enum part { PART_logits, PART_dx, PART_dw, PART_COUNT };

struct layout {
    int64_t n_rows, width, n_classes;
    int64_t chunk_rows, block_classes;
    bool wants[PART_COUNT];
    bool dw_whole;   /* a 16-bit dW is accumulated whole in fp32, not by blocks */
    bool fits_tiles; /* x and W are bf16 */
    struct lm_head_bf16 tiled;
    size_t column_sums_bytes;                  /* of x, then of W, at the start of the workspace */
    size_t logits, losses, x, w, dx, dw, gemm; /* for the fp32 path */
    size_t tiled_losses, tiled_work;
    size_t total;
};

struct prepared {
    struct layout layout;
    int threads;
    const struct cpu_loops *loops;
    gemm_bf16_fn *gemm_bf16;              /* set on tiles; then no gemms are prepared */
    struct gemm *gemms[PART_COUNT][2][2]; /* [shorter last chunk][shorter last block] */
};

static bool supports(const struct program *prog, const struct op *op)
{
    struct places at = places_of(op->kind);
    const tensor_id floats[] = {op->in[0], op->in[1],
                                at.has_gradient ? op->out[at.dx] : TENSOR_NONE,
                                at.has_gradient ? op->out[at.dw] : TENSOR_NONE};
    const tensor_id f32s[] = {at.lse_in >= 0 ? op->in[at.lse_in] : op->out[at.lse_out],
                              at.has_loss ? op->out[at.loss] : TENSOR_NONE};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (floats[i] != TENSOR_NONE && !dtype_is_gemm(program_tensor(prog, floats[i])->dtype))
            return false;
    for (size_t i = 0; i < sizeof f32s / sizeof *f32s; i++)
        if (f32s[i] != TENSOR_NONE && program_tensor(prog, f32s[i])->dtype != DTYPE_f32)
            return false;
    return true;
}

static struct gemm_shape part_shape(const struct layout *layout, enum part part, int64_t rows,
                                    int64_t classes)
{
    int64_t width = layout->width, pitch = layout->n_classes;
    switch (part) {
    case PART_logits:
        return (struct gemm_shape){.m = rows,
                                   .n = classes,
                                   .k = width,
                                   .b_transposed = true,
                                   .lda = width,
                                   .ldb = width,
                                   .ldc = pitch,
                                   .chosen_by_m = layout->chunk_rows};
    case PART_dx:
        return (struct gemm_shape){.m = rows,
                                   .n = width,
                                   .k = classes,
                                   .lda = pitch,
                                   .ldb = width,
                                   .ldc = width,
                                   .may_add = layout->block_classes < layout->n_classes,
                                   .chosen_by_m = layout->chunk_rows};
    default: /* PART_dw */
        return (struct gemm_shape){.m = classes,
                                   .n = width,
                                   .k = rows,
                                   .a_transposed = true,
                                   .lda = pitch,
                                   .ldb = width,
                                   .ldc = width,
                                   .may_add = true};
    }
}

/* The shape of one of the op's matmuls.  Returns false if the op does not need it. */
static bool nth_shape(const struct layout *layout, int part, int last_chunk, int last_block,
                      struct gemm_shape *shape)
{
    const struct layout *l = layout;
    int64_t n_rows = last_chunk ? l->n_rows % l->chunk_rows : l->chunk_rows;
    int64_t n_classes = last_block ? l->n_classes % l->block_classes : l->block_classes;
    if (!l->wants[part] || n_rows == 0 || n_classes == 0)
        return false;
    *shape = part_shape(l, (enum part)part, n_rows, n_classes);
    return true;
}

static size_t gemms_work_bytes(const struct layout *layout, int threads)
{
    size_t most = 0;
    struct gemm_shape shape;
    for (int i = 0; i < PART_COUNT * 4; i++)
        if (nth_shape(layout, i / 4, i / 2 % 2, i % 2, &shape)) {
            size_t bytes = gemm_work_bytes(&shape, threads);
            most = bytes > most ? bytes : most;
        }
    return most;
}

/* Rows that fit in `bytes`, in whole steps, but at least one step. */
static int64_t rows_in(int64_t bytes, int64_t row_bytes)
{
    int64_t n = bytes / row_bytes;
    return n >= ROWS_STEP ? n / ROWS_STEP * ROWS_STEP : n > 1 ? n : 1;
}

static bool is_half(const struct program *prog, tensor_id id)
{
    return id != TENSOR_NONE && program_tensor(prog, id)->dtype != DTYPE_f32;
}

/* A chunk of all rows needs no dW in fp32, which may be larger than the logits of these rows.  Else
 * chunks may be as large as what the tiled path books for its exponentials anyway.  The number of
 * threads does not matter here, because the chunks decide how sums over rows are split. */
static int64_t choose_chunk_rows(const struct layout *l, bool half_dw)
{
    int64_t row_bytes = l->n_classes * (int64_t)sizeof(float), limit = LOGITS_BYTES;
    int64_t dw_bytes = half_dw ? l->n_classes * l->width * (int64_t)sizeof(float) : 0;
    if (l->n_rows * row_bytes <= LOGITS_BYTES + dw_bytes - BLOCK_BYTES)
        return l->n_rows;
    if (l->fits_tiles) {
        int64_t kept_bytes = lm_head_bf16_kept_bytes(&l->tiled) - dw_bytes - BLOCK_BYTES;
        limit = kept_bytes > limit ? kept_bytes : limit;
    }
    return least(l->n_rows, rows_in(limit, row_bytes));
}

static void describe_tiled(const struct program *prog, const struct op *op,
                           const struct device_facts *facts, struct layout *l)
{
    struct places at = places_of(op->kind);
    l->fits_tiles = program_tensor(prog, op->in[0])->dtype == DTYPE_bf16 &&
                    program_tensor(prog, op->in[1])->dtype == DTYPE_bf16;
    l->tiled = (struct lm_head_bf16){.n_rows = l->n_rows,
                                     .width = l->width,
                                     .n_classes = l->n_classes,
                                     .threads = facts->threads,
                                     .makes_lse = at.lse_out >= 0,
                                     .is_smoothed = attrs_of(op, loss)->smoothing > 0.0,
                                     .wants_dx = l->wants[PART_dx],
                                     .wants_dw = l->wants[PART_dw]};
    if (l->wants[PART_dx])
        l->tiled.dx_is_f32 = !is_half(prog, op->out[at.dx]);
    if (l->wants[PART_dw])
        l->tiled.dw_is_f32 = !is_half(prog, op->out[at.dw]);
}

/* Adds the workspace of the tiled path, if the op can take it. */
static void book_tiled(struct layout *l, bool has_loss)
{
    size_t total = l->column_sums_bytes;
    if (!l->fits_tiles)
        return;
    if (has_loss)
        l->tiled_losses = work_take(&total, (size_t)l->n_rows * sizeof(double));
    l->tiled_work = work_take(&total, lm_head_bf16_work_bytes(&l->tiled));
    l->total = total > l->total ? total : l->total;
}

static struct layout layout_of(const struct program *prog, const struct op *op,
                               const struct device_facts *facts)
{
    struct places at = places_of(op->kind);
    const struct shape *x = &program_tensor(prog, op->in[0])->shape;
    const struct shape *w = &program_tensor(prog, op->in[1])->shape;
    struct layout l = {.n_rows = shape_rows(x), .width = shape_last(x), .n_classes = shape_rows(w)};
    tensor_id dx = at.has_gradient ? op->out[at.dx] : TENSOR_NONE;
    tensor_id dw = at.has_gradient ? op->out[at.dw] : TENSOR_NONE;

    l.wants[PART_logits] = true;
    l.wants[PART_dx] = dx != TENSOR_NONE;
    l.wants[PART_dw] = dw != TENSOR_NONE;
    describe_tiled(prog, op, facts, &l);
    l.chunk_rows = choose_chunk_rows(&l, is_half(prog, dw));
    bool by_blocks = is_half(prog, op->in[1]) || is_half(prog, dw);
    l.block_classes = l.n_classes;
    if (by_blocks)
        l.block_classes = least(l.n_classes, rows_in(BLOCK_BYTES, l.width * 4));
    l.dw_whole = l.n_rows > l.chunk_rows;

    if (at.has_loss && attrs_of(op, loss)->smoothing > 0)
        work_take(&l.column_sums_bytes, 2 * f32_bytes(l.width));
    l.total = l.column_sums_bytes;
    l.logits = work_take(&l.total, f32_bytes(l.chunk_rows * l.n_classes));
    if (at.has_loss)
        l.losses = work_take(&l.total, (size_t)l.chunk_rows * sizeof(double));
    if (is_half(prog, op->in[0]))
        l.x = work_take(&l.total, f32_bytes(l.chunk_rows * l.width));
    if (is_half(prog, op->in[1]))
        l.w = work_take(&l.total, f32_bytes(l.block_classes * l.width));
    if (is_half(prog, dx))
        l.dx = work_take(&l.total, f32_bytes(l.chunk_rows * l.width));
    if (is_half(prog, dw))
        l.dw =
            work_take(&l.total, f32_bytes((l.dw_whole ? l.n_classes : l.block_classes) * l.width));
    l.gemm = work_take(&l.total, gemms_work_bytes(&l, facts->threads));
    book_tiled(&l, at.has_loss);
    return l;
}

static size_t workspace_bytes(const struct program *prog, const struct op *op,
                              const struct device_facts *facts)
{
    return layout_of(prog, op, facts).total;
}

static void release(void *prepared)
{
    struct prepared *p = prepared;
    for (int i = 0; p != NULL && i < PART_COUNT * 4; i++)
        gemm_release(p->gemms[i / 4][i / 2 % 2][i % 2]);
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
    p->gemm_bf16 = p->layout.fits_tiles ? isa->gemm_bf16 : NULL;
    struct gemm_shape shape;
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < PART_COUNT * 4 && status == SNUG_OK && p->gemm_bf16 == NULL; i++)
        if (nth_shape(&p->layout, i / 4, i / 2 % 2, i % 2, &shape))
            status =
                gemm_prepare(&shape, p->threads, p->loops, &p->gemms[i / 4][i / 2 % 2][i % 2], err);
    if (status == SNUG_OK)
        *prepared = p;
    else
        release(p);
    return status;
}

/* ---- running ------------------------------------------------------------------------------- */

struct walk {
    const struct kernel_call *call;
    const struct prepared *p;
    const struct layout *layout;
    struct places at;
    int64_t row, n_rows; /* of the current chunk */
    const float *x;      /* its rows */
    float *logits, *dx;
};

static const float *w_block(const struct walk *walk, int64_t first, int64_t n_classes)
{
    const struct layout *l = walk->layout;
    return span_view(walk->p->loops, walk->p->threads,
                     span_of(&walk->call->in[1], first * l->width), n_classes * l->width,
                     work_at(walk->call->work, l->w));
}

/* One of the three matmuls for the classes [first, first + n) of the current chunk: C (+)= ... */
static enum snug_status multiply(const struct walk *walk, enum part part, int64_t first, int64_t n,
                                 float *c, bool add, struct snug_error *err)
{
    const struct layout *l = walk->layout;
    void *work = work_at(walk->call->work, l->gemm);
    const struct gemm *gemm =
        walk->p->gemms[part][walk->n_rows < l->chunk_rows][n < l->block_classes];
    return gemm_run(gemm, part == PART_logits ? walk->x : walk->logits + first,
                    part == PART_dw ? walk->x : w_block(walk, first, n), c, add, work, err);
}

static enum snug_status make_logits(const struct walk *walk, struct snug_error *err)
{
    const struct layout *l = walk->layout;
    for (int64_t first = 0; first < l->n_classes; first += l->block_classes) {
        int64_t n = least(l->block_classes, l->n_classes - first);
        TRY(multiply(walk, PART_logits, first, n, walk->logits + first, false, err));
    }
    return SNUG_OK;
}

static enum snug_status add_to_dx(const struct walk *walk, struct snug_error *err)
{
    const struct layout *l = walk->layout;
    const struct operand *out = &walk->call->out[walk->at.dx];
    for (int64_t first = 0; first < l->n_classes; first += l->block_classes) {
        int64_t n = least(l->block_classes, l->n_classes - first);
        TRY(multiply(walk, PART_dx, first, n, walk->dx, first > 0, err));
    }
    if (out->tensor->dtype != DTYPE_f32)
        walk->p->loops->narrow(walk->p->threads, span_of(out, walk->row * l->width),
                               walk->n_rows * l->width, walk->dx, false);
    return SNUG_OK;
}

static enum snug_status add_to_dw(const struct walk *walk, struct snug_error *err)
{
    const struct layout *l = walk->layout;
    const struct operand *out = &walk->call->out[walk->at.dw];
    bool direct = out->tensor->dtype == DTYPE_f32;
    bool is_last = walk->row + walk->n_rows == l->n_rows;
    float *whole = direct ? out->data : work_at(walk->call->work, l->dw);
    for (int64_t first = 0; first < l->n_classes; first += l->block_classes) {
        int64_t n = least(l->block_classes, l->n_classes - first);
        float *sum = direct || l->dw_whole ? whole + first * l->width : whole;
        TRY(multiply(walk, PART_dw, first, n, sum, walk->row > 0 || (direct && walk->call->add),
                     err));
        if (!direct && is_last)
            walk->p->loops->narrow(walk->p->threads, span_of(out, first * l->width), n * l->width,
                                   sum, walk->call->add);
    }
    return SNUG_OK;
}

static float grad_factor(const struct walk *walk)
{
    if (!walk->at.has_gradient)
        return 0.0f;
    const double *scalars = walk->call->in[walk->at.scalars].data;
    return (float)(attrs_of(walk->call->op, loss)->weight * scalars[SCALAR_loss_scale] /
                   (double)walk->layout->n_rows);
}

static enum snug_status walk_chunk(struct walk *walk, double *total, struct snug_error *err)
{
    const struct kernel_call *call = walk->call;
    const struct prepared *p = walk->p;
    const struct layout *l = walk->layout;
    struct operand lse =
        walk->at.lse_in >= 0 ? call->in[walk->at.lse_in] : call->out[walk->at.lse_out];
    walk->x = span_view(p->loops, p->threads, span_of(&call->in[0], walk->row * l->width),
                        walk->n_rows * l->width, work_at(call->work, l->x));
    if (l->wants[PART_dx]) {
        const struct operand *dx = &call->out[walk->at.dx];
        walk->dx = dx->tensor->dtype == DTYPE_f32 ? (float *)dx->data + walk->row * l->width
                                                  : work_at(call->work, l->dx);
    }
    TRY(make_logits(walk, err));
    struct head_rows rows = {
        .n_rows = walk->n_rows,
        .n_classes = l->n_classes,
        .pitch = l->n_classes,
        .logits = walk->logits,
        .lse = (float *)lse.data + walk->row,
        .targets = (const int32_t *)call->in[walk->at.targets].data + walk->row,
        .losses = walk->at.has_loss ? (double *)(void *)work_at(call->work, l->losses) : NULL,
        .write_lse = walk->at.lse_out >= 0,
        .make_gradient = walk->at.has_gradient,
        .factor = grad_factor(walk),
        .labels = labels_of(attrs_of(call->op, loss)->smoothing, l->n_classes)};
    p->loops->finish_head(p->threads, &rows);
    for (int64_t i = 0; rows.losses != NULL && i < walk->n_rows; i++)
        *total += rows.losses[i];
    if (l->wants[PART_dx])
        TRY(add_to_dx(walk, err));
    if (l->wants[PART_dw])
        TRY(add_to_dw(walk, err));
    return SNUG_OK;
}

static double run_tiled(const struct walk *walk)
{
    const struct kernel_call *call = walk->call;
    const struct prepared *p = walk->p;
    const struct layout *l = walk->layout;
    const struct places *at = &walk->at;
    const struct operand none = {0};
    const struct operand *lse = at->lse_in >= 0 ? &call->in[at->lse_in] : &call->out[at->lse_out];
    double *losses = at->has_loss ? (double *)(void *)work_at(call->work, l->tiled_losses) : NULL;
    struct lm_head_bf16_operands operands = {
        .x = call->in[0].data,
        .w = call->in[1].data,
        .targets = call->in[at->targets].data,
        .lse = lse->data,
        .losses = losses,
        .factor = grad_factor(walk),
        .labels = labels_of(attrs_of(call->op, loss)->smoothing, l->n_classes),
        .dx = span_of(l->wants[PART_dx] ? &call->out[at->dx] : &none, 0),
        .dw = span_of(l->wants[PART_dw] ? &call->out[at->dw] : &none, 0),
        .add_dw = call->add};
    lm_head_bf16_run(&l->tiled, &operands, p->gemm_bf16, p->loops,
                     work_at(call->work, l->tiled_work));
    double total = 0.0;
    for (int64_t row = 0; losses != NULL && row < l->n_rows; row++)
        total += losses[row];
    return total;
}

/* Converts the sum over rows of (lse - target logit) to that of (lse - (1 - s) target logit - s
 * mean logit). */
static double smooth_total(const struct walk *walk, double total)
{
    const struct kernel_call *call = walk->call;
    const struct layout *l = walk->layout;
    const struct cpu_loops *loops = walk->p->loops;
    double smoothing = attrs_of(call->op, loss)->smoothing, lse_sum = 0.0, logit_sum = 0.0;
    float *x_sums = call->work, *w_sums = x_sums + l->width;
    const float *lse = call->out[walk->at.lse_out].data;
    struct span x = {DTYPE_f32, x_sums, 0}, w = {DTYPE_f32, w_sums, 0};
    loops->sum_columns(walk->p->threads, span_of(&call->in[0], 0), l->n_rows, l->width, x, false);
    loops->sum_columns(walk->p->threads, span_of(&call->in[1], 0), l->n_classes, l->width, w,
                       false);
    for (int64_t row = 0; row < l->n_rows; row++)
        lse_sum += (double)lse[row];
    for (int64_t c = 0; c < l->width; c++)
        logit_sum += (double)x_sums[c] * (double)w_sums[c];
    return (1.0 - smoothing) * total + smoothing * (lse_sum - logit_sum / (double)l->n_classes);
}

static enum snug_status run(const struct kernel_call *call, struct snug_error *err)
{
    const struct prepared *p = call->prepared;
    const struct layout *l = &p->layout;
    struct walk walk = {.call = call,
                        .p = p,
                        .layout = l,
                        .at = places_of(call->op->kind),
                        .logits = work_at(call->work, l->logits)};
    TRY(ref_check_ids(&call->in[walk.at.targets], l->n_classes, err));

    double total = p->gemm_bf16 != NULL ? run_tiled(&walk) : 0.0;
    for (walk.row = 0; p->gemm_bf16 == NULL && walk.row < l->n_rows; walk.row += l->chunk_rows) {
        walk.n_rows = least(l->chunk_rows, l->n_rows - walk.row);
        TRY(walk_chunk(&walk, &total, err));
    }
    if (walk.at.has_loss && attrs_of(call->op, loss)->smoothing > 0)
        total = smooth_total(&walk, total);
    if (walk.at.has_loss) {
        float *loss = call->out[walk.at.loss].data;
        double mean = attrs_of(call->op, loss)->weight * total / (double)l->n_rows;
        *loss = (float)((call->add ? (double)*loss : 0.0) + mean);
    }
    return SNUG_OK;
}

static const struct kernel kernels[] = {
#define ROW(op_kind)                                                                           \
    {                                                                                          \
        .kind = OP_##op_kind, .name = GEMM_NAME, .supports = supports,                         \
        .workspace_bytes = workspace_bytes, .prepare = prepare, .release = release, .run = run \
    }
    ROW(linear_cross_entropy),
    ROW(linear_cross_entropy_grad),
    ROW(linear_cross_entropy_train),
#undef ROW
};

const struct kernel *cpu_lm_head_kernels(int *n_kernels)
{
    *n_kernels = (int)(sizeof kernels / sizeof *kernels);
    return kernels;
}
