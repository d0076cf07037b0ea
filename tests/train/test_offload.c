/*
 * test_offload.c -- offloading changes only where the bytes are.
 *
 * A run with states or activations in the offload pool has the losses, weights and states of a run
 * without, bit for bit, with any optimizer, dtype and number of threads, also if it is saved and
 * resumed.  And the plan reports the cost.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/decoders.h"
#include "support/files.h"
#include "support/training.h"
#include "train/trainer.h"

#if defined(__SANITIZE_ADDRESS__)
enum { N_LONG_STEPS = 3 }; /* slow */
#else
enum { N_LONG_STEPS = 20 };
#endif
enum { N_SHORT_STEPS = 4, STOP_AT = 2, STEPS_MOST = 32 };

#define SMALL "tests/optim/fixtures/small"

struct run {
    snug_trainer *trainer;
    snug_model *model;
    snug_recipe *recipe;
    double losses[STEPS_MOST], val_losses[STEPS_MOST];
};

static int note_loss(const struct snug_metrics *m, void *user)
{
    struct run *run = user;
    run->losses[m->step - 1] = m->loss;
    run->val_losses[m->step - 1] = m->has_validation ? m->val_loss : 0;
    return 0;
}

static struct run train_evaluated(const char *spec, const char *keys, const char *more,
                                  int64_t steps, const char *out, bool resume, int64_t eval_every)
{
    char all[400];
    struct snug_error err;
    struct run run = {.model = model_of(spec)};
    struct snug_train_options options = {
        .steps = steps, .eval_every = eval_every, .out = out, .resume = resume};
    snprintf(all, sizeof all, "%s %s", keys, more);
    run.recipe = recipe_of(all);
    must(snug_trainer_open(run.model, run.recipe, &options, &run.trainer, &err), &err);
    must(snug_trainer_run(run.trainer, note_loss, &run, &err), &err);
    return run;
}

static struct run train(const char *spec, const char *keys, const char *more, int64_t steps,
                        const char *out, bool resume)
{
    return train_evaluated(spec, keys, more, steps, out, resume, -1);
}

static void end(struct run *run)
{
    snug_trainer_free(run->trainer);
    snug_recipe_free(run->recipe);
    snug_model_free(run->model);
}

static unsigned char *bytes_of(const snug_trainer *t, tensor_id id)
{
    struct snug_error err;
    int64_t n = tensor_bytes(&t->compiled.prog, id);
    unsigned char *bytes = malloc((size_t)n);
    assert_non_null(bytes);
    must(exec_read(t->exec, id, 0, n, bytes, &err), &err);
    return bytes;
}

/* Losses of the steps from `first` on, and everything that lives from step to step. */
static void expect_same(const struct run *a, const struct run *b, int64_t first, int64_t steps,
                        const char *what)
{
    const struct program *prog = &a->trainer->compiled.prog;
    const struct program *other = &b->trainer->compiled.prog;
    int n_compared = 0;
    for (int64_t i = first; i < steps; i++)
        if (memcmp(&a->losses[i], &b->losses[i], sizeof(double)) != 0)
            fail_msg("%s: the loss of step %lld is %.17g, not %.17g", what, (long long)i + 1,
                     b->losses[i], a->losses[i]);
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (!t->persistent || t->base != TENSOR_NONE)
            continue;
        tensor_id twin = program_find(other, t->name);
        assert_int_not_equal(twin, TENSOR_NONE);
        unsigned char *x = bytes_of(a->trainer, id), *y = bytes_of(b->trainer, twin);
        if (memcmp(x, y, (size_t)tensor_bytes(prog, id)) != 0)
            fail_msg("%s: \"%s\" differs", what, t->name);
        free(x);
        free(y);
        n_compared++;
    }
    assert_true(n_compared > 3);
}

