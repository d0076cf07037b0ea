/*
 * amx_panels.h -- pack matrices into strips of tiles, and multiply two strips.
 *
 * A strip is 32 rows of A or 32 columns of B: two tiles (amx_tiles.h) for each 32 of k, one after
 * the other.  In units of a pair (4 bytes) a tile of A is the transpose of a tile of B.  Which
 * dimension of a matrix is contiguous, k or the other, decides whether a tile is copied or
 * transposed, and whether pairs must first be interleaved from two rows.  Edges are padded with
 * zeros, so the innermost loop needs no edge cases: two tiles of C stay in registers while tiles of
 * A and B are loaded.
 */
#ifndef SNUG_CPU_AMX_AMX_PANELS_H
#define SNUG_CPU_AMX_AMX_PANELS_H

#include "cpu/amx/amx_tiles.h"
#include "cpu/gemm/gemm_bf16.h"

/* Work for the rest of the core between two steps of k. */
typedef void meanwhile_fn(void *user);

/* c = or += half a strip of A (16 rows) by a strip of B, over n_depths steps of k.  c is two tiles,
 * `right` floats apart, with rows of row_bytes.
 *
 * This uses four of the eight tile registers, two of them for C.  More tiles of C would save loads.
 * But the CPU has only about 11 physical tile registers while the other hardware thread of the core
 * is busy, and each register in use takes one: a multiplication with its loads then takes 27 ns
 * with all 8 in use, 20 with 7, 17 with 5, 15 with 4.  Alone on the core it takes 7 in all cases.
 * (Operands in L1; bench/results/cpu-2026-11.md.) */
static inline __attribute__((always_inline)) void
multiply_half(struct tiles *tiles, int64_t n_depths, const uint16_t *a, const uint16_t *b, float *c,
              int64_t right, int64_t row_bytes, bool add, meanwhile_fn *meanwhile, void *user)
{
    enum { LINE_BYTES = 64 };
    if (add) {
        tile_load(tiles, 0, c, row_bytes);
        tile_load(tiles, 1, c + right, row_bytes);
    } else {
        tile_zero(tiles, 0);
        tile_zero(tiles, 1);
    }
    for (int64_t i = 0; i < n_depths; i++) {
        tile_load(tiles, 3, b, LINE_BYTES);
        tile_load(tiles, 2, a, LINE_BYTES);
        tile_multiply(tiles, 0, 2, 3);
        tile_load(tiles, 3, b + TILE_ELEMS, LINE_BYTES);
        tile_multiply(tiles, 1, 2, 3);
        if (meanwhile != NULL)
            meanwhile(user);
        a += 2 * TILE_ELEMS;
        b += 2 * TILE_ELEMS;
    }
    tile_store(tiles, 0, c, row_bytes);
    tile_store(tiles, 1, c + right, row_bytes);
}

/* c = or += a strip of A by a strip of B, over all of k.  c has 32 rows, `pitch` floats apart. */
static inline void multiply_strips(struct tiles *tiles, int64_t n_depths, const uint16_t *a,
                                   const uint16_t *b, float *c, int64_t pitch, bool add)
{
    for (int half = 0; half < 2; half++)
        multiply_half(tiles, n_depths, a + half * TILE_ELEMS, b, c + half * TILE_SIDE * pitch,
                      TILE_SIDE, pitch * (int64_t)sizeof *c, add, NULL, NULL);
}

/* ---- packing ------------------------------------------------------------------------------- */

/* A matrix viewed as `across` (rows of A, columns of B) by k, and the destination of its strips. */
struct packing {
    const uint16_t *from;
    int64_t pitch; /* stride of the dimension that is not contiguous, in elements */
    int64_t n_across, n_k;
    bool k_contiguous, pairs_down; /* pairs_down: tiles of B, with pairs as rows */
    bool pairs_apart;              /* pairs are k and k + 16, not k and k + 1; k not contiguous */
    uint16_t *to;
    int64_t n_strips, n_depths;
};

/* Copies rows of `across`, whose pairs of k are contiguous in memory. */
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

/* Interleaves two rows of the matrix into each row of pairs of k. */
static inline void make_pairs(const struct packing *p, int64_t across, int64_t k, uint32_t *block)
{
    int64_t n_cols = least(TILE_SIDE, p->n_across - across), n_k = least(TILE_DEPTH, p->n_k - k);
    const uint16_t *from = p->from + k * p->pitch + across;
    if (n_cols == TILE_SIDE && n_k == TILE_DEPTH) {
        int64_t to_next = (p->pairs_apart ? 1 : 2) * p->pitch;
        int64_t to_other = (p->pairs_apart ? TILE_SIDE : 1) * p->pitch;
        for (int r = 0; r < TILE_SIDE; r++) {
            const uint16_t *even = from + r * to_next, *odd = even + to_other;
#pragma omp simd
            for (int j = 0; j < TILE_SIDE; j++)
                block[r * TILE_SIDE + j] = (uint32_t)even[j] | (uint32_t)odd[j] << 16;
        }
        return;
    }
    memset(block, 0, TILE_ELEMS * sizeof *from);
    for (int64_t i = 0; i < n_k; i++) {
        int64_t pair = p->pairs_apart ? i % TILE_SIDE : i / 2;
        int64_t half = p->pairs_apart ? i / TILE_SIDE : i % 2;
        for (int64_t j = 0; j < n_cols; j++)
            block[pair * TILE_SIDE + j] |= (uint32_t)from[i * p->pitch + j] << (half * 16);
    }
}

