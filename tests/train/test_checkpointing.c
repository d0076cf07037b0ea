/*
 * test_checkpointing.c -- whatever is recomputed, the run is the same, bit for bit.
 *
 * Each model is trained for 20 steps (large ones for 4) with everything saved, and with every
 * checkpointing strategy.  The losses of all steps, and every tensor that lives from step to step
 * (weights, optimizer states, running averages, the scalar table), must be equal.  Also: planned
 * equals allocated, the plan passes its checker, and what should be recomputed is.  Small: 4 steps
 * each, not every strategy.
 *
 * parts: 1 (small), 3 (full)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/decoders.h"
#include "support/files.h"
#include "support/size.h"
#include "support/training.h"
#include "train/trainer.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { N_STEPS = 20, N_STEPS_SLOW = 4 };

struct net {
    const char *model; /* "@gpt": the small GPT of this file, or a family of decoders.h */
    const char *keys;
    enum { QUICK, SLOW, SLOWEST } pace; /* slow: not every way; slowest: fewer steps too */
    const char *level;                  /* of instructions; NULL: the highest that there is */
};
static const struct net nets[] = {
    {"@gpt", "batch=4 seq=13 threads=1", QUICK, NULL},
    {"@gpt", "batch=4 seq=13 threads=1 precision=bf16 dropout=0.1", SLOW, "amx-emulated"},
    {"@gpt", "batch=4 seq=13 threads=2 precision=bf16", SLOW, "amx-emulated"},
    {"@gpt", "batch=4 seq=13 threads=1 precision=bf16", SLOW, "base"},
    {"@gpt", "batch=4 micro-batch=2 seq=13 threads=2 precision=bf16", QUICK, NULL},
    {"@gpt", "batch=4 seq=13 threads=2 precision=bf16 dropout=0.1", QUICK, NULL},
    {"@gpt", "batch=4 micro-batch=1 seq=13 threads=2 dropout=0.1 label-smoothing=0.1", QUICK, NULL},
    {"@gpt", "batch=4 seq=13 threads=1 precision=fp16 optimizer=muon", QUICK, NULL},
    {"@gpt", "batch=2 seq=7 kernels=reference threads=1 precision=bf16 dropout=0.1", SLOWEST, NULL},
    {"@gpt", "batch=2 seq=7 kernels=reference threads=1 dropout=0.1", SLOWEST, NULL},
    {"@llama", "batch=4 seq=13 threads=2", QUICK, NULL},
    {"@qwen3", "batch=4 micro-batch=2 seq=16 threads=1 dropout=0.1 precision=bf16", QUICK, NULL},
    {"@qwen2", "batch=4 seq=16 threads=2 precision=bf16 master=none state-bits=8", QUICK, NULL},
    {"@mistral", "batch=4 micro-batch=2 seq=13 threads=1 precision=fp16", QUICK, NULL},
    {"@smollm2", "batch=4 seq=16 threads=1 precision=bf16 optimizer=muon", SLOW, "amx-emulated"},
    {"@qwen3", "batch=16 seq=32 threads=2 precision=bf16 lora=2 lora-on=all", QUICK, NULL},
    {"@qwen2", "batch=2 seq=7 kernels=reference threads=1 precision=bf16", SLOWEST, NULL},
    {"gpt-nano", "batch=2 micro-batch=1 seq=16 optimizer=sgd lr=0.01 threads=1 precision=bf16",
     SLOW, NULL},
    {"gpt-nano", "batch=1 seq=16 threads=2", QUICK, NULL},
    {"mlp:20-33-17-33-5", "batch=128 micro-batch=64 threads=2", QUICK, NULL},
    {"mlp:20-33-17-33-5,act=gelu", "batch=128 threads=2 precision=bf16 dropout=0.1", QUICK, NULL},
    {"cnn", "batch=4 micro-batch=2 threads=2", QUICK, NULL},
    {"cnn", "batch=4 threads=1 precision=bf16", SLOW, NULL},
    {"resnet18:3x16x16,classes=10", "batch=2 threads=1 optimizer=sgd lr=0.01", SLOWEST, NULL},
    {"vit-tiny:3x16x16,classes=10", "batch=2 threads=1 precision=bf16 optimizer=sgd", SLOWEST,
     NULL},
};

