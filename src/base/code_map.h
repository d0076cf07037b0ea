/*
 * code_map.h -- numbers kept in 8 or 4 bits: codes of a nonlinear map, with one fp32 scale a block.
 *
 * The map is the dynamic one of Dettmers (8-bit optimizers by block-wise quantization): a code names
 * a decade 10^-e and a place in it, the fewer the smaller the decade, so that large numbers are kept
 * to a percent and small ones do not vanish.  With b bits, the decade of 10^0 has half of the codes,
 * the one below a quarter...; each decade is cut into equal parts and a code stands for the middle of
 * one.  0 and 1 have codes of their own:
 *
 *     8 bits: 7 decades, 2^e parts for each sign (signed) or 2^(e+1) (unsigned), e = 0..6
 *     4 bits: 3 decades, likewise
 *
 * A block is kept as its largest magnitude and the codes of x / that, each the nearest, with one
 * exception: in an unsigned map a number above 0 never becomes 0, because what is kept so (a variance)
 * is divided by.  Codes of 4 bits lie two in a byte, the first in its low half.
 */
#ifndef SNUG_BASE_CODE_MAP_H
#define SNUG_BASE_CODE_MAP_H

#include <stdbool.h>
#include <stdint.h>

enum { CODES_MOST = 256, CODE_BLOCK_8 = 256, CODE_BLOCK_4 = 128 };

struct code_map {
    int bits;
    float value[CODES_MOST]; /* of each code, rising */
    float bound[CODES_MOST]; /* x above bound[c] has a code above c */
};

void code_map_make(struct code_map *map, int bits, bool is_signed);

static inline int64_t code_block_elems(int bits)
{
    return bits == 8 ? CODE_BLOCK_8 : CODE_BLOCK_4;
}

static inline int64_t code_blocks(int bits, int64_t n)
{
    return (n + code_block_elems(bits) - 1) / code_block_elems(bits);
}

static inline int64_t code_bytes(int bits, int64_t n)
{
    return bits == 8 ? n : (n + 1) / 2;
}

/* The code of x in -1..1: how many bounds are below it. */
static inline int code_of(const struct code_map *map, float x)
{
    int code = 0;
    for (int step = 1 << (map->bits - 1); step > 0; step >>= 1)
        code += x > map->bound[code + step - 1] ? step : 0;
    return code;
}

/* Elements at .. at + n, at the begin of a block, as numbers. */
static inline void codes_load(const struct code_map *map, const uint8_t *codes, const float *scales,
                              int64_t at, int64_t n, float *to)
{
    int64_t block = code_block_elems(map->bits);
    for (int64_t i = 0; i < n; i++) {
        int64_t place = at + i;
        int code = map->bits == 8 ? codes[place] : codes[place / 2] >> (place % 2 * 4) & 15;
        to[i] = map->value[code] * scales[place / block];
    }
}

static inline void codes_store_block(const struct code_map *map, uint8_t *codes, float *scale,
                                     int64_t n, const float *from)
{
    float largest = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        float size = from[i] < 0 ? -from[i] : from[i];
        largest = size > largest ? size : largest;
    }
    *scale = largest;
    float unit = largest > 0.0f ? largest : 1.0f;
    if (map->bits == 8) {
        for (int64_t i = 0; i < n; i++)
            codes[i] = (uint8_t)code_of(map, from[i] / unit);
        return;
    }
    for (int64_t i = 0; i < n; i += 2) {
        int low = code_of(map, from[i] / unit);
        int high = i + 1 < n ? code_of(map, from[i + 1] / unit) : 0;
        codes[i / 2] = (uint8_t)(low | high << 4);
    }
}

/* And back: makes the scales of the blocks that begin at `at`. */
static inline void codes_store(const struct code_map *map, uint8_t *codes, float *scales,
                               int64_t at, int64_t n, const float *from)
{
    int64_t block = code_block_elems(map->bits);
    for (int64_t i = 0; i < n; i += block)
        codes_store_block(map, codes + code_bytes(map->bits, at + i), scales + (at + i) / block,
                          n - i < block ? n - i : block, from + i);
}

#endif
