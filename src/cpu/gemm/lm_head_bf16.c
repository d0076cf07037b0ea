/*
 * lm_head_bf16.c -- the LM head on AMX tiles.
 *
 * The op that computes loss and gradient stores E = exp(logits - target logit) in bf16 for all
 * classes of a chunk of rows.  dlogits = factor (E / sum - labels) differ from E only at the target
 * and by a factor s per row, so they are never stored:
 *
 *     for each block of classes:    store E of the chunk; add to the sums
 *     every row:                    lse; s = factor / sum; E at the target -= sum; x' = s x
 *     for each block of classes:    dx += E W;  dW (+)= E^T x'
 *     every row:                    dx *= s
 *
 * A chunk has at most 2048 rows and 200 MiB.  For GPT-2 and two threads the whole workspace is then
 * as large as that of the untiled bf16 head.  Every chunk reads and writes dW; longer chunks would
 * cost memory.  A 16-bit dW is rounded once per chunk, so at most four chunks are allowed.
 *
 * If there would be more chunks, or with label smoothing, the logits are computed twice, one block
 * of classes at a time and for up to 16384 rows: a quarter more matmuls, but dW of a block is
 * written once.  The loss alone, or the gradient from a given lse, also takes this path and
 * computes the logits once.  A chunk whose sums are unusable, as when a target is far below the
 * other logits, is recomputed on this path.
 *
 * The sum of a row is accumulated in slices of columns (gemm_bf16.h).  The slices do not depend on
 * the number of threads, so neither do the bits.
 */
#include "cpu/gemm/lm_head_bf16.h"

#include <math.h>

enum {
    DLOGITS_BYTES = 16 << 20, /* more only if 1024 classes need it */
    LEAST_CLASSES = 1024,
    MOST_CLASSES = 8192,
    MOST_ROWS = 16384,
    KEPT_BYTES = 200 << 20,
    KEPT_ROWS = 2048,
    KEPT_CHUNKS = 4 /* at most, with a 16-bit dW */
};

/* Bounds of a usable sum of exponentials.  The target's own exponential is about 1, so a sum should
 * be at least about 1.  But the target logit is summed in another order than on tiles, which is far
 * off if logits are in the billions.  Up to the largest sum, s x is not denormal for factors above
 * 1e-8. */
static const double LEAST_SUM = 1e-24, LARGEST_SUM = 1e24;

struct layout {
    int64_t block_classes, n_slices;
    int64_t pitch; /* elements of a row of dlogits or E */
    size_t running, picked, scales, dlogits, x, dx, gemm, total; /* dlogits holds dlogits or E */
};

/* Elements of a row of n_classes, rounded up to whole strips. */
static int64_t pitch_of(int64_t n_classes)
{
    return gemm_bf16_strips(n_classes) * STRIP;
}

static int64_t kept_rows(const struct lm_head_bf16 *head)
{
    int64_t n =
        KEPT_BYTES / (pitch_of(head->n_classes) * (int64_t)sizeof(uint16_t)) / STRIP * STRIP;
    return n < STRIP ? STRIP : least(n, KEPT_ROWS);
}

static bool may_keep(const struct lm_head_bf16 *head)
{
    bool in_chunks =
        !head->wants_dw || head->dw_is_f32 || head->n_rows <= KEPT_CHUNKS * kept_rows(head);
    bool wants_gradient = head->wants_dx || head->wants_dw;
    return head->makes_lse && wants_gradient && in_chunks && !head->is_smoothed;
}

static int64_t chunk_rows(const struct lm_head_bf16 *head)
{
    return least(head->n_rows, may_keep(head) ? kept_rows(head) : MOST_ROWS);
}

static int64_t block_classes(const struct lm_head_bf16 *head)
{
    int64_t n = DLOGITS_BYTES / (2 * head->n_rows) / STRIP * STRIP;
    if (head->keeps_all)
        n = MOST_CLASSES;
    n = n < LEAST_CLASSES ? LEAST_CLASSES : n > MOST_CLASSES ? MOST_CLASSES : n;
    return least(n, head->n_classes);
}

