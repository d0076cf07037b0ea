/*
 * test_fit.c -- fit finds what an exhaustive search finds, keeps what the user fixed, and its
 * choice fits the budget.
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/decoders.h"
#include "support/files.h"
#include "support/training.h"
#include "compile/fit.h"
#include "train/trainer.h"

static const char small[] = "mlp:64-96-96-10";

/* *needed: with the runtime beside it. */
static int64_t total_of(const snug_model *model, const snug_recipe *recipe, double *seconds,
                        int64_t *needed)
{
    struct snug_error err = {0};
    struct compiled_step s;
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, &err), &err);
    int64_t total = s.plan.arena_bytes;
    *seconds = s.plan.step_seconds;
    *needed = total + compiled_step_runtime_bytes(&s);
    compiled_step_free(&s);
    return total;
}

/* ---- against trying everything ----------------------------------------------------------------- */

static const struct {
    const char *state_bits, *master;
} tiers[] = {{"32", "fp32"}, {"16", "fp32"}, {"8", "fp32"}, {"32", "none"},
             {"16", "none"}, {"8", "none"},  {"4", "fp32"}, {"4", "none"}};
static const char *const offloads[] = {"none", "states", "activations", "states+activations"},
                         *const updates[] = {"end", "in-backward"},
                         *const checkpoints[] = {"none", "cheap", "every:1"};
enum { N_TIERS = sizeof tiers / sizeof *tiers, N_MICRO_MAX = 8, TRIED_MAX = 8 * 24 * N_MICRO_MAX };

struct tried { /* in the order in which they are preferred, where they are equally fast */
    int tier;
    bool is_plain; /* nothing but the micro-batch is turned */
    int64_t total, needed;
    double seconds;
};

static void set(snug_recipe *recipe, const char *key, const char *value)
{
    struct snug_error err = {0};
    must(snug_recipe_set(recipe, key, value, &err), &err);
}

/* Everything but auto and all, planned one by one. */
static int try_all(const snug_model *model, const char *keys, int batch, int n_tiers,
                   struct tried *tried)
{
    int n = 0;
    for (int i = 0; i < n_tiers * 4 * 2 * 3; i++)
        for (int m = batch; m >= 1; m--) {
            char micro[16];
            snug_recipe *r = recipe_of(keys);
            if (batch % m == 0) {
                snprintf(micro, sizeof micro, "%d", m);
                set(r, "micro-batch", micro);
                set(r, "checkpoint", checkpoints[i % 3]);
                set(r, "update", updates[i / 3 % 2]);
                set(r, "offload", offloads[i / 6 % 4]);
                set(r, "state-bits", tiers[i / 24].state_bits);
                set(r, "master", tiers[i / 24].master);
                assert_true(n < TRIED_MAX);
                tried[n].tier = i / 24;
                tried[n].is_plain = i % 24 == 0;
                tried[n].total = total_of(model, r, &tried[n].seconds, &tried[n].needed);
                n++;
            }
            snug_recipe_free(r);
        }
    return n;
}

/* How much faster a later tier must be than one of this number. */
static double worth_of(int tier)
{
    return tier == 0 ? 1.1 : 1.03;
}

/* The fastest of a tier, ties in list order; -1 if none fits. */
static int best_of_tier(const struct tried *tried, int n, int tier, int64_t budget)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (tried[i].tier == tier && tried[i].needed <= budget &&
            (best < 0 || fit_pace(tried[i].seconds) < fit_pace(tried[best].seconds)))
            best = i;
    return best;
}

/* The time of a tier without a memory limit. */
static double plain_seconds(const struct tried *tried, int n, int tier)
{
    double least = 1e300;
    for (int i = 0; i < n; i++)
        if (tried[i].tier == tier && tried[i].is_plain && tried[i].seconds < least)
            least = tried[i].seconds;
    return least;
}

/* The first tier in which one fits; if it loses as much by want of memory, one of 16 or 8 bits, or
 * of 8 without a master, that is worth it. */
