/*
 * test_pairs.c -- the techniques that save memory, in pairs.
 *
 * Each technique has a test of its own.  Here all pairs are trained on a GPT of four layers, some
 * on gpt-nano, and all are planned and allocated on gpt-nano.  For every pair, the programs pass
 * the verifier, the plan passes its checker, planned equals allocated, and both techniques have
 * their effect.  Some only move work or bytes (checkpoint, update, offload): with those, the
 * losses, the norms and all persistent tensors have the bits of the run without them.  Failures are
 * printed for all pairs, one line each.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/training.h"
#include "train/trainer.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

#if defined(__SANITIZE_ADDRESS__)
enum { N_STEPS = 2, RUNS_GPT_NANO = 0 }; /* slow */
#else
enum { N_STEPS = 4, RUNS_GPT_NANO = 1 };
#endif
enum { KEYS_MAX = 400 };

/* Ways of one kind are values of the same key: no two of them in a recipe. */
enum kind { NOTHING, MICRO, TYPE, BITS, CHECKPOINT, UPDATE, OFFLOAD, LORA, DROPOUT, OPTIMIZER };

static const struct way {
    const char *name, *keys;
    const char *without; /* the same training without it; NULL: it changes training */
    enum kind kind;
} ways[] = {
    {"nothing else", "", NULL, NOTHING},
    {"micro-batch", "micro-batch=2", NULL, MICRO},
    {"bf16", "precision=bf16", NULL, TYPE},
    {"no master", "precision=bf16 master=none", NULL, TYPE},
    {"state-bits 8", "state-bits=8", NULL, BITS},
    {"state-bits 4", "state-bits=4", NULL, BITS},
    {"lora beside 16", "lora=4 lora-base=16", NULL, LORA},
    {"lora beside 4", "lora=4 lora-base=4", NULL, LORA},
    {"dropout", "dropout=0.1", NULL, DROPOUT},
    {"adafactor", "optimizer=adafactor", NULL, OPTIMIZER},
    {"muon", "optimizer=muon", NULL, OPTIMIZER},
    {"adam-8bit", "optimizer=adam-8bit", NULL, OPTIMIZER},
    {"averages", "optimizer=schedule-free-adamw", NULL, OPTIMIZER},
    {"prodigy", "optimizer=schedule-free-prodigy", NULL, OPTIMIZER},
    {"checkpoint cheap", "checkpoint=cheap", "", CHECKPOINT},
    {"checkpoint every:2", "checkpoint=every:2", "", CHECKPOINT},
    {"checkpoint all", "checkpoint=all", "", CHECKPOINT},
    {"checkpoint auto", "checkpoint=auto", "", CHECKPOINT},
    {"in backward", "update=in-backward clip=0", "clip=0", UPDATE},
    {"in backward, clipped", "update=in-backward", "", UPDATE},
    {"offload states", "offload=states", "", OFFLOAD},
    {"offload activations", "offload=activations", "", OFFLOAD},
    {"offload both", "offload=states+activations", "", OFFLOAD},
};

/* Pairs that contradict each other, and the two flags that the message names. */
static const struct {
    const char *a, *b, *flags[2];
} refused[] = {
    {"state-bits 8", "adafactor", {"--optimizer adafactor", "--state-bits"}},
    {"state-bits 4", "adafactor", {"--optimizer adafactor", "--state-bits"}},
    {"prodigy", "in backward", {"--optimizer schedule-free-prodigy", "--update in-backward"}},
    {"prodigy",
     "in backward, clipped",
     {"--optimizer schedule-free-prodigy", "--update in-backward"}},
};

/* Pairs of which the second finds nothing to do. */
static const struct {
    const char *a, *b;
} idle[] = {
    {"checkpoint all", "offload activations"}, /* no activation waits for its backward */
    {"checkpoint all", "offload both"},
};

static const char *without(const struct way *way)
{
    return way->without == NULL ? way->keys : way->without;
}

/* ---- what is wrong ------------------------------------------------------------------------------ */

static int n_wrong;
static const char *now;    /* the ways that are tried */
static bool finds_nothing; /* the second of them: see idle */

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
    char line[sizeof(struct snug_error) + 100];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    print_error("# %-44s %s\n", now, line);
    n_wrong++;
}

static void expect(enum snug_status status, const char *what, const struct snug_error *err)
{
    if (status != SNUG_OK)
        note("%s: %s", what, err->message);
}

static void fail_if_wrong(void)
{
    int n = n_wrong;
    n_wrong = 0;
    if (n > 0)
        fail_msg("%d things are wrong, see above", n);
}

/* ---- a run and what is left of it --------------------------------------------------------------- */

