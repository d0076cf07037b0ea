/*
 * simd_gemm.c -- C (+)= op(A) op(B) with our own loops.
 *
 * A panel of B (KC x NC) is packed once for all threads, as strips as wide as a tile.  It stays in
 * each core's L2 if that holds 1.2 MB, else in L3.  A thread packs some strips of A.  Each of them
 * stays in L1 while all strips of the panel stream past, and a tile of C stays in registers while a
 * strip of A is multiplied by a strip of B.
 *
 *         n: NC at a time            A strip: for each k, TILE_ROWS elements
 *       +---------+                  B strip: for each k, TILE_COLS elements
 *   k   | B panel |   strips of 48 columns (16, 8)
 *       +---------+
 *   +--+ +---------+
 *   |A | |    C    |   strips of 8 rows (6, 4)
 *   +--+ +---------+
 *
 * Threads take items, some strips of A by some strips of the panel, until none is left, because the
 * cores of a shared host are not equally fast.  Each element of C is summed in the order of k, so
 * the results do not depend on the number of threads.
 */
#include "cpu/simd/simd_vec.h"
#include "cpu/transpose_block.h"

#if VEC_ELEMS == 16
enum { TILE_ROWS = 8, TILE_VECS = 3 };
#elif VEC_ELEMS == 8
enum { TILE_ROWS = 6, TILE_VECS = 2 };
#else
enum { TILE_ROWS = 4, TILE_VECS = 2 };
#endif
enum { TILE_COLS = VEC_ELEMS * TILE_VECS, LINE_FLOATS = WORK_ALIGN / 4 };

/* ---- packing ------------------------------------------------------------------------------- */

/* With constant sizes, copies become a few moves.  Calls to memcpy took 16% of GPT-2's matmuls. */
#define INLINE_FOR_SIZES static inline __attribute__((always_inline))

/* to[k * width + w] = from[w * step + k] for all w < n: rows become columns. */
INLINE_FOR_SIZES void transpose_panel(float *to, int64_t width, int64_t n, int64_t n_k,
                                      const float *from, int64_t step)
{
    const bool by_squares = VEC_ELEMS == SQUARE_SIDE;
    const int64_t row_bytes = sizeof(float[SQUARE_SIDE]);
    float square[SQUARE_SIDE][SQUARE_SIDE], transposed[SQUARE_SIDE][SQUARE_SIDE];
    int64_t k = 0;
    for (; by_squares && n == SQUARE_SIDE && k + SQUARE_SIDE <= n_k; k += SQUARE_SIDE)
        square_transpose(from + k, step * 4, to + k * width, width * 4);
    if (by_squares && n < SQUARE_SIDE)
        memset(square, 0, sizeof square);
    for (; by_squares && k + SQUARE_SIDE <= n_k; k += SQUARE_SIDE) {
        for (int64_t w = 0; w < n; w++)
            memcpy(square[w], from + w * step + k, sizeof square[w]);
        square_transpose(square, row_bytes, transposed, row_bytes);
        for (int64_t i = 0; i < SQUARE_SIDE; i++)
            memcpy(to + (k + i) * width, transposed[i], (size_t)n * sizeof *to);
    }
    for (int64_t w = 0; w < n; w++) /* row by row: several rows may collide in the cache */
        for (int64_t i = k; i < n_k; i++)
            to[i * width + w] = from[w * step + i];
}

/* Packs one strip of `width`.  Elements from `valid` on are set to zero.  One of the steps is 1. */
INLINE_FOR_SIZES void pack_strip(float *to, int64_t width, int64_t valid, int64_t n_k,
                                 const float *from, int64_t step_across, int64_t step_k)
{
    const int64_t side = width < SQUARE_SIDE ? width : SQUARE_SIDE;
    int64_t w = 0;
    if (valid < width)
        memset(to, 0, (size_t)(n_k * width) * sizeof *to);
    if (step_across != 1) {
        for (; w + side <= valid; w += side)
            transpose_panel(to + w, width, side, n_k, from + w * step_across, step_across);
        if (w < valid)
            transpose_panel(to + w, width, valid - w, n_k, from + w * step_across, step_across);
    } else if (valid == width) {
        for (int64_t k = 0; k < n_k; k++)
            memcpy(to + k * width, from + k * step_k, (size_t)width * sizeof *to);
    } else {
        for (int64_t k = 0; k < n_k; k++)
            memcpy(to + k * width, from + k * step_k, (size_t)valid * sizeof *to);
    }
}

/* ---- a tile -------------------------------------------------------------------------------- */

static inline void store_tile(vec tile[TILE_ROWS][TILE_VECS], float *c, int64_t ldc, int64_t n_rows,
                              int64_t n_cols, bool add)
{
    if (n_rows == TILE_ROWS && n_cols == TILE_COLS) {
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 3
            for (int v = 0; v < TILE_VECS; v++) {
                float *place = c + r * ldc + v * VEC_ELEMS;
                vec_store(place, add ? tile[r][v] + vec_load(place) : tile[r][v]);
            }
        return;
    }
    float values[TILE_ROWS][TILE_COLS];
    memcpy(values, tile, sizeof values);
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t j = 0; j < n_cols; j++)
            c[r * ldc + j] = add ? c[r * ldc + j] + values[r][j] : values[r][j];
}

/* A prefetch hint, which may point past the end of an array. */
static inline void prefetch(const float *array, int64_t at)
{
    __builtin_prefetch((const void *)((uintptr_t)array + (uintptr_t)at * sizeof *array));
}

