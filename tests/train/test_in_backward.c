/*
 * test_in_backward.c -- --update in-backward trains to the same bits as --update end, in less
 * memory.
 *
 * Each entry is trained twice from the same start.  The loss and the gradient norm are compared
 * after every step, and after the last one every byte that persists: weights, masters, states,
 * running averages.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/decoders.h"
#include "support/files.h"
#include "support/training.h"
#include "train/trainer.h"

enum { N_STEPS = 20 };

#define SMALL "tests/optim/fixtures/small" /* a GPT whose table is also its head */

static char dir[FILES_PATH_MAX]; /* decoders.h: "@llama" */

static const struct row {
    const char *model, *keys;
    enum update_place place;
    double loss_scale; /* at the start, 0: as it comes; above 2^16 steps are skipped */
    int n_steps;
} rows[] = {
    {"gpt-nano", "batch=2 seq=16 clip=0", UPDATES_IN_BACKWARD, 0, N_STEPS},
    {"gpt-nano", "batch=2 seq=16", UPDATES_IN_SECOND, 0, N_STEPS},
    {"gpt-nano", "batch=4 micro-batch=1 seq=16 clip=0", UPDATES_IN_LAST, 0, 6},
    {"gpt-nano", "batch=2 seq=16 clip=0 precision=bf16 master=none", UPDATES_IN_BACKWARD, 0, 6},
    {SMALL, "batch=4 seq=10 clip=0 precision=bf16", UPDATES_IN_BACKWARD, 0, N_STEPS},
    {SMALL, "batch=4 seq=10 precision=bf16", UPDATES_IN_SECOND, 0, N_STEPS},
    {SMALL, "batch=4 seq=10 clip=0 precision=bf16 master=none", UPDATES_IN_BACKWARD, 0, N_STEPS},
    {SMALL, "batch=4 seq=10 precision=bf16 master=none", UPDATES_IN_SECOND, 0, N_STEPS},
    {SMALL, "batch=6 micro-batch=2 seq=10", UPDATES_WAIT, 0, N_STEPS},
    {SMALL, "batch=6 micro-batch=2 seq=10 clip=0 dropout=0.2", UPDATES_IN_LAST, 0, N_STEPS},
    {SMALL, "batch=4 micro-batch=2 seq=10 clip=0 precision=bf16 master=none", UPDATES_IN_LAST, 0,
     N_STEPS},
    {SMALL, "batch=4 seq=10 dropout=0.2", UPDATES_IN_SECOND, 0, N_STEPS},
    {SMALL, "batch=4 seq=10 precision=fp16", UPDATES_IN_SECOND, 0x1p10, N_STEPS},
    {SMALL, "batch=4 seq=10 precision=fp16 clip=0", UPDATES_IN_SECOND, 0x1p24, N_STEPS},
    {SMALL, "batch=4 micro-batch=2 seq=10 precision=fp16 clip=0", UPDATES_WAIT, 0x1p24, N_STEPS},
    {"@llama", "batch=4 seq=10 clip=0", UPDATES_IN_BACKWARD, 0, N_STEPS},
    {"@qwen2", "batch=4 seq=10 precision=bf16", UPDATES_IN_SECOND, 0, N_STEPS},
    {"@qwen3", "batch=4 seq=10 clip=0 precision=bf16 master=none state-bits=8", UPDATES_IN_BACKWARD,
     0, N_STEPS},
    {"@mistral", "batch=4 micro-batch=2 seq=10 clip=0 dropout=0.1", UPDATES_IN_LAST, 0, N_STEPS},
    {"@smollm2", "batch=4 seq=10 precision=fp16", UPDATES_IN_SECOND, 0x1p10, N_STEPS},
    {"@qwen3", "batch=4 seq=10 lora=2 lora-on=all precision=bf16", UPDATES_IN_SECOND, 0, N_STEPS},
    {"@llama", "batch=4 seq=10 clip=0 checkpoint=cheap precision=bf16", UPDATES_IN_BACKWARD, 0, 6},
    {"mlp:16-32-10", "batch=8 schedule=cosine warmup=3", UPDATES_IN_SECOND, 0, N_STEPS},
    {"mlp:16-32-10", "batch=8 optimizer=adam weight-decay=0.1", UPDATES_IN_SECOND, 0, N_STEPS},
    {"mlp:16-32-10", "batch=8 clip=0 schedule=cosine warmup=3", UPDATES_IN_BACKWARD, 0, N_STEPS},
    {"mlp:16-32-10,loss=mse", "batch=8 micro-batch=4 clip=0", UPDATES_IN_LAST, 0, N_STEPS},
    {"mlp:784-64-10", "batch=8 clip=0 optimizer=adam-8bit", UPDATES_IN_BACKWARD, 0, N_STEPS},
    {"mlp:784-64-10", "batch=8 optimizer=adam-4bit", UPDATES_IN_SECOND, 0, N_STEPS},
    {"mlp:784-64-10", "batch=8 clip=0 state-bits=16", UPDATES_IN_BACKWARD, 0, N_STEPS},
    {"cnn", "batch=4", UPDATES_IN_SECOND, 0, 5}, /* batch norm: its averages move once a step */
    {"cnn", "batch=4 clip=0", UPDATES_IN_BACKWARD, 0, 5},
    {"cnn", "batch=4 micro-batch=2 clip=0", UPDATES_IN_LAST, 0, 5},
};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

