/*
 * test_presets.c -- plans that people will ask for: every preset in every precision, checked, with
 * at most 1% of fragmentation; the arithmetic of model states; an evaluation in the same arena.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compile/compile.h"

/* Before the decoders, which have a list of their own. */
static const char *const presets[] = {"mlp",
                                      "cnn",
                                      "resnet18",
                                      "resnet50",
                                      "resnet18:1x28x28,classes=10",
                                      "vit-tiny",
                                      "vit-tiny:1x28x28,classes=10"};
static const char *const precisions[] = {"fp32", "bf16", "fp16"};
enum { N_PRESETS = (int)(sizeof presets / sizeof *presets), N_PRECISIONS = 3, BATCH = 4 };

static const char *preset(int i)
{
    if (i < N_PRESETS)
        return presets[i];
    const struct decoder_preset *decoder = decoder_preset(i - N_PRESETS);
    return decoder != NULL ? decoder->name : NULL;
}

struct asked {
    struct snug_model model;
    snug_recipe *recipe;
    struct compiled_step compiled;
};

static void ask_for_batch(struct asked *a, const char *name, const char *precision,
                          const char *optimizer, int64_t batch, int64_t micro_batch)
{
    struct snug_error err = {0};
    memset(a, 0, sizeof *a);
    a->recipe = snug_recipe_new();
    assert_non_null(a->recipe);
    if (model_from_name(name, &a->model, &err) != SNUG_OK ||
        snug_recipe_set(a->recipe, "precision", precision, &err) != SNUG_OK ||
        snug_recipe_set(a->recipe, "optimizer", optimizer, &err) != SNUG_OK ||
        snug_recipe_set(a->recipe, "threads", "8", &err) != SNUG_OK)
        fail_msg("%s: %s", name, err.message);
    struct compile_request request = {.model = &a->model,
                                      .recipe = a->recipe,
                                      .train = true,
                                      .batch = batch,
                                      .micro_batch = micro_batch};
    if (compile_step(&request, &a->compiled, &err) != SNUG_OK)
        fail_msg("%s %s: %s", name, precision, err.message);
}

static void ask(struct asked *a, const char *name, const char *precision, const char *optimizer,
                int64_t micro_batch)
{
    ask_for_batch(a, name, precision, optimizer, BATCH, micro_batch);
}

static void forget(struct asked *a)
{
    compiled_step_free(&a->compiled);
    snug_recipe_free(a->recipe);
}

static void test_fragmentation(void **state)
{
    (void)state;
    for (int i = 0; preset(i) != NULL; i++) {
        double worst = 0;
        int n_ops = 0;
        for (int p = 0; p < N_PRECISIONS; p++)
            for (int64_t micro_batch = BATCH; micro_batch >= 1; micro_batch /= BATCH) {
                struct asked a;
                struct snug_error err = {0};
                ask(&a, preset(i), precisions[p], "adamw", micro_batch);
                const struct plan *plan = &a.compiled.plan;
                if (plan_check(&a.compiled.prog, plan->offset, plan->arena_bytes,
                               a.compiled.backend->alignment, &err) != SNUG_OK)
                    fail_msg("%s %s: %s", preset(i), precisions[p], err.message);
                double part = (double)plan->fragmentation / (double)plan->arena_bytes;
                worst = part > worst ? part : worst;
                n_ops = a.compiled.prog.n_ops;
                if (part > 0.01)
                    fail_msg("%s %s, micro-batch %d of %d: fragmentation %.2f%%", preset(i),
                             precisions[p], (int)micro_batch, BATCH, 100 * part);
                forget(&a);
            }
        print_message("%-16s %5d ops, fragmentation at most %.4f%%\n", preset(i), n_ops,
                      100 * worst);
    }
}

