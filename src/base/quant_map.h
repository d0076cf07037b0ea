/*
 * quant_map.h -- elements quantized to 8 or 4 bits by a nonlinear map, with one fp32 scale per quant block.
 *
 * The map is the dynamic one of Dettmers (8-bit optimizers by block-wise quantization).  A quantized value names a
 * decade 10^-e and a place in it; small decades have fewer places, so that large elements are kept to a percent and
 * small ones do not vanish.  With b bits, the decade of 10^0 has half of the values, the one below a quarter, and so
 * on; each decade is cut into equal parts, and a value stands for the middle of one.  0 and 1 have values of their own:
 *
 *     8 bits: 7 decades, 2^e parts for each sign (signed) or 2^(e+1) (unsigned), e = 0..6
 *     4 bits: 3 decades, likewise
 *
 * A block is stored as its largest magnitude (the scale) and each x / scale as the nearest value, with one exception:
 * in an unsigned map an element above 0 never becomes 0, because such states (variances) are divided by.  4-bit values
 * lie two in a byte, the first in its low half.
 */
#ifndef SNUG_BASE_QUANT_MAP_H
#define SNUG_BASE_QUANT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/device_fn.h"

enum { QUANT_VALUES_MOST = 256, DECADES_MOST = 7, QUANT_BLOCK_8 = 256, QUANT_BLOCK_4 = 128 };

/* To find a value: sizes above from[e] are in decade e or a higher one, where the n-th value from that
 * of 0 is n = size * scale[e] + start[e], rounded down and at most last[e]. */
struct quant_finder {
    float from[DECADES_MOST], scale[DECADES_MOST], start[DECADES_MOST], last[DECADES_MOST];
    float one; /* sizes above are 1 */
    int zero;  /* the value of 0 */
};

struct quant_map {
    int bits;
    float value[QUANT_VALUES_MOST]; /* of each quantized value, rising */
    struct quant_finder finder;
};

void quant_map_make(struct quant_map *map, int bits, bool is_signed);

DEVICE_FN int64_t quant_block_elems(int bits)
{
    return bits == 8 ? QUANT_BLOCK_8 : QUANT_BLOCK_4;
}

DEVICE_FN int64_t quant_blocks(int bits, int64_t n)
{
    return (n + quant_block_elems(bits) - 1) / quant_block_elems(bits);
}

DEVICE_FN int64_t quant_bytes(int bits, int64_t n)
{
    return bits == 8 ? n : (n + 1) / 2;
}

/* The quantized value of x in -1..1 (NaN: that of 0).  Without branches and look-ups, for vectors; n_decades is a
 * literal. */
DEVICE_FN int quantize_one(const struct quant_finder *f, int n_decades, float x)
{
    float size = x < 0 ? -x : x;
    float scale = f->scale[0], start = f->start[0], last = f->last[0];
    UNROLL(8)
    for (int e = 1; e < n_decades; e++) {
        bool above = size > f->from[e];
        scale = above ? f->scale[e] : scale;
        start = above ? f->start[e] : start;
        last = above ? f->last[e] : last;
    }
    float n = size * scale + start;
    n = n > 1.0f ? n : 1.0f;
    n = n < last ? n : last;
    n = x > f->one ? last + 1.0f : n;
    n = size > f->from[0] ? n : 0.0f;
    return f->zero + (int)(x < 0 ? -n : n);
}

/* One block, at most: n elements, whose quantized values begin at `quants`. */
static inline void dequantize_block(const struct quant_map *map, const uint8_t *quants, float scale,
                                    int64_t n, float *to)
{
    if (map->bits == 8) {
        for (int64_t i = 0; i < n; i++)
            to[i] = map->value[quants[i]] * scale;
        return;
    }
    for (int64_t i = 0; i < n / 2; i++) {
        to[2 * i] = map->value[quants[i] & 15] * scale;
        to[2 * i + 1] = map->value[quants[i] >> 4] * scale;
    }
    if (n % 2 != 0)
        to[n - 1] = map->value[quants[n / 2] & 15] * scale;
}

static inline float largest_size(int64_t n, const float *x)
{
    float largest = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) {
        float size = x[i] < 0 ? -x[i] : x[i];
        largest = size > largest ? size : largest;
    }
    return largest;
}

static inline void quantize_block(const struct quant_map *map, uint8_t *quants, float *scale,
                                  int64_t n, const float *from)
{
    struct quant_finder finder = map->finder; /* a copy that no store to quants can reach */
    int all[QUANT_BLOCK_8 + 1];
    float unit = *scale = largest_size(n, from);
    unit = unit > 0.0f ? unit : 1.0f;
    if (map->bits == 8) {
        for (int64_t i = 0; i < n; i++)
            all[i] = quantize_one(&finder, 7, from[i] / unit);
        for (int64_t i = 0; i < n; i++)
            quants[i] = (uint8_t)all[i];
        return;
    }
    for (int64_t i = 0; i < n; i++)
        all[i] = quantize_one(&finder, 3, from[i] / unit);
    all[n] = 0; /* beside the last of an odd number */
    for (int64_t i = 0; i < n; i += 2)
        quants[i / 2] = (uint8_t)(all[i] | all[i + 1] << 4);
}

/* Elements at .. at + n, from the begin of a block on, as numbers; and back, with their scales. */
static inline void dequantize_elems(const struct quant_map *map, const uint8_t *quants,
                                    const float *scales, int64_t at, int64_t n, float *to)
{
    int64_t block = quant_block_elems(map->bits);
    for (int64_t i = 0; i < n; i += block)
        dequantize_block(map, quants + quant_bytes(map->bits, at + i), scales[(at + i) / block],
                         n - i < block ? n - i : block, to + i);
}

static inline void quantize_elems(const struct quant_map *map, uint8_t *quants, float *scales,
                                  int64_t at, int64_t n, const float *from)
{
    int64_t block = quant_block_elems(map->bits);
    for (int64_t i = 0; i < n; i += block)
        quantize_block(map, quants + quant_bytes(map->bits, at + i), scales + (at + i) / block,
                       n - i < block ? n - i : block, from + i);
}

#endif