struct result {
    char keys[KEYS_MAX];
    double losses[N_STEPS], norms[N_STEPS], val_loss;
    double scalars[SCALAR_COUNT];
    int n_tensors;
    char **names;
    unsigned char **bytes;
    size_t *sizes;
};

static int note_step(const struct snug_metrics *m, void *user)
{
    struct result *r = user;
    r->losses[m->step - 1] = m->loss;
    r->norms[m->step - 1] = m->grad_norm;
    r->val_loss = m->has_validation ? m->val_loss : 0;
    return 0;
}

/* All that lives from step to step, in the arena or in the offload pool. */
static void keep_tensors(const snug_trainer *t, struct result *r)
{
    const struct program *prog = &t->compiled.prog;
    size_t n = (size_t)prog->n_tensors;
    struct snug_error err;
    r->names = calloc(n, sizeof *r->names);
    r->bytes = calloc(n, sizeof *r->bytes);
    r->sizes = calloc(n, sizeof *r->sizes);
    assert_true(r->names != NULL && r->bytes != NULL && r->sizes != NULL);
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *tensor = &prog->tensors[i];
        if (!tensor->persistent || tensor->base != TENSOR_NONE || i == prog->scalars ||
            !exec_holds(t->exec, i))
            continue;
        int at = r->n_tensors++;
        r->names[at] = strdup(tensor->name);
        r->sizes[at] = (size_t)tensor_bytes(prog, i);
        r->bytes[at] = malloc(r->sizes[at]);
        assert_true(r->names[at] != NULL && r->bytes[at] != NULL);
        must(exec_read(t->exec, i, 0, (int64_t)r->sizes[at], r->bytes[at], &err), &err);
    }
    memcpy(r->scalars, exec_scalars(t->exec), sizeof r->scalars);
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
    *r = (struct result){0};
}

static void expect_allocated(const struct compiled_step *s, const struct exec *exec)
{
    struct snug_error err = {0};
    expect(program_verify(&s->prog, &err), "verifier", &err);
    expect(plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err),
           "plan_check", &err);
    expect(plan_check_pool(&s->prog, s->plan.pool_offset, s->plan.pool_bytes, &err),
           "plan_check_store", &err);
    if (exec_allocated_bytes(exec) != s->plan.arena_bytes)
        note("%lld bytes are planned and %lld allocated", (long long)s->plan.arena_bytes,
             (long long)exec_allocated_bytes(exec));
}

static void expect_planned(const snug_trainer *t)
{
    struct snug_error err = {0};
    expect_allocated(&t->compiled, t->exec);
    if (t->can_evaluate)
        expect(program_verify(&t->evaluator.compiled.prog, &err), "verifier (evaluation)", &err);
    if (t->averages_exec != NULL)
        expect(program_verify(&t->averages.prog, &err), "verifier (averages)", &err);
}

static bool stores(const struct program *prog, enum role role)
{
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].offloaded && prog->tensors[i].role == role)
            return true;
    return false;
}

/* Is what the recipe asks for there? */
static void expect_in_effect(const snug_trainer *t)
{
    const struct compiled_step *s = &t->compiled;
    const struct snug_recipe *r = &t->recipe;
    if (r->checkpoint != CHECKPOINT_none && r->checkpoint != CHECKPOINT_auto &&
        !(s->plan.recompute_flops > 0))
        note("nothing is computed again");
    if (r->in_backward && s->update_place == UPDATES_AT_END)
        note("the updates are at the end");
    if ((r->offload & OFFLOAD_states) != 0 && !stores(&s->prog, ROLE_optimizer))
        note("no states are offloaded");
    bool keeps = (r->offload & OFFLOAD_activations) != 0;
    if (keeps && stores(&s->prog, ROLE_activation) == finds_nothing)
        note(finds_nothing ? "activations are offloaded" : "no activations are offloaded");
}

static enum snug_status train(const snug_model *model, const char *keys, int n_steps,
                              struct result *r, struct snug_error *err)
{
    struct snug_train_options options = {.steps = n_steps, .eval_batches = 1};
    snug_recipe *recipe = recipe_of(keys);
    snug_trainer *t = NULL;
    *r = (struct result){0};
    snprintf(r->keys, sizeof r->keys, "%s", keys);
    enum snug_status status = snug_trainer_open(model, recipe, &options, &t, err);
    if (status == SNUG_OK) {
        expect_planned(t);
        expect_in_effect(t);
        status = snug_trainer_run(t, note_step, r, err);
    }
    for (int i = 0; i < n_steps && status == SNUG_OK; i++)
        if (!(r->norms[i] > 0))
            note("step %d has no gradients", i + 1);
    if (status == SNUG_OK)
        keep_tensors(t, r);
    snug_trainer_free(t);
    snug_recipe_free(recipe);
    return status;
}

