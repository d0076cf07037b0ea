/*
 * test_fullest.c -- with several ranks, a plan is that of the rank with the highest peak: no rank
 * needs more bytes, and one needs exactly as many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/training.h"

static void check(const char *model, const char *keys, int n_ranks)
{
    int64_t most = 0, planned = ledger_of(model, keys, -1).total;
    for (int rank = 0; rank < n_ranks; rank++) {
        int64_t own = ledger_of(model, keys, rank).total;
        most = own > most ? own : most;
    }
    if (planned != most)
        fail_msg("%s, %s: the plan has %lld bytes, the fullest rank %lld", model, keys,
                 (long long)planned, (long long)most);
}

/* The small model with all of them; the others, which take longer, with a few. */
static void of_ranks(void **state)
{
    static const char *const models[] = {"mlp:19-37-10", "gpt-nano", "vit-tiny:1x28x28,classes=10"};
    static const char *const optimizers[] = {"muon", "caspr",     "adamw",   "soap",
                                             "sgd",  "adam-8bit", "shampoo", "adafactor"};
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t o = 0; o < (m == 0 ? sizeof optimizers / sizeof *optimizers : 2); o++)
            for (int zero = 1; zero <= 3; zero++)
                for (int n_ranks = 2; n_ranks <= (m == 0 ? 4 : 3); n_ranks++) {
                    char keys[200];
                    snprintf(keys, sizeof keys,
                             "batch=12 threads=1 clip=0 ranks=%d zero=%d optimizer=%s%s", n_ranks,
                             zero, optimizers[o], m == 1 ? " seq=16" : "");
                    check(models[m], keys, n_ranks);
                }
}

static void of_other_recipes(void **state)
{
    static const struct {
        const char *model, *keys;
        int n_ranks;
    } cases[] = {
        {"vit-tiny", "batch=4 precision=bf16 optimizer=caspr clip=0 zero=2 threads=2 ranks=2", 2},
        {"gpt-nano", "batch=8 seq=16 optimizer=muon parallel=ps threads=1 ranks=4", 4},
        {"gpt-nano", "batch=8 seq=16 optimizer=muon zero=2 update=in-backward clip=0 ranks=4", 4},
        {"gpt-nano", "batch=8 seq=16 optimizer=muon zero=1 offload=states ranks=4", 4},
        {"gpt-nano", "batch=8 seq=16 optimizer=muon zero=2 lora=4 ranks=3 batch=12", 3},
        {"gpt-nano", "batch=8 seq=16 pipeline=1f1b micro-batch=2 ranks=3", 3},
        {"gpt-nano",
         "batch=8 seq=16 optimizer=soap pipeline=gpipe stages=2 micro-batch=1 zero=1 "
         "ranks=4",
         4},
        {"gpt-nano", "batch=8 seq=16 optimizer=muon zero=3 checkpoint=auto memory=140M ranks=2", 2},
        {"gpt-nano", "batch=12 seq=16 optimizer=muon zero=2 threads=1 ranks=12", 12},
        {"psi:7e6", "zero=2 optimizer=adamw ranks=3", 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i].model, cases[i].keys, cases[i].n_ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_ranks),
        cmocka_unit_test(of_other_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