/* Computes a tile of C.  Prefetches the next parts of C and B while it multiplies. */
static void compute_tile(int64_t n_k, const float *a, const float *b, float *c, int64_t ldc,
                         int64_t n_rows, int64_t n_cols, bool add)
{
    enum { AHEAD = 8 }; /* k */
    vec tile[TILE_ROWS][TILE_VECS] = {{{0}}};
    if (n_rows == TILE_ROWS)
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 3
            for (int j = 0; j < TILE_COLS; j += LINE_FLOATS)
                prefetch(c, r * ldc + j);
    for (int64_t k = 0; k < n_k; k++) {
        const vec *b_row = (const vec *)(const void *)(b + k * TILE_COLS);
#pragma GCC unroll 3
        for (int j = 0; j < TILE_COLS; j += LINE_FLOATS)
            prefetch(b, (k + AHEAD) * TILE_COLS + j);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 3
            for (int v = 0; v < TILE_VECS; v++)
                tile[r][v] += a[k * TILE_ROWS + r] * b_row[v];
    }
    store_tile(tile, c, ldc, n_rows, n_cols, add);
}

/* ---- a panel ------------------------------------------------------------------------------- */

/* The multiplication with one panel of B, split into items. */
struct step {
    const struct gemm_shape *shape;
    const float *a, *b;
    float *c, *panel;
    int64_t col, n_cols, depth, n_k;
    bool add;
    int64_t item_cols, n_row_items, n_col_items;
    int64_t next; /* next item, or next strip to pack */
};

static void pack_panel(struct step *step)
{
    const struct gemm_shape *s = step->shape;
    int64_t across = s->b_transposed ? s->ldb : 1, along = s->b_transposed ? 1 : s->ldb;
    int64_t strip, n_strips = divide_up(step->n_cols, TILE_COLS);
    while ((strip = next_item(&step->next)) < n_strips) {
        int64_t col = strip * TILE_COLS;
        pack_strip(step->panel + col * step->n_k, TILE_COLS, least(TILE_COLS, step->n_cols - col),
                   step->n_k, step->b + (step->col + col) * across + step->depth * along, across,
                   along);
    }
}

/* Runs an item: some rows by some columns of the panel.  `block` receives the packed rows. */
static void run_item(const struct step *step, int64_t item, float *block)
{
    const struct gemm_shape *s = step->shape;
    int64_t across = s->a_transposed ? 1 : s->lda, along = s->a_transposed ? s->lda : 1;
    int64_t top = item / step->n_col_items * GEMM_ITEM_ROWS;
    int64_t n_rows = least(GEMM_ITEM_ROWS, s->m - top);
    int64_t first = item % step->n_col_items * step->item_cols;
    int64_t end = least(step->n_cols, first + step->item_cols);
    for (int64_t r = 0; r < n_rows; r += TILE_ROWS)
        pack_strip(block + r * step->n_k, TILE_ROWS, least(TILE_ROWS, n_rows - r), step->n_k,
                   step->a + (top + r) * across + step->depth * along, across, along);
    for (int64_t r = 0; r < n_rows; r += TILE_ROWS)
        for (int64_t j = first; j < end; j += TILE_COLS)
            compute_tile(step->n_k, block + r * step->n_k, step->panel + j * step->n_k,
                         step->c + (top + r) * s->ldc + step->col + j, s->ldc,
                         least(TILE_ROWS, n_rows - r), least(TILE_COLS, end - j), step->add);
}

/* Each item packs its rows of A, so items should be wide, but there must be enough of them for all
 * threads. */
static void cut_items(struct step *step, int threads)
{
    enum { ITEMS_A_THREAD = 8, LEAST_STRIPS = 4 };
    int64_t n_strips = divide_up(step->n_cols, TILE_COLS);
    step->n_row_items = divide_up(step->shape->m, GEMM_ITEM_ROWS);
    int64_t n_wanted = threads == 1 ? 1 : divide_up(ITEMS_A_THREAD * threads, step->n_row_items);
    int64_t n_most = divide_up(n_strips, LEAST_STRIPS);
    step->item_cols = divide_up(n_strips, least(n_wanted, n_most)) * TILE_COLS;
    step->n_col_items = divide_up(step->n_cols, step->item_cols);
}

static void run_items(struct step *step, float *block)
{
    int64_t item, n_items = step->n_row_items * step->n_col_items;
    while ((item = next_item(&step->next)) < n_items)
        run_item(step, item, block);
}

void LEVEL(simd_gemm)(int threads, const struct gemm_shape *shape, const float *a, const float *b,
                      float *c, bool add, float *work)
{
    int64_t most_k = least(shape->k, GEMM_KC);
    struct step step = {.shape = shape, .a = a, .b = b, .c = c, .panel = work};
    int64_t panel_cols = gemm_panel_cols(shape);
    float *blocks = work + most_k * panel_cols;

    for (step.col = 0; step.col < shape->n; step.col += panel_cols) {
        step.n_cols = least(panel_cols, shape->n - step.col);
        cut_items(&step, threads);
        for (step.depth = 0; step.depth < shape->k; step.depth += GEMM_KC) {
            step.n_k = least(GEMM_KC, shape->k - step.depth);
            step.add = add || step.depth > 0;
            step.next = 0;
#pragma omp parallel for schedule(static) num_threads(threads)
            for (int thread = 0; thread < threads; thread++)
                pack_panel(&step);
            step.next = 0;
#pragma omp parallel for schedule(static) num_threads(threads)
            for (int thread = 0; thread < threads; thread++)
                run_items(&step, blocks + thread * most_k * GEMM_ITEM_ROWS);
        }
    }
}