/* Says the first thing that differs. */
static void expect_same(const struct result *a, const struct result *b)
{
    static const enum scalar alike[] = {SCALAR_update_count,  SCALAR_clip,        SCALAR_skip,
                                        SCALAR_lr_most,       SCALAR_average_sum, SCALAR_n_kept,
                                        SCALAR_average_share, SCALAR_keeps};
    for (int i = 0; i < N_STEPS; i++)
        if (memcmp(&a->losses[i], &b->losses[i], sizeof(double)) != 0 ||
            memcmp(&a->norms[i], &b->norms[i], sizeof(double)) != 0) {
            note("step %d: loss %.17g, norm %.17g; without it %.17g, %.17g", i + 1, b->losses[i],
                 b->norms[i], a->losses[i], a->norms[i]);
            return;
        }
    for (int i = 0; i < a->n_tensors; i++) {
        int k = 0;
        while (k < b->n_tensors && strcmp(a->names[i], b->names[k]) != 0)
            k++;
        if (k == b->n_tensors || a->sizes[i] != b->sizes[k] ||
            memcmp(a->bytes[i], b->bytes[k], a->sizes[i]) != 0) {
            note("\"%s\" is %s", a->names[i], k == b->n_tensors ? "missing" : "not the same");
            return;
        }
    }
    if (memcmp(&a->val_loss, &b->val_loss, sizeof(double)) != 0)
        note("evaluated: %.17g, without it %.17g", b->val_loss, a->val_loss);
    for (int i = 0; i < LENGTH(alike); i++)
        if (a->scalars[alike[i]] != b->scalars[alike[i]])
            note("scalar %d is %.17g, without it %.17g", (int)alike[i], b->scalars[alike[i]],
                 a->scalars[alike[i]]);
}

/* ---- budgets ------------------------------------------------------------------------------------- */

static int64_t total_bytes(const snug_model *model, const char *keys)
{
    struct snug_error err = {0};
    struct compiled_step s;
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    int64_t bytes = 0;
    if (compile_step(&q, &s, &err) == SNUG_OK) {
        bytes = s.plan.arena_bytes + compiled_step_runtime_bytes(&s);
        compiled_step_free(&s);
    }
    snug_recipe_free(recipe);
    return bytes;
}

/* What "checkpoint=auto" in the keys is to fit into: halfway from everything kept to nothing. */
static void add_budget(const snug_model *model, char keys[KEYS_MAX])
{
    static const char *const others[] = {"none", "all"};
    char *word = strstr(keys, "=auto");
    int64_t bytes[2];
    if (word == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        char other[KEYS_MAX];
        snprintf(other, sizeof other, "%.*s=%s%s", (int)(word - keys), keys, others[i],
                 word + strlen("=auto"));
        bytes[i] = total_bytes(model, other);
    }
    int64_t least = bytes[1] < bytes[0] ? bytes[1] : bytes[0];
    size_t length = strlen(keys);
    snprintf(keys + length, KEYS_MAX - length, " memory=%lld",
             (long long)(least + (bytes[0] - least) / 2));
}

/* ---- pairs --------------------------------------------------------------------------------------- */

/* Runs that others are compared with, by their keys. */
static struct {
    struct result results[2 * LENGTH(ways)];
    int n;
} known;

static const struct result *known_result(const snug_model *model, const char *keys)
{
    struct snug_error err = {0};
    for (int i = 0; i < known.n; i++)
        if (strcmp(known.results[i].keys, keys) == 0)
            return &known.results[i];
    assert_true(known.n < LENGTH(known.results));
    must(train(model, keys, N_STEPS, &known.results[known.n], &err), &err);
    return &known.results[known.n++];
}

static void forget_known(void)
{
    while (known.n > 0)
        forget(&known.results[--known.n]);
}

static int refusal_of(const struct way *a, const struct way *b)
{
    for (int i = 0; i < LENGTH(refused); i++)
        if (strcmp(refused[i].a, a->name) == 0 && strcmp(refused[i].b, b->name) == 0)
            return i;
    return -1;
}

static bool is_idle(const struct way *a, const struct way *b)
{
    for (int i = 0; i < LENGTH(idle); i++)
        if (strcmp(idle[i].a, a->name) == 0 && strcmp(idle[i].b, b->name) == 0)
            return true;
    return false;
}

static void expect_refused(const snug_model *model, const char *keys, const char *const flags[2])
{
    struct snug_error err = {0};
    struct result r;
    if (train(model, keys, 1, &r, &err) != SNUG_BAD_ARGUMENT)
        note("is not refused");
    else if (strstr(err.message, flags[0]) == NULL || strstr(err.message, flags[1]) == NULL)
        note("the message does not name both: %s", err.message);
    forget(&r);
}