static const char *const ways[] = {"cheap", "every:1", "every:2", "sqrt", "all", "auto"};
static const bool in_few[] = {true, false, true, false, false, true};

static char dir[512];

static int write_config(void **state)
{
    (void)state;
    files_make_dir(dir);
    decoders_write(dir);
    files_make_subdir(dir, "gpt");
    files_write_text(dir, "gpt/config.json",
                     "{\"model_type\": \"gpt2\", \"n_layer\": 5, \"n_head\": 3, \"n_embd\": 48, "
                     "\"n_positions\": 32, \"vocab_size\": 70}");
    return 0;
}

static int remove_config(void **state)
{
    (void)state;
    files_remove_dir(dir);
    return 0;
}

/* ---- a run and what is left of it ---------------------------------------------------------------- */

struct result {
    double losses[N_STEPS];
    int n_losses, n_tensors;
    char **names;
    void **bytes;
    size_t *sizes;
    int64_t planned;
    double recompute_flops;
};

static int note_loss(const struct snug_metrics *metrics, void *user)
{
    struct result *r = user;
    if (r->n_losses < N_STEPS)
        r->losses[r->n_losses++] = metrics->loss;
    return 0;
}

static void keep_tensors(const snug_trainer *t, struct result *r)
{
    const struct program *prog = &t->compiled.prog;
    size_t n = (size_t)prog->n_tensors;
    r->names = calloc(n, sizeof *r->names);
    r->bytes = calloc(n, sizeof *r->bytes);
    r->sizes = calloc(n, sizeof *r->sizes);
    for (int i = 0; i < prog->n_tensors; i++) {
        if (!prog->tensors[i].persistent || exec_data(t->exec, i) == NULL)
            continue;
        r->sizes[r->n_tensors] = (size_t)tensor_bytes(prog, i);
        r->names[r->n_tensors] = strdup(prog->tensors[i].name);
        r->bytes[r->n_tensors] = malloc(r->sizes[r->n_tensors]);
        assert_non_null(r->bytes[r->n_tensors]);
        memcpy(r->bytes[r->n_tensors], exec_data(t->exec, i), r->sizes[r->n_tensors]);
        r->n_tensors++;
    }
}

static void forget(struct result *r)
{
    for (int i = 0; i < r->n_tensors; i++) {
        free(r->names[i]);
        free(r->bytes[i]);
    }
    free(r->names);
    free(r->bytes);
    free(r->sizes);
}

static void run(const struct net *net, const char *way, int64_t memory, struct result *r)
{
    struct snug_error err = {0};
    char keys[400];
    int length = snprintf(keys, sizeof keys, "%s checkpoint=%s", net->keys, way);
    if (memory > 0)
        snprintf(keys + length, sizeof keys - (size_t)length, " memory=%lld", (long long)memory);
    snug_recipe *recipe = recipe_of(keys);
    snug_model *model = model_of(decoders_spec(dir, net->model));
    struct snug_train_options options = {
        .steps = net->pace == SLOWEST ? N_STEPS_SLOW : sized(N_STEPS_SLOW, N_STEPS),
        .eval_every = -1};
    struct snug_summary summary;
    snug_trainer *t = NULL;
    *r = (struct result){0};
    must(snug_trainer_open(model, recipe, &options, &t, &err), &err);
    must(plan_check(&t->compiled.prog, t->compiled.plan.offset, t->compiled.plan.arena_bytes,
                    t->compiled.backend->alignment, &err),
         &err);
    must(program_verify(&t->compiled.prog, &err), &err);
    must(snug_trainer_run(t, note_loss, r, &err), &err);
    snug_trainer_summary(t, &summary);
    assert_int_equal(summary.planned_bytes, summary.allocated_bytes);
    r->planned = summary.planned_bytes;
    r->recompute_flops = t->compiled.plan.recompute_flops;
    keep_tensors(t, r);
    snug_trainer_free(t);
    snug_model_free(model);
    snug_recipe_free(recipe);
}