static struct gemm_shape logits_shape(const struct lm_head_bf16 *head, int64_t n_classes)
{
    return (struct gemm_shape){.m = head->n_rows,
                               .n = n_classes,
                               .k = head->width,
                               .b_transposed = true,
                               .lda = head->width,
                               .ldb = head->width};
}

static struct gemm_shape dx_shape(const struct lm_head_bf16 *head, int64_t pitch, int64_t n_classes)
{
    return (struct gemm_shape){
        .m = head->n_rows, .n = head->width, .k = n_classes, .lda = pitch, .ldb = head->width};
}

static struct gemm_shape dw_shape(const struct lm_head_bf16 *head, int64_t pitch, int64_t n_classes)
{
    return (struct gemm_shape){.m = n_classes,
                               .n = head->width,
                               .k = head->n_rows,
                               .a_transposed = true,
                               .lda = pitch,
                               .ldb = head->width};
}

static size_t gemm_bytes(const struct lm_head_bf16 *head, int64_t pitch, int64_t n_classes)
{
    struct gemm_shape shapes[] = {logits_shape(head, n_classes), dx_shape(head, pitch, n_classes),
                                  dw_shape(head, pitch, n_classes)};
    bool wanted[] = {true, head->wants_dx, head->wants_dw};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        size_t bytes = wanted[i] ? gemm_bf16_plan(&shapes[i], head->threads).total : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static struct layout layout_of(const struct lm_head_bf16 *head)
{
    struct layout l = {.block_classes = block_classes(head)};
    l.pitch = pitch_of(head->keeps_all ? head->n_classes : l.block_classes);
    l.n_slices = (l.block_classes + HEAD_SLICE - 1) / HEAD_SLICE;
    size_t states = 0, sums = 0; /* per row; free again before dx is accumulated */
    if (head->makes_lse) {
        l.running = work_take(&states, f32_bytes(head->n_rows * l.n_slices * 2 * HEAD_LANES));
        l.picked = work_take(&states, f32_bytes(head->n_rows));
    }
    if (head->wants_dx && !head->dx_is_f32)
        l.dx = work_take(&sums, f32_bytes(head->n_rows * head->width));
    work_take(&l.total, states > sums ? states : sums);
    if (head->keeps_all)
        l.scales = work_take(&l.total, f32_bytes(head->n_rows));
    if (head->wants_dx || head->wants_dw)
        l.dlogits = work_take(&l.total, (size_t)(head->n_rows * l.pitch) * sizeof(uint16_t));
    if (head->keeps_all && head->wants_dw)
        l.x = work_take(&l.total, (size_t)(head->n_rows * head->width) * sizeof(uint16_t));
    size_t bytes = gemm_bytes(head, l.pitch, l.block_classes);
    int64_t tail = head->n_classes % l.block_classes;
    size_t tail_bytes = tail > 0 ? gemm_bytes(head, l.pitch, tail) : 0;
    l.gemm = work_take(&l.total, bytes > tail_bytes ? bytes : tail_bytes);
    return l;
}

/* The same op for fewer rows. */
static struct lm_head_bf16 with_rows(const struct lm_head_bf16 *head, int64_t n_rows,
                                     bool keeps_all)
{
    struct lm_head_bf16 part = *head;
    part.n_rows = n_rows;
    part.keeps_all = keeps_all;
    return part;
}

/* Rows on the one-pass path may have to be recomputed on the other, so take the larger. */
static size_t bytes_of_rows(const struct lm_head_bf16 *head, int64_t n_rows)
{
    if (n_rows == 0)
        return 0;
    struct lm_head_bf16 twice = with_rows(head, n_rows, false),
                        kept = with_rows(head, n_rows, true);
    size_t bytes = layout_of(&twice).total;
    size_t kept_bytes = may_keep(head) ? layout_of(&kept).total : 0;
    return bytes > kept_bytes ? bytes : kept_bytes;
}

size_t lm_head_bf16_work_bytes(const struct lm_head_bf16 *head)
{
    int64_t n_rows = chunk_rows(head);
    size_t bytes = bytes_of_rows(head, n_rows);
    size_t tail_bytes = bytes_of_rows(head, head->n_rows % n_rows);
    return bytes > tail_bytes ? bytes : tail_bytes;
}

int64_t lm_head_bf16_kept_bytes(const struct lm_head_bf16 *head)
{
    return may_keep(head) ? chunk_rows(head) * pitch_of(head->n_classes) * (int64_t)sizeof(uint16_t)
                          : 0;
}

/* ---- running it ---------------------------------------------------------------------------- */

struct walk {
    const struct lm_head_bf16 *head;
    const struct lm_head_bf16_operands *in;
    struct layout layout;
    gemm_bf16_fn *gemm_bf16;
    void *work;
};

static uint16_t *halves_at(const struct walk *walk, size_t place)
{
    return (uint16_t *)(void *)work_at(walk->work, place);
}

/* Approximately the logit that the tiles will compute. */
static float target_logit(const struct walk *walk, int64_t row)
{
    int64_t width = walk->head->width;
    const uint16_t *x = walk->in->x + row * width,
                   *w = walk->in->w + walk->in->targets[row] * width;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < width; j++)
        sum += bf16_to_f32(x[j]) * bf16_to_f32(w[j]);
    return sum;
}