static void join(char keys[KEYS_MAX], const char *base, const char *a, const char *b)
{
    assert_true(snprintf(keys, KEYS_MAX, "%s %s %s", base, a, b) < KEYS_MAX);
}

/* Trains with both; where training is the same without one of them or both, also without. */
static void try_pair(const snug_model *model, const char *base, const struct way *a,
                     const struct way *b)
{
    char keys[KEYS_MAX], plain[KEYS_MAX], name[100];
    struct snug_error err = {0};
    struct result r;
    bool moves = a->without != NULL || b->without != NULL;
    int refusal = refusal_of(a, b);
    snprintf(name, sizeof name, "%s + %s", a->name, b->name);
    now = name;
    join(keys, base, a->keys, b->keys);
    join(plain, base, without(a), without(b));
    if (refusal >= 0) {
        expect_refused(model, keys, refused[refusal].flags);
        return;
    }
    add_budget(model, keys);
    finds_nothing = is_idle(a, b);
    enum snug_status status = train(model, keys, moves ? N_STEPS : 1, &r, &err);
    finds_nothing = false;
    expect(status, "training", &err);
    if (status == SNUG_OK && moves)
        expect_same(known_result(model, plain), &r);
    forget(&r);
}

static const char small_config[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_head\": 4, \"n_embd\": 64, "
    "\"n_positions\": 64, \"vocab_size\": 70}";

static void test_pairs(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    int n = 0;
    files_make_dir(dir);
    files_write_text(dir, "config.json", small_config);
    snug_model *model = model_of(dir);
    for (int a = 0; a < LENGTH(ways); a++)
        for (int b = a + 1; b < LENGTH(ways); b++)
            if (ways[a].kind != ways[b].kind) {
                try_pair(model, "batch=4 seq=64 lr=1e-3 threads=1", &ways[a], &ways[b]);
                n++;
            }
    forget_known();
    snug_model_free(model);
    files_remove_dir(dir);
    fail_if_wrong();
    print_message("# %d pairs\n", n);
}

static const struct way *way_of(const char *name)
{
    for (int i = 0; i < LENGTH(ways); i++)
        if (strcmp(ways[i].name, name) == 0)
            return &ways[i];
    fail_msg("there is no way \"%s\"", name);
    return NULL;
}

static void test_gpt_nano(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"checkpoint every:2", "in backward, clipped"},
        {"checkpoint auto", "offload both"},
        {"in backward", "offload both"},
        {"lora beside 4", "checkpoint every:2"},
        {"lora beside 4", "offload both"},
    };
    snug_model *model = model_of("gpt-nano");
    for (int i = 0; i < LENGTH(pairs) && RUNS_GPT_NANO; i++)
        try_pair(model, "batch=4 seq=16 threads=2", way_of(pairs[i][0]), way_of(pairs[i][1]));
    forget_known();
    snug_model_free(model);
    fail_if_wrong();
}

/* Nothing is trained: what is made before the first step. */
static void allocate_pair(const snug_model *model, const struct way *a, const struct way *b)
{
    char keys[KEYS_MAX], pair[100];
    struct snug_error err = {0};
    struct compiled_step s;
    struct exec *exec = NULL;
    snprintf(pair, sizeof pair, "gpt-nano: %s, %s", a->name, b->name);
    now = pair;
    join(keys, "batch=4 seq=16 threads=2", a->keys, b->keys);
    add_budget(model, keys);
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    enum snug_status status = compile_step(&q, &s, &err);
    expect(status, "planning", &err);
    if (status == SNUG_OK) {
        status = exec_create(&s.prog, &s.plan, s.backend, &s.facts, NULL, &exec, &err);
        expect(status, "allocating", &err);
        if (status == SNUG_OK)
            expect_allocated(&s, exec);
        exec_free(exec);
        compiled_step_free(&s);
    }
    snug_recipe_free(recipe);
}

static void test_gpt_nano_is_allocated_as_planned(void **state)
{
    (void)state;
    int n = 0;
    snug_model *model = model_of("gpt-nano");
    for (int a = 0; a < LENGTH(ways); a++)
        for (int b = a + 1; b < LENGTH(ways); b++)
            if (ways[a].kind != ways[b].kind && refusal_of(&ways[a], &ways[b]) < 0) {
                allocate_pair(model, &ways[a], &ways[b]);
                n++;
            }
    snug_model_free(model);
    fail_if_wrong();
    print_message("# %d pairs\n", n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_gpt_nano),
        cmocka_unit_test(test_gpt_nano_is_allocated_as_planned),
    };
    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
