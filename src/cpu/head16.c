/*
 * head16.c -- the language-model head on tiles, a block of classes at a time.
 *
 *     for each block of classes:    logits of all rows -> their maximum and sum of exponentials
 *     lse of every row
 *     for each block of classes:    logits again -> dlogits, rounded to bf16
 *                                   dx += dlogits W;  dW = dlogits^T x
 *
 * The logits are made twice, because it costs less than to keep them: for GPT-2 and 4096 rows they
 * would be 785 MiB in fp32, and with whole rows in short chunks dW would be read and written once a
 * chunk.  This way dW of a block is finished in one go, and what is kept is dlogits of a block and
 * dx.  Rows are cut at 16384 only, to bound that: there a 16-bit dW is rounded once a chunk.
 *
 * Each row's sum is kept in slices of columns (product16.h) that are the same for any number of
 * threads, so the bits are.
 */
#include "cpu/head16.h"

#include <math.h>

enum {
    DLOGITS_BYTES = 16 << 20, /* more only where 1024 classes need it */
    LEAST_CLASSES = 1024,
    MOST_CLASSES = 8192,
    MOST_ROWS = 16384
};

struct layout {
    int64_t block_classes, pitch, n_slices;
    size_t running, picked, dlogits, dx, product, total;
};

static int64_t block_classes(const struct head16 *head)
{
    int64_t n = DLOGITS_BYTES / (2 * head->n_rows) / STRIP * STRIP;
    n = n < LEAST_CLASSES ? LEAST_CLASSES : n > MOST_CLASSES ? MOST_CLASSES : n;
    return least(n, head->n_classes);
}

static struct product_shape logits_shape(const struct head16 *head, int64_t n_classes)
{
    return (struct product_shape){.m = head->n_rows,
                                  .n = n_classes,
                                  .k = head->width,
                                  .b_transposed = true,
                                  .lda = head->width,
                                  .ldb = head->width};
}

static struct product_shape dx_shape(const struct head16 *head, int64_t pitch, int64_t n_classes)
{
    return (struct product_shape){
        .m = head->n_rows, .n = head->width, .k = n_classes, .lda = pitch, .ldb = head->width};
}

static struct product_shape dw_shape(const struct head16 *head, int64_t pitch, int64_t n_classes)
{
    return (struct product_shape){.m = n_classes,
                                  .n = head->width,
                                  .k = head->n_rows,
                                  .a_transposed = true,
                                  .lda = pitch,
                                  .ldb = head->width};
}

