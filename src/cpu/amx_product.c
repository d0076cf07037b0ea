/*
 * amx_product.c -- products of bf16 matrices on AMX tiles.
 *
 * Both operands are first laid out as the tiles want them (amx_tiles.h), in strips of 32 rows of A
 * and 32 columns of B; a strip is two tiles for each 32 of k, one after the other.  In units of a
 * pair (4 bytes) a tile of A is the transpose of one of B.  What a matrix has contiguous in memory,
 * k or the other way, decides whether a tile is copied or transposed, and whether the pairs must
 * first be made from two rows.  What is missing at the edges is zero, so that the innermost loop
 * knows nothing of them: four tiles of C stay in registers while two of A and two of B come by for
 * each step of k.  Meanwhile the rest of the core finishes the block before (amx_finish.h).
 *
 * Each number of C is summed over k in order by one thread: same bits for any number of threads,
 * whichever of them makes a block.
 */
#include <stdatomic.h>

#include "cpu/amx_finish.h"
#include "cpu/amx_tiles.h"
#include "cpu/product16.h"

/* ---- packing ------------------------------------------------------------------------------- */

/* A matrix seen as `across` (rows of A, columns of B) by k, and where its strips go. */
struct packing {
    const uint16_t *from;
    int64_t pitch; /* elements between what is not contiguous */
    int64_t n_across, n_k;
    bool k_contiguous, pairs_down; /* pairs_down: a tile is pairs by columns, as of B */
    uint16_t *to;
    int64_t n_strips, n_depths;
};

/* Rows are `across`, each with its pairs of k as they lie in memory. */
static inline void copy_pairs(const struct packing *p, int64_t across, int64_t k, uint32_t *block)
{
    int64_t n_rows = least(TILE_SIDE, p->n_across - across), n_k = least(TILE_DEPTH, p->n_k - k);
    const uint16_t *from = p->from + across * p->pitch + k;
    if (n_rows == TILE_SIDE && n_k == TILE_DEPTH) {
        for (int r = 0; r < TILE_SIDE; r++)
            memcpy(block + r * TILE_SIDE, from + r * p->pitch, TILE_DEPTH * sizeof *from);
        return;
    }
    memset(block, 0, TILE_ELEMS * sizeof *from);
    for (int64_t r = 0; r < n_rows; r++)
        memcpy(block + r * TILE_SIDE, from + r * p->pitch, (size_t)n_k * sizeof *from);
}

/* Rows are pairs of k, each made from two rows of the matrix. */
static inline void make_pairs(const struct packing *p, int64_t across, int64_t k, uint32_t *block)
{
    int64_t n_cols = least(TILE_SIDE, p->n_across - across), n_k = least(TILE_DEPTH, p->n_k - k);
    const uint16_t *from = p->from + k * p->pitch + across;
    if (n_cols == TILE_SIDE && n_k == TILE_DEPTH) {
        for (int r = 0; r < TILE_SIDE; r++) {
            const uint16_t *even = from + 2 * r * p->pitch, *odd = even + p->pitch;
#pragma omp simd
            for (int j = 0; j < TILE_SIDE; j++)
                block[r * TILE_SIDE + j] = (uint32_t)even[j] | (uint32_t)odd[j] << 16;
        }
        return;
    }
    memset(block, 0, TILE_ELEMS * sizeof *from);
    for (int64_t i = 0; i < n_k; i++)
        for (int64_t j = 0; j < n_cols; j++)
            block[i / 2 * TILE_SIDE + j] |= (uint32_t)from[i * p->pitch + j] << (i % 2 * 16);
}

static inline void pack_tile(const struct packing *p, int64_t across, int64_t k, uint32_t *to)
{
    _Alignas(64) uint32_t block[TILE_SIDE * TILE_SIDE];
    bool transposed = p->k_contiguous == p->pairs_down;
    uint32_t *made = transposed ? block : to;
    if (across >= p->n_across) {
        memset(to, 0, TILE_ELEMS * sizeof(uint16_t));
        return;
    }
    if (p->k_contiguous)
        copy_pairs(p, across, k, made);
    else
        make_pairs(p, across, k, made);
    if (transposed)
        tile_transpose(block, to);
}

