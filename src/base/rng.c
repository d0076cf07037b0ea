/*
 * rng.c -- Philox 4x32-10 and what is drawn from it.
 */
#include "base/rng.h"

#include <math.h>

struct block {
    uint32_t word[4];
};

static struct block philox(uint64_t seed, uint64_t stream, uint64_t index)
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
    return (struct block){{c0, c1, c2, c3}};
}

static double unit(uint32_t high, uint32_t low) /* 53 bits in [0, 1) */
{
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct block b = philox(seed, stream, index);
    return ((uint64_t)b.word[0] << 32) | b.word[1];
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct block b = philox(seed, stream, index);
    return unit(b.word[0], b.word[1]);
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    struct block b = philox(seed, stream, index);
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
