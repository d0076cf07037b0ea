/*
 * amx_tiles.h -- four of the eight tile registers, 16 rows of 64 bytes each, and matmuls of bf16
 * pairs into fp32.
 *
 *   tile of A: 16 rows x 32 k                tile of B: 16 pairs of k x 16 columns
 *     row r:  k0 k1 k2 ... k31                 pair p: (k2p,k2p+1) of column 0, of column 1 ...
 *
 * tile_multiply: C[16 x 16 fp32] += A B.  With SNUG_AMX_EMULATED the instructions are emulated in
 * plain C with the same rounding, so any machine can test the code that uses them.  Such a file is
 * compiled several times (AMX_SRC in the Makefile), and TILED(name) is name_amx, name_emulated or
 * name_emulated_v4.  The last combines emulated tiles with the AVX-512 code of the real ones.
 */
#ifndef SNUG_CPU_AMX_AMX_TILES_H
#define SNUG_CPU_AMX_AMX_TILES_H

#include "cpu/cpu.h"
#include "cpu/simd/simd_common.h"
#include "cpu/transpose_block.h"

#define TILED(name) LEVEL_PASTE_EXPANDED(name, SNUG_TILES)

#if defined(SNUG_AMX_EMULATED)

struct tiles {
    uint32_t reg[4][TILE_SIDE][TILE_SIDE];
};

static inline void tiles_begin(struct tiles *tiles)
{
    memset(tiles, 0, sizeof *tiles);
}

static void tiles_end(struct tiles *tiles)
{
    (void)tiles;
}

static inline void tile_zero(struct tiles *tiles, int t)
{
    memset(tiles->reg[t], 0, sizeof tiles->reg[t]);
}

static inline void tile_load(struct tiles *tiles, int t, const void *from, int64_t step_bytes)
{
    for (int r = 0; r < TILE_SIDE; r++)
        memcpy(tiles->reg[t][r], (const char *)from + r * step_bytes, sizeof tiles->reg[t][r]);
}

static inline void tile_store(const struct tiles *tiles, int t, void *to, int64_t step_bytes)
{
    for (int r = 0; r < TILE_SIDE; r++)
        memcpy((char *)to + r * step_bytes, tiles->reg[t][r], sizeof tiles->reg[t][r]);
}

/* As in Intel's manual: even and odd k are summed separately, then together, then added to C.  The
 * product of two bf16 elements is exact in fp32, so it does not matter that it is not fused. */
static inline void tile_multiply(struct tiles *tiles, int c, int a, int b)
{
    for (int r = 0; r < TILE_SIDE; r++) {
        float even[TILE_SIDE] = {0}, odd[TILE_SIDE] = {0};
        for (int p = 0; p < TILE_SIDE; p++) {
            uint32_t pair = tiles->reg[a][r][p];
            float a_even = bits_float(pair << 16), a_odd = bits_float(pair & 0xffff0000u);
            for (int j = 0; j < TILE_SIDE; j++) {
                even[j] += a_even * bits_float(tiles->reg[b][p][j] << 16);
                odd[j] += a_odd * bits_float(tiles->reg[b][p][j] & 0xffff0000u);
            }
        }
        for (int j = 0; j < TILE_SIDE; j++)
            tiles->reg[c][r][j] = float_bits(bits_float(tiles->reg[c][r][j]) + (even[j] + odd[j]));
    }
}

#else

/* The state is in the CPU's tile registers, which the compiler does not use itself. */
struct tiles {
    char none;
};

/* Inline assembly, because gcc's intrinsics do not declare the memory they read. */
static inline void tiles_begin(struct tiles *tiles)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1, .row_bytes = {64, 64, 64, 64}, .rows = {16, 16, 16, 16}};
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

/* Transposes a tile as a square of pairs: a row of A becomes a column of B, and back.  Rows of
 * `from` are step_bytes apart; `to` is a whole tile. */
static inline void tile_transpose(const void *from, int64_t step_bytes, uint32_t *to)
{
    square_transpose(from, step_bytes, to, TILE_SIDE * sizeof *to);
}

#endif