/* As torchvision counts them; running averages are no parameters. */
static void test_parameter_counts(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int64_t parameters;
    } rows[] = {{"resnet18", 11689512},
                {"resnet50", 25557032},
                {"resnet18:3x32x32,classes=10", 11173962},
                {"vit-tiny", 5717032},
                {"cnn", 104426}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct asked a;
        ask(&a, rows[i].model, "fp32", "sgd", 1);
        assert_int_equal(a.compiled.n_parameters, rows[i].parameters);
        forget(&a);
    }
}

/* The published counts, a tied LM head counted once.  transformers 5.23 counts the same from the
 * config.json that snug writes for each of them. */
static void test_parameter_counts_of_decoders(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int64_t parameters;
    } rows[] = {{"gpt2", 124439808},
                {"gpt2-medium", 354823168},
                {"gpt2-large", 774030080},
                {"gpt2-xl", 1557611200},
                {"gpt3-175b", 174604259328},
                {"lm-nano", 722048},
                {"smollm2-135m", 134515008},
                {"smollm2-360m", 361821120},
                {"smollm2-1.7b", 1711376384},
                {"tinyllama-1.1b", 1100048384},
                {"llama-3.2-1b", 1235814400},
                {"llama-3.2-3b", 3212749824},
                {"llama-3.1-8b", 8030261248},
                {"llama-3.1-70b", 70553706496},
                {"llama-3.1-405b", 405853388800},
                {"mistral-7b", 7241732096},
                {"qwen2.5-0.5b", 494032768},
                {"qwen2.5-1.5b", 1543714304},
                {"qwen2.5-3b", 3085938688},
                {"qwen2.5-7b", 7615616512},
                {"qwen2.5-14b", 14770033664},
                {"qwen2.5-32b", 32763876352},
                {"qwen2.5-72b", 72706203648},
                {"qwen3-0.6b", 596049920},
                {"qwen3-1.7b", 1720574976},
                {"qwen3-4b", 4022468096},
                {"qwen3-8b", 8190735360},
                {"qwen3-14b", 14768307200},
                {"qwen3-32b", 32762123264}};
    enum { N_ROWS = (int)(sizeof rows / sizeof *rows), SEQ = 16 };
    for (int i = 0; i < N_ROWS; i++) {
        struct snug_model model = {0};
        struct program prog;
        struct snug_error err = {0};
        if (model_from_name(rows[i].model, &model, &err) != SNUG_OK ||
            model_forward(&model, MODEL_FOR_LOSS, 1, SEQ, &prog, &err) != SNUG_OK)
            fail_msg("%s: %s", rows[i].model, err.message);
        if (model_count_parameters(&prog) != rows[i].parameters)
            fail_msg("%s: %lld parameters, published are %lld", rows[i].model,
                     (long long)model_count_parameters(&prog), (long long)rows[i].parameters);
        program_free(&prog);
    }
    for (int i = 0; decoder_preset(i) != NULL; i++) {
        bool is_listed = strstr(decoder_preset(i)->name, "nano") != NULL; /* our own */
        for (int k = 0; k < N_ROWS; k++)
            is_listed = is_listed || strcmp(rows[k].model, decoder_preset(i)->name) == 0;
        if (!is_listed)
            fail_msg("%s: add its published parameter count", decoder_preset(i)->name);
    }
}

/* ResNet-50 at 32 images keeps over 2 GB of activations in fp32, and half of that in 16 bits. */
static void test_activations_of_resnet50(void **state)
{
    (void)state;
    double bytes[N_PRECISIONS];
    for (int p = 0; p < N_PRECISIONS; p++) {
        struct asked a;
        struct snug_ledger ledger;
        ask_for_batch(&a, "resnet50", precisions[p], "adamw", 32, 32);
        compiled_step_ledger(&a.compiled, a.recipe, &ledger);
        bytes[p] = (double)ledger.activations;
        forget(&a);
    }
    print_message("activations: %.0f, %.0f, %.0f bytes\n", bytes[0], bytes[1], bytes[2]);
    assert_true(bytes[0] > 2e9 && bytes[0] < 3e9);
    for (int p = 1; p < N_PRECISIONS; p++)
        assert_true(bytes[p] > 0.49 * bytes[0] && bytes[p] < 0.51 * bytes[0]);
}

