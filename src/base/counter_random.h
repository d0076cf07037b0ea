/*
 * counter_random.h -- random bits as a function of a key and a counter, cheap enough for each
 * element of a tensor.
 *
 * The random bits of dropout masks and stochastic rounding are never stored.  They are recomputed
 * from the key and the element's index, in any order and on any thread.  These generators cost a
 * few multiplications and vectorize; rng.h has a stronger one, for values that are drawn once.
 */
#ifndef SNUG_BASE_COUNTER_RANDOM_H
#define SNUG_BASE_COUNTER_RANDOM_H

#include <stdint.h>

#include "base/device_fn.h"

/* splitmix64 (Steele, Lea, Flood): value `index` of the stream `key`.  Chain it to hash several
 * words into a key: counter_hash(counter_hash(seed, step), site). */
DEVICE_FN uint64_t counter_hash(uint64_t key, uint64_t index)
{
    uint64_t z = key + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* lowbias32 (Wellons), a 32-bit hash */
DEVICE_FN uint32_t counter_hash32(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Uniform in 0 .. 2^32 - 1: two rounds of the hash, each with its own key.  The second key is the
 * same for 2^32 consecutive indices, so that an inner loop can work on 32 bits. */
DEVICE_FN uint32_t counter_second_key(uint64_t key, uint64_t index)
{
    return (uint32_t)(key >> 32) + (uint32_t)(index >> 32) * 0x9e3779b9u;
}

DEVICE_FN uint32_t counter_random_32(uint32_t key, uint32_t second_key, uint32_t index)
{
    return counter_hash32(counter_hash32(index ^ key) + second_key);
}

DEVICE_FN uint32_t counter_random(uint64_t key, uint64_t index)
{
    return counter_random_32((uint32_t)key, counter_second_key(key, index), (uint32_t)index);
}

/* The key of the dropout mask of one op in one micro-batch, the same on every device. */
DEVICE_FN uint64_t counter_mask_key(uint64_t seed, uint64_t step, uint64_t micro, uint64_t site)
{
    return counter_hash(counter_hash(counter_hash(seed, step), micro), site);
}

#endif
