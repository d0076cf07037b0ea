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
 *
 * Compiled with SNUG_AMX_EMULATED the tile instructions are plain C that rounds as they do.
 */
#include "cpu/cpu.h"
#include "cpu/fast_common.h"
#include "cpu/product16.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { SIDE = 16 }; /* of a tile, in units of 4 bytes */

/* ---- tiles --------------------------------------------------------------------------------- */

#if defined(SNUG_AMX_EMULATED)

#define PRODUCT16 product16_emulated

struct tiles {
    uint32_t reg[8][SIDE][SIDE];
};

static void tiles_begin(struct tiles *tiles)
{
    memset(tiles, 0, sizeof *tiles);
}

static void tiles_end(struct tiles *tiles)
{
    (void)tiles;
}

static void tile_zero(struct tiles *tiles, int t)
{
    memset(tiles->reg[t], 0, sizeof tiles->reg[t]);
}

static void tile_load(struct tiles *tiles, int t, const void *from, int64_t step_bytes)
{
    for (int r = 0; r < SIDE; r++)
        memcpy(tiles->reg[t][r], (const char *)from + r * step_bytes, sizeof tiles->reg[t][r]);
}

static void tile_store(const struct tiles *tiles, int t, void *to, int64_t step_bytes)
{
    for (int r = 0; r < SIDE; r++)
        memcpy((char *)to + r * step_bytes, tiles->reg[t][r], sizeof tiles->reg[t][r]);
}

/* As Intel's manual has it: even and odd k are summed apart, then together, then onto C.  A product
 * of two bf16 is exact in fp32, so it does not matter that this one is not fused. */
static void tile_multiply(struct tiles *tiles, int c, int a, int b)
{
    for (int r = 0; r < SIDE; r++) {
        float even[SIDE] = {0}, odd[SIDE] = {0};
        for (int p = 0; p < SIDE; p++) {
            uint32_t pair = tiles->reg[a][r][p];
            float a_even = bits_float(pair << 16), a_odd = bits_float(pair & 0xffff0000u);
            for (int j = 0; j < SIDE; j++) {
                even[j] += a_even * bits_float(tiles->reg[b][p][j] << 16);
                odd[j] += a_odd * bits_float(tiles->reg[b][p][j] & 0xffff0000u);
            }
        }
        for (int j = 0; j < SIDE; j++)
            tiles->reg[c][r][j] = float_bits(bits_float(tiles->reg[c][r][j]) + (even[j] + odd[j]));
    }
}

#else

#define PRODUCT16 product16_amx

/* The registers are the CPU's; a compiler does not use them on its own. */
struct tiles {
    char none;
};

/* Assembly, because gcc's own functions do not say what memory they read. */
static inline void tiles_begin(struct tiles *tiles)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1,
                .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _Static_assert(sizeof config == 64, "what ldtilecfg reads");
    (void)tiles;
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

static inline void tiles_end(struct tiles *tiles)
{
    (void)tiles;
    __asm__ volatile("tilerelease" ::: "memory");
}