/* Bytes a parameter: the table that everybody quotes, 2 + 2 + 12 for mixed precision with Adam. */
static const struct {
    const char *model, *precision, *optimizer;
    int64_t parameters, gradients, states;
} psi_rows[] = {
    {"psi:1.5e9", "fp16", "adam", 3000000000, 3000000000, 18000000000},
    {"psi:1.5e9", "bf16", "adamw", 3000000000, 3000000000, 18000000000},
    {"psi:1.5e9", "fp32", "adam", 6000000000, 6000000000, 12000000000},
    {"psi:1.5e9", "fp32", "sgd", 6000000000, 6000000000, 0},
    {"psi:1.5e9", "fp16", "sgd", 3000000000, 3000000000, 6000000000},
    {"psi:7.5e9", "fp16", "adam", 15000000000, 15000000000, 90000000000},
};

static void test_psi(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof psi_rows / sizeof *psi_rows; i++)
        for (int64_t micro_batch = BATCH; micro_batch >= 1; micro_batch /= BATCH) {
            struct asked a;
            struct snug_ledger ledger;
            ask(&a, psi_rows[i].model, psi_rows[i].precision, psi_rows[i].optimizer, micro_batch);
            compiled_step_ledger(&a.compiled, a.recipe, &ledger);
            assert_int_equal(ledger.parameters, psi_rows[i].parameters);
            assert_int_equal(ledger.gradients, psi_rows[i].gradients);
            assert_int_equal(ledger.optimizer, psi_rows[i].states);
            assert_int_equal(ledger.activations, 0);
            assert_int_equal(ledger.temporary, 0);
            assert_int_equal(ledger.fragmentation, 0);
            assert_int_equal(ledger.total,
                             psi_rows[i].parameters + psi_rows[i].gradients + psi_rows[i].states);
            assert_int_equal(a.compiled.prog.n_repeat, 1); /* nothing to repeat */
            forget(&a);
        }
}

/* The second program sees the first one's weights and touches nothing else that lives on. */
static void test_over(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int p = 0; p < N_PRECISIONS; p++) {
            struct asked a;
            struct compiled_step eval;
            struct snug_error err = {0};
            ask(&a, presets[i], precisions[p], "adamw", 1);
            struct compile_request request = {
                .model = &a.model, .recipe = a.recipe, .batch = BATCH, .over = &a.compiled};
            if (compile_step(&request, &eval, &err) != SNUG_OK ||
                plan_check_over(&eval.prog, eval.plan.offset, eval.plan.arena_bytes,
                                eval.backend->alignment, &a.compiled.prog, a.compiled.plan.offset,
                                &err) != SNUG_OK)
                fail_msg("%s: %s", presets[i], err.message);
            const struct program *host = &a.compiled.prog;
            const int64_t *place = a.compiled.plan.offset;
            for (int t = 0; t < eval.prog.n_tensors; t++) {
                int64_t at = eval.plan.offset[t];
                if (at < 0)
                    continue;
                tensor_id twin = program_find(host, eval.prog.tensors[t].name);
                if (eval.prog.tensors[t].persistent)
                    assert_int_equal(at, place[twin]);
                for (int h = 0; h < host->n_tensors && !eval.prog.tensors[t].persistent; h++)
                    if (host->tensors[h].persistent && place[h] >= 0 &&
                        at < place[h] + tensor_bytes(host, h) &&
                        place[h] < at + tensor_bytes(&eval.prog, t))
                        fail_msg("%s: \"%s\" lies on the weights", presets[i],
                                 eval.prog.tensors[t].name);
            }
            compiled_step_free(&eval);
            forget(&a);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_psi),
        cmocka_unit_test(test_parameter_counts),
        cmocka_unit_test(test_parameter_counts_of_decoders),
        cmocka_unit_test(test_activations_of_resnet50),
        cmocka_unit_test(test_over),
        cmocka_unit_test(test_fragmentation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
