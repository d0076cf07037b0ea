/*
 * counter_random.h -- random bits as a function of a key and a counter, cheap enough for every element.
 *
 * Masks of dropout and roundings by chance are never stored: whoever needs one makes it again from its
 * key and the index of the element, in any order, on any thread.  rng.h is the careful generator, for
 * what is drawn once; these cost a few multiplications and compile to vector code.
 */
#ifndef SNUG_BASE_COUNTER_RANDOM_H
#define SNUG_BASE_COUNTER_RANDOM_H

#include <stdint.h>

#include "base/device_fn.h"

/* splitmix64 (Steele, Lea, Flood): number `index` of the stream `key`.  Chained, it makes a key of
 * several words: counter_hash(counter_hash(seed, step), site). */
DEVICE_FN uint64_t counter_hash(uint64_t key, uint64_t index)
{
    uint64_t z = key + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* lowbias32 (Wellons), a hash of 32 bits */
DEVICE_FN uint32_t counter_hash32(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Uniform in 0 .. 2^32 - 1, for every element: two rounds, keyed before each.  The second key is the
 * same for 2^32 indices in a row, so a loop over few of them need only handle 32 bits. */
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

/* Of the mask of one op in one micro-batch of one step, the same on every device. */
DEVICE_FN uint64_t counter_mask_key(uint64_t seed, uint64_t step, uint64_t micro, uint64_t site)
{
    return counter_hash(counter_hash(counter_hash(seed, step), micro), site);
}

#endif
