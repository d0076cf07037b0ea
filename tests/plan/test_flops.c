/*
 * test_flops.c -- the forward FLOPs of a plan are those of the model: ranks and stages share them
 * without a remainder, and saving memory does not change them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/training.h"

struct flops {
    int64_t forward, step, recompute;
};

/* Of one rank, or of the fullest one: rank -1. */
static struct flops flops_of(const char *model, const char *keys, int rank)
{
    struct snug_ledger ledger = ledger_of(model, keys, rank);
    return (struct flops){ledger.forward_flops, ledger.step_flops, ledger.recompute_flops};
}

/* A loss is one number a micro-batch, which cost.c counts: there are at most as many as samples. */
enum { BATCH = 16 };
static bool are_alike(int64_t a, int64_t b)
{
    return a - b <= BATCH && b - a <= BATCH;
}

static const struct {
    const char *model, *keys;
} models[] = {
    {"mlp", "batch=16 threads=1"},
    {"gpt-nano", "batch=16 seq=32 threads=1"},
    {"gpt-nano", "batch=16 seq=32 threads=1 lora=4"},
    {"vit-tiny:1x28x28,classes=10", "batch=16 threads=1"},
};
enum { N_MODELS = sizeof models / sizeof *models };

static void a_rank_has_its_share(void **state)
{
    static const char *const ways[] = {
        "",      "zero=1", "zero=2", "micro-batch=2", "zero=0 parallel=ps", "zero=2 micro-batch=1",
        "clip=0"};
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        int64_t alone = flops_of(models[m].model, models[m].keys, -1).forward;
        assert_true(alone > 0);
        for (int n_ranks = 2; n_ranks <= 4; n_ranks *= 2)
            for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                char keys[160];
                snprintf(keys, sizeof keys, "%s ranks=%d %s", models[m].keys, n_ranks, ways[w]);
                struct flops own = flops_of(models[m].model, keys, n_ranks - 1);
                if (!are_alike(own.forward * n_ranks, alone) || own.step < own.forward)
                    fail_msg("%s, %s: forward %lld of %lld, step %lld", models[m].model, keys,
                             (long long)own.forward, (long long)alone, (long long)own.step);
            }
    }
}

/* n_micro of the batch go to each of the ranks that share it. */
static void stages_add_up(void **state)
{
    static const char *const ways[] = {"naive", "gpipe", "1f1b", "pipedream"};
    (void)state;
    for (int m = 0; m < 2; m++) {
        int64_t alone = flops_of(models[m].model, models[m].keys, -1).forward;
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            for (int n_ranks = 2; n_ranks <= 4; n_ranks++) {
                char keys[160];
                int64_t sum = 0;
                bool shares_batch = n_ranks == 4; /* two ranks for each of two stages */
                if (shares_batch && w == 3)
                    continue;
                snprintf(keys, sizeof keys, "%s ranks=%d pipeline=%s stages=%d micro-batch=2",
                         models[m].keys, n_ranks, ways[w], shares_batch ? 2 : n_ranks);
                for (int rank = 0; rank < n_ranks; rank++)
                    sum += flops_of(models[m].model, keys, rank).forward;
                if (!are_alike(sum, alone))
                    fail_msg("%s, %s: forward %lld on all stages, %lld on one", models[m].model,
                             keys, (long long)sum, (long long)alone);
            }
    }
}

static void memory_strategies_do_not_count(void **state)
{
    static const char *const ways[] = {"checkpoint=all",
                                       "checkpoint=sqrt",
                                       "checkpoint=cheap",
                                       "micro-batch=4",
                                       "update=in-backward clip=0",
                                       "update=in-backward clip=1",
                                       "update=in-backward micro-batch=4",
                                       "offload=states",
                                       "offload=activations checkpoint=all",
                                       "optimizer=sgd",
                                       "pipeline=pipedream micro-batch=4",
                                       "ranks=1 zero=3"};
    (void)state;
    for (int m = 0; m < 2; m++) {
        int64_t alone = flops_of(models[m].model, models[m].keys, -1).forward;
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            char keys[160];
            snprintf(keys, sizeof keys, "%s %s", models[m].keys, ways[w]);
            struct flops own = flops_of(models[m].model, keys, -1);
            if (!are_alike(own.forward, alone) || own.step < own.forward + own.recompute)
                fail_msg("%s, %s: forward %lld, without %lld; step %lld, recomputed %lld",
                         models[m].model, keys, (long long)own.forward, (long long)alone,
                         (long long)own.step, (long long)own.recompute);
        }
    }
}

/* The head is a fifth of SmolLM2-135M.  Its gradient for a frozen weight is one matmul, not two. */
static void a_frozen_head_has_one_gradient(void **state)
{
    (void)state;
    struct flops own = flops_of("smollm2-135m", "batch=1 seq=16 threads=1 lora=4", -1);
    if ((double)own.step > 2.1 * (double)own.forward)
        fail_msg("forward %lld, step %lld", (long long)own.forward, (long long)own.step);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_has_its_share),
        cmocka_unit_test(stages_add_up),
        cmocka_unit_test(memory_strategies_do_not_count),
        cmocka_unit_test(a_frozen_head_has_one_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
