/*
 * test_oracle.c -- ten steps with every optimizer, against PyTorch or its rule in float64.
 *
 * There is one test for each fixtures/MODEL/cases/NAME.recipe, written by oracle.py; RULES.md has
 * the rules.  A case of an optimizer that the library does not know fails, and so does an optimizer
 * without a case.
 *
 * The error of a tensor is
 *
 *     |ours - oracle| / |oracle - start|        Euclidean norms, after the last step
 *
 * that is, relative to how far ten steps have moved it.  States in the fixture (averages of the
 * weights, for example) are measured the same way, with the start of their weight.  The error must
 * be below the fixture's `limit`: 1e-5, where float32 PyTorch is up to 3e-6 away.  Rules that round
 * have larger limits, which oracle.py explains.  The losses and gradient norms of all steps must
 * agree as well.
 *
 * The bias of the keys is left out: it shifts all scores of a row equally, so its gradient is only
 * rounding error, and rules that divide by the size of a gradient move it arbitrarily.
 *
 *     build/release/tests/optim/test_oracle lion      only the cases whose name begins with this
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/safetensors.h"
#include "optim/optim.h"
#include "support/files.h"
#include "support/training.h"

enum {
    N_STEPS = 10,
    BATCH_TOKENS = 3 * 10,
    MAX_ELEMS = 8192,
    MAX_CASES = 200,
    NAME_MAX_CHARS = 80
};
static const char folder[] = "tests/optim/fixtures";
static const char *const models[] = {"small", "wide"};
enum { N_MODELS = sizeof models / sizeof *models };

struct way {
    const char *kernels, *threads, *micro_batch;
};
static const struct way ways[] = {{"fast", "1", "3"}, {"fast", "2", "1"}, {"reference", "1", "3"}};
enum { N_WAYS = sizeof ways / sizeof *ways };

struct one_case {
    const char *model;
    char name[NAME_MAX_CHARS];
};

struct truth {
    struct safetensors *start, *after, *batches;
    double limit;
};

/* ---- fixtures -------------------------------------------------------------------------------- */

static struct safetensors *fixture(const char *model, const char *name)
{
    struct snug_error err;
    struct safetensors *st = NULL;
    must(safetensors_open(files_path(files_path(folder, model), name), &st, &err), &err);
    return st;
}

static void open_truth(const struct one_case *c, struct truth *truth)
{
    char name[NAME_MAX_CHARS + 32];
    snprintf(name, sizeof name, "cases/%s.safetensors", c->name);
    truth->start = fixture(c->model, "model.safetensors");
    truth->batches = fixture(c->model, "batches.safetensors");
    truth->after = fixture(c->model, name);
    read_raw(truth->after, "limit", &truth->limit, sizeof truth->limit);
}

