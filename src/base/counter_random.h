/*
 * counter_random.h -- random bits as a function of a key and a counter, cheap enough for every element.
 *
 * Masks of dropout and the like are never stored: whoever needs one makes it again from its key and
 * the index of the element, in any order, on any thread.  rng.h is the careful generator, for what is
 * drawn once; this one costs two multiplications and compiles to vector code.
 */
#ifndef SNUG_BASE_COUNTER_RANDOM_H
#define SNUG_BASE_COUNTER_RANDOM_H

#include <stdint.h>

/* splitmix64 (Steele, Lea, Flood): number `index` of the stream `key`.  Chained, it makes a key of
 * several words: counter_hash(counter_hash(seed, step), site). */
static inline uint64_t counter_hash(uint64_t key, uint64_t index)
{
    uint64_t z = key + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in 0 .. 2^32 - 1. */
static inline uint32_t counter_random(uint64_t key, uint64_t index)
{
    return (uint32_t)(counter_hash(key, index) >> 32);
}

#endif
