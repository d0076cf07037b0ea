/*
 * head16.c -- the language-model head on tiles.
 *
 * Loss and gradient in one op: whole rows of logits are kept, for a chunk of rows:
 *
 *     for each block of classes:    logits of the chunk -> kept; their maximum and sum of exponentials
 *     lse of every row;             logits -> dlogits, bf16, over the first half of their row
 *     for each block of classes:    dx += dlogits W;  dW (+)= dlogits^T x
 *
 * At most 1024 rows and 200 MiB are kept.  For GPT-2 that is less than what the head without tiles
 * books for bf16, so the plan does not grow.  Every chunk reads and writes dW; longer ones would cost
 * memory.  A 16-bit dW is rounded once a chunk, so there may be four of them, no more.
 *
 * Where there would be more, the logits are made twice, a block of classes at a time and for up to
 * 16384 rows: a quarter more products, but dW of a block is finished in one go.  The loss alone, or
 * the gradient from a given lse, goes the same way and needs the logits once.
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
    MOST_ROWS = 16384,
    KEPT_BYTES = 200 << 20,
    KEPT_ROWS = 1024,
    KEPT_CHUNKS = 4 /* at most, of a 16-bit dW */
};

struct layout {
    int64_t block_classes, n_slices;
    int64_t pitch; /* of a row of dlogits; of kept logits, which are twice as wide, half of that */
    size_t running, picked, logits, dx, product, total; /* logits: or dlogits of a block */
};

/* Of a row of all classes, in whole strips. */
static int64_t kept_pitch(const struct head16 *head)
{
    return product16_strips(head->n_classes) * STRIP;
}

static int64_t kept_rows(const struct head16 *head)
{
    int64_t n = KEPT_BYTES / (kept_pitch(head) * 4) / STRIP * STRIP;
    return n < STRIP ? STRIP : least(n, KEPT_ROWS);
}

static bool may_keep_logits(const struct head16 *head)
{
    bool in_chunks =
        !head->wants_dw || head->dw_is_f32 || head->n_rows <= KEPT_CHUNKS * kept_rows(head);
    return head->makes_lse && (head->wants_dx || head->wants_dw) && in_chunks;
}

static int64_t chunk_rows(const struct head16 *head)
{
    return least(head->n_rows, may_keep_logits(head) ? kept_rows(head) : MOST_ROWS);
}

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
    l.pitch = head->keeps_logits ? 2 * kept_pitch(head) : product16_strips(l.block_classes) * STRIP;
    l.n_slices = (l.block_classes + HEAD_SLICE - 1) / HEAD_SLICE;
    if (head->makes_lse) {
        l.running = work_take(&l.total, f32_bytes(head->n_rows * l.n_slices * 2 * HEAD_LANES));
        l.picked = work_take(&l.total, f32_bytes(head->n_rows));
    }
    if (head->wants_dx || head->wants_dw)
        l.logits = work_take(&l.total, (size_t)(head->n_rows * l.pitch) * sizeof(uint16_t));
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
    part.keeps_logits = may_keep_logits(head);
    return part;
}

size_t head16_work_bytes(const struct head16 *head)
{
    struct head16 full = with_rows(head, chunk_rows(head));
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
                                .around_cache = true,
                                .targets = walk->in->targets,
                                .first_class = first,
                                .running = work_at(walk->work, walk->layout.running),
                                .n_slices = walk->layout.n_slices,
                                .picked = work_at(walk->work, walk->layout.picked)};
    if (head->keeps_logits) {
        out.y = (struct span){DTYPE_f32, work_at(walk->work, walk->layout.logits), first};
        out.pitch = kept_pitch(head);
    }
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

/* What is kept of the chunk becomes dlogits. */
static void turn_kept(const struct walk *walk, const struct cpu_loops *loops)
{
    const struct head16 *head = walk->head;
    struct head_rows rows = {.n_rows = head->n_rows,
                             .n_classes = head->n_classes,
                             .pitch = kept_pitch(head),
                             .logits = work_at(walk->work, walk->layout.logits),
                             .lse = walk->in->lse,
                             .targets = walk->in->targets,
                             .make_gradient = true,
                             .gradient_is_bf16 = true,
                             .factor = walk->in->factor,
                             .labels = walk->in->labels};
    loops->finish_head(head->threads, &rows);
}

/* dlogits of a block of classes, from logits made for it. */
static void make_dlogits(const struct walk *walk, int64_t first, int64_t n_classes,
                         uint16_t *dlogits)
{
    const struct head16_operands *in = walk->in;
    struct product_shape shape = logits_shape(walk->head, n_classes);
    struct product16_out softmax = {.how = FINISH_softmax,
                                    .pitch = walk->layout.pitch,
                                    .y = {DTYPE_bf16, dlogits, 0},
                                    .targets = in->targets,
                                    .first_class = first,
                                    .lse = in->lse,
                                    .factor = in->factor,
                                    .labels = in->labels};
    walk->product16(walk->head->threads, &shape, in->x, in->w + first * walk->head->width, &softmax,
                    work_at(walk->work, walk->layout.product));
}

static void add_gradients(const struct walk *walk, int64_t first, int64_t n_classes,
                          const uint16_t *dlogits)
{
    const struct head16 *head = walk->head;
    const struct head16_operands *in = walk->in;
    const struct layout *l = &walk->layout;
    void *work = work_at(walk->work, l->product);
    if (head->wants_dx) {
        struct span sum = {DTYPE_f32, work_at(walk->work, l->dx), 0};
        struct product16_out dx = {.how = FINISH_store,
                                   .pitch = head->width,
                                   .y = head->dx_is_f32 ? in->dx : sum,
                                   .add = first > 0};
        struct product_shape shape = dx_shape(head, l->pitch, n_classes);
        walk->product16(head->threads, &shape, dlogits, in->w + first * head->width, &dx, work);
    }
    if (head->wants_dw) {
        struct span y = {in->dw.dtype, in->dw.data, in->dw.begin + first * head->width};
        struct product16_out dw = {
            .how = FINISH_store, .pitch = head->width, .y = y, .add = in->add_dw};
        struct product_shape shape = dw_shape(head, l->pitch, n_classes);
        walk->product16(head->threads, &shape, dlogits, in->x, &dw, work);
    }
}

static void run_rows(const struct head16 *head, const struct head16_operands *operands,
                     product16_fn *product16, const struct cpu_loops *loops, void *work)
{
    struct walk walk = {head, operands, layout_of(head), product16, work};
    int64_t block = walk.layout.block_classes;
    uint16_t *dlogits = (uint16_t *)(void *)work_at(work, walk.layout.logits);
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
    if (head->keeps_logits)
        turn_kept(&walk, loops);
    for (int64_t first = 0; first < head->n_classes; first += block) {
        int64_t n_classes = least(block, head->n_classes - first);
        if (!head->keeps_logits)
            make_dlogits(&walk, first, n_classes, dlogits);
        add_gradients(&walk, first, n_classes, head->keeps_logits ? dlogits + first : dlogits);
    }
    if (head->wants_dx && !head->dx_is_f32)
        loops->narrow(head->threads, operands->dx, head->n_rows * head->width,
                      work_at(work, walk.layout.dx), false);
}

void head16_run(const struct head16 *head, const struct head16_operands *operands,
                product16_fn *product16, const struct cpu_loops *loops, void *work)
{
    int64_t step = chunk_rows(head);
    for (int64_t row = 0; row < head->n_rows; row += step) {
        struct head16 part = with_rows(head, least(step, head->n_rows - row));
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