#define tile_zero(tiles, t) ((void)(tiles), tile_zero_(t))
#define tile_zero_(t)       __extension__({ __asm__ volatile("tilezero %%tmm" #t ::: "memory"); })
#define tile_load(tiles, t, from, step_bytes)                                                    \
    __extension__({                                                                              \
        (void)(tiles);                                                                           \
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"((int64_t)(step_bytes)) \
                         : "memory");                                                            \
    })
#define tile_store(tiles, t, to, step_bytes)                                                       \
    __extension__({                                                                                \
        (void)(tiles);                                                                             \
        __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"((int64_t)(step_bytes)) \
                         : "memory");                                                              \
    })
#define tile_multiply(tiles, c, a, b)                                                  \
    __extension__({                                                                    \
        (void)(tiles);                                                                 \
        __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory"); \
    })

#endif

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
    tile_store(tiles, 1, c + SIDE, pitch * 4);
    tile_store(tiles, 2, c + SIDE * pitch, pitch * 4);
    tile_store(tiles, 3, c + SIDE * pitch + SIDE, pitch * 4);
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

#if defined(__AVX512F__)

static inline void transpose(const uint32_t *from, uint32_t *to)
{
    __m512i in[SIDE], mid[SIDE];
#pragma GCC unroll 16
    for (int r = 0; r < SIDE; r++)
        in[r] = _mm512_load_si512(from + r * SIDE);
        /* Inside each 128-bit lane: 4 x 4 blocks of four rows. */
#pragma GCC unroll 4
    for (int q = 0; q < SIDE; q += 4) {
        __m512i low01 = _mm512_unpacklo_epi32(in[q], in[q + 1]);
        __m512i high01 = _mm512_unpackhi_epi32(in[q], in[q + 1]);
        __m512i low23 = _mm512_unpacklo_epi32(in[q + 2], in[q + 3]);
        __m512i high23 = _mm512_unpackhi_epi32(in[q + 2], in[q + 3]);
        mid[q] = _mm512_unpacklo_epi64(low01, low23);
        mid[q + 1] = _mm512_unpackhi_epi64(low01, low23);
        mid[q + 2] = _mm512_unpacklo_epi64(high01, high23);
        mid[q + 3] = _mm512_unpackhi_epi64(high01, high23);
    }
    /* mid[4i + j], lane l: column 4l + j of rows 4i to 4i+3.  Then the lanes are a 4 x 4 each. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i low01 = _mm512_shuffle_i32x4(mid[j], mid[j + 4], 0x44);
        __m512i high01 = _mm512_shuffle_i32x4(mid[j], mid[j + 4], 0xee);
        __m512i low23 = _mm512_shuffle_i32x4(mid[j + 8], mid[j + 12], 0x44);
        __m512i high23 = _mm512_shuffle_i32x4(mid[j + 8], mid[j + 12], 0xee);
        _mm512_store_si512(to + j * SIDE, _mm512_shuffle_i32x4(low01, low23, 0x88));
        _mm512_store_si512(to + (j + 4) * SIDE, _mm512_shuffle_i32x4(low01, low23, 0xdd));
        _mm512_store_si512(to + (j + 8) * SIDE, _mm512_shuffle_i32x4(high01, high23, 0x88));
        _mm512_store_si512(to + (j + 12) * SIDE, _mm512_shuffle_i32x4(high01, high23, 0xdd));
    }
}

#else

static inline void transpose(const uint32_t *from, uint32_t *to)
{
    for (int r = 0; r < SIDE; r++)
        for (int j = 0; j < SIDE; j++)
            to[j * SIDE + r] = from[r * SIDE + j];
}

#endif

/* Rows are `across`, each with its pairs of k as they lie in memory. */
static inline void copy_pairs(const struct packing *p, int64_t across, int64_t k, uint32_t *block)
{
    int64_t n_rows = least(SIDE, p->n_across - across), n_k = least(DEPTH, p->n_k - k);
    const uint16_t *from = p->from + across * p->pitch + k;
    if (n_rows == SIDE && n_k == DEPTH) {
        for (int r = 0; r < SIDE; r++)
            memcpy(block + r * SIDE, from + r * p->pitch, DEPTH * sizeof *from);
        return;
    }
    memset(block, 0, TILE_ELEMS * sizeof *from);
    for (int64_t r = 0; r < n_rows; r++)
        memcpy(block + r * SIDE, from + r * p->pitch, (size_t)n_k * sizeof *from);
}

/* Rows are pairs of k, each made from two rows of the matrix. */
static inline void make_pairs(const struct packing *p, int64_t across, int64_t k, uint32_t *block)
{
    int64_t n_cols = least(SIDE, p->n_across - across), n_k = least(DEPTH, p->n_k - k);
    const uint16_t *from = p->from + k * p->pitch + across;
    if (n_cols == SIDE && n_k == DEPTH) {
        for (int r = 0; r < SIDE; r++) {
            const uint16_t *even = from + 2 * r * p->pitch, *odd = even + p->pitch;
#pragma omp simd
            for (int j = 0; j < SIDE; j++)
                block[r * SIDE + j] = (uint32_t)even[j] | (uint32_t)odd[j] << 16;
        }
        return;
    }
    memset(block, 0, TILE_ELEMS * sizeof *from);
    for (int64_t i = 0; i < n_k; i++)
        for (int64_t j = 0; j < n_cols; j++)
            block[i / 2 * SIDE + j] |= (uint32_t)from[i * p->pitch + j] << (i % 2 * 16);
}

static inline void pack_tile(const struct packing *p, int64_t across, int64_t k, uint32_t *to)
{
    _Alignas(64) uint32_t block[SIDE * SIDE];
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
        transpose(block, to);
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
    int64_t n_k = least(DEPTH, p->n_k - depth * DEPTH);
    int64_t n_lines = p->k_contiguous ? n_across : n_k;
    int64_t down = p->k_contiguous ? strip * STRIP : depth * DEPTH;
    int64_t along = p->k_contiguous ? depth * DEPTH : strip * STRIP;
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
        pack_tile(p, strip * STRIP, depth * DEPTH, to);
        pack_tile(p, strip * STRIP + SIDE, depth * DEPTH, to + SIDE * SIDE);
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
        const uint16_t *b = job->b_packed + col * n_depths * DEPTH;
        for (int64_t row = rows.begin; row < rows.end; row += STRIP) {
            const uint16_t *a_strip = a + (row - rows.begin) * n_depths * DEPTH;
            int64_t n_rows = least(STRIP, rows.end - row);
            for (int64_t j = 0; j < n_cols; j += STRIP)
                multiply_strips(tiles, n_depths, a_strip, b + j * n_depths * DEPTH, c + j, group);
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

void PRODUCT16(int threads, const struct product_shape *shape, const uint16_t *a, const uint16_t *b,
               const struct product16_out *out, void *work)
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