struct history {
    double loss[N_STEPS], norm[N_STEPS];
    int n_skipped;
};

static int note(const struct snug_metrics *m, void *user)
{
    struct history *h = user;
    h->loss[m->step - 1] = m->loss;
    h->norm[m->step - 1] = m->grad_norm;
    h->n_skipped += m->skipped;
    return 0;
}

/* Opens and trains; the trainer is the caller's. */
static snug_trainer *train(const snug_model *model, const struct row *row, const char *more,
                           struct history *history)
{
    char keys[300];
    struct snug_error err;
    snug_trainer *t = NULL;
    struct snug_train_options options = {
        .data = "random", .steps = row->n_steps, .eval_batches = 1};
    snprintf(keys, sizeof keys, "%s threads=2 %s", row->keys, more);
    snug_recipe *recipe = recipe_of(keys);
    must(snug_trainer_open(model, recipe, &options, &t, &err), &err);
    if (row->loss_scale > 0)
        exec_scalars(t->exec)[SCALAR_loss_scale] = row->loss_scale;
    exec_scalars(t->exec)[SCALAR_good_steps] = 1995; /* so that a scale grows at the fifth */
    memset(history, 0, sizeof *history);
    if (snug_trainer_run(t, note, history, &err) != SNUG_OK)
        fail_msg("%s %s: %s", row->model, keys, err.message);
    snug_recipe_free(recipe);
    return t;
}

static void compare_scalars(const struct row *row, const snug_trainer *a, const snug_trainer *b)
{
    static const enum scalar alike[] = {SCALAR_loss_scale,   SCALAR_update_count, SCALAR_good_steps,
                                        SCALAR_clip,         SCALAR_skip,         SCALAR_lr_most,
                                        SCALAR_average_sum,  SCALAR_n_kept,       SCALAR_keeps,
                                        SCALAR_average_share};
    for (size_t i = 0; i < LENGTH(alike); i++) {
        double x = exec_scalars(a->exec)[alike[i]], y = exec_scalars(b->exec)[alike[i]];
        if (x != y)
            fail_msg("%s %s: scalar %d is %.17g, not %.17g", row->model, row->keys, (int)alike[i],
                     y, x);
    }
}

/* Compares all persistent tensors, byte by byte. */
static void compare(const struct row *row, const snug_trainer *a, const snug_trainer *b)
{
    const struct program *prog = &a->compiled.prog;
    int n_compared = 0;
    for (int i = 0; i < prog->n_tensors; i++) {
        const struct tensor *t = &prog->tensors[i];
        if (!t->persistent || i == prog->scalars)
            continue;
        tensor_id other = program_find(&b->compiled.prog, t->name);
        assert_int_not_equal(other, TENSOR_NONE);
        if (memcmp(exec_data(a->exec, i), exec_data(b->exec, other),
                   (size_t)tensor_bytes(prog, i)) != 0)
            fail_msg("%s %s: \"%s\" is not the same", row->model, row->keys, t->name);
        n_compared++;
    }
    assert_true(n_compared > 0);
    compare_scalars(row, a, b);
}