static int best_within(const struct tried *tried, int n, int64_t budget)
{
    int chosen = -1;
    bool is_tight = false;
    for (int tier = 0; tier < N_TIERS; tier++) {
        int best = best_of_tier(tried, n, tier, budget);
        bool is_looked_at = tier == 1 || tier == 2 || tier == 5;
        if (best >= 0 && (chosen < 0 || (is_looked_at && is_tight &&
                                         tried[best].seconds * worth_of(tried[chosen].tier) <
                                             tried[chosen].seconds)))
            chosen = best;
        if (chosen >= 0 && tried[chosen].tier == tier && !is_tight)
            is_tight = tried[chosen].seconds > worth_of(tier) * plain_seconds(tried, n, tier);
    }
    return chosen;
}

static int tier_of(const snug_recipe *recipe)
{
    static const char *const masters[] = {"fp32", "none"};
    for (int i = 0; i < N_TIERS; i++)
        if (atoi(tiers[i].state_bits) == (recipe->state_bits == 0 ? 32 : recipe->state_bits) &&
            strcmp(tiers[i].master, masters[recipe->no_master]) == 0)
            return i;
    return -1;
}

static snug_recipe *with_memory(const char *keys, int64_t bytes)
{
    struct snug_error err = {0};
    char size[32];
    snug_recipe *recipe = recipe_of(keys);
    snprintf(size, sizeof size, "%lld", (long long)bytes);
    must(snug_recipe_set(recipe, "memory", size, &err), &err);
    return recipe;
}

/* The choice: as said, as planned again, and no worse than the best of the list.  With a checkpointing
 * of the list it is that one; auto and all may beat it.  True: it was of the list. */
static bool check_choice(const snug_model *model, const struct fit *fit, const struct tried *best)
{
    struct snug_error err = {0};
    snug_recipe chosen;
    double seconds;
    int64_t needed;
    const struct fit_candidate *c = &fit->candidates[fit->chosen];
    must(fit_recipe(fit, fit->chosen, &chosen, &err), &err);
    assert_int_equal(total_of(model, &chosen, &seconds, &needed), c->total_bytes);
    assert_int_equal(needed, fit_needed(c));
    assert_true(c->is_placed && needed <= fit->recipe.memory && c->seconds == seconds);
    int tier = tier_of(&chosen);
    bool is_listed = chosen.checkpoint != CHECKPOINT_auto && chosen.checkpoint != CHECKPOINT_all;
    if (!is_listed ||
        (best != NULL && tier != best->tier)) { /* auto in some tier moved the choice */
        assert_true(best == NULL ||
                    (tier < best->tier && seconds <= worth_of(tier) * best->seconds) ||
                    (tier == best->tier && fit_pace(seconds) <= fit_pace(best->seconds)) ||
                    (tier > best->tier && seconds * worth_of(best->tier) < best->seconds));
        return false;
    }
    assert_non_null(best);
    assert_int_equal(c->total_bytes, best->total);
    assert_true(seconds == best->seconds);
    return true;
}

/* Within a tier, more memory never gives a slower step. */
static void check_order(const struct fit *fit, int *tier, double *before)
{
    struct snug_error err = {0};
    snug_recipe chosen;
    must(fit_recipe(fit, fit->chosen, &chosen, &err), &err);
    double own = fit->candidates[fit->chosen].seconds;
    assert_true(tier_of(&chosen) != *tier || fit_pace(own) <= fit_pace(*before));
    *tier = tier_of(&chosen);
    *before = own;
}

struct compared {
    const char *model, *keys;
    int batch, n_tiers, n_budgets;
};

