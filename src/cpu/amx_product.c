/*
 * amx_product.c -- products of bf16 matrices on AMX tiles.
 *
 * Both operands are first laid out as the tiles want them, in strips of 32 rows of A and 32 columns
 * of B; a strip is two tiles for each 32 of k, one after the other:
 *
 *   tile of A: 16 rows x 32 k                tile of B: 16 pairs of k x 16 columns
 *     row r:  k0 k1 k2 ... k31                 pair p: (k2p,k2p+1) of column 0, of column 1 ...
 *
 * In units of a pair (4 bytes) one is the transpose of the other.  What a matrix has contiguous in
 * memory, k or the other way, decides whether a tile is copied or transposed, and whether the pairs
 * must first be made from two rows.  What is missing at the edges is zero, so that the innermost
 * loop knows nothing of them: four tiles of C stay in registers while two of A and two of B come by
 * for each step of k.
 *
 * Each number of C is summed over k in order by one thread: same bits for any number of threads.
 */
#include "cpu/amx_tiles.h"
#include "cpu/product16.h"

/* 32 rows of A by 32 columns of B, all of k; c gets the sum. */
static void multiply_strips(struct tiles *tiles, int64_t n_depths, const uint16_t *a,
                            const uint16_t *b, float *c, int64_t pitch)
{
    tile_zero(tiles, 0);
    tile_zero(tiles, 1);
    tile_zero(tiles, 2);
    tile_zero(tiles, 3);
    for (int64_t i = 0; i < n_depths; i++) {
        tile_load(tiles, 4, a, 64);
        tile_load(tiles, 6, b, 64);
        tile_multiply(tiles, 0, 4, 6);
        tile_load(tiles, 7, b + TILE_ELEMS, 64);
        tile_multiply(tiles, 1, 4, 7);
        tile_load(tiles, 5, a + TILE_ELEMS, 64);
        tile_multiply(tiles, 2, 5, 6);
        tile_multiply(tiles, 3, 5, 7);
        a += 2 * TILE_ELEMS;
        b += 2 * TILE_ELEMS;
    }
    tile_store(tiles, 0, c, pitch * 4);
    tile_store(tiles, 1, c + TILE_SIDE, pitch * 4);
    tile_store(tiles, 2, c + TILE_SIDE * pitch, pitch * 4);
    tile_store(tiles, 3, c + TILE_SIDE * pitch + TILE_SIDE, pitch * 4);
}

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

/* ---- the product --------------------------------------------------------------------------- */

struct job {
    const struct product_shape *shape;
    struct product16_plan plan;
    const uint16_t *a, *b_packed;
    const struct product16_out *out;
    char *work;
    int parts_m, parts_n;
};

/* One strip of rows by one group of columns leaves the cache. */
static void deliver(const struct job *job, float *c, int64_t row, int64_t n_rows, int64_t col,
                    int64_t n_cols)
{
    const struct product16_out *out = job->out;
    int64_t pitch = job->plan.group_cols;
    if (out->finish != NULL) {
        out->loops->finish_piece(out->finish, row, n_rows, col, n_cols, c, pitch);
        return;
    }
    for (int64_t r = 0; r < n_rows; r++) {
        float *to = out->c + (row + r) * job->shape->ldc + col;
        const float *from = c + r * pitch;
        if (!out->add) {
            memcpy(to, from, (size_t)n_cols * sizeof *to);
            continue;
        }
#pragma omp simd
        for (int64_t j = 0; j < n_cols; j++)
            to[j] += from[j];
    }
}

static void run_block(const struct job *job, struct tiles *tiles, const uint16_t *a, float *c,
                      struct range rows, struct range cols)
{
    int64_t n_depths = job->plan.n_depths, group = job->plan.group_cols;
    for (int64_t col = cols.begin; col < cols.end; col += group) {
        int64_t n_cols = least(group, cols.end - col);
        const uint16_t *b = job->b_packed + col * n_depths * TILE_DEPTH;
        for (int64_t row = rows.begin; row < rows.end; row += STRIP) {
            const uint16_t *a_strip = a + (row - rows.begin) * n_depths * TILE_DEPTH;
            int64_t n_rows = least(STRIP, rows.end - row);
            for (int64_t j = 0; j < n_cols; j += STRIP)
                multiply_strips(tiles, n_depths, a_strip, b + j * n_depths * TILE_DEPTH, c + j,
                                group);
            deliver(job, c, row, n_rows, col, n_cols);
        }
    }
}

static void run_part(const struct job *job, int part)
{
    const struct product_shape *s = job->shape;
    const struct product16_plan *plan = &job->plan;
    struct range rows = part_range(s->m, job->parts_m, part / job->parts_n, STRIP);
    struct range cols = part_range(s->n, job->parts_n, part % job->parts_n, STRIP);
    uint16_t *a_packed = (void *)(job->work + plan->a + (size_t)part * plan->a_bytes);
    float *c = (void *)(job->work + plan->c + (size_t)part * plan->c_bytes);
    struct tiles tiles;

    tiles_begin(&tiles);
    for (int64_t row = rows.begin; row < rows.end; row += plan->block_rows) {
        struct range block = {row, least(row + plan->block_rows, rows.end)};
        struct packing packing = {.from = job->a + row * (s->a_transposed ? 1 : s->lda),
                                  .pitch = s->lda,
                                  .n_across = block.end - row,
                                  .n_k = s->k,
                                  .k_contiguous = !s->a_transposed,
                                  .to = a_packed,
                                  .n_strips = product16_strips(block.end - row),
                                  .n_depths = plan->n_depths};
        for (int64_t i = 0; i < n_pack_runs(&packing); i++)
            pack_run(&packing, i);
        run_block(job, &tiles, a_packed, c, block, cols);
    }
    tiles_end(&tiles);
}

void TILED(product16)(int threads, const struct product_shape *shape, const uint16_t *a,
                      const uint16_t *b, const struct product16_out *out, void *work)
{
    struct job job = {
        .shape = shape, .plan = product16_plan(shape, threads), .a = a, .out = out, .work = work};
    uint16_t *b_packed = (void *)(job.work + job.plan.b);
    struct packing packing = {.from = b,
                              .pitch = shape->ldb,
                              .n_across = shape->n,
                              .n_k = shape->k,
                              .k_contiguous = shape->b_transposed,
                              .pairs_down = true,
                              .to = b_packed,
                              .n_strips = product16_strips(shape->n),
                              .n_depths = job.plan.n_depths};
    job.b_packed = b_packed;
    threads = product_threads(shape, threads);
    job.parts_m = (int)least(threads, product16_strips(shape->m));
    job.parts_n = (int)least(threads / job.parts_m, product16_strips(shape->n));
    int n_parts = job.parts_m * job.parts_n;
    int64_t n_runs = n_pack_runs(&packing);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n_runs; i++)
        pack_run(&packing, i);
#pragma omp parallel for schedule(static) num_threads(n_parts)
    for (int part = 0; part < n_parts; part++)
        run_part(&job, part);
}