static void check_plan(const struct row *row, const snug_trainer *t)
{
    struct snug_error err;
    const struct compiled_step *s = &t->compiled;
    if (s->update_place != row->place)
        fail_msg("%s %s: updates are at place %d, not %d", row->model, row->keys,
                 (int)s->update_place, (int)row->place);
    assert_true((s->repeated_flops > 0) == (row->place == UPDATES_IN_SECOND));
    must(program_verify(&s->prog, &err), &err);
    must(plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err),
         &err);
    assert_int_equal(exec_allocated_bytes(t->exec), s->plan.arena_bytes);
}

static void check_row(const struct row *row)
{
    struct history at_end, in_backward;
    snug_model *model = model_of(decoders_spec(dir, row->model));
    snug_trainer *a = train(model, row, "update=end", &at_end);
    snug_trainer *b = train(model, row, "update=in-backward", &in_backward);
    check_plan(row, b);
    for (int i = 0; i < row->n_steps; i++)
        if (memcmp(&at_end.loss[i], &in_backward.loss[i], sizeof(double)) != 0 ||
            memcmp(&at_end.norm[i], &in_backward.norm[i], sizeof(double)) != 0)
            fail_msg("%s %s: step %d has loss %.17g and norm %.17g, not %.17g and %.17g",
                     row->model, row->keys, i + 1, in_backward.loss[i], in_backward.norm[i],
                     at_end.loss[i], at_end.norm[i]);
    assert_int_equal(at_end.n_skipped, in_backward.n_skipped);
    assert_true((row->loss_scale > 0x1p16) == (at_end.n_skipped > 0));
    compare(row, a, b);
    snug_trainer_free(a);
    snug_trainer_free(b);
    snug_model_free(model);
}

static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++)
        check_row(&rows[i]);
    print_message("# %d recipes, every bit the same\n", (int)LENGTH(rows));
}

/* Every optimizer, but for the one that needs all gradients first, which is refused. */
static void test_every_optimizer(void **state)
{
    (void)state;
    int n_refused = 0;
    for (int i = 0; optimizer_at(i) != NULL; i++) {
        for (int way = 0; way < 3; way++) {
            static const char *const ways[] = {"clip=0", "clip=0.5", "clip=0 micro-batch=2"};
            static const enum update_place places[] = {UPDATES_IN_BACKWARD, UPDATES_IN_SECOND,
                                                       UPDATES_IN_LAST};
            char keys[200];
            struct row row = {SMALL, keys, places[way], 0, 6};
            snprintf(keys, sizeof keys, "batch=4 seq=10 lr=0.01 optimizer=%s %s",
                     optimizer_at(i)->name, ways[way]);
            if (optimizer_at(i) != &optimizer_schedule_free_prodigy) {
                check_row(&row);
                continue;
            }
            struct snug_error err;
            struct compiled_step s;
            snprintf(keys + strlen(keys), sizeof keys - strlen(keys), " update=in-backward");
            snug_recipe *recipe = recipe_of(keys);
            snug_model *model = model_of(SMALL);
            struct compile_request q = {.model = model, .recipe = recipe, .train = true};
            assert_int_equal(compile_step(&q, &s, &err), SNUG_BAD_ARGUMENT);
            assert_string_equal(err.message,
                                "--update in-backward: --optimizer schedule-free-prodigy needs "
                                "sums over all gradients before its first update; use --update "
                                "end");
            snug_recipe_free(recipe);
            snug_model_free(model);
            n_refused++;
        }
    }
    assert_int_equal(n_refused, 3);
}

/* ---- memory ------------------------------------------------------------------------------------ */

/* The most bytes of gradients alive at once, and the two largest of them. */
static int64_t most_gradient_bytes(const struct compiled_step *s, int64_t largest[2])
{
    int64_t most = 0;
    largest[0] = largest[1] = 0;
    for (int at = 0; at < s->prog.n_ops; at++) {
        int64_t bytes = 0;
        for (int i = 0; i < s->prog.n_tensors; i++)
            if (s->prog.tensors[i].role == ROLE_gradient && s->plan.alive_from[i] >= 0 &&
                s->plan.alive_from[i] <= at && at <= s->plan.alive_to[i])
                bytes += tensor_bytes(&s->prog, i);
        most = bytes > most ? bytes : most;
    }
    for (int i = 0; i < s->prog.n_tensors; i++) {
        int64_t bytes = tensor_bytes(&s->prog, i);
        if (s->prog.tensors[i].role != ROLE_gradient)
            continue;
        if (bytes > largest[0]) {
            largest[1] = largest[0];
            largest[0] = bytes;
        } else if (bytes > largest[1]) {
            largest[1] = bytes;
        }
    }
    return most;
}