static void expect_offloaded(const struct run *run, const char *offload)
{
    const struct compiled_step *s = &run->trainer->compiled;
    struct snug_error err;
    bool states = strstr(offload, "states") != NULL;
    int64_t role_bytes[ROLE_COUNT] = {0};
    for (int id = 0; id < s->prog.n_tensors; id++)
        if (s->prog.tensors[id].offloaded && s->prog.tensors[id].base == TENSOR_NONE)
            role_bytes[s->prog.tensors[id].role] += tensor_bytes(&s->prog, id);
    assert_int_equal(role_bytes[ROLE_optimizer] > 0, states);
    assert_int_equal(role_bytes[ROLE_activation] > 0, strstr(offload, "activations") != NULL);
    assert_true(s->plan.pool_bytes >= role_bytes[ROLE_optimizer] + role_bytes[ROLE_activation]);
    if (states)
        assert_int_equal(s->plan.at_peak[ROLE_optimizer], 0);
    must(program_verify(&s->prog, &err), &err);
    must(plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err),
         &err);
    must(plan_check_pool(&s->prog, s->plan.pool_offset, s->plan.pool_bytes, &err), &err);
}

/* The programs beside the run read states too. */
static void verify_programs(const struct run *run)
{
    const struct snug_trainer *t = run->trainer;
    struct snug_error err;
    must(program_verify(&t->compiled.prog, &err), &err);
    if (t->can_evaluate)
        must(program_verify(&t->evaluator.compiled.prog, &err), &err);
    if (t->averages_exec != NULL)
        must(program_verify(&t->averages.prog, &err), &err);
}

/* ---- the same bits
 * --------------------------------------------------------------------------------- */

static void test_same_steps(void **state)
{
    (void)state;
    static const char keys[] = "batch=4 micro-batch=2 seq=32 lr=1e-3";
    static const struct {
        const char *offload, *threads;
    } cases[] = {{"offload=states", "threads=1"},
                 {"offload=activations", "threads=2"},
                 {"offload=states+activations", "threads=1"},
                 {"offload=states+activations", "threads=2"}};
    struct run none = train("gpt-nano", keys, "threads=1", N_LONG_STEPS, NULL, false);
    assert_int_equal(none.trainer->compiled.plan.pool_bytes, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[80];
        snprintf(more, sizeof more, "%s %s", cases[i].offload, cases[i].threads);
        struct run run = train("gpt-nano", keys, more, N_LONG_STEPS, NULL, false);
        expect_offloaded(&run, cases[i].offload);
        expect_same(&none, &run, 0, N_LONG_STEPS, more);
        struct snug_summary s;
        snug_trainer_summary(run.trainer, &s);
        assert_int_equal(s.planned_bytes, s.allocated_bytes);
        assert_true(s.planned_bytes < none.trainer->compiled.plan.arena_bytes);
        end(&run);
    }
    end(&none);
}

static void test_decoders(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys, *offload;
    } cases[] = {
        {"@llama", "precision=fp32 threads=2", "offload=states+activations"},
        {"@qwen2", "precision=bf16 threads=1 checkpoint=cheap", "offload=states"},
        {"@qwen3", "precision=bf16 threads=2 dropout=0.1", "offload=states+activations"},
        {"@mistral", "precision=bf16 threads=1 master=none state-bits=8", "offload=states"},
        {"@smollm2", "precision=fp16 threads=2", "offload=activations"},
        {"@qwen2", "precision=bf16 threads=1 lora=2 lora-on=all", "offload=states+activations"},
    };
    char dir[FILES_PATH_MAX];
    files_make_dir(dir);
    decoders_write(dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[200];
        const char *model = decoders_spec(dir, cases[i].model);
        snprintf(keys, sizeof keys, "batch=16 micro-batch=8 seq=64 lr=1e-3 %s", cases[i].keys);
        struct run none = train(model, keys, "", N_SHORT_STEPS, NULL, false);
        struct run run = train(model, keys, cases[i].offload, N_SHORT_STEPS, NULL, false);
        expect_offloaded(&run, cases[i].offload);
        expect_same(&none, &run, 0, N_SHORT_STEPS, cases[i].model);
        end(&run);
        end(&none);
    }
    files_remove_dir(dir);
}

static void test_every_optimizer(void **state)
{
    (void)state;
    static const char *const types[] = {"precision=fp32", "precision=bf16"};
    int n = 0;
    for (int k = 0; optimizer_at(k) != NULL; k++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            char keys[200];
            snprintf(keys, sizeof keys, "batch=4 micro-batch=2 seq=10 threads=1 optimizer=%s %s",
                     optimizer_at(k)->name, types[i]);
            struct run none =
                train("tests/optim/fixtures/small", keys, "", N_SHORT_STEPS, NULL, false);
            struct run run = train("tests/optim/fixtures/small", keys, "offload=states",
                                   N_SHORT_STEPS, NULL, false);
            verify_programs(&run);
            expect_same(&none, &run, 0, N_SHORT_STEPS, keys);
            end(&none);
            end(&run);
            n++;
        }
    assert_true(n > 20);
}