/* Memory is read along what is contiguous in it: a strip at a time, or a step of k at a time. */
static int64_t n_pack_runs(const struct packing *p)
{
    return p->k_contiguous ? p->n_strips : p->n_depths;
}

/* A strip at one step of k is 32 lines of the matrix, far from each other: more than the CPU
 * follows on its own. */
static inline void expect_lines(const struct packing *p, int64_t strip, int64_t depth)
{
    int64_t n_across = least(STRIP, p->n_across - strip * STRIP);
    int64_t n_k = least(TILE_DEPTH, p->n_k - depth * TILE_DEPTH);
    int64_t n_lines = p->k_contiguous ? n_across : n_k;
    int64_t down = p->k_contiguous ? strip * STRIP : depth * TILE_DEPTH;
    int64_t along = p->k_contiguous ? depth * TILE_DEPTH : strip * STRIP;
    for (int64_t i = 0; i < n_lines; i++)
        __builtin_prefetch(p->from + (down + i) * p->pitch + along, 0, 3);
}

static void pack_run(const struct packing *p, int64_t run)
{
    int64_t n = p->k_contiguous ? p->n_depths : p->n_strips;
    int64_t ahead = p->k_contiguous ? 2 : 1; /* steps of k; else a whole run */
    for (int64_t i = 0; i < n; i++) {
        int64_t strip = p->k_contiguous ? run : i, depth = p->k_contiguous ? i : run;
        expect_lines(p, strip, depth + ahead);
        uint32_t *to = (uint32_t *)(void *)(p->to + (strip * p->n_depths + depth) * 2 * TILE_ELEMS);
        pack_tile(p, strip * STRIP, depth * TILE_DEPTH, to);
        pack_tile(p, strip * STRIP + TILE_SIDE, depth * TILE_DEPTH, to + TILE_SIDE * TILE_SIDE);
    }
}

static void pack_all(const struct packing *p)
{
    for (int64_t i = 0; i < n_pack_runs(p); i++)
        pack_run(p, i);
}

/* ---- the product --------------------------------------------------------------------------- */

struct job {
    const struct product_shape *shape;
    struct product16_plan plan;
    const uint16_t *a, *b;
    const struct product16_out *out;
    char *work;
    int64_t item_cols, n_row_items, n_col_items;
    atomic_llong next; /* the first item that nobody has taken */
};

/* A block of C, 32 x 32 in four tiles, whose rows are not all finished yet. */
struct unfinished {
    const float *c;
    int64_t row, col;
    int n_rows, n_cols, next;
};

