/*
 * rng.h -- random numbers as a function of their place.
 *
 * Counter-based: the value at (seed, stream, index) is a pure function of the three, so any part of
 * a run can be made again in any order by any number of threads.  Philox 4x32-10 (Salmon et al.).
 */
#ifndef SNUG_BASE_RNG_H
#define SNUG_BASE_RNG_H

#include <stdint.h>

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0, 1) */
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, deviation 1 */
uint64_t rng_hash_string(const char *text);                         /* a stream from a name */

/* A permutation of 0..n-1 without storing it: where `index` goes.  A Feistel network over the next
 * power of four, walked until it lands inside. */
uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);

#endif
