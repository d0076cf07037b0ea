/*
 * cpu_limits.c -- measure the peak rates of this machine: FMAs in registers and tiles, and memory
 * bandwidth.
 *
 * Each rate is the best of many runs of a few milliseconds, so that other load on the machine does
 * not count.
 */
#include "cpu/cpu.h"

#include "base/clock.h"
#include "cpu/cpu_isa.h"

#include <stdlib.h>
#include <string.h>

enum { FLOPS_TRIES = 40, BYTES_TRIES = 12 };

/* `run` executes n_rounds rounds and returns the number of FLOPs. */
static double best_flops(double (*run)(int threads, int64_t n_rounds), int threads,
                         int64_t n_rounds)
{
    double best = 0;
    for (int i = 0; i < FLOPS_TRIES; i++) {
        double begin = clock_seconds();
        double flops = run(threads, n_rounds);
        double rate = flops / (clock_seconds() - begin);
        best = rate > best ? rate : best;
    }
    return best;
}

/* 0 unless the kernels use hardware tiles. */
static double best_tile_flops(const struct cpu_isa *isa, int threads)
{
#if defined(SNUG_AMX)
    if (isa->gemm_bf16 == gemm_bf16_amx)
        return best_flops(tile_flops_amx, threads, 100000);
#endif
    (void)isa;
    (void)threads;
    return 0;
}

/* Each thread reads the same part in every run, so NUMA pages stay with the thread that touched
 * them first. */
static uint64_t read_all(int threads, const uint64_t *words, int64_t n_words)
{
    uint64_t sum = 0;
    (void)threads; /* unused without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : sum)
    for (int64_t i = 0; i < n_words; i += 8)
        sum += words[i]; /* one word per cache line fetches the whole line */
    return sum;
}

static void copy_all(int threads, unsigned char *to, const unsigned char *from, int64_t n_bytes)
{
    enum { PIECE = 1 << 20 };
    (void)threads; /* unused without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t at = 0; at < n_bytes; at += PIECE)
        memcpy(to + at, from + at, PIECE);
}

static void update_all(int threads, uint64_t *words, int64_t n_words)
{
    (void)threads; /* unused without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n_words; i++)
        words[i] += 1;
}

static void keep_best(double *best, double bytes, double begin, double end)
{
    double rate = bytes / (end - begin);
    *best = rate > *best ? rate : *best;
}

bool cpu_measure(const struct device_facts *facts, struct device_limits *limits)
{
    const int64_t n_bytes = (int64_t)128 << 20; /* larger than any cache */
    const struct cpu_isa *isa = facts->isa;
    int threads = facts->threads;
    unsigned char *from = malloc((size_t)n_bytes), *to = malloc((size_t)n_bytes);
    bool ok = from != NULL && to != NULL;
    *limits = (struct device_limits){0};
    if (ok) {
        memset(from, 1, (size_t)n_bytes);
        copy_all(threads, to, from, n_bytes);
        volatile uint64_t sink = 0;
        for (int i = 0; i < BYTES_TRIES; i++) {
            double start = clock_seconds();
            sink += read_all(threads, (const uint64_t *)(const void *)from, n_bytes / 8);
            double read = clock_seconds();
            copy_all(threads, to, from, n_bytes);
            double copied = clock_seconds();
            update_all(threads, (uint64_t *)(void *)from, n_bytes / 8);
            double updated = clock_seconds();
            keep_best(&limits->read_bytes, (double)n_bytes, start, read);
            keep_best(&limits->copy_bytes, 2 * (double)n_bytes, read, copied);
            keep_best(&limits->update_bytes, 2 * (double)n_bytes, copied, updated);
        }
        limits->f32_flops = best_flops(isa->loops->fma_flops, threads, 1 << 20);
        limits->bf16_flops = best_tile_flops(isa, threads);
    }
    free(from);
    free(to);
    return ok;
}
