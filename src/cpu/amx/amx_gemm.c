/*
 * amx_gemm.c -- matmuls of bf16 matrices on AMX tiles.
 *
 * Both operands are packed into strips (amx_panels.h).  k is split into chunks such that a strip of
 * B stays in L1 while the strips of a block of A stream from L2, where the block of C that they
 * accumulate into is too.  Meanwhile the rest of the core runs the epilogue of the previous block,
 * row by row (amx_epilogue.h).
 *
 * One thread sums each element of C over k in order, so the results do not depend on the number of
 * threads or on which thread takes a block.
 *
 * TFLOP/s on two cores of a Xeon whose other hardware threads are busy, GPT-2's layers, 4096 rows,
 * packing and epilogue included: forward 0.98 to 1.18, data gradient 1.02 to 1.92, weight gradient
 * 0.85 to 1.43.  oneDNN's own (through PyTorch 2.11, no bias, no activation) on the same cores:
 * forward 0.73 to 0.90, data gradient 0.68 to 1.59, weight gradient 0.66 to 0.74.  The limits:
 * multiplications with loads from L1 alone 2.2, in registers 5.4.
 */
#include <stdatomic.h>

#include "cpu/amx/amx_epilogue.h"
#include "cpu/amx/amx_panels.h"
#include "cpu/gemm/gemm_bf16.h"

struct job {
    const struct gemm_shape *shape;
    struct gemm_bf16_plan plan;
    const uint16_t *a, *b;
    const struct gemm_bf16_out *out;
    char *work;
    int64_t item_cols, n_row_items, n_col_items;
    atomic_llong next; /* the next item to take */
};

/* A 32 x 32 block of C, in four tiles, whose epilogue is not complete. */
struct unfinished {
    const float *c;
    int64_t row, col;
    int n_rows, n_cols, next;
};

struct worker {
    const struct job *job;
    struct tiles tiles;
    uint16_t *a, *b; /* packed: a block of A, and of B unless that is shared */
    int64_t a_row;   /* first row of the block of A that is packed completely, or -1 */
    float *c;
    struct unfinished before;
    const uint16_t *b_ahead; /* prefetch position in the next strip of B */
};

static inline void finish_some(struct worker *w, int n)
{
    struct unfinished *u = &w->before;
    for (; n > 0 && u->next < u->n_rows; n--, u->next++) {
        int tile = u->next / TILE_SIDE * 2, line = u->next % TILE_SIDE;
        finish_row(w->job->out, u->row + u->next, u->col, u->n_cols,
                   u->c + (tile * TILE_SIDE + line) * TILE_SIDE);
    }
}

/* The work between two steps of k: finish some rows of the previous block, so that all are done
 * after the last step, and prefetch a line of the next strip of B. */
struct meanwhile {
    struct worker *w;
    int64_t n_steps, due; /* due / n_steps rows are to be finished now */
    const uint16_t *b_ahead;
};

enum { LINE = 32 }; /* bf16 elements of a cache line */

static inline __attribute__((always_inline)) void expect_meanwhile(void *user)
{
    struct meanwhile *m = user;
    __builtin_prefetch(m->b_ahead, 0, 2);
    m->b_ahead += LINE;
}

static inline __attribute__((always_inline)) void finish_meanwhile(void *user)
{
    struct meanwhile *m = user;
    expect_meanwhile(m);
    m->due += STRIP;
    for (; m->due >= m->n_steps; m->due -= m->n_steps)
        finish_some(m->w, 1);
}

/* c[32 x 32] = or += 32 rows of A by 32 columns of B, over n_depths steps of k. */
static void multiply_and_finish(struct worker *w, int64_t n_depths, const uint16_t *a,
                                const uint16_t *b, float *c, bool add)
{
    enum { LINE_BYTES = 64, TILE_FLOATS = TILE_SIDE * TILE_SIDE };
    struct meanwhile m = {.w = w, .n_steps = 2 * n_depths, .b_ahead = w->b_ahead};
    bool has_rows = w->before.next < w->before.n_rows;
    for (int half = 0; half < 2; half++) {
        const uint16_t *rows = a + half * TILE_ELEMS;
        float *sums = c + half * 2 * TILE_FLOATS;
        if (has_rows)
            multiply_half(&w->tiles, n_depths, rows, b, sums, TILE_FLOATS, LINE_BYTES, add,
                          finish_meanwhile, &m);
        else
            multiply_half(&w->tiles, n_depths, rows, b, sums, TILE_FLOATS, LINE_BYTES, add,
                          expect_meanwhile, &m);
    }
    w->b_ahead = m.b_ahead;
}

