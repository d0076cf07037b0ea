/*
 * test_clusters.c -- plans of large decoders on many ranks: exact shards, little fragmentation, and
 * --checkpoint auto recomputes no more than the budget makes it.  Small: not the largest model, whose
 * plans take seconds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/size.h"
#include "support/training.h"

#define LLAMA_70B  "batch=64 ranks=64 zero=3 precision=bf16 threads=16"
#define LLAMA_405B "batch=1024 ranks=1024 zero=3 precision=bf16 threads=16"
#define STAGES_70B "batch=64 micro-batch=1 ranks=16 pipeline=1f1b precision=bf16 threads=16"

#if defined(__SANITIZE_ADDRESS__)
enum { IS_SLOW = 1 };
#else
enum { IS_SLOW = 0 };
#endif

static bool is_skipped(const char *model)
{
    return strcmp(model, "llama-3.1-405b") == 0 && (IS_SLOW || size_is_small());
}

static double share(int64_t part, int64_t of)
{
    return (double)part / (double)of;
}

static void test_shards(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys;
        int64_t n_parameters;
        int n_ranks;
    } rows[] = {{"llama-3.1-70b", LLAMA_70B, 70553706496, 64},
                {"llama-3.1-405b", LLAMA_405B, 405853388800, 1024},
                {"qwen2.5-72b", LLAMA_70B, 72706203648, 64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (is_skipped(rows[i].model))
            continue;
        struct snug_ledger l = ledger_of(rows[i].model, rows[i].keys, -1);
        assert_int_equal(l.n_parameters, rows[i].n_parameters);
        /* every tensor is divided, so a rank has at most one element more of each */
        int64_t least = rows[i].n_parameters / rows[i].n_ranks, more = 2000;
        assert_in_range(l.parameters, 2 * least, 2 * (least + more));
        assert_in_range(l.optimizer, 12 * least, 12 * (least + more));
    }
}

static void test_fragmentation(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys;
    } rows[] = {
        {"llama-3.1-70b", LLAMA_70B},
        {"llama-3.1-70b", LLAMA_70B " checkpoint=every:1"},
        {"llama-3.1-70b", LLAMA_70B " checkpoint=cheap"},
        {"llama-3.1-405b", LLAMA_405B},
        {"llama-3.1-405b", LLAMA_405B " checkpoint=every:1"},
        {"llama-3.1-405b", LLAMA_405B " checkpoint=every:4"},
        {"qwen3-32b", "batch=32 ranks=32 zero=3 precision=bf16 checkpoint=cheap threads=16"},
        {"llama-3.1-70b", STAGES_70B},
        {"llama-3.1-70b", STAGES_70B " checkpoint=every:1"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (is_skipped(rows[i].model))
            continue;
        struct snug_ledger l = ledger_of(rows[i].model, rows[i].keys, -1);
        if (share(l.fragmentation, l.total) > 0.01)
            fail_msg("%s %s: %.2f%% of fragmentation", rows[i].model, rows[i].keys,
                     100 * share(l.fragmentation, l.total));
    }
}

/* What everything saved needs is known: 64 GiB for 70B, 155 for 405B; every:1 adds a quarter of the
 * work.  ZeRO frees the gradients of a layer at once, so activations alone have to fit. */
static void test_auto(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys;
        double budget, most_recomputed; /* relative to forward */
    } rows[] = {{"llama-3.1-70b", LLAMA_70B " checkpoint=auto memory=60G", 60, 0.1},
                {"llama-3.1-70b", LLAMA_70B " checkpoint=auto memory=30G", 30, 0.75},
                {"llama-3.1-405b", LLAMA_405B " checkpoint=auto memory=60G", 60, 0.75},
                {"qwen2.5-32b",
                 "batch=32 ranks=32 zero=2 precision=bf16 checkpoint=auto memory=110G "
                 "threads=16",
                 110, 0.75}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (is_skipped(rows[i].model))
            continue;
        struct snug_ledger l = ledger_of(rows[i].model, rows[i].keys, -1);
        double recomputed = share(l.recompute_flops, l.forward_flops);
        if ((double)l.total > rows[i].budget * 0x1p30 || recomputed > rows[i].most_recomputed)
            fail_msg("%s %s: %.4g bytes, %.0f%% of forward recomputed", rows[i].model, rows[i].keys,
                     (double)l.total, 100 * recomputed);
    }
}

/* No stage needs more than the plan, and one needs exactly as much. */
static void test_fullest_stage(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys;
        int n_ranks;
    } rows[] = {
        {"smollm2-135m", "batch=8 micro-batch=1 seq=64 ranks=5 pipeline=1f1b precision=bf16", 5},
        {"smollm2-135m", "batch=8 micro-batch=1 seq=64 ranks=4 pipeline=naive threads=2", 4},
        {"qwen2.5-0.5b", "batch=8 micro-batch=1 seq=64 ranks=6 pipeline=gpipe precision=bf16", 6},
        {"smollm2-135m",
         "batch=16 micro-batch=2 seq=256 ranks=4 pipeline=1f1b precision=bf16 threads=2 "
         "checkpoint=auto memory=1100M",
         4},
        {"smollm2-135m",
         "batch=16 micro-batch=2 seq=256 ranks=4 pipeline=1f1b precision=bf16 threads=2 "
         "optimizer=sgd checkpoint=auto memory=570M",
         4},
        {"tinyllama-1.1b",
         "batch=16 micro-batch=1 seq=64 ranks=8 stages=4 pipeline=1f1b zero=1 optimizer=muon", 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t most = 0, planned = ledger_of(rows[i].model, rows[i].keys, -1).total;
        for (int rank = 0; rank < rows[i].n_ranks; rank++) {
            int64_t own = ledger_of(rows[i].model, rows[i].keys, rank).total;
            most = own > most ? own : most;
        }
        if (planned != most)
            fail_msg("%s %s: the plan has %lld bytes, the fullest rank %lld", rows[i].model,
                     rows[i].keys, (long long)planned, (long long)most);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards), cmocka_unit_test(test_fragmentation),
        cmocka_unit_test(test_auto), cmocka_unit_test(test_fullest_stage)};
    return cmocka_run_group_tests_name("clusters", tests, NULL, NULL);
}