/* Weights of more elements than a piece, in every way to keep a number. */
static void test_pieces(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "precision=fp32",
        "precision=bf16",
        "precision=fp16",
        "precision=fp16 master=none",
        "precision=bf16 master=none state-bits=16",
        "precision=fp32 state-bits=8",
        "precision=bf16 master=none state-bits=4",
        "precision=fp32 kernels=reference state-bits=4",
        "precision=bf16 kernels=reference master=none state-bits=16",
        "precision=bf16 optimizer=lawa-ema",
        "precision=bf16 optimizer=schedule-free-adamw",
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char keys[200];
        snprintf(keys, sizeof keys, "batch=2 threads=2 %s", ways[i]);
        struct run none = train("mlp:1030-1031-10", keys, "", N_SHORT_STEPS, NULL, false);
        struct run run =
            train("mlp:1030-1031-10", keys, "offload=states", N_SHORT_STEPS, NULL, false);
        const struct program *prog = &run.trainer->compiled.prog;
        tensor_id part = program_find(prog, "layers.0.weight.from.1048576");
        assert_int_not_equal(part, TENSOR_NONE);
        assert_int_equal(tensor_elems(prog, part), 1030 * 1031 - (1 << 20));
        expect_offloaded(&run, "states");
        expect_same(&none, &run, 0, N_SHORT_STEPS, keys);
        end(&none);
        end(&run);
    }
}

/* ---- on disk
 * --------------------------------------------------------------------------------------- */

static void test_resumed(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys, *before, *after;
    } cases[] = {
        {SMALL, "precision=bf16", "offload=states", "offload=states"},
        {SMALL, "precision=fp32", "offload=none", "offload=states"},
        {SMALL, "precision=bf16 state-bits=8", "offload=states+activations", "offload=none"},
        {SMALL, "precision=bf16 optimizer=schedule-free-adamw", "offload=states",
         ""}, /* as it was */
        {"@llama", "precision=bf16 master=none", "offload=states", "checkpoint=cheap offload=none"},
        {"@mistral", "precision=fp32", "checkpoint=every:1", "update=in-backward offload=states"},
        {"@qwen2", "precision=fp16", "", "offload=states+activations"},
        {"@qwen3", "precision=bf16 state-bits=8", "checkpoint=sqrt", "offload=states"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[FILES_PATH_MAX], keys[200], before[200];
        files_make_dir(dir);
        decoders_write(dir);
        snprintf(keys, sizeof keys, "batch=4 micro-batch=2 seq=10 threads=1 %s", cases[i].keys);
        snprintf(before, sizeof before, "%s schedule=constant", cases[i].before);
        const char *out = files_path(dir, "run"), *model = decoders_spec(dir, cases[i].model);
        struct run none = train(model, keys, "", N_SHORT_STEPS, NULL, false);
        struct run first = train(model, keys, before, STOP_AT, out, false);
        end(&first);
        struct run rest = train(model, keys, cases[i].after, N_SHORT_STEPS, out, true);
        if (cases[i].after[0] == '\0')
            expect_offloaded(&rest, "states");
        expect_same(&none, &rest, STOP_AT, N_SHORT_STEPS, keys);
        end(&rest);
        end(&none);
        files_remove_dir(dir);
    }
}

/* Averages of the weights are made from states, which are in the offload pool: for evaluation and for the
 * saved model. */
static void test_averages(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"schedule-free-adamw", "schedule-free-prodigy",
                                             "lawa-ema", "lawa-queue opt=k=2,every=1"};
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        char dir[FILES_PATH_MAX], keys[200];
        size_t n_bytes[2];
        char *saved[2];
        double val_losses[2][STEPS_MOST];
        files_make_dir(dir);
        snprintf(keys, sizeof keys, "batch=4 seq=10 threads=1 precision=bf16 optimizer=%s",
                 optimizers[i]);
        for (int k = 0; k < 2; k++) {
            const char *out = files_path(dir, k == 0 ? "none" : "states");
            struct run run =
                train_evaluated("tests/optim/fixtures/small", keys, k == 0 ? "" : "offload=states",
                                N_SHORT_STEPS, out, false, 1);
            verify_programs(&run);
            memcpy(val_losses[k], run.val_losses, sizeof val_losses[k]);
            end(&run);
            saved[k] = files_read(files_path(out, "model.safetensors"), &n_bytes[k]);
        }
        assert_true(val_losses[0][0] > 0);
        assert_memory_equal(val_losses[0], val_losses[1], N_SHORT_STEPS * sizeof(double));
        assert_int_equal(n_bytes[0], n_bytes[1]);
        assert_memory_equal(saved[0], saved[1], n_bytes[0]);
        free(saved[0]);
        free(saved[1]);
        files_remove_dir(dir);
    }
}

