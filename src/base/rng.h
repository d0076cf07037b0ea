/*
 * rng.h -- a counter-based random number generator: Philox 4x32-10 (Salmon et al.).
 *
 * The value at (seed, stream, index) is a pure function of the three, so any part of a run can be
 * recomputed in any order, with any number of threads.
 */
#ifndef SNUG_BASE_RNG_H
#define SNUG_BASE_RNG_H

#include <stdint.h>
#include <string.h>

#include "base/device_fn.h"

struct rng_block {
    uint32_t word[4];
};

DEVICE_FN struct rng_block rng_philox(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    struct rng_block block = {{c0, c1, c2, c3}};
    return block;
}

DEVICE_FN uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct rng_block b = rng_philox(seed, stream, index);
    return ((uint64_t)b.word[0] << 32) | b.word[1];
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1) */
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, variance 1 */
uint64_t rng_hash_string(const char *text);                         /* a stream from a name */

/* Stochastic rounding.  If low and high are the bf16 neighbours of x, the result is high with
 * probability (x - low) / (high - low), so its mean is x.  Infinities and NaN are preserved. */
DEVICE_FN uint16_t rng_round_bf16(float x, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = bits + (random >> 16);
    rounded =
        (bits & 0x7f800000u) == 0x7f800000u ? bits | (bits & 0xffffu ? 0x400000u : 0) : rounded;
    return (uint16_t)(rounded >> 16);
}

/* Stochastic rounding to f16.  The result is a float that is exact in f16.  Above 2^-14 neighbours
 * differ in the last of 10 mantissa bits, below by 2^-24.  Values from 65504, the largest f16, on
 * are returned unchanged. */
DEVICE_FN float rng_round_f16(float x, uint32_t random)
{
    float size = x < 0 ? -x : x, small = size < 0x1p-14f ? size : 0.0f, rounded;
    int32_t steps = (int32_t)(small * 0x1p24f + (float)(random >> 19) * 0x1p-13f);
    uint32_t bits;
    memcpy(&bits, &size, sizeof bits);
    bits = (bits + (random >> 19)) & ~0x1fffu;
    memcpy(&rounded, &bits, sizeof rounded);
    rounded = size < 0x1p-14f ? (float)steps * 0x1p-24f : rounded;
    rounded = size < 65504.0f ? rounded : size;
    return x < 0 ? -rounded : rounded;
}

/* Maps `index` by a random permutation of 0..n-1, without storing it: a Feistel network over the
 * next power of four, applied until the result is below n (cycle walking). */
uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

#endif