static void compare_with_all(const struct compared *with)
{
    static struct tried tried[TRIED_MAX];
    snug_model *model = model_of(with->model);
    int n = try_all(model, with->keys, with->batch, with->n_tiers, tried), n_same = 0,
        tier = N_TIERS;
    double before = 1e300;
    int64_t least = INT64_MAX, most = 0;
    for (int i = 0; i < n; i++) {
        least = tried[i].needed < least ? tried[i].needed : least;
        most = tried[i].needed > most ? tried[i].needed : most;
    }
    for (int i = 0; i < with->n_budgets; i++) { /* closer together where it is tight */
        double part = (double)i / (with->n_budgets - 1);
        int64_t budget = least + (int64_t)((double)(most - least) * part * part);
        struct snug_error err = {0};
        struct fit fit;
        snug_recipe *recipe = with_memory(with->keys, budget);
        must(fit_search(model, recipe, "state-bits,master", &fit, &err), &err);
        int best = best_within(tried, n, budget);
        n_same += check_choice(model, &fit, best < 0 ? NULL : &tried[best]);
        check_order(&fit, &tier, &before);
        fit_free(&fit);
        snug_recipe_free(recipe);
    }
    assert_int_equal(tier, 0);
    assert_true(n_same >= with->n_budgets / 3);
    snug_model_free(model);
}