struct worker {
    const struct job *job;
    struct tiles tiles;
    uint16_t *a, *b; /* packed: a block of A, and of B unless that is shared */
    int64_t a_row;   /* where the block of A begins, if all of it is there; -1: it is not */
    float *c;
    struct unfinished before;
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

/* Asks for the strip of B some steps ahead: the CPU on its own begins too late. */
static inline void expect_strip(const uint16_t *b)
{
    enum { AHEAD = 2, LINE = 32 };
    b += AHEAD * 2 * TILE_ELEMS;
    for (int i = 0; i < 2 * TILE_ELEMS; i += LINE)
        __builtin_prefetch(b + i, 0, 3);
}

/* c[32 x 32] = or += 32 rows of A by 32 columns of B, n_depths steps of k. */
static void multiply_strips(struct worker *w, int64_t n_depths, const uint16_t *a,
                            const uint16_t *b, float *c, bool add)
{
    enum { LINE_BYTES = 64, TILE_FLOATS = TILE_SIDE * TILE_SIDE };
    struct tiles *tiles = &w->tiles;
    int rows_a_step = (int)((STRIP + n_depths - 1) / n_depths);
    if (add) {
        tile_load(tiles, 0, c, LINE_BYTES);
        tile_load(tiles, 1, c + TILE_FLOATS, LINE_BYTES);
        tile_load(tiles, 2, c + 2 * TILE_FLOATS, LINE_BYTES);
        tile_load(tiles, 3, c + 3 * TILE_FLOATS, LINE_BYTES);
    } else {
        tile_zero(tiles, 0);
        tile_zero(tiles, 1);
        tile_zero(tiles, 2);
        tile_zero(tiles, 3);
    }
    for (int64_t i = 0; i < n_depths; i++) {
        tile_load(tiles, 4, a, LINE_BYTES);
        tile_load(tiles, 6, b, LINE_BYTES);
        tile_multiply(tiles, 0, 4, 6);
        tile_load(tiles, 7, b + TILE_ELEMS, LINE_BYTES);
        tile_multiply(tiles, 1, 4, 7);
        tile_load(tiles, 5, a + TILE_ELEMS, LINE_BYTES);
        tile_multiply(tiles, 2, 5, 6);
        tile_multiply(tiles, 3, 5, 7);
        expect_strip(b);
        finish_some(w, rows_a_step);
        a += 2 * TILE_ELEMS;
        b += 2 * TILE_ELEMS;
    }
    tile_store(tiles, 0, c, LINE_BYTES);
    tile_store(tiles, 1, c + TILE_FLOATS, LINE_BYTES);
    tile_store(tiles, 2, c + 2 * TILE_FLOATS, LINE_BYTES);
    tile_store(tiles, 3, c + 3 * TILE_FLOATS, LINE_BYTES);
}

/* `depths` of the rows of A, packed with room for n_depths a strip. */
static void pack_a(const struct job *job, struct range rows, struct range depths, uint16_t *to)
{
    const struct product_shape *s = job->shape;
    int64_t k = depths.begin * TILE_DEPTH;
    pack_all(&(struct packing){
        .from = job->a + (s->a_transposed ? k * s->lda + rows.begin : rows.begin * s->lda + k),
        .pitch = s->lda,
        .n_across = rows.end - rows.begin,
        .n_k = least(depths.end * TILE_DEPTH, s->k) - k,
        .k_contiguous = !s->a_transposed,
        .to = to,
        .n_strips = product16_strips(rows.end - rows.begin),
        .n_depths = depths.end - depths.begin});
}

static struct packing packing_of_b(const struct job *job, struct range cols, struct range depths,
                                   uint16_t *to)
{
    const struct product_shape *s = job->shape;
    int64_t k = depths.begin * TILE_DEPTH;
    return (struct packing){
        .from = job->b + (s->b_transposed ? cols.begin * s->ldb + k : k * s->ldb + cols.begin),
        .pitch = s->ldb,
        .n_across = cols.end - cols.begin,
        .n_k = least(depths.end * TILE_DEPTH, s->k) - k,
        .k_contiguous = s->b_transposed,
        .pairs_down = true,
        .to = to,
        .n_strips = product16_strips(cols.end - cols.begin),
        .n_depths = depths.end - depths.begin};
}

/* One chunk of k for a block of C.  Blocks of 32 x 32 are finished by the last chunk, each while
 * the next is multiplied. */
static void run_chunk(struct worker *w, struct range rows, struct range cols, struct range depths)
{
    const struct job *job = w->job;
    const struct product16_plan *plan = &job->plan;
    bool is_first = depths.begin == 0, is_last = depths.end == plan->n_depths;
    int64_t chunk = depths.end - depths.begin, n_done = 0;
    int64_t a_step = (plan->keeps_a ? plan->n_depths : chunk) * 2 * TILE_ELEMS;
    int64_t b_step = (plan->shares_b ? plan->n_depths : chunk) * 2 * TILE_ELEMS;
    const uint16_t *a = w->a + (plan->keeps_a ? depths.begin * 2 * TILE_ELEMS : 0);
    const uint16_t *b = w->b;
    if (plan->shares_b)
        b += (cols.begin / STRIP * plan->n_depths + depths.begin) * 2 * TILE_ELEMS;
    for (int64_t col = cols.begin; col < cols.end; col += STRIP, b += b_step)
        for (int64_t row = rows.begin; row < rows.end; row += STRIP, n_done++) {
            bool whole_k = is_first && is_last;
            float *c = w->c + (whole_k ? n_done % 2 : n_done) * STRIP * STRIP;
            multiply_strips(w, chunk, a + (row - rows.begin) / STRIP * a_step, b, c, !is_first);
            if (!is_last)
                continue;
            finish_some(w, STRIP);
            w->before = (struct unfinished){
                c, row, col, (int)least(STRIP, rows.end - row), (int)least(STRIP, cols.end - col),
                0};
        }
}

static void run_block(struct worker *w, struct range rows, struct range cols)
{
    const struct job *job = w->job;
    const struct product16_plan *plan = &job->plan;
    if (plan->keeps_a && w->a_row != rows.begin) {
        pack_a(job, rows, (struct range){0, plan->n_depths}, w->a);
        w->a_row = rows.begin;
    }
    for (int64_t depth = 0; depth < plan->n_depths; depth += plan->chunk_depths) {
        struct range depths = {depth, least(depth + plan->chunk_depths, plan->n_depths)};
        if (!plan->keeps_a)
            pack_a(job, rows, depths, w->a);
        if (!plan->shares_b) {
            struct packing packing = packing_of_b(job, cols, depths, w->b);
            pack_all(&packing);
        }
        run_chunk(w, rows, cols, depths);
    }
    finish_some(w, STRIP); /* its place is taken by the next block's sums */
}

/* Items go along the rows of blocks, so that a thread finds its block of A packed mostly. */
static void run_item(struct worker *w, int64_t item)
{
    const struct job *job = w->job;
    const struct product_shape *s = job->shape;
    int64_t row = item / job->n_col_items * job->plan.block_rows;
    int64_t begin = item % job->n_col_items * job->item_cols;
    int64_t end = least(begin + job->item_cols, s->n);
    struct range rows = {row, least(row + job->plan.block_rows, s->m)};
    for (int64_t col = begin; col < end; col += job->plan.block_cols)
        run_block(w, rows, (struct range){col, least(col + job->plan.block_cols, end)});
}

static void run_worker(struct job *job, int thread)
{
    const struct product16_plan *plan = &job->plan;
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

void TILED(product16)(int threads, const struct product_shape *shape, const uint16_t *a,
                      const uint16_t *b, const struct product16_out *out, void *work)
{
    struct job job = {.shape = shape,
                      .plan = product16_plan(shape, threads),
                      .a = a,
                      .b = b,
                      .out = out,
                      .work = work};
    const struct product16_plan *plan = &job.plan;
    job.item_cols = out->how == FINISH_lse ? HEAD_SLICE : plan->block_cols;
    job.n_row_items = divide_up(shape->m, plan->block_rows);
    job.n_col_items = divide_up(shape->n, job.item_cols);
    atomic_init(&job.next, 0);
    if (plan->shares_b) {
        struct range all_cols = {0, shape->n}, all_depths = {0, plan->n_depths};
        struct packing packing =
            packing_of_b(&job, all_cols, all_depths, (void *)(job.work + plan->shared_b));
        int64_t n_runs = n_pack_runs(&packing);
#pragma omp parallel for schedule(static) num_threads(plan->threads)
        for (int64_t i = 0; i < n_runs; i++)
            pack_run(&packing, i);
    }
#pragma omp parallel for schedule(static) num_threads(plan->threads)
    for (int thread = 0; thread < plan->threads; thread++)
        run_worker(&job, thread);
}