/* The packing of a range of rows of A or columns of B over a range of k. */
static struct packing packing_of(const struct job *job, bool is_b, struct range across,
                                 struct range depths, uint16_t *to)
{
    const struct gemm_shape *s = job->shape;
    bool k_contiguous = is_b ? s->b_transposed : !s->a_transposed;
    int64_t pitch = is_b ? s->ldb : s->lda, k = depths.begin * TILE_DEPTH;
    return (struct packing){.from = (is_b ? job->b : job->a) + (k_contiguous
                                                                    ? across.begin * pitch + k
                                                                    : k * pitch + across.begin),
                            .pitch = pitch,
                            .n_across = across.end - across.begin,
                            .n_k = least(depths.end * TILE_DEPTH, s->k) - k,
                            .k_contiguous = k_contiguous,
                            .pairs_down = is_b,
                            .to = to,
                            .n_strips = gemm_bf16_strips(across.end - across.begin),
                            .n_depths = depths.end - depths.begin};
}

static void pack_block(const struct job *job, bool is_b, struct range across, struct range depths,
                       uint16_t *to)
{
    struct packing packing = packing_of(job, is_b, across, depths, to);
    pack_all(&packing, 1);
}

/* Runs one chunk of k for a block of C.  In the last chunk, the epilogue of each 32 x 32 block runs
 * while the next one is multiplied. */
static void run_chunk(struct worker *w, struct range rows, struct range cols, struct range depths)
{
    const struct job *job = w->job;
    const struct gemm_bf16_plan *plan = &job->plan;
    bool is_first = depths.begin == 0, is_last = depths.end == plan->n_depths;
    int64_t chunk = depths.end - depths.begin, n_done = 0;
    int64_t a_step = (plan->keeps_a ? plan->n_depths : chunk) * 2 * TILE_ELEMS;
    int64_t b_step = (plan->shares_b ? plan->n_depths : chunk) * 2 * TILE_ELEMS;
    const uint16_t *a = w->a + (plan->keeps_a ? depths.begin * 2 * TILE_ELEMS : 0);
    const uint16_t *b = w->b;
    if (plan->shares_b)
        b += (cols.begin / STRIP * plan->n_depths + depths.begin) * 2 * TILE_ELEMS;
    for (int64_t col = cols.begin; col < cols.end; col += STRIP, b += b_step) {
        w->b_ahead = b + b_step;
        for (int64_t row = rows.begin; row < rows.end; row += STRIP, n_done++) {
            bool whole_k = is_first && is_last;
            float *c = w->c + (whole_k ? n_done % 2 : n_done) * STRIP * STRIP;
            for (int i = 0; is_last && i < STRIP; i++)
                expect_row(job->out, row + i, col);
            multiply_and_finish(w, chunk, a + (row - rows.begin) / STRIP * a_step, b, c, !is_first);
            if (!is_last)
                continue;
            w->before = (struct unfinished){
                c, row, col, (int)least(STRIP, rows.end - row), (int)least(STRIP, cols.end - col),
                0};
        }
    }
}

static void run_block(struct worker *w, struct range rows, struct range cols)
{
    const struct job *job = w->job;
    const struct gemm_bf16_plan *plan = &job->plan;
    if (plan->keeps_a && w->a_row != rows.begin) {
        pack_block(job, false, rows, (struct range){0, plan->n_depths}, w->a);
        w->a_row = rows.begin;
    }
    for (int64_t depth = 0; depth < plan->n_depths; depth += plan->chunk_depths) {
        struct range depths = {depth, least(depth + plan->chunk_depths, plan->n_depths)};
        if (!plan->keeps_a)
            pack_block(job, false, rows, depths, w->a);
        if (!plan->shares_b)
            pack_block(job, true, cols, depths, w->b);
        run_chunk(w, rows, cols, depths);
    }
    finish_some(w, STRIP); /* the next block overwrites c */
}

