/*
 * test_lora_decoders.c -- adapters on the layers of Llama-like models, chosen by name: what is
 * trained, what adapter_config.json says, and that the saved adapter and the merged model are the
 * model that was trained.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/training.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

enum { N_STEPS = 8, WIDTH = 16, INNER = 24, LAYERS = 2 };

/* 2 layers, 16 wide, 4 heads of 4, 2 of k and v.  Qwen2 has biases of q, k, v and a tied head;
 * Qwen3 has a norm of each head of q and k, heads of 8 and a head of its own. */
#define SIZES                                                                      \
    "\"hidden_size\":16,\"intermediate_size\":24,\"num_hidden_layers\":2,"         \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":31,"       \
    "\"max_position_embeddings\":10,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0," \
    "\"hidden_act\":\"silu\","
static const char *const configs[] = {
    "{\"model_type\":\"qwen2\"," SIZES "\"tie_word_embeddings\":true}",
    "{\"model_type\":\"qwen3\"," SIZES "\"head_dim\":8,\"tie_word_embeddings\":false}"};
enum { QWEN2, QWEN3 };

static const struct row {
    int config;
    const char *on, *targets; /* --lora-on, and target_modules of adapter_config.json */
    int64_t n_rows;           /* in + out of the adapted layers of one block */
    const char *more;         /* other keys */
} rows[] = {
    {QWEN2, "attention", "\"q_proj\",\"k_proj\",\"v_proj\"", 3 * WIDTH + 16 + 8 + 8, ""},
    {QWEN2, "q,v", "\"q_proj\",\"v_proj\"", 2 * WIDTH + 16 + 8, "precision=bf16"},
    {QWEN2, "mlp", "\"gate_proj\",\"up_proj\",\"down_proj\"", 3 * (WIDTH + INNER),
     "checkpoint=every:1"},
    {QWEN3, "o,down", "\"o_proj\",\"down_proj\"", 32 + 16 + INNER + WIDTH, "lora-base=8"},
    {QWEN3, "q_proj,gate", "\"q_proj\",\"gate_proj\"", 16 + 32 + WIDTH + INNER, "dropout=0.1"},
    {QWEN3, "all",
     "\"q_proj\",\"k_proj\",\"v_proj\",\"o_proj\",\"gate_proj\",\"up_proj\",\"down_proj\"",
     4 * WIDTH + 2 * 32 + 2 * 16 + 3 * (WIDTH + INNER), "checkpoint=cheap"},
};

static int keep_losses(const struct snug_metrics *m, void *user)
{
    double *losses = user; /* of the first step, and held out */
    if (m->step == 1)
        losses[0] = m->loss;
    if (m->has_validation)
        losses[1] = m->val_loss;
    return 0;
}