static inline void pack_tile(const struct packing *p, int64_t across, int64_t k, uint32_t *to)
{
    _Alignas(64) uint32_t block[TILE_SIDE * TILE_SIDE];
    bool transposed = p->k_contiguous == p->pairs_down;
    bool whole = p->n_across - across >= TILE_SIDE && p->n_k - k >= TILE_DEPTH;
    uint32_t *pairs = transposed ? block : to;
    if (across >= p->n_across) {
        memset(to, 0, TILE_ELEMS * sizeof(uint16_t));
        return;
    }
    if (transposed && p->k_contiguous && whole) {
        int64_t step_bytes = p->pitch * (int64_t)sizeof *p->from;
        tile_transpose(p->from + across * p->pitch + k, step_bytes, to);
        return;
    }
    if (p->k_contiguous)
        copy_pairs(p, across, k, pairs);
    else
        make_pairs(p, across, k, pairs);
    if (transposed)
        tile_transpose(block, TILE_SIDE * sizeof *block, to);
}

/* Both tiles of a full strip, 32 columns by 32 k: one cache line holds a row of both. */
static inline void make_strip_pairs(const struct packing *p, int64_t across, int64_t k,
                                    uint32_t *left, uint32_t *right)
{
#if defined(__AVX512BW__)
    const uint16_t *from = p->from + k * p->pitch + across;
    int64_t to_next = (p->pairs_apart ? 1 : 2) * p->pitch;
    int64_t to_other = (p->pairs_apart ? TILE_SIDE : 1) * p->pitch;
    /* Unpacking works within 128-bit lanes: four columns in one result, four in the other. */
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int r = 0; r < TILE_SIDE; r++) {
        __m512i even = _mm512_loadu_si512(from + r * to_next);
        __m512i odd = _mm512_loadu_si512(from + r * to_next + to_other);
        __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
        _mm512_storeu_si512(left + r * TILE_SIDE, _mm512_permutex2var_epi64(low, first, high));
        _mm512_storeu_si512(right + r * TILE_SIDE, _mm512_permutex2var_epi64(low, second, high));
    }
#else
    make_pairs(p, across, k, left);
    make_pairs(p, across + TILE_SIDE, k, right);
#endif
}

/* Packs one step of k of a strip. */
static inline void pack_strip(const struct packing *p, int64_t across, int64_t k, uint32_t *to)
{
    enum { TILE_PAIRS = TILE_SIDE * TILE_SIDE };
    bool whole = p->n_across - across >= STRIP && p->n_k - k >= TILE_DEPTH;
    if (p->k_contiguous || !whole) {
        pack_tile(p, across, k, to);
        pack_tile(p, across + TILE_SIDE, k, to + TILE_PAIRS);
    } else if (p->pairs_down) {
        make_strip_pairs(p, across, k, to, to + TILE_PAIRS);
    } else {
        _Alignas(64) uint32_t left[TILE_PAIRS], right[TILE_PAIRS];
        make_strip_pairs(p, across, k, left, right);
        tile_transpose(left, TILE_SIDE * sizeof *left, to);
        tile_transpose(right, TILE_SIDE * sizeof *right, to + TILE_PAIRS);
    }
}

/* Reads memory along its contiguous dimension: one strip, or one step of k, per run. */
static inline int64_t n_pack_runs(const struct packing *p)
{
    return p->k_contiguous ? p->n_strips : p->n_depths;
}

/* One step of k of a strip reads 32 distant cache lines, more streams than the hardware prefetcher
 * follows. */
static inline void expect_lines(const struct packing *p, int64_t strip, int64_t depth)
{
    int64_t n_across = least(STRIP, p->n_across - strip * STRIP);
    int64_t n_k = least(TILE_DEPTH, p->n_k - depth * TILE_DEPTH);
    int64_t n_lines = p->k_contiguous ? n_across : n_k;
    int64_t down = p->k_contiguous ? strip * STRIP : depth * TILE_DEPTH;
    int64_t along = p->k_contiguous ? depth * TILE_DEPTH : strip * STRIP;
    for (int64_t i = 0; i < n_lines; i++) {
        const uint16_t *line = p->from + (down + i) * p->pitch + along;
        if (p->k_contiguous)
            __builtin_prefetch(line, 0, 3);
        else
            __builtin_prefetch(line, 0, 2); /* a whole run ahead: too much for L1 */
    }
}

static inline void pack_run(const struct packing *p, int64_t run)
{
    int64_t n = p->k_contiguous ? p->n_depths : p->n_strips;
    for (int64_t i = 0; i < n; i++) {
        int64_t strip = p->k_contiguous ? run : i, depth = p->k_contiguous ? i : run;
        if (p->k_contiguous)
            expect_lines(p, run + (i + 2) / n, (i + 2) % n); /* two steps of k ahead */
        else
            expect_lines(p, i, run + 1);
        uint32_t *to = (uint32_t *)(void *)(p->to + (strip * p->n_depths + depth) * 2 * TILE_ELEMS);
        pack_strip(p, strip * STRIP, depth * TILE_DEPTH, to);
    }
}

/* Interleaves packings with the same number of runs, so that rows they share are read once. */
static inline void pack_all(const struct packing *packings, int n_packings)
{
    int64_t n_runs = n_pack_runs(&packings[0]);
    for (int64_t run = 0; run < n_runs; run++)
        for (int i = 0; i < n_packings; i++)
            pack_run(&packings[i], run);
}

#endif