static int64_t plan_gradients(const char *model_name, const char *keys, int64_t *pair,
                              int64_t *arena_bytes)
{
    struct snug_error err;
    struct compiled_step s;
    int64_t largest[2];
    snug_model *model = model_of(model_name);
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, &err), &err);
    int64_t most = most_gradient_bytes(&s, largest);
    *pair = largest[0] + largest[1];
    *arena_bytes = s.plan.arena_bytes;
    compiled_step_free(&s);
    snug_recipe_free(recipe);
    snug_model_free(model);
    return most;
}

/* gpt2's table is a gradient from the head to the first layer; all others come and go beside it. */
static void test_gradients_do_not_add_up(void **state)
{
    (void)state;
    static const char *const ways[] = {"clip=0", "clip=1"};
    static const int64_t slack = 64 << 10; /* biases and norms beside the largest two */
    int64_t pair, at_end_bytes, arena_bytes;
    int64_t at_end = plan_gradients("gpt2", "threads=2 batch=1 seq=64", &pair, &at_end_bytes);
    assert_true(at_end > 2 * pair);
    for (int i = 0; i < 2; i++) {
        char keys[100];
        snprintf(keys, sizeof keys, "threads=2 batch=1 seq=64 update=in-backward %s", ways[i]);
        int64_t most = plan_gradients("gpt2", keys, &pair, &arena_bytes);
        if (most > pair + slack || arena_bytes >= at_end_bytes)
            fail_msg("%s: %lld bytes of gradients, the largest pair has %lld; %lld in all, at the "
                     "end %lld",
                     keys, (long long)most, (long long)pair, (long long)arena_bytes,
                     (long long)at_end_bytes);
    }
    /* summed over micro-batches they all live on */
    int64_t summed =
        plan_gradients("gpt2", "threads=2 batch=2 micro-batch=1 seq=64 update=in-backward clip=0",
                       &pair, &arena_bytes);
    assert_int_equal(summed, at_end);
}

/* A direction that is made of such a sum in the last micro-batch lies on it. */
static void test_a_sum_is_used_up_in_place(void **state)
{
    (void)state;
    int64_t pair, bytes[2];
    static const char *const places[] = {"end", "in-backward"};
    for (int i = 0; i < 2; i++) {
        char keys[120];
        snprintf(keys, sizeof keys,
                 "threads=2 batch=2 micro-batch=1 seq=64 clip=0 optimizer=adafactor update=%s",
                 places[i]);
        plan_gradients("gpt2", keys, &pair, &bytes[i]);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

/* What the plan reports: where the updates are, what that costs and how to change it. */
static void test_the_plan_says_so(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"update=in-backward",
         "  updates        backward twice, to clip (--clip 0: once), +37.0 kFLOP a step\n"},
        {"update=in-backward clip=0",
         "  updates        in backward: a gradient lives until its update\n"},
        {"update=in-backward precision=fp16 clip=0",
         "  updates        backward twice, for fp16's loss scale, +"},
        {"update=in-backward micro-batch=2 clip=0",
         "  updates        in the last micro-batch: gradients accumulate until then\n"},
        {"update=in-backward micro-batch=2",
         "  updates        at the end: clipping needs the norm of accumulated gradients\n"},
        {"update=in-backward micro-batch=2 precision=fp16",
         "  updates        at the end: accumulated gradients wait for fp16's loss scale\n"},
        {"update=end", NULL},
    };
    snug_model *model = model_of("mlp:16-32-10");
    for (size_t i = 0; i < LENGTH(lines); i++) {
        char keys[100];
        struct snug_error err;
        snug_plan *plan = NULL;
        snprintf(keys, sizeof keys, "threads=2 batch=16 %s", lines[i][0]);
        snug_recipe *recipe = recipe_of(keys);
        must(snug_plan_make(model, recipe, &plan, &err), &err);
        char *text = snug_plan_text(plan, 0);
        assert_non_null(text);
        bool silent = strstr(text, "  updates  ") == NULL;
        if (lines[i][1] == NULL ? !silent : strstr(text, lines[i][1]) == NULL)
            fail_msg("%s:\n%s", keys, text);
        free(text);
        snug_plan_free(plan);
        snug_recipe_free(recipe);
    }
    snug_model_free(model);
}

/* ---- numbers that are not finite --------------------------------------------------------------- */