static void train(const char *model_spec, const char *keys, const char *out, int64_t steps,
                  double losses[2])
{
    struct snug_error err;
    snug_trainer *trainer = NULL;
    snug_model *model = model_of(model_spec);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {
        .data = "random", .steps = steps, .out = out, .eval_every = out == NULL ? -1 : 0};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    must(snug_trainer_run(trainer, keep_losses, losses, &err), &err);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static double evaluate(const char *model, const char *keys)
{
    struct snug_error err;
    struct snug_eval_result result;
    snug_recipe *recipe = recipe_of(keys);
    must(snug_eval(model, "random", recipe, &result, &err), &err);
    snug_recipe_free(recipe);
    return result.loss;
}

/* The list of target_modules in the file, without spaces. */
static void read_targets(const char *run, char out[256])
{
    size_t n_bytes, n = 0;
    char *text = files_read(files_path(run, "adapter/adapter_config.json"), &n_bytes);
    const char *at = strstr(text, "\"target_modules\"");
    assert_non_null(at);
    for (at = strchr(at, '[') + 1; *at != ']'; at++)
        if (strchr(" \n", *at) == NULL && n < 255)
            out[n++] = *at;
    out[n] = '\0';
    free(text);
}

/* PEFT loads A and B of every target in every layer, by these names, and no others. */
static void check_keys(const char *run, const char *targets)
{
    struct snug_error err;
    struct safetensors *st;
    int n = 0;
    must(safetensors_open(files_path(run, "adapter/adapter_model.safetensors"), &st, &err), &err);
    for (const char *at = targets; at != NULL; at = strchr(at, ',')) {
        char target[32], name[128];
        at += at[0] == ',';
        assert_int_equal(sscanf(at, "\"%31[a-z_]\"", target), 1);
        bool is_mlp = strstr("gate_proj up_proj down_proj", target) != NULL;
        for (int i = 0; i < 2 * LAYERS; i++, n++) {
            snprintf(name, sizeof name, "base_model.model.model.layers.%d.%s.%s.lora_%c.weight",
                     i / 2, is_mlp ? "mlp" : "self_attn", target, i % 2 == 0 ? 'A' : 'B');
            if (safetensors_find(st, name) == NULL)
                fail_msg("the adapter lacks %s", name);
        }
    }
    assert_int_equal(safetensors_count(st), n);
    safetensors_close(st);
}

static void check_row(const struct row *row, const char *dir)
{
    enum { RANK = 2 };
    char keys[FILES_PATH_MAX + 200], base[FILES_PATH_MAX + 16], run[FILES_PATH_MAX + 16];
    char targets[256];
    double losses[2], start[2];
    bool is_bf16 = strstr(row->more, "bf16") != NULL,
         is_quantized = strstr(row->more, "base") != NULL;
    double limit = is_bf16 ? 1e-4 : 2e-6;
    const char *plain = is_bf16 ? "threads=1 precision=bf16" : "threads=1";
    files_write_text(dir, "config.json", configs[row->config]);
    snprintf(base, sizeof base, "%s/base", dir);
    snprintf(run, sizeof run, "%s/run", dir);
    train(dir, "batch=4 threads=1", base, 1, losses);
    snprintf(keys, sizeof keys, "batch=4 threads=1 lr=0.2 lora=%d lora-on=%s %s", RANK, row->on,
             row->more);
    assert_int_equal(ledger_of(base, keys, 0).n_trained, LAYERS * RANK * row->n_rows);
    train(base, keys, run, N_STEPS, losses);
    read_targets(run, targets);
    assert_string_equal(targets, row->targets);
    check_keys(run, targets);
    double before = evaluate(base, plain), merged = evaluate(run, plain);
    if (!(fabs(merged - losses[1]) <= limit * merged) ||
        !(fabs(merged - before) > 2 * limit * before))
        fail_msg("%s: with adapters %.9g, merged %.9g, before %.9g", row->on, losses[1], merged,
                 before);
    if (is_quantized)
        return; /* the adapter belongs to the quantized base */
    snprintf(keys, sizeof keys, "%s lora-from=%s/adapter", plain, run);
    double added = evaluate(base, keys);
    snprintf(keys, sizeof keys, "batch=4 threads=1 lora-on=%s lora-from=%s/adapter %s", row->on,
             run, row->more);
    train(base, keys, NULL, 1, losses);
    snprintf(keys, sizeof keys, "batch=4 threads=1 %s", row->more);
    train(run, keys, NULL, 1, start);
    if (!(fabs(added - merged) <= limit * merged) ||
        !(fabs(losses[0] - start[0]) <= limit * start[0]))
        fail_msg("%s: merged %.9g, added %.9g; the first loss from the adapter %.9g, from the run "
                 "%.9g",
                 row->on, merged, added, losses[0], start[0]);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        char dir[FILES_PATH_MAX];
        files_make_dir(dir);
        check_row(&rows[i], dir);
        files_remove_dir(dir);
    }
}

/* Frozen weights are held once, in 16 bits; only adapters have gradients and optimizer states. */
static void test_ledger(void **state)
{
    (void)state;
    static const struct {
        const char *model, *on;
        int64_t n_rows; /* in + out of the adapted layers of all blocks */
    } models[] = {
        {"llama-3.1-8b", "all", 32 * ((4096 + 4096) * 2 + (4096 + 1024) * 2 + 3 * (4096 + 14336))},
        {"qwen2.5-0.5b", "mlp", 24 * 3 * (896 + 4864)},
        {"qwen3-0.6b", "attention", 28 * (1024 + 2048 + 2 * (1024 + 1024))},
        {"smollm2-135m", "q,k,v,o,gate,up,down",
         30 * (2 * (576 + 576) + 2 * (576 + 192) + 3 * (576 + 1536))},
    };
    for (size_t i = 0; i < LENGTH(models); i++) {
        enum { RANK = 16 };
        char keys[200];
        snprintf(keys, sizeof keys,
                 "batch=2 micro-batch=1 seq=64 threads=1 precision=bf16 lora=%d lora-on=%s", RANK,
                 models[i].on);
        struct snug_ledger l = ledger_of(models[i].model, keys, 0);
        assert_int_equal(l.n_trained, RANK * models[i].n_rows);
        assert_int_equal(l.parameters, 2 * (l.n_parameters + l.n_trained));
        assert_int_equal(l.gradients, 2 * l.n_trained);
        assert_int_equal(l.optimizer, 12 * l.n_trained); /* fp32 master, m and v */
    }
}

/* Llama 3.1 8B, adapters on all linear layers, 2 x 2048: 28 GiB without recomputation, 18 with it,
 * of which the runtime takes 640 MiB. */
static void test_figures(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        double most;
    } figures[] = {{"", 28}, {"checkpoint=auto memory=18G", 18}};
    for (size_t i = 0; i < LENGTH(figures); i++) {
        char keys[200];
        snprintf(keys, sizeof keys,
                 "batch=2 seq=2048 micro-batch=1 precision=bf16 lora=16 lora-on=all device=cuda "
                 "target=h200 %s",
                 figures[i].more);
        struct snug_ledger l = ledger_of("llama-3.1-8b", keys, 0);
        if ((double)l.total + 640 * 0x1p20 > figures[i].most * 0x1p30)
            fail_msg("%s: %lld bytes", keys, (long long)l.total);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_ledger),
                                       cmocka_unit_test(test_figures)};
    return cmocka_run_group_tests_name("lora_decoders", tests, NULL, NULL);
}