static void as_brute_force(void **state)
{
    (void)state;
    static const struct compared all[] = {
        {"mlp:64-128-128-128-128-10", "batch=729 precision=bf16 threads=1 target=cpu", 729, N_TIERS,
         20},
        {"mlp:512-512-512-10", "batch=16 precision=bf16 threads=1 target=cpu clip=0", 16, N_TIERS,
         12},
        {"gpt-nano", "batch=2 seq=64 precision=bf16 threads=1 target=cpu", 2, 3, 6},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        compare_with_all(&all[i]);
}

static void more_memory_is_never_slower(void **state)
{
    (void)state;
    snug_model *model = model_of("gpt-nano");
    int before = INT_MAX;
    int n_chosen = 0;
    for (int64_t mib = 120; mib <= 900; mib += 60) {
        struct snug_error err = {0};
        struct snug_fit_point point = {0};
        snug_fit *fit;
        snug_recipe *recipe = with_memory("batch=24 threads=2 target=cpu", mib << 20);
        enum snug_status status = snug_fit_make(model, recipe, NULL, &fit, &err);
        assert_true(status == SNUG_OK || (status == SNUG_OVER_BUDGET && n_chosen == 0));
        int64_t less = INT64_MAX;
        int slower = INT_MIN;
        for (int i = 0; i < snug_fit_n_points(fit); i++) {
            snug_fit_point(fit, i, &point);
            int pace = fit_pace(point.step_seconds);
            assert_true(point.total < less && pace >= slower);
            less = point.total;
            slower = pace;
            if (point.is_chosen) {
                assert_true(point.fits && pace <= before);
                before = pace;
                n_chosen++;
            }
        }
        snug_fit_free(fit);
        snug_recipe_free(recipe);
    }
    assert_true(n_chosen > 3);
    snug_model_free(model);
}

/* A small budget is not spent on what the process does not take: one rank and two threads were seen to
 * hold 13 MiB beside this plan of 221. */
static void small_budgets_are_used(void **state)
{
    (void)state;
    struct snug_error err = {0};
    double seconds;
    int64_t needed, budget = (int64_t)260 << 20;
    snug_model *model = model_of("resnet18");
    snug_recipe *recipe = recipe_of("batch=128 micro-batch=4 offload=activations threads=2");
    assert_in_range(total_of(model, recipe, &seconds, &needed), (int64_t)220 << 20, budget);
    assert_in_range(needed, (int64_t)234 << 20, (int64_t)249 << 20);
    snug_recipe_free(recipe);
    snug_fit *fit;
    recipe = with_memory("batch=128 threads=2 target=cpu", budget);
    must(snug_fit_make(model, recipe, NULL, &fit, &err), &err);
    assert_int_equal(snug_fit_recipe(fit)->offload, OFFLOAD_activations);
    snug_fit_free(fit);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void what_is_fixed_stays(void **state)
{
    (void)state;
    snug_model *model = model_of(small);
    struct snug_error err = {0};
    snug_fit *fit;
    snug_recipe *recipe =
        recipe_of("batch=12 micro-batch=3 memory=1G precision=bf16 threads=2 target=cpu");
    must(snug_fit_make(model, recipe, NULL, &fit, &err), &err);
    const snug_recipe *chosen = snug_fit_recipe(fit);
    assert_int_equal(chosen->micro_batch, 3);
    assert_int_equal(chosen->no_master, 0); /* not allowed */
    assert_int_equal(chosen->state_bits, 0);
    char *command = snug_fit_command(fit);
    assert_non_null(
        strstr(command, "snug train mlp:64-96-96-10 --threads 2 --batch 12 --micro-batch 3"));
    assert_non_null(strstr(command, "--memory 1G"));
    snug_free(command);
    snug_fit_free(fit);

    snug_recipe_free(recipe);
    recipe = recipe_of("memory=1G threads=2");
    assert_int_equal(snug_fit_make(model, recipe, "seed", &fit, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "state-bits"));
    assert_null(fit);
    snug_recipe_free(recipe);
    recipe = recipe_of("batch=4 threads=2");
    assert_int_equal(snug_fit_make(model, recipe, NULL, &fit, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "--memory"));
    snug_recipe_free(recipe);
    snug_model_free(model);
}

/* What changes training is left alone where it is not needed, and the choice is on the whole curve. */
static void no_more_than_needed(void **state)
{
    (void)state;
    snug_model *model = model_of(small);
    struct snug_error err = {0};
    snug_fit *fit;
    snug_recipe *recipe = recipe_of("batch=12 memory=1G precision=bf16 threads=2 target=cpu");
    must(snug_fit_make(model, recipe, "all", &fit, &err), &err);
    const snug_recipe *chosen = snug_fit_recipe(fit);
    assert_true(chosen->lora == 0 && chosen->no_master == 0 && chosen->state_bits == 0);
    assert_int_equal(chosen->offload, OFFLOAD_none);
    int n_near = snug_fit_n_points(fit), n_chosen = 0;
    must(snug_fit_sweep(fit, &err), &err);
    assert_true(snug_fit_n_points(fit) > n_near);
    for (int i = 0; i < snug_fit_n_points(fit); i++) {
        struct snug_fit_point point;
        snug_fit_point(fit, i, &point);
        n_chosen += point.is_chosen;
        assert_null(strstr(point.flags, "lora"));
    }
    assert_int_equal(n_chosen, 1);
    char *text = snug_fit_text(fit, 1, 0);
    assert_null(strstr(text, "default"));
    snug_free(text);
    snug_fit_free(fit);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

/* Seen on an H200 in this budget (bench/results/cuda-2026-11.md): 16-bit states and micro-batches of 2
 * make 45,000 tokens/s, 8-bit states, micro-batches of 4 and auto 47,700. */
static void no_slower_than_a_recipe_that_is_allowed(void **state)
{
    (void)state;
    snug_model *model = model_of("gpt2-xl");
    struct snug_error err = {0};
    snug_fit *fit;
    snug_recipe *recipe = recipe_of("device=cuda target=h200 batch=32 seq=1024 precision=bf16 "
                                    "memory=24G threads=2");
    double seconds;
    int64_t needed;
    must(snug_fit_make(model, recipe, "state-bits", &fit, &err), &err);
    set(recipe, "micro-batch", "4");
    set(recipe, "state-bits", "8");
    set(recipe, "checkpoint", "auto");
    (void)total_of(model, recipe, &seconds, &needed);
    assert_true(needed <= recipe->memory);
    for (int i = 0; i < snug_fit_n_points(fit); i++) {
        struct snug_fit_point point;
        snug_fit_point(fit, i, &point);
        if (point.is_chosen)
            assert_true(point.step_seconds <= worth_of(1) * seconds);
    }
    assert_non_null(snug_fit_recipe(fit));
    snug_fit_free(fit);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

/* What is said to be over the budget is over it: the runtime, the weights, or both together. */
static void what_does_not_fit_is_named(void **state)
{
    static const struct {
        const char *model, *memory, *words, *absent;
    } rows[] = {
        {"mlp:64-64-10", "1M", "the runtime alone needs", "weights"},
        {"mlp:784-2048-2048-10", "10M", "the runtime alone needs", "weights"},
        {"gpt2", "300M", "the weights alone need 475 MiB", "runtime"},
        {"gpt2", "480M", "the weights (475 MiB) plus the runtime (", "alone"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct snug_error err = {0};
        snug_fit *fit;
        snug_model *model = model_of(rows[i].model);
        snug_recipe *recipe = recipe_of("batch=1 threads=1 target=cpu");
        must(snug_recipe_set(recipe, "memory", rows[i].memory, &err), &err);
        assert_int_equal(snug_fit_make(model, recipe, NULL, &fit, &err), SNUG_OVER_BUDGET);
        if (strstr(err.message, rows[i].words) == NULL || strstr(err.message, rows[i].absent))
            fail_msg("%s in %s: %s", rows[i].model, rows[i].memory, err.message);
        snug_fit_free(fit);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

static void nothing_fits(void **state)
{
    (void)state;
    snug_model *model = model_of("gpt2");
    struct snug_error err = {0};
    snug_fit *fit;
    snug_recipe *recipe = recipe_of("memory=300M threads=1 target=cpu");
    assert_int_equal(snug_fit_make(model, recipe, NULL, &fit, &err), SNUG_OVER_BUDGET);
    assert_non_null(strstr(err.message, "weights alone"));
    assert_non_null(strstr(err.message, "--allow all"));
    assert_null(snug_fit_recipe(fit));
    assert_true(snug_fit_n_points(fit) > 1);
    char *json = snug_fit_json(fit);
    assert_non_null(strstr(json, "\"chosen\": null"));
    snug_free(json);
    snug_fit_free(fit);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

/* What is chosen for a decoder runs, in the bytes it was chosen for. */
static void decoders_run(void **state)
{
    (void)state;
    static const char *const allowed[] = {NULL, "state-bits,master"};
    char dir[FILES_PATH_MAX];
    int n_chosen = 0;
    files_make_dir(dir);
    decoders_write(dir);
    for (int i = 0; decoders_family(i) != NULL; i++)
        for (int64_t mib = 22; mib <= 46; mib += 8) {
            struct snug_error err = {0};
            struct snug_train_options options = {.steps = 1, .eval_every = -1};
            struct snug_summary summary;
            snug_trainer *trainer = NULL;
            snug_fit *fit;
            snug_model *model = model_of(files_path(dir, decoders_family(i)));
            snug_recipe *recipe =
                with_memory("batch=32 seq=64 precision=bf16 threads=2", mib << 20);
            enum snug_status status = snug_fit_make(model, recipe, allowed[i % 2], &fit, &err);
            if (status == SNUG_OK) {
                must(snug_trainer_open(model, snug_fit_recipe(fit), &options, &trainer, &err),
                     &err);
                must(snug_trainer_run(trainer, NULL, NULL, &err), &err);
                snug_trainer_summary(trainer, &summary);
                assert_int_equal(summary.planned_bytes, summary.allocated_bytes);
                assert_in_range(summary.allocated_bytes, 1, mib << 20);
                snug_trainer_free(trainer);
                n_chosen++;
            } else {
                assert_int_equal(status, SNUG_OVER_BUDGET);
            }
            snug_fit_free(fit);
            snug_recipe_free(recipe);
            snug_model_free(model);
        }
    files_remove_dir(dir);
    assert_true(n_chosen >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_brute_force),
        cmocka_unit_test(more_memory_is_never_slower),
        cmocka_unit_test(what_is_fixed_stays),
        cmocka_unit_test(no_more_than_needed),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(nothing_fits),
        cmocka_unit_test(small_budgets_are_used),
        cmocka_unit_test(no_slower_than_a_recipe_that_is_allowed),
        cmocka_unit_test(decoders_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