/* One weight's gradient overflows: that weight and its states stay as they were, the step is an error. */
static void test_a_gradient_that_is_not_finite(void **state)
{
    (void)state;
    struct snug_error err;
    struct snug_metrics m;
    snug_trainer *t = NULL;
    struct snug_train_options options = {.data = "none", .steps = 3};
    snug_model *model = model_of("mlp:4-3,loss=mse");
    snug_recipe *recipe = recipe_of("batch=2 clip=0 update=in-backward threads=1");
    float x[8] = {1, 2, 3e38F, 4, 1, 2, 3e38F, 4}, y[6] = {9, 9, 9, 9, 9, 9}, before[12], after[12];
    must(snug_trainer_open(model, recipe, &options, &t, &err), &err);
    float *w = exec_data(t->exec, program_find(&t->compiled.prog, "layers.0.weight"));
    for (int o = 0; o < 3; o++)
        w[4 * o + 2] = 0; /* so that the outputs and the loss are finite */
    memcpy(before, w, sizeof before);
    assert_int_equal(snug_trainer_step(t, (const void *[]){x, y}, &m, &err), SNUG_DIVERGED);
    assert_non_null(strstr(err.message, "the gradient is not finite"));
    assert_non_null(strstr(err.message, "\"d.layers.0.weight\""));
    memcpy(after, w, sizeof after);
    assert_memory_equal(before, after, sizeof before);
    snug_trainer_free(t);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static enum snug_status feed_zeros(void *trainer, int micro, struct snug_error *err)
{
    const snug_trainer *t = trainer;
    const struct program *prog = &t->compiled.prog;
    (void)micro;
    (void)err;
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].role == ROLE_input)
            memset(exec_data(t->exec, i), 0, (size_t)tensor_bytes(prog, i));
    return SNUG_OK;
}

/* All that lives on, one tensor after the other; the caller's. */
static char *bytes_that_live_on(const snug_trainer *t, size_t *n_bytes)
{
    const struct program *prog = &t->compiled.prog;
    struct snug_error err;
    char *all = NULL;
    *n_bytes = 0;
    for (int i = 0; i < prog->n_tensors; i++) {
        if (!prog->tensors[i].persistent)
            continue;
        int64_t n = tensor_bytes(prog, i);
        all = realloc(all, *n_bytes + (size_t)n);
        assert_non_null(all);
        must(exec_read(t->exec, i, 0, n, all + *n_bytes, &err), &err);
        *n_bytes += (size_t)n;
    }
    return all;
}

/* The first layer is large enough for its update to be made in pieces. */
static void test_to_look_for_it_changes_nothing(void **state)
{
    (void)state;
    static const char *const offloads[] = {"none", "states"};
    for (size_t i = 0; i < LENGTH(offloads); i++) {
        struct row row = {"mlp:1200-1000-10,loss=mse", "batch=2 clip=0", UPDATES_IN_BACKWARD, 0, 2};
        struct history history;
        struct snug_error err;
        char more[80];
        const char *name;
        size_t n_before, n_after;
        snug_model *model = model_of(row.model);
        snprintf(more, sizeof more, "update=in-backward offload=%s", offloads[i]);
        snug_trainer *t = train(model, &row, more, &history);
        char *before = bytes_that_live_on(t, &n_before);
        must(exec_find_nonfinite(t->exec, feed_zeros, t, &name, &err), &err);
        assert_null(name);
        char *after = bytes_that_live_on(t, &n_after);
        if (n_before != n_after || memcmp(before, after, n_before) != 0)
            fail_msg("offload=%s: the run was changed", offloads[i]);
        free(before);
        free(after);
        snug_trainer_free(t);
        snug_model_free(model);
    }
}

static int write_decoders(void **state)
{
    (void)state;
    files_make_dir(dir);
    decoders_write(dir);
    return 0;
}

static int remove_decoders(void **state)
{
    (void)state;
    files_remove_dir(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_every_optimizer),
        cmocka_unit_test(test_gradients_do_not_add_up),
        cmocka_unit_test(test_a_sum_is_used_up_in_place),
        cmocka_unit_test(test_the_plan_says_so),
        cmocka_unit_test(test_a_gradient_that_is_not_finite),
        cmocka_unit_test(test_to_look_for_it_changes_nothing),
    };
    return cmocka_run_group_tests(tests, write_decoders, remove_decoders);
}
