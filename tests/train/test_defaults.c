/*
 * test_defaults.c -- what the program chooses if the user does not: the budget of --checkpoint
 * auto, a batch that the ranks can share, and the notes and titles of a plan that report it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/process_memory.h"
#include "support/files.h"
#include "support/training.h"
#include "train/default_memory.h"
#include "compile/budget.h"

static const int64_t GIB = (int64_t)1 << 30;

/* ---- the limit of a process --------------------------------------------------------------------- */

static const struct {
    const char *name, *own, *file, *limit;
    const char *second_file, *second_limit; /* of the group that the first is in */
    int64_t wanted;
} limits[] = {
    {"a job's", "0::/job\n", "job/memory.max", "4096\n", NULL, NULL, 4096},
    {"none", "0::/job\n", "job/memory.max", "max\n", NULL, NULL, INT64_MAX},
    {"the container's", "0::/\n", "memory.max", "8192\n", NULL, NULL, 8192},
    {"a step in a job", "0::/job/step\n", "job/step/memory.max", "max\n", "job/memory.max",
     "4096\n", 4096},
    {"the tighter one", "0::/job/step\n", "job/step/memory.max", "2048\n", "job/memory.max",
     "4096\n", 2048},
    {"version 1", "5:cpu:/x\n4:memory:/job\n", "memory/job/memory.limit_in_bytes", "4096\n", NULL,
     NULL, 4096},
    {"a path from outside", "0::/not/here\n", "memory.max", "4096\n", NULL, NULL, 4096},
    {"another group's", "0::/job\n", "other/memory.max", "4096\n", NULL, NULL, INT64_MAX},
};

static void test_control_groups(void **state)
{
    (void)state;
    static const char *const folders[] = {"job", "job/step", "memory", "memory/job", "other"};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        char root[FILES_PATH_MAX];
        files_make_dir(root);
        for (size_t k = 0; k < sizeof folders / sizeof *folders; k++)
            files_make_subdir(root, folders[k]);
        files_write_text(root, "own", limits[i].own);
        files_write_text(root, limits[i].file, limits[i].limit);
        if (limits[i].second_file != NULL)
            files_write_text(root, limits[i].second_file, limits[i].second_limit);
        int64_t found = control_group_limit(root, files_path(root, "own"));
        if (found != limits[i].wanted)
            fail_msg("%s: %lld, not %lld", limits[i].name, (long long)found,
                     (long long)limits[i].wanted);
        files_remove_dir(root);
    }
}

/* ---- the budget ----------------------------------------------------------------------------------- */

static void test_budget_of_auto(void **state)
{
    (void)state;
    struct snug_error err = {0};
    snug_recipe *recipe = recipe_of("checkpoint=auto");
    int64_t machine = machine_bytes();
    must(default_memory_set(recipe, 1, &err), &err);
    assert_in_range(recipe->memory, machine - machine / 16, machine);
    assert_string_not_equal(recipe->memory_origin, "");
    struct text lines = {0};
    recipe_write(recipe, &lines); /* the next process may be on another machine */
    assert_null(strstr(lines.data, "memory ="));
    text_free(&lines);
    int64_t whole = recipe->memory;
    snug_recipe_free(recipe);

    recipe = recipe_of("checkpoint=auto");
    must(default_memory_set(recipe, 4, &err), &err);
    assert_int_equal(recipe->memory, whole / 4);
    assert_non_null(strstr(recipe->memory_origin, "shared by 4 ranks"));
    snug_recipe_free(recipe);
}

static const struct {
    const char *keys;
    double gib; /* 0: no budget */
    const char *origin;
} budgets[] = {
    {"checkpoint=auto target=a100", 79, "one A100 80G"},
    {"checkpoint=auto target=4090", 23.5, "one RTX 4090"},
    {"checkpoint=auto target=a100 memory=3G", 3, ""},
    {"checkpoint=sqrt target=a100", 0, ""},
    {"checkpoint=none", 0, ""},
};

static void test_budgets(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        struct snug_error err = {0};
        snug_recipe *recipe = recipe_of(budgets[i].keys);
        must(default_memory_set(recipe, 1, &err), &err);
        assert_int_equal(recipe->memory, (int64_t)(budgets[i].gib * (double)GIB));
        assert_non_null(strstr(recipe->memory_origin, budgets[i].origin));
        assert_int_equal(recipe->memory_origin[0] == '\0', budgets[i].origin[0] == '\0');
        snug_recipe_free(recipe);
    }
}

/* ---- the batch ------------------------------------------------------------------------------------ */

static const struct {
    const char *model, *keys;
    int64_t batch, usual; /* usual 0: as always */
} batches[] = {
    {"gpt-nano", "ranks=64", 64, 8},
    {"gpt-nano", "ranks=3", 9, 8},
    {"gpt-nano", "ranks=4", 8, 0},
    {"gpt-nano", "ranks=64 batch=128", 128, 0},
    {"gpt-nano", "ranks=64 pipeline=1f1b stages=2 micro-batch=1 batch=64", 64, 0},
    {"mlp", "ranks=48", 144, 128},
};