static void close_truth(struct truth *truth)
{
    safetensors_close(truth->start);
    safetensors_close(truth->batches);
    safetensors_close(truth->after);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* A state is called PREFIX.WEIGHT. */
static const char *weight_of(const struct truth *truth, const char *name)
{
    if (safetensors_find(truth->start, name) != NULL)
        return name;
    const char *dot = strchr(name, '.');
    assert_non_null(dot);
    return dot + 1;
}

/* Takes the keys' third out of the biases of queries, keys and values; returns how many stay. */
static int64_t without_keys(const char *weight, float *values, int64_t n)
{
    if (strstr(weight, "attn.c_attn.bias") == NULL)
        return n;
    memmove(values + n / 3, values + 2 * n / 3, (size_t)(n / 3) * sizeof *values);
    return 2 * n / 3;
}

static double error_of(snug_trainer *trainer, const struct truth *truth,
                       const struct st_entry *entry)
{
    static float found[MAX_ELEMS], wanted[MAX_ELEMS], start[MAX_ELEMS];
    double moved[MAX_ELEMS], wanted_moved[MAX_ELEMS];
    struct snug_error err;
    const char *weight = weight_of(truth, entry->name);
    int64_t n = shape_elems(&entry->shape);
    assert_in_range(n, 1, MAX_ELEMS);
    read_raw(truth->after, entry->name, wanted, (size_t)n * sizeof *wanted);
    read_raw(truth->start, weight, start, (size_t)n * sizeof *start);
    must(snug_trainer_read(trainer, entry->name, found, n, &err), &err);
    without_keys(weight, found, n);
    without_keys(weight, wanted, n);
    n = without_keys(weight, start, n);
    for (int64_t i = 0; i < n; i++) {
        moved[i] = (double)found[i] - (double)start[i];
        wanted_moved[i] = (double)wanted[i] - (double)start[i];
    }
    return relative_error(moved, wanted_moved, n);
}

struct worst {
    double error;
    char where[160];
};

static void judge(struct worst *worst, const struct way *way, double limit, const char *what,
                  double error)
{
    if (!(error < limit))
        fail_msg("%s kernels, %s threads, micro-batch %s, %s: relative error %.3g, limit %.0e",
                 way->kernels, way->threads, way->micro_batch, what, error, limit);
    if (error >= worst->error) {
        worst->error = error;
        snprintf(worst->where, sizeof worst->where, "%s, %s kernels", what, way->kernels);
    }
}

static void compare(snug_trainer *trainer, const struct truth *truth, const struct way *way,
                    struct worst *worst)
{
    int n_weights = 0;
    for (int i = 0; i < safetensors_count(truth->after); i++) {
        const struct st_entry *entry = safetensors_entry(truth->after, i);
        if (entry->dtype != DTYPE_f32)
            continue; /* limit, losses and norms are float64 */
        judge(worst, way, truth->limit, entry->name, error_of(trainer, truth, entry));
        n_weights += safetensors_find(truth->start, entry->name) != NULL;
    }
    assert_int_equal(n_weights, safetensors_count(truth->start));
}

/* ---- running --------------------------------------------------------------------------------- */

static snug_recipe *recipe_for(const struct one_case *c, const struct way *way)
{
    struct snug_error err;
    char name[NAME_MAX_CHARS + 32];
    snug_recipe *recipe = snug_recipe_new();
    assert_non_null(recipe);
    snprintf(name, sizeof name, "cases/%s.recipe", c->name);
    must(snug_recipe_read(recipe, files_path(files_path(folder, c->model), name), &err), &err);
    must(snug_recipe_set(recipe, "kernels", way->kernels, &err), &err);
    must(snug_recipe_set(recipe, "threads", way->threads, &err), &err);
    must(snug_recipe_set(recipe, "micro-batch", way->micro_batch, &err), &err);
    return recipe;
}

static void run_steps(snug_trainer *trainer, const struct truth *truth, const struct way *way,
                      struct worst *worst)
{
    struct snug_error err;
    double losses[N_STEPS], norms[N_STEPS];
    int32_t tokens[N_STEPS][BATCH_TOKENS], targets[N_STEPS][BATCH_TOKENS];
    read_raw(truth->batches, "tokens", tokens, sizeof tokens);
    read_raw(truth->batches, "targets", targets, sizeof targets);
    read_raw(truth->after, "losses", losses, sizeof losses);
    read_raw(truth->after, "norms", norms, sizeof norms);
    for (int i = 0; i < N_STEPS; i++) {
        struct snug_metrics m = {0};
        const void *inputs[] = {tokens[i], targets[i]};
        char what[40];
        must(snug_trainer_step(trainer, inputs, &m, &err), &err);
        snprintf(what, sizeof what, "loss of step %d", i + 1);
        judge(worst, way, truth->limit, what, relative_error(&m.loss, &losses[i], 1));
        snprintf(what, sizeof what, "gradient norm of step %d", i + 1);
        judge(worst, way, truth->limit, what, relative_error(&m.grad_norm, &norms[i], 1));
    }
}

static void run_one_way(const struct one_case *c, const struct truth *truth, const struct way *way,
                        struct worst *worst)
{
    struct snug_error err;
    snug_trainer *trainer = NULL;
    snug_model *model = model_of(files_path(folder, c->model));
    snug_recipe *recipe = recipe_for(c, way);
    struct snug_train_options options = {.data = "none", .steps = N_STEPS};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    run_steps(trainer, truth, way, worst);
    compare(trainer, truth, way, worst);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_case(void **state)
{
    const struct one_case *c = *state;
    struct truth truth;
    struct worst worst = {0};
    open_truth(c, &truth);
    for (int i = 0; i < N_WAYS; i++)
        run_one_way(c, &truth, &ways[i], &worst);
    print_message("# %s: largest relative error %.1e at %s, limit %.0e\n", c->name, worst.error,
                  worst.where, truth.limit);
    close_truth(&truth);
}

/* ---- the list -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct one_case *)a)->name, ((const struct one_case *)b)->name);
}

/* Adds the recipes of one model whose name begins with `wanted`; returns how many there are now. */
static int add_cases(const char *model, const char *wanted, struct one_case *cases, int n)
{
    static const char ending[] = ".recipe";
    DIR *dir = opendir(files_path(files_path(folder, model), "cases"));
    const struct dirent *file;
    while (dir != NULL && (file = readdir(dir)) != NULL && n < MAX_CASES) {
        size_t length = strlen(file->d_name), tail = sizeof ending - 1;
        if (length <= tail || length - tail >= NAME_MAX_CHARS ||
            strcmp(file->d_name + length - tail, ending) != 0 ||
            strncmp(file->d_name, wanted, strlen(wanted)) != 0)
            continue;
        cases[n].model = model;
        snprintf(cases[n++].name, NAME_MAX_CHARS, "%.*s", (int)(length - tail), file->d_name);
    }
    if (dir != NULL)
        closedir(dir);
    return n;
}

static bool is_case_of(const struct one_case *c, const struct optimizer *optimizer)
{
    char line[NAME_MAX_CHARS], name[2 * NAME_MAX_CHARS];
    snprintf(line, sizeof line, "optimizer = %s\n", optimizer->name);
    snprintf(name, sizeof name, "cases/%s.recipe", c->name);
    size_t n_bytes;
    char *recipe = files_read(files_path(files_path(folder, c->model), name), &n_bytes);
    bool is = strstr(recipe, line) != NULL;
    free(recipe);
    return is;
}

static struct one_case cases[MAX_CASES];
static int n_cases;

static void test_every_optimizer_has_a_case(void **state)
{
    (void)state;
    const struct optimizer *optimizer;
    for (int i = 0; (optimizer = optimizer_at(i)) != NULL; i++) {
        int c = 0;
        while (c < n_cases && !is_case_of(&cases[c], optimizer))
            c++;
        if (c == n_cases)
            fail_msg("%s has no case: add one to tests/optim/oracle.py", optimizer->name);
    }
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[MAX_CASES + 1];
    for (int i = 0; i < N_MODELS; i++)
        n_cases = add_cases(models[i], argc > 1 ? argv[1] : "", cases, n_cases);
    if (n_cases == 0) {
        fprintf(stderr, "test_oracle: no such case in %s; run it in snug's root\n", folder);
        return 1;
    }
    qsort(cases, (size_t)n_cases, sizeof *cases, by_name);
    for (int i = 0; i < n_cases; i++)
        tests[i] = (struct CMUnitTest){
            .name = cases[i].name, .test_func = test_case, .initial_state = &cases[i]};
    int n_tests = n_cases;
    if (argc == 1)
        tests[n_tests++] = (struct CMUnitTest)cmocka_unit_test(test_every_optimizer_has_a_case);
    return _cmocka_run_group_tests("optim", tests, (size_t)n_tests, NULL, NULL);
}