static enum snug_status open_offloaded(const char *out, struct snug_error *err)
{
    snug_model *model = model_of("mlp:64-64-10");
    snug_recipe *recipe = recipe_of("batch=2 threads=1 offload=states");
    struct snug_train_options options = {.steps = 1, .eval_every = -1, .out = out};
    snug_trainer *trainer = NULL;
    enum snug_status status = snug_trainer_open(model, recipe, &options, &trainer, err);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
    return status;
}

static void expect_words(const struct snug_error *err, const char *word)
{
    if (strstr(err->message, word) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err->message, word);
}

/* A limit on the size of files stands for a disk that is full. */
static void test_no_room(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct rlimit usual, small;
    files_make_dir(dir);
    const char *out = files_path(dir, "run");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    small = usual;
    small.rlim_cur = 20000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum snug_status status = open_offloaded(out, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
    assert_int_equal(status, SNUG_OVER_BUDGET);
    /* m, v of 4096 + 64 + 640 + 10 fp32, each rounded up to 64 bytes */
    expect_words(&err, "38528 bytes");
    expect_words(&err, out);
    expect_words(&err, "TMPDIR");
    must(open_offloaded(out, &err), &err);
    files_remove_dir(dir);
}

static void test_no_folder(void **state)
{
    (void)state;
    struct snug_error err = {0};
    char *before = getenv("TMPDIR") == NULL ? NULL : strdup(getenv("TMPDIR"));
    setenv("TMPDIR", "/there/is/no/such/folder", 1);
    assert_int_equal(open_offloaded(NULL, &err), SNUG_BAD_FILE);
    expect_words(&err, "/there/is/no/such/folder");
    if (before != NULL)
        setenv("TMPDIR", before, 1);
    else
        unsetenv("TMPDIR");
    free(before);
    must(open_offloaded(NULL, &err), &err);
}

/* ---- the plan
 * -------------------------------------------------------------------------------------- */

static void test_ledger(void **state)
{
    (void)state;
    struct snug_error err;
    snug_model *model = model_of("gpt2");
    snug_recipe *none = recipe_of("batch=4 threads=1");
    snug_recipe *both = recipe_of("batch=4 threads=1 offload=states+activations");
    snug_plan *a = NULL, *b = NULL;
    struct snug_ledger l, m;
    must(snug_plan_make(model, none, &a, &err), &err);
    must(snug_plan_make(model, both, &b, &err), &err);
    snug_plan_ledger(a, &l);
    snug_plan_ledger(b, &m);
    assert_int_equal(l.offloaded, 0);
    assert_true(m.offloaded >= 8 * m.n_parameters);
    assert_int_equal(m.optimizer, 0);
    assert_int_equal(m.total, m.parameters + m.gradients + m.optimizer + m.activations +
                                  m.temporary + m.fragmentation);
    assert_true(m.total < l.total - 8 * m.n_parameters);
    assert_true(m.step_seconds > l.step_seconds);
    char *json = snug_plan_json(b), *text = snug_plan_text(b, 0), expected[80];
    snprintf(expected, sizeof expected,
             "\"offloaded\": {\"bytes\": %lld, \"where\": \"a file on disk\"}",
             (long long)m.offloaded);
    assert_non_null(strstr(json, expected));
    assert_non_null(strstr(text, "to a file on disk"));
    snug_free(json);
    snug_free(text);
    snug_plan_free(a);
    snug_plan_free(b);
    snug_recipe_free(none);
    snug_recipe_free(both);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger),     cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_no_folder),  cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_pieces),     cmocka_unit_test(test_every_optimizer),
        cmocka_unit_test(test_same_steps), cmocka_unit_test(test_averages),
        cmocka_unit_test(test_decoders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
