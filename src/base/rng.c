/*
 * rng.c -- distributions and permutations from Philox.
 */
#include "base/rng.h"

#include <math.h>

static double unit(uint32_t high, uint32_t low) /* 53 bits in [0, 1) */
{
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct rng_block b = rng_philox(seed, stream, index);
    return unit(b.word[0], b.word[1]);
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct rng_block b = rng_philox(seed, stream, index);
    double radius = sqrt(-2.0 * log(1.0 - unit(b.word[0], b.word[1])));
    return radius * cos(6.283185307179586476925 * unit(b.word[2], b.word[3]));
}

uint64_t rng_hash_string(const char *text) /* FNV-1a */
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    if (n <= 1)
        return 0;
    unsigned half = 1;
    while (half < 32 && ((uint64_t)1 << (2 * half)) < n)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t mixed = rng_u64(seed, stream ^ (round << 56), right) & mask;
            uint64_t next = left ^ mixed;
            left = right;
            right = next;
        }
        index = (left << half) | right;
    } while (index >= n);
    return index;
}