/* Initializes the running tops and sums.  If E is stored, the top of a row is fixed at its target
 * logit; else it is the running maximum. */
static void begin_rows(const struct walk *walk)
{
    const struct lm_head_bf16 *head = walk->head;
    int64_t n_slices = walk->layout.n_slices;
#pragma omp parallel for schedule(static) num_threads(head->threads)
    for (int64_t row = 0; row < head->n_rows; row++) {
        float *states = work_at(walk->work, walk->layout.running) + row * n_slices * 2 * HEAD_LANES;
        float top = head->keeps_all ? target_logit(walk, row) : HEAD_LOWEST;
        for (int64_t i = 0; i < n_slices; i++, states += 2 * HEAD_LANES)
            for (int lane = 0; lane < HEAD_LANES; lane++) {
                states[lane] = top;
                states[HEAD_LANES + lane] = 0.0f;
            }
    }
}

static void sum_exponentials(const struct walk *walk, int64_t first, int64_t n_classes)
{
    const struct lm_head_bf16 *head = walk->head;
    struct gemm_shape shape = logits_shape(head, n_classes);
    struct gemm_bf16_out out = {.how = head->keeps_all ? FINISH_exponentials : FINISH_lse,
                                .around_cache = true,
                                .pitch = walk->layout.pitch,
                                .targets = walk->in->targets,
                                .first_class = first,
                                .running = work_at(walk->work, walk->layout.running),
                                .n_slices = walk->layout.n_slices,
                                .picked = work_at(walk->work, walk->layout.picked)};
    if (head->keeps_all)
        out.y = (struct span){DTYPE_bf16, halves_at(walk, walk->layout.dlogits), first};
    walk->gemm_bf16(head->threads, &shape, walk->in->x, walk->in->w + first * head->width, &out,
                    work_at(walk->work, walk->layout.gemm));
}

struct row_sum {
    double top, sum; /* sum of exp(logit - top) */
};

/* Combines all lanes and slices of a row, in order. */
static struct row_sum sum_of_row(const struct walk *walk, int64_t row)
{
    int64_t n_slices = walk->layout.n_slices;
    const float *states =
        work_at(walk->work, walk->layout.running) + row * n_slices * 2 * HEAD_LANES;
    float highest = HEAD_LOWEST; /* no fmax: it crashes gcc 12 for arm64 here */
    for (int64_t i = 0; i < n_slices; i++)
        for (int lane = 0; lane < HEAD_LANES; lane++) {
            float state = states[2 * i * HEAD_LANES + lane];
            highest = state > highest ? state : highest;
        }
    struct row_sum row_sum = {.top = (double)highest};
    for (int64_t i = 0; i < n_slices; i++)
        for (int lane = 0; lane < HEAD_LANES; lane++) {
            const float *state = states + 2 * i * HEAD_LANES + lane;
            row_sum.sum += (double)state[HEAD_LANES] * exp((double)state[0] - row_sum.top);
        }
    return row_sum;
}

