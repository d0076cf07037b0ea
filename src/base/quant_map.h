/*
 * quant_map.h -- quantization to 8 or 4 bits by a nonlinear map, with one scale per block.
 *
 * The map is the dynamic map of Dettmers (8-bit Optimizers via Block-wise Quantization).  The
 * quantized values are spread over decades 10^-e.  The largest decade has half of the values, the
 * next one a quarter, and so on: large elements have a precision of about a percent, and small ones
 * do not become 0.  Each decade is divided into equal parts, and a quantized value stands for the
 * middle of one part.  0 and 1 have values of their own.
 *
 *     8 bits: 7 decades, 2^e parts for each sign (signed) or 2^(e+1) (unsigned), e = 0..6
 *     4 bits: 3 decades, likewise
 *
 * A block is stored as its scale, the largest magnitude, and the nearest quantized value of each
 * x / scale.  One exception: in an unsigned map an element above 0 never becomes 0, because
 * optimizers divide by such states (variances).  A byte holds two 4-bit values, the first in its
 * low half.
 */
#ifndef SNUG_BASE_QUANT_MAP_H
#define SNUG_BASE_QUANT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/device_fn.h"

enum { QUANT_VALUES_MOST = 256, DECADES_MOST = 7, QUANT_BLOCK_8 = 256, QUANT_BLOCK_4 = 128 };

/* For quantize_one: a magnitude above from[e] is in decade e or a larger one.  There the n-th value
 * counted from 0 has n = magnitude * scale[e] + start[e], rounded down and at most last[e]. */
struct quant_finder {
    float from[DECADES_MOST], scale[DECADES_MOST], start[DECADES_MOST], last[DECADES_MOST];
    float one; /* elements above this become 1 */
    int zero;  /* the quantized value of 0 */
};

struct quant_map {
    int bits;
    float value[QUANT_VALUES_MOST]; /* the element that each quantized value stands for */
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

/* Quantizes x, which is in -1..1; NaN becomes 0.  No branches and no table lookups, so that it
 * vectorizes; n_decades is a literal. */
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

/* Dequantizes up to one block: n elements from `quants`. */
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
    struct quant_finder finder = map->finder; /* a copy that `quants` cannot alias */
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
    all[n] = 0; /* padding if n is odd */
    for (int64_t i = 0; i < n; i += 2)
        quants[i / 2] = (uint8_t)(all[i] | all[i + 1] << 4);
}

/* Dequantize and quantize the elements at .. at + n; `at` must be the start of a block. */
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
