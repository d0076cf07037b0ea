/*
 * test_api.c -- the public interface as a C program uses it: custom networks, steps with the
 * caller's data, saving and resuming, and mistakes, which must return a status and a message.
 */
#include <snug.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BATCH = 4 };

static const float points[BATCH][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
static const int32_t classes[BATCH] = {0, 1, 1, 0};
static const void *const inputs[] = {points, classes};

static snug_model *xor_net(const char *layer)
{
    snug_model *net = snug_model_new("xor");
    snug_tensor x = snug_input(net, "x", SNUG_TYPE_F32, 1, (int64_t[]){2});
    snug_tensor h = snug_activate(net, snug_linear(net, x, layer, 8), SNUG_TANH);
    snug_cross_entropy(net, snug_linear(net, h, "out", 2));
    return net;
}

static snug_recipe *recipe_for_four(const char *precision)
{
    snug_recipe *recipe = snug_recipe_new();
    assert_int_equal(snug_recipe_set(recipe, "batch", "4", NULL), SNUG_OK);
    assert_int_equal(snug_recipe_set(recipe, "lr", "0.03", NULL), SNUG_OK);
    assert_int_equal(snug_recipe_set(recipe, "threads", "1", NULL), SNUG_OK);
    assert_int_equal(snug_recipe_set(recipe, "precision", precision, NULL), SNUG_OK);
    return recipe;
}

static void expect_line(enum snug_status status, enum snug_status wanted,
                        const struct snug_error *err, const char *words)
{
    if (status != wanted || strstr(err->message, words) == NULL)
        fail_msg("status %s, \"%s\"; expected %s and \"%s\"", snug_status_name(status),
                 err->message, snug_status_name(wanted), words);
}

/* ---- a network of one's own -------------------------------------------------------------------- */

static void test_learns_xor(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    for (size_t p = 0; p < 3; p++) {
        struct snug_error err = {0};
        struct snug_metrics m = {0};
        snug_trainer *trainer;
        snug_model *net = xor_net("in");
        snug_recipe *recipe = recipe_for_four(precisions[p]);
        assert_int_equal(snug_model_finish(net, &err), SNUG_OK);
        struct snug_train_options options = {.data = "none", .steps = 300};
        assert_int_equal(snug_trainer_open(net, recipe, &options, &trainer, &err), SNUG_OK);
        for (int step = 0; step < 300; step++)
            assert_int_equal(snug_trainer_step(trainer, inputs, &m, &err), SNUG_OK);
        assert_true(m.loss < 0.05);
        assert_int_equal(m.step, 300);
        snug_trainer_free(trainer);
        snug_recipe_free(recipe);
        snug_model_free(net);
    }
}

/* Weights after 2 x 5 steps with a save between are those of 10 steps, to the bit. */
static void read_weights(snug_trainer *trainer, float weights[16])
{
    struct snug_error err = {0};
    assert_int_equal(snug_trainer_read(trainer, "in.weight", weights, 16, &err), SNUG_OK);
}

static void run_steps(const char *out, int resume, int n_steps, int n_now, float weights[16])
{
    struct snug_error err = {0};
    snug_trainer *trainer;
    snug_model *net = xor_net("in");
    snug_recipe *recipe = recipe_for_four("fp32");
    assert_int_equal(snug_model_finish(net, &err), SNUG_OK);
    struct snug_train_options options = {
        .data = "none", .steps = n_steps, .out = out, .resume = resume};
    if (snug_trainer_open(net, recipe, &options, &trainer, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < n_now; i++)
        assert_int_equal(snug_trainer_step(trainer, inputs, NULL, &err), SNUG_OK);
    if (out != NULL)
        assert_int_equal(snug_trainer_save(trainer, &err), SNUG_OK);
    else
        expect_line(snug_trainer_save(trainer, &err), SNUG_BAD_ARGUMENT, &err,
                    "without an output folder");
    read_weights(trainer, weights);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(net);
}

static void test_saves_and_resumes(void **state)
{
    (void)state;
    char dir[] = "/tmp/snug-api-XXXXXX", command[64];
    float straight[16], half[16], resumed[16];
    assert_non_null(mkdtemp(dir));
    run_steps(NULL, 0, 10, 10, straight);
    run_steps(dir, 0, 10, 5, half);
    run_steps(dir, 1, 10, 5, resumed);
    assert_memory_not_equal(half, straight, sizeof straight);
    assert_memory_equal(resumed, straight, sizeof straight);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    assert_int_equal(system(command), 0);
}

/* ---- mistakes ---------------------------------------------------------------------------------- */

static void test_mistakes_of_the_builder(void **state)
{
    (void)state;
    struct snug_error err = {0};
    snug_model *net = xor_net("out"); /* two layers of one name */
    expect_line(snug_model_finish(net, &err), SNUG_BAD_ARGUMENT, &err, "out.weight");
    snug_model_free(net);

    net = snug_model_new("no loss");
    snug_input(net, "x", SNUG_TYPE_F32, 1, (int64_t[]){2});
    expect_line(snug_model_finish(net, &err), SNUG_BAD_ARGUMENT, &err, "end the model with a loss");
    snug_model_free(net);

    net = snug_model_new("unread");
    snug_input(net, "idle", SNUG_TYPE_F32, 1, (int64_t[]){2});
    snug_tensor x = snug_input(net, "x", SNUG_TYPE_F32, 1, (int64_t[]){2});
    snug_mean_squared_error(net, snug_linear(net, x, "l", 1));
    expect_line(snug_model_finish(net, &err), SNUG_BAD_ARGUMENT, &err, "idle");
    snug_model_free(net);

    net = snug_model_new("mismatch");
    x = snug_input(net, "x", SNUG_TYPE_F32, 1, (int64_t[]){2});
    snug_tensor sum = snug_add(net, x, snug_linear(net, x, "l", 3));
    assert_true(sum < 0);
    assert_true(snug_cross_entropy(net, sum) < 0);
    expect_line(snug_model_finish(net, &err), SNUG_BAD_PROGRAM, &err, "add");
    snug_model_free(net);
}

/* A layer named so that its weight looks like an optimizer state of another one. */
static void test_names_do_not_collide(void **state)
{
    (void)state;
    struct snug_error err = {0};
    snug_trainer *trainer = NULL;
    snug_model *net = snug_model_new("clash");
    snug_tensor x = snug_input(net, "x", SNUG_TYPE_F32, 1, (int64_t[]){2});
    x = snug_linear(net, snug_linear(net, x, "master.x", 3), "x", 4);
    snug_cross_entropy(net, x);
    assert_int_equal(snug_model_finish(net, &err), SNUG_OK);
    snug_recipe *recipe = recipe_for_four("bf16");
    struct snug_train_options options = {.data = "none", .steps = 1};
    expect_line(snug_trainer_open(net, recipe, &options, &trainer, &err), SNUG_BAD_PROGRAM, &err,
                "master.x.weight");
    assert_null(trainer);
    snug_recipe_free(recipe);
    snug_model_free(net);
}

static void test_mistakes_of_the_trainer(void **state)
{
    (void)state;
    struct snug_error err = {0};
    snug_trainer *trainer = NULL;
    snug_model *net = xor_net("in");
    snug_recipe *recipe = recipe_for_four("fp32");
    struct snug_train_options options = {.data = "none", .steps = 1};
    expect_line(snug_trainer_open(net, recipe, &options, &trainer, &err), SNUG_BAD_ARGUMENT, &err,
                "snug_model_finish");
    assert_int_equal(snug_model_finish(net, &err), SNUG_OK);
    assert_int_equal(snug_trainer_open(net, recipe, &options, &trainer, &err), SNUG_OK);
    expect_line(snug_trainer_step(trainer, NULL, NULL, &err), SNUG_BAD_ARGUMENT, &err, "\"x\"");
    const void *half[] = {points, NULL};
    expect_line(snug_trainer_step(trainer, half, NULL, &err), SNUG_BAD_ARGUMENT, &err, "target");
    const int32_t beyond[BATCH] = {0, 1, 2, 0};
    const void *wrong[] = {points, beyond};
    expect_line(snug_trainer_step(trainer, wrong, NULL, &err), SNUG_BAD_ARGUMENT, &err, "2");
    expect_line(snug_trainer_run(trainer, NULL, NULL, &err), SNUG_BAD_ARGUMENT, &err, "no data");
    float few[3];
    expect_line(snug_trainer_read(trainer, "in.weight", few, 3, &err), SNUG_BAD_ARGUMENT, &err,
                "16 elements");
    expect_line(snug_trainer_read(trainer, "nothing", few, 3, &err), SNUG_BAD_ARGUMENT, &err,
                "nothing");
    assert_int_equal(snug_trainer_step(trainer, inputs, NULL, &err), SNUG_OK);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(net);
}

/* Programs that were built with an older snug.h, and with a newer one. */
static void test_options_of_other_versions(void **state)
{
    (void)state;
    struct newer {
        struct snug_train_options known;
        int64_t unknown;
    } newer = {.known = {.data = "none", .steps = 1}};
    struct {
        const char *data, *out;
        int64_t steps;
    } older = {.data = "none", .steps = 3}, beside[4];
    struct snug_error err = {0};
    struct snug_metrics m = {0};
    snug_trainer *trainer = NULL;
    snug_model *net = xor_net("hidden");
    snug_recipe *recipe = recipe_for_four("fp32");
    assert_int_equal(snug_model_finish(net, &err), SNUG_OK);

    /* what lies behind the older struct is not read: as a run to resume it would be refused */
    memset(beside, 1, sizeof beside);
    beside[0] = older;
    assert_int_equal(
        snug_trainer_open_sized(net, recipe, (const void *)beside, sizeof older, &trainer, &err),
        SNUG_OK);
    assert_int_equal(snug_trainer_step(trainer, inputs, &m, &err), SNUG_OK);
    assert_int_equal(m.n_steps, 3);
    snug_trainer_free(trainer);

    assert_int_equal(
        snug_trainer_open_sized(net, recipe, &newer.known, sizeof newer, &trainer, &err), SNUG_OK);
    snug_trainer_free(trainer);
    newer.unknown = 1;
    expect_line(snug_trainer_open_sized(net, recipe, &newer.known, sizeof newer, &trainer, &err),
                SNUG_UNSUPPORTED, &err, "newer libsnug");
    assert_null(trainer);
    snug_recipe_free(recipe);
    snug_model_free(net);
}

static void test_recipe_keys(void **state)
{
    (void)state;
    struct snug_error err = {0};
    snug_recipe *recipe = snug_recipe_new();
    int n = 0;
    while (snug_recipe_key(n) != NULL)
        assert_true(snug_recipe_has_key(snug_recipe_key(n++)));
    assert_true(n > 20);
    assert_null(snug_recipe_key(-1));
    expect_line(snug_recipe_set(recipe, "lr", "fast", &err), SNUG_BAD_ARGUMENT, &err, "fast");
    expect_line(snug_recipe_set(recipe, "lr", "nan", &err), SNUG_BAD_ARGUMENT, &err, "nan");
    expect_line(snug_recipe_set(recipe, "batch", "0", &err), SNUG_BAD_ARGUMENT, &err, "0");
    expect_line(snug_recipe_set(recipe, "speed", "1", &err), SNUG_BAD_ARGUMENT, &err, "speed");
    expect_line(snug_recipe_read(recipe, "/no/such/recipe", &err), SNUG_BAD_FILE, &err, "recipe");
    expect_line(snug_recipe_read(recipe, "/tmp", &err), SNUG_BAD_FILE, &err,
                "recipe /tmp: is a folder");
    expect_line(snug_recipe_set(recipe, "lora-from", "a\nb", &err), SNUG_BAD_ARGUMENT, &err,
                "a folder");
    expect_line(snug_recipe_set(recipe, "batch", "none", &err), SNUG_BAD_ARGUMENT, &err, "none");
    static const char *const can_be_none[] = {"lora", "base-batch", "lora-from"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(snug_recipe_set(recipe, can_be_none[i], "none", &err), SNUG_OK);
    snug_recipe_free(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns_xor),
        cmocka_unit_test(test_saves_and_resumes),
        cmocka_unit_test(test_mistakes_of_the_builder),
        cmocka_unit_test(test_names_do_not_collide),
        cmocka_unit_test(test_mistakes_of_the_trainer),
        cmocka_unit_test(test_options_of_other_versions),
        cmocka_unit_test(test_recipe_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