/* Turns the stored E of a row into dlogits up to the factor s. */
static void end_kept_row(const struct walk *walk, int64_t row, struct row_sum of)
{
    const struct lm_head_bf16 *head = walk->head;
    const struct lm_head_bf16_operands *in = walk->in;
    double picked = (double)work_at(walk->work, walk->layout.picked)[row];
    float s = (float)((double)in->factor / of.sum);
    uint16_t *kept = halves_at(walk, walk->layout.dlogits) + row * walk->layout.pitch;
    kept[in->targets[row]] = bf16_from_f32((float)(exp(picked - of.top) - of.sum));
    work_at(walk->work, walk->layout.scales)[row] = s;
    if (!head->wants_dw)
        return;
    const uint16_t *x = in->x + row * head->width;
    uint16_t *scaled = halves_at(walk, walk->layout.x) + row * head->width;
#pragma omp simd
    for (int64_t j = 0; j < head->width; j++)
        scaled[j] = bf16_from_f32(s * bf16_to_f32(x[j]));
}

/* Returns false if the sum of a row makes the stored E unusable. */
static bool end_rows(const struct walk *walk)
{
    const struct lm_head_bf16 *head = walk->head;
    int64_t n_useless = 0;
#pragma omp parallel for schedule(static) num_threads(head->threads) reduction(+ : n_useless)
    for (int64_t row = 0; row < head->n_rows; row++) {
        struct row_sum of = sum_of_row(walk, row);
        double lse = of.top + log(of.sum);
        walk->in->lse[row] = (float)lse;
        if (walk->in->losses != NULL)
            walk->in->losses[row] = lse - (double)work_at(walk->work, walk->layout.picked)[row];
        if (head->keeps_all && of.sum >= LEAST_SUM && of.sum <= LARGEST_SUM)
            end_kept_row(walk, row, of);
        else
            n_useless += head->keeps_all;
    }
    return n_useless == 0;
}

/* Recomputes the logits of a block of classes and turns them into dlogits. */
static void make_dlogits(const struct walk *walk, int64_t first, int64_t n_classes,
                         uint16_t *dlogits)
{
    const struct lm_head_bf16_operands *in = walk->in;
    struct gemm_shape shape = logits_shape(walk->head, n_classes);
    struct gemm_bf16_out softmax = {.how = FINISH_softmax,
                                    .pitch = walk->layout.pitch,
                                    .y = {DTYPE_bf16, dlogits, 0},
                                    .targets = in->targets,
                                    .first_class = first,
                                    .lse = in->lse,
                                    .factor = in->factor,
                                    .labels = in->labels};
    walk->gemm_bf16(walk->head->threads, &shape, in->x, in->w + first * walk->head->width, &softmax,
                    work_at(walk->work, walk->layout.gemm));
}

static void add_gradients(const struct walk *walk, int64_t first, int64_t n_classes,
                          const uint16_t *dlogits)
{
    const struct lm_head_bf16 *head = walk->head;
    const struct lm_head_bf16_operands *in = walk->in;
    const struct layout *l = &walk->layout;
    void *work = work_at(walk->work, l->gemm);
    if (head->wants_dx) {
        struct span sum = {DTYPE_f32, work_at(walk->work, l->dx), 0};
        struct gemm_bf16_out dx = {.how = FINISH_store,
                                   .pitch = head->width,
                                   .y = head->dx_is_f32 ? in->dx : sum,
                                   .add = first > 0};
        struct gemm_shape shape = dx_shape(head, l->pitch, n_classes);
        walk->gemm_bf16(head->threads, &shape, dlogits, in->w + first * head->width, &dx, work);
    }
    if (head->wants_dw) {
        struct span y = {in->dw.dtype, in->dw.data, in->dw.begin + first * head->width};
        struct gemm_bf16_out dw = {
            .how = FINISH_store, .pitch = head->width, .y = y, .add = in->add_dw};
        struct gemm_shape shape = dw_shape(head, l->pitch, n_classes);
        const uint16_t *x = head->keeps_all ? halves_at(walk, l->x) : in->x;
        walk->gemm_bf16(head->threads, &shape, dlogits, x, &dw, work);
    }
}