/* Items are numbered along rows of blocks, so a thread usually finds its block of A packed. */
static void run_item(struct worker *w, int64_t item)
{
    const struct job *job = w->job;
    const struct gemm_shape *s = job->shape;
    int64_t row = item / job->n_col_items * job->plan.block_rows;
    int64_t begin = item % job->n_col_items * job->item_cols;
    int64_t end = least(begin + job->item_cols, s->n);
    struct range rows = {row, least(row + job->plan.block_rows, s->m)};
    for (int64_t col = begin; col < end; col += job->plan.block_cols)
        run_block(w, rows, (struct range){col, least(col + job->plan.block_cols, end)});
}

static void run_worker(struct job *job, int thread)
{
    const struct gemm_bf16_plan *plan = &job->plan;
    char *own = job->work + plan->own + (size_t)thread * plan->own_bytes;
    char *b = plan->shares_b ? job->work + plan->shared_b : own + plan->a_bytes;
    struct worker w = {.job = job,
                       .a = (void *)own,
                       .b = (void *)b,
                       .a_row = -1,
                       .c = (void *)(own + plan->a_bytes + plan->b_bytes)};
    int64_t item, n_items = job->n_row_items * job->n_col_items;
    tiles_begin(&w.tiles);
    while ((item = atomic_fetch_add(&job->next, 1)) < n_items)
        run_item(&w, item);
    tiles_end(&w.tiles);
    finish_stores();
}

/* Wide items repack A less often, but there must be enough items for all threads. */
static int64_t item_cols(const struct job *job)
{
    enum { ITEMS_A_THREAD = 4 };
    bool in_slices = job->out->how == FINISH_lse || job->out->how == FINISH_exponentials;
    int64_t step = in_slices ? HEAD_SLICE : job->plan.block_cols;
    int64_t n_steps = divide_up(job->shape->n, step);
    int64_t n_wanted = divide_up(ITEMS_A_THREAD * job->plan.threads, job->n_row_items);
    return divide_up(n_steps, least(n_wanted, n_steps)) * step;
}

void TILED(gemm_bf16)(int threads, const struct gemm_shape *shape, const uint16_t *a,
                      const uint16_t *b, const struct gemm_bf16_out *out, void *work)
{
    struct job job = {.shape = shape,
                      .plan = gemm_bf16_plan(shape, threads),
                      .a = a,
                      .b = b,
                      .out = out,
                      .work = work};
    const struct gemm_bf16_plan *plan = &job.plan;
    job.n_row_items = divide_up(shape->m, plan->block_rows);
    job.item_cols = item_cols(&job);
    job.n_col_items = divide_up(shape->n, job.item_cols);
    atomic_init(&job.next, 0);
    if (plan->shares_b) {
        struct range all_cols = {0, shape->n}, all_depths = {0, plan->n_depths};
        struct packing packing =
            packing_of(&job, true, all_cols, all_depths, (void *)(job.work + plan->shared_b));
        int64_t n_runs = n_pack_runs(&packing);
#pragma omp parallel for schedule(static) num_threads(plan->threads)
        for (int64_t i = 0; i < n_runs; i++)
            pack_run(&packing, i);
    }
#pragma omp parallel for schedule(static) num_threads(plan->threads)
    for (int thread = 0; thread < plan->threads; thread++)
        run_worker(&job, thread);
}

static void gelu(int64_t n, const uint16_t *x, uint16_t *y)
{
    for (int64_t at = 0; at < n; at += TILE_SIDE) {
        int64_t count = least(TILE_SIDE, n - at);
        lanes_store_bf16(y + at, lanes_gelu(lanes_load_bf16(x + at, count)), count);
    }
}

const struct gelu_bf16 TILED(gelu_bf16) = {gelu};
