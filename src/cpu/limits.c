/*
 * limits.c -- what this machine does at best: multiply-adds in registers, bytes from memory.
 *
 * Each is tried several times for some tens of milliseconds and the best is taken: what others on
 * the machine take away is no property of it.
 */
#include "cpu/cpu.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { TRIES = 7 };

static double best_flops(int threads)
{
    const struct cpu_loops *loops = cpu_loops();
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        double begin = clock_seconds();
        double flops = loops->fma_flops(threads, 1 << 22);
        double rate = flops / (clock_seconds() - begin);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Each thread its own part, the same in every try: pages stay with the thread that touched them. */
static uint64_t read_all(int threads, const uint64_t *words, int64_t n_words)
{
    uint64_t sum = 0;
    (void)threads; /* without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : sum)
    for (int64_t i = 0; i < n_words; i += 8)
        sum += words[i]; /* one word a cache line: the rest comes along */
    return sum;
}

static void copy_all(int threads, unsigned char *to, const unsigned char *from, int64_t n_bytes)
{
    enum { PIECE = 1 << 20 };
    (void)threads; /* without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t at = 0; at < n_bytes; at += PIECE)
        memcpy(to + at, from + at, PIECE);
}

bool cpu_measure(const struct device_facts *facts, struct device_limits *limits)
{
    const int64_t n_bytes = (int64_t)128 << 20; /* larger than any cache */
    int threads = facts->threads;
    unsigned char *from = malloc((size_t)n_bytes), *to = malloc((size_t)n_bytes);
    bool ok = from != NULL && to != NULL;
    *limits = (struct device_limits){0};
    if (ok) {
        memset(from, 1, (size_t)n_bytes);
        copy_all(threads, to, from, n_bytes);
        volatile uint64_t sink = 0;
        for (int i = 0; i < TRIES; i++) {
            double begin = clock_seconds();
            sink += read_all(threads, (const uint64_t *)(const void *)from, n_bytes / 8);
            double middle = clock_seconds();
            copy_all(threads, to, from, n_bytes);
            double end = clock_seconds();
            double read = (double)n_bytes / (middle - begin);
            double copy = 2 * (double)n_bytes / (end - middle);
            limits->read_bytes = read > limits->read_bytes ? read : limits->read_bytes;
            limits->copy_bytes = copy > limits->copy_bytes ? copy : limits->copy_bytes;
        }
        limits->f32_flops = best_flops(threads);
    }
    free(from);
    free(to);
    return ok;
}