static void test_batches(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        struct snug_error err = {0};
        struct compiled_step s;
        snug_model *model = model_of(batches[i].model);
        snug_recipe *recipe = recipe_of(batches[i].keys);
        struct compile_request q = {.model = model, .recipe = recipe, .train = true};
        must(compile_step(&q, &s, &err), &err);
        assert_int_equal(s.batch, batches[i].batch);
        assert_int_equal(s.usual_batch, batches[i].usual);
        compiled_step_free(&s);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

/* ---- what a plan says ----------------------------------------------------------------------------- */

static const struct {
    const char *model, *keys;
    const char *words, *absent; /* of its text; NULL: nothing */
} texts[] = {
    {"gpt2", "threads=2", "their maximum, 475 MiB at op", "all of them are"},
    {"gpt2", "threads=2 update=in-backward clip=0", "all of them are 475 MiB, but at most",
     "grow to"},
    {"gpt2", "threads=2 ranks=4 zero=2", "a rank keeps only its shard", "freed after"},
    {"gpt2", "threads=2 checkpoint=every:1 batch=1", NULL, "x hidden elements per token"},
    {"gpt2", "threads=2", "16.3 x hidden elements per token and layer", "every:1 needs"},
    {"gpt2", "threads=2 checkpoint=sqrt", "checkpoint     every:1 needs", "x hidden"},
    {"gpt2", "threads=2 checkpoint=every:1", NULL, "every:1 needs"},
    {"mlp", "threads=2", NULL, "x hidden"},
    /* titles */
    {"gpt2", "threads=3", "adamw, 3 threads\n", NULL},
    {"gpt2", "target=a100", "adamw\n", "thread"},
    {"psi:1e9", "ranks=64", "psi:1e9\n", NULL},
    {"gpt-nano", "ranks=64", "batch          64, not the default 8", NULL},
    {"gpt-nano", "ranks=8", NULL, "not the default"},
    {"gpt-nano", "target=a100 checkpoint=auto", "default: the memory of one A100 80G", NULL},
};

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct snug_error err = {0};
        snug_plan *plan;
        snug_model *model = model_of(texts[i].model);
        snug_recipe *recipe = recipe_of(texts[i].keys);
        must(snug_plan_make(model, recipe, &plan, &err), &err);
        char *text = snug_plan_text(plan, 0);
        assert_non_null(text);
        bool has = texts[i].words == NULL || strstr(text, texts[i].words) != NULL;
        bool has_not = texts[i].absent == NULL || strstr(text, texts[i].absent) == NULL;
        if (!has || !has_not)
            fail_msg("%s %s: \"%s\" should %sbe in:\n%s", texts[i].model, texts[i].keys,
                     has ? texts[i].absent : texts[i].words, has ? "not " : "", text);
        snug_free(text);
        snug_plan_free(plan);
        snug_recipe_free(recipe);
        snug_model_free(model);
    }
}

/* The thread count is in the title where bytes depend on it, and there only. */
static void test_threads_and_bytes(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt-nano", "mlp", "resnet18", "mlp:4-3"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        int64_t total[2];
        bool named = false;
        for (int k = 0; k < 2; k++) {
            struct snug_error err = {0};
            struct compiled_step s;
            snug_model *model = model_of(models[i]);
            snug_recipe *recipe = recipe_of(k == 0 ? "threads=1" : "threads=16");
            struct compile_request q = {.model = model, .recipe = recipe, .train = true};
            must(compile_step(&q, &s, &err), &err);
            total[k] = s.plan.arena_bytes;
            named |= compiled_step_has_thread_bytes(&s);
            compiled_step_free(&s);
            snug_recipe_free(recipe);
            snug_model_free(model);
        }
        assert_true(named || total[0] == total[1]);
    }
}

/* A size that is named as enough is rounded up, and spelled as every other. */
static void test_enough(void **state)
{
    static const struct {
        int64_t bytes;
        const char *words;
    } sizes[] = {
        {1, "1 B"},
        {999, "999 B"},
        {1024 * 1000, "0.98 MiB"},
        {((int64_t)1 << 30), "1.00 GiB"},
        {((int64_t)1 << 30) + 1, "1.01 GiB"},
        {((int64_t)10 << 30) + 1, "10.1 GiB"},
        {((int64_t)333 << 20) - 1, "333 MiB"},
        {((int64_t)333 << 20) + 1, "334 MiB"},
        {((int64_t)200 << 30) + 1, "201 GiB"},
    };
    char out[TEXT_SIZE_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t parsed;
        char typed[TEXT_SIZE_MAX];
        assert_string_equal(budget_size(sizes[i].bytes, out), sizes[i].words);
        snprintf(typed, sizeof typed, "%.*s%c", (int)strcspn(out, " "), out, strchr(out, ' ')[1]);
        if (sizes[i].bytes >= 1024 * 1000) {
            assert_true(text_parse_size(typed, &parsed));
            assert_true(parsed >= sizes[i].bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_enough),
        cmocka_unit_test(test_control_groups),
        cmocka_unit_test(test_budget_of_auto),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_threads_and_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