static void scale_dx(const struct walk *walk)
{
    const struct lm_head_bf16 *head = walk->head;
    float *dx = head->dx_is_f32 ? (float *)walk->in->dx.data + walk->in->dx.begin
                                : work_at(walk->work, walk->layout.dx);
    const float *scales = work_at(walk->work, walk->layout.scales);
#pragma omp parallel for schedule(static) num_threads(head->threads)
    for (int64_t row = 0; row < head->n_rows; row++)
#pragma omp simd
        for (int64_t j = 0; j < head->width; j++)
            dx[row * head->width + j] *= scales[row];
}

static void make_gradients(const struct walk *walk, const struct cpu_loops *loops)
{
    const struct lm_head_bf16 *head = walk->head;
    int64_t block = walk->layout.block_classes;
    uint16_t *dlogits = halves_at(walk, walk->layout.dlogits);
    for (int64_t first = 0; first < head->n_classes; first += block) {
        int64_t n_classes = least(block, head->n_classes - first);
        if (!head->keeps_all)
            make_dlogits(walk, first, n_classes, dlogits);
        add_gradients(walk, first, n_classes, head->keeps_all ? dlogits + first : dlogits);
    }
    if (head->keeps_all && head->wants_dx)
        scale_dx(walk);
    if (head->wants_dx && !head->dx_is_f32)
        loops->narrow(head->threads, walk->in->dx, head->n_rows * head->width,
                      work_at(walk->work, walk->layout.dx), false);
}

/* Returns false, without computing a gradient, if the stored E turned out to be unusable. */
static bool run_rows(const struct lm_head_bf16 *head, const struct lm_head_bf16_operands *operands,
                     gemm_bf16_fn *gemm_bf16, const struct cpu_loops *loops, void *work)
{
    struct walk walk = {head, operands, layout_of(head), gemm_bf16, work};
    int64_t block = walk.layout.block_classes;
    if (head->makes_lse) {
        begin_rows(&walk);
        for (int64_t first = 0; first < head->n_classes; first += block)
            sum_exponentials(&walk, first, least(block, head->n_classes - first));
        if (!end_rows(&walk))
            return false;
    }
    if (head->wants_dx || head->wants_dw)
        make_gradients(&walk, loops);
    return true;
}

void lm_head_bf16_run(const struct lm_head_bf16 *head, const struct lm_head_bf16_operands *operands,
                      gemm_bf16_fn *gemm_bf16, const struct cpu_loops *loops, void *work)
{
    int64_t step = chunk_rows(head);
    for (int64_t row = 0; row < head->n_rows; row += step) {
        int64_t n_rows = least(step, head->n_rows - row);
        struct lm_head_bf16 kept = with_rows(head, n_rows, true),
                            twice = with_rows(head, n_rows, false);
        struct lm_head_bf16_operands rows = *operands;
        rows.x += row * head->width;
        rows.targets += row;
        rows.lse += row;
        rows.losses = operands->losses != NULL ? operands->losses + row : NULL;
        rows.dx.begin += row * head->width;
        rows.add_dw = operands->add_dw || row > 0;
        if (!may_keep(head) || !run_rows(&kept, &rows, gemm_bf16, loops, work))
            run_rows(&twice, &rows, gemm_bf16, loops, work);
    }
}