static size_t product_bytes(const struct head16 *head, int64_t pitch, int64_t n_classes)
{
    struct product_shape shapes[] = {logits_shape(head, n_classes),
                                     dx_shape(head, pitch, n_classes),
                                     dw_shape(head, pitch, n_classes)};
    bool wanted[] = {true, head->wants_dx, head->wants_dw};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        size_t bytes = wanted[i] ? product16_plan(&shapes[i], head->threads).total : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static struct layout layout_of(const struct head16 *head)
{
    struct layout l = {.block_classes = block_classes(head)};
    l.pitch = product16_strips(l.block_classes) * STRIP;
    l.n_slices = (l.block_classes + HEAD_SLICE - 1) / HEAD_SLICE;
    if (head->makes_lse) {
        l.running = work_take(&l.total, f32_bytes(head->n_rows * l.n_slices * 2 * HEAD_LANES));
        l.picked = work_take(&l.total, f32_bytes(head->n_rows));
    }
    if (head->wants_dx || head->wants_dw)
        l.dlogits = work_take(&l.total, (size_t)(head->n_rows * l.pitch) * sizeof(uint16_t));
    if (head->wants_dx && !head->dx_is_f32)
        l.dx = work_take(&l.total, f32_bytes(head->n_rows * head->width));
    size_t bytes = product_bytes(head, l.pitch, l.block_classes);
    int64_t tail = head->n_classes % l.block_classes;
    size_t tail_bytes = tail > 0 ? product_bytes(head, l.pitch, tail) : 0;
    l.product = work_take(&l.total, bytes > tail_bytes ? bytes : tail_bytes);
    return l;
}

/* The head of some of the rows. */
static struct head16 with_rows(const struct head16 *head, int64_t n_rows)
{
    struct head16 part = *head;
    part.n_rows = n_rows;
    return part;
}

size_t head16_work_bytes(const struct head16 *head)
{
    struct head16 full = with_rows(head, least(head->n_rows, MOST_ROWS));
    struct head16 tail = with_rows(head, head->n_rows % full.n_rows);
    size_t bytes = layout_of(&full).total;
    size_t tail_bytes = tail.n_rows > 0 ? layout_of(&tail).total : 0;
    return bytes > tail_bytes ? bytes : tail_bytes;
}

/* ---- running it ---------------------------------------------------------------------------- */

struct walk {
    const struct head16 *head;
    const struct head16_operands *in;
    struct layout layout;
    product16_fn *product16;
    void *work;
};

static void begin_rows(const struct walk *walk)
{
    float *running = work_at(walk->work, walk->layout.running);
    int64_t n_states = walk->head->n_rows * walk->layout.n_slices;
    for (int64_t i = 0; i < n_states; i++)
        for (int lane = 0; lane < HEAD_LANES; lane++) {
            running[(2 * i) * HEAD_LANES + lane] = HEAD_LOWEST;
            running[(2 * i + 1) * HEAD_LANES + lane] = 0.0f;
        }
}

static void sum_exponentials(const struct walk *walk, int64_t first, int64_t n_classes)
{
    const struct head16 *head = walk->head;
    struct product_shape shape = logits_shape(head, n_classes);
    struct product16_out out = {.how = FINISH_lse,
                                .targets = walk->in->targets,
                                .first_class = first,
                                .running = work_at(walk->work, walk->layout.running),
                                .n_slices = walk->layout.n_slices,
                                .picked = work_at(walk->work, walk->layout.picked)};
    walk->product16(head->threads, &shape, walk->in->x, walk->in->w + first * head->width, &out,
                    work_at(walk->work, walk->layout.product));
}

/* From all lanes and slices of a row, in order. */
static void end_row(const struct walk *walk, int64_t row)
{
    int64_t n_slices = walk->layout.n_slices;
    const float *states =
        work_at(walk->work, walk->layout.running) + row * n_slices * 2 * HEAD_LANES;
    float highest = HEAD_LOWEST; /* no fmax: gcc 12 for arm64 dies of it here */
    for (int64_t i = 0; i < n_slices; i++)
        for (int lane = 0; lane < HEAD_LANES; lane++) {
            float state = states[2 * i * HEAD_LANES + lane];
            highest = state > highest ? state : highest;
        }
    double top = (double)highest, sum = 0.0;
    for (int64_t i = 0; i < n_slices; i++)
        for (int lane = 0; lane < HEAD_LANES; lane++) {
            const float *state = states + 2 * i * HEAD_LANES + lane;
            sum += (double)state[HEAD_LANES] * exp((double)state[0] - top);
        }
    double lse = top + log(sum);
    walk->in->lse[row] = (float)lse;
    if (walk->in->losses != NULL)
        walk->in->losses[row] = lse - (double)work_at(walk->work, walk->layout.picked)[row];
}

static void add_gradients(const struct walk *walk, int64_t first, int64_t n_classes)
{
    const struct head16 *head = walk->head;
    const struct head16_operands *in = walk->in;
    const struct layout *l = &walk->layout;
    uint16_t *dlogits = (uint16_t *)(void *)work_at(walk->work, l->dlogits);
    const uint16_t *w = in->w + first * head->width;
    void *work = work_at(walk->work, l->product);

    struct product_shape shape = logits_shape(head, n_classes);
    struct product16_out softmax = {.how = FINISH_softmax,
                                    .pitch = l->pitch,
                                    .y = {DTYPE_bf16, dlogits, 0},
                                    .targets = in->targets,
                                    .first_class = first,
                                    .lse = in->lse,
                                    .factor = in->factor,
                                    .labels = in->labels};
    walk->product16(head->threads, &shape, in->x, w, &softmax, work);
    if (head->wants_dx) {
        struct span sum = {DTYPE_f32, work_at(walk->work, l->dx), 0};
        struct product16_out dx = {.how = FINISH_store,
                                   .pitch = head->width,
                                   .y = head->dx_is_f32 ? in->dx : sum,
                                   .add = first > 0};
        shape = dx_shape(head, l->pitch, n_classes);
        walk->product16(head->threads, &shape, dlogits, w, &dx, work);
    }
    if (head->wants_dw) {
        struct span y = {in->dw.dtype, in->dw.data, in->dw.begin + first * head->width};
        struct product16_out dw = {
            .how = FINISH_store, .pitch = head->width, .y = y, .add = in->add_dw};
        shape = dw_shape(head, l->pitch, n_classes);
        walk->product16(head->threads, &shape, dlogits, in->x, &dw, work);
    }
}

static void run_rows(const struct head16 *head, const struct head16_operands *operands,
                     product16_fn *product16, const struct cpu_loops *loops, void *work)
{
    struct walk walk = {head, operands, layout_of(head), product16, work};
    int64_t block = walk.layout.block_classes;
    if (head->makes_lse) {
        begin_rows(&walk);
        for (int64_t first = 0; first < head->n_classes; first += block)
            sum_exponentials(&walk, first, least(block, head->n_classes - first));
#pragma omp parallel for schedule(static) num_threads(head->threads)
        for (int64_t row = 0; row < head->n_rows; row++)
            end_row(&walk, row);
    }
    if (!head->wants_dx && !head->wants_dw)
        return;
    for (int64_t first = 0; first < head->n_classes; first += block)
        add_gradients(&walk, first, least(block, head->n_classes - first));
    if (head->wants_dx && !head->dx_is_f32)
        loops->narrow(head->threads, operands->dx, head->n_rows * head->width,
                      work_at(work, walk.layout.dx), false);
}

void head16_run(const struct head16 *head, const struct head16_operands *operands,
                product16_fn *product16, const struct cpu_loops *loops, void *work)
{
    for (int64_t row = 0; row < head->n_rows; row += MOST_ROWS) {
        struct head16 part = with_rows(head, least(MOST_ROWS, head->n_rows - row));
        struct head16_operands rows = *operands;
        rows.x += row * head->width;
        rows.targets += row;
        rows.lse += row;
        rows.losses = operands->losses != NULL ? operands->losses + row : NULL;
        rows.dx.begin += row * head->width;
        rows.add_dw = operands->add_dw || row > 0;
        run_rows(&part, &rows, product16, loops, work);
    }
}