static void expect_equal(const char *what, const struct result *a, const struct result *b)
{
    assert_true(a->n_losses > 0 && a->n_losses == b->n_losses);
    for (int i = 0; i < a->n_losses; i++)
        if (memcmp(&a->losses[i], &b->losses[i], sizeof a->losses[i]) != 0)
            fail_msg("%s: the loss of step %d is %.17g and not %.17g", what, i + 1, b->losses[i],
                     a->losses[i]);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (int i = 0; i < a->n_tensors; i++) {
        assert_string_equal(a->names[i], b->names[i]);
        if (a->sizes[i] != b->sizes[i] || memcmp(a->bytes[i], b->bytes[i], a->sizes[i]) != 0)
            fail_msg("%s: after %d steps \"%s\" is not the same", what, a->n_losses, a->names[i]);
    }
}

/* ---- budgets ------------------------------------------------------------------------------------- */

/* The bytes of a plan, and what is expected beside it. */
static int64_t planned_bytes(const struct net *net, const char *way, int64_t *beside)
{
    struct snug_error err = {0};
    char keys[400];
    struct compiled_step s;
    snprintf(keys, sizeof keys, "%s checkpoint=%s", net->keys, way);
    snug_recipe *recipe = recipe_of(keys);
    snug_model *model = model_of(decoders_spec(dir, net->model));
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, &err), &err);
    int64_t bytes = s.plan.arena_bytes;
    *beside = compiled_step_runtime_bytes(&s);
    compiled_step_free(&s);
    snug_model_free(model);
    snug_recipe_free(recipe);
    return bytes;
}

/* Halfway between keeping everything and nothing; *is_tight: everything does not fit. */
static int64_t tight_budget(const struct net *net, bool *is_tight)
{
    int64_t beside_none, beside_all;
    int64_t none = planned_bytes(net, "none", &beside_none);
    int64_t all = planned_bytes(net, "all", &beside_all);
    int64_t budget = all + (none - all) / 2 + beside_all;
    *is_tight = budget < none + beside_none; /* else the peak is not where activations are */
    return budget;
}

static void test_bits(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTH(nets); i++) {
        const struct net *net = &nets[i];
        struct result kept, other;
        if (!part_has(i))
            continue;
        if (net->level != NULL)
            setenv("SNUG_CPU_LEVEL", net->level, 1);
        else
            unsetenv("SNUG_CPU_LEVEL");
        run(net, "none", 0, &kept);
        assert_true(kept.recompute_flops == 0);
        for (int w = 0; w < LENGTH(ways); w++) {
            if ((net->pace != QUICK || size_is_small()) && !in_few[w])
                continue;
            char what[400];
            bool fills = strcmp(ways[w], "auto") == 0;
            snprintf(what, sizeof what, "%s, %s, %s", net->model, net->keys, ways[w]);
            bool is_tight = true;
            run(net, ways[w], fills ? tight_budget(net, &is_tight) : 0, &other);
            expect_equal(what, &kept, &other);
            if (is_tight && !(other.recompute_flops > 0))
                fail_msg("%s: nothing is computed again", what);
            if (net->pace == QUICK && other.planned > kept.planned) /* the others are too small */
                fail_msg("%s: the plan has %lld bytes, more than the %lld of none", what,
                         (long long)other.planned, (long long)kept.planned);
            forget(&other);
        }
        forget(&kept);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bits, write_config, remove_config),
    };
    return cmocka_run_group_tests_name("checkpointing", tests, NULL, NULL);
}
