/*
 * fast_product.c -- C (+)= op(A) op(B) by our own loops.
 *
 * The usual three levels of blocks.  A panel of B (KC x NC) is packed once for all threads, a block
 * of A (MC x KC) once per thread, both as strips whose width is the tile's; then a tile of C lives
 * in registers while its strip of A and its strip of B stream by.
 *
 *         n: NC at a time            A strip: for each k, TILE_ROWS numbers
 *       +---------+                  B strip: for each k, TILE_COLS numbers
 *   k   | B panel |   strips of 32 columns (16, 8)
 *       +---------+
 *   +--+ +---------+
 *   |A | |    C    |   strips of 12 rows (6, 4); a thread owns a rectangle of strips
 *   +--+ +---------+
 *
 * Each number of C is summed in the order of k by one thread: same bits for any number of threads.
 */
#include "cpu/cpu.h"
#include "cpu/fast_common.h"

#if defined(__AVX512F__)
enum { LANES = 16, TILE_ROWS = 12, TILE_VECS = 2 };
#elif defined(__AVX__)
enum { LANES = 8, TILE_ROWS = 6, TILE_VECS = 2 };
#else
enum { LANES = 4, TILE_ROWS = 4, TILE_VECS = 2 };
#endif
enum { TILE_COLS = LANES * TILE_VECS };

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef float vec_anywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* One strip: `width` wide as packed, of which `valid` are there and the rest becomes zero. */
static void pack_strip(float *to, int width, int64_t valid, int64_t n_k, const float *from,
                       int64_t step_across, int64_t step_k)
{
    if (valid < width)
        memset(to, 0, (size_t)(n_k * width) * sizeof *to);
    if (step_across == 1) {
        for (int64_t k = 0; k < n_k; k++)
            memcpy(to + k * width, from + k * step_k, (size_t)valid * sizeof *to);
    } else {
        for (int64_t w = 0; w < valid; w++)
            for (int64_t k = 0; k < n_k; k++)
                to[k * width + w] = from[w * step_across + k * step_k];
    }
}

static void store_tile(const vec tile[TILE_ROWS][TILE_VECS], float *c, int64_t ldc, int64_t n_rows,
                       int64_t n_cols, bool add)
{
    if (n_cols == TILE_COLS) {
        for (int64_t r = 0; r < n_rows; r++)
            for (int v = 0; v < TILE_VECS; v++) {
                vec_anywhere *place = (vec_anywhere *)(c + r * ldc + v * LANES);
                *place = tile[r][v] + (add ? (vec)*place : (vec){0});
            }
        return;
    }
    for (int64_t r = 0; r < n_rows; r++) {
        const float *values = (const float *)tile[r];
        for (int64_t j = 0; j < n_cols; j++)
            c[r * ldc + j] = add ? c[r * ldc + j] + values[j] : values[j];
    }
}

static void make_tile(int64_t n_k, const float *a, const float *b, float *c, int64_t ldc,
                      int64_t n_rows, int64_t n_cols, bool add)
{
    vec tile[TILE_ROWS][TILE_VECS] = {0};
    for (int64_t k = 0; k < n_k; k++) {
        const vec *b_row = (const vec *)(const void *)(b + k * TILE_COLS);
#pragma GCC unroll 12
        for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 2
            for (int v = 0; v < TILE_VECS; v++)
                tile[r][v] += a[k * TILE_ROWS + r] * b_row[v];
    }
    store_tile(tile, c, ldc, n_rows, n_cols, add);
}

/* What one (column, depth) step of the outer loops works on. */
struct step {
    const struct product_shape *shape;
    const float *a;
    float *c, *b_packed, *a_packed;
    int64_t col, n_cols, depth, n_k;
    bool add;
    int parts_m, parts_n;
};

static void pack_b(const struct step *step, const float *b, int threads)
{
    (void)threads; /* without OpenMP */
    const struct product_shape *s = step->shape;
    int64_t across = s->b_transposed ? s->ldb : 1, along = s->b_transposed ? 1 : s->ldb;
    int64_t n_strips = divide_up(step->n_cols, TILE_COLS);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t j = 0; j < n_strips; j++) {
        int64_t col = j * TILE_COLS;
        pack_strip(step->b_packed + col * step->n_k, TILE_COLS,
                   least(TILE_COLS, step->n_cols - col), step->n_k,
                   b + (step->col + col) * across + step->depth * along, across, along);
    }
}

static void run_part(const struct step *step, int part, float *a_packed)
{
    const struct product_shape *s = step->shape;
    int64_t across = s->a_transposed ? 1 : s->lda, along = s->a_transposed ? s->lda : 1;
    struct range rows = part_range(s->m, step->parts_m, part / step->parts_n, TILE_ROWS);
    struct range cols = part_range(step->n_cols, step->parts_n, part % step->parts_n, TILE_COLS);

    for (int64_t top = rows.begin; top < rows.end; top += PRODUCT_MC) {
        int64_t n_rows = least(PRODUCT_MC, rows.end - top);
        for (int64_t r = 0; r < n_rows; r += TILE_ROWS)
            pack_strip(a_packed + r * step->n_k, TILE_ROWS, least(TILE_ROWS, n_rows - r), step->n_k,
                       step->a + (top + r) * across + step->depth * along, across, along);
        for (int64_t j = cols.begin; j < cols.end; j += TILE_COLS)
            for (int64_t r = 0; r < n_rows; r += TILE_ROWS)
                make_tile(step->n_k, a_packed + r * step->n_k, step->b_packed + j * step->n_k,
                          step->c + (top + r) * s->ldc + step->col + j, s->ldc,
                          least(TILE_ROWS, n_rows - r), least(TILE_COLS, cols.end - j), step->add);
    }
}

void LEVEL(fast_product)(int threads, const struct product_shape *shape, const float *a,
                         const float *b, float *c, bool add, float *work)
{
    /* A thread's strips of A: enough for any level, see product_plain_work_bytes. */
    int64_t most_k = least(shape->k, PRODUCT_KC);
    int64_t panel_cols = product_block(shape->n, PRODUCT_NC, PRODUCT_TILE_COLS);
    int64_t block_rows = product_block(shape->m, PRODUCT_MC, PRODUCT_TILE_ROWS);
    struct step step = {.shape = shape, .a = a, .c = c, .b_packed = work};
    step.a_packed = work + padded_floats(most_k * panel_cols);
    step.parts_m = (int)least(threads, divide_up(shape->m, TILE_ROWS));

    for (step.col = 0; step.col < shape->n; step.col += PRODUCT_NC) {
        step.n_cols = least(PRODUCT_NC, shape->n - step.col);
        step.parts_n = (int)least(threads / step.parts_m, divide_up(step.n_cols, TILE_COLS));
        int n_parts = step.parts_m * step.parts_n;
        for (step.depth = 0; step.depth < shape->k; step.depth += PRODUCT_KC) {
            step.n_k = least(PRODUCT_KC, shape->k - step.depth);
            step.add = add || step.depth > 0;
            pack_b(&step, b, threads);
#pragma omp parallel for schedule(static) num_threads(n_parts)
            for (int part = 0; part < n_parts; part++)
                run_part(&step, part, step.a_packed + part * most_k * block_rows);
        }
    }
}
