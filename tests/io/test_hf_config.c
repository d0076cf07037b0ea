/*
 * test_hf_config.c -- reading and writing config.json, and refused values, which are named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "io/hf_config.h"
#include "support/files.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define SIZES \
    "\"n_layer\": 2, \"n_head\": 3, \"n_embd\": 12, \"n_positions\": 64, \"vocab_size\": 65"
#define GPT2 "\"model_type\": \"gpt2\", " SIZES

static const struct {
    const char *name, *text;
    enum snug_status status;
    const char *words;
} rows[] = {
    {"least", "{" GPT2 "}", SNUG_OK, ""},
    {"as published",
     "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], "
     "\"attn_pdrop\": 0.1, \"layer_norm_epsilon\": 1e-05, \"n_ctx\": 64, \"n_inner\": null, "
     "\"scale_attn_weights\": true, \"task_specific_params\": {\"a\": {}}, " GPT2 "}",
     SNUG_OK, ""},
    {"n_inner spelled out", "{" GPT2 ", \"n_inner\": 48}", SNUG_OK, ""},
    {"n_inner", "{" GPT2 ", \"n_inner\": 47}", SNUG_UNSUPPORTED,
     "\"n_inner\": 47 is not supported"},
    {"exact gelu", "{" GPT2 ", \"activation_function\": \"gelu\"}", SNUG_UNSUPPORTED,
     "\"gelu\" is not supported; use gelu_new"},
    {"scaled by layer", "{" GPT2 ", \"scale_attn_by_inverse_layer_idx\": true}", SNUG_UNSUPPORTED,
     "\"scale_attn_by_inverse_layer_idx\": true"},
    {"unscaled", "{" GPT2 ", \"scale_attn_weights\": false}", SNUG_UNSUPPORTED,
     "\"scale_attn_weights\": false"},
    {"untied", "{" GPT2 ", \"tie_word_embeddings\": false}", SNUG_UNSUPPORTED,
     "\"tie_word_embeddings\": false is not supported"},
    {"tied", "{" GPT2 ", \"tie_word_embeddings\": true}", SNUG_OK, ""},
    {"cross attention", "{" GPT2 ", \"add_cross_attention\": true}", SNUG_UNSUPPORTED, "add_cross"},
    {"another model", "{\"model_type\": \"mixtral\"}", SNUG_UNSUPPORTED,
     "\"mixtral\" is not supported; use gpt2, llama, mistral, qwen2, qwen3, snug-mlp"},
    {"no type", "{" SIZES "}", SNUG_BAD_FILE, "\"model_type\" is missing"},
    {"no layers", "{\"model_type\": \"gpt2\"}", SNUG_BAD_FILE, "\"n_layer\" is missing"},
    {"layers as text", "{\"model_type\": \"gpt2\", \"n_layer\": \"2\"}", SNUG_BAD_FILE,
     "\"n_layer\" must be an integer"},
    {"no layer", "{\"model_type\": \"gpt2\", \"n_layer\": 0}", SNUG_BAD_FILE, "\"n_layer\" is 0"},
    {"heads do not divide",
     "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 5, \"n_embd\": 12, "
     "\"n_positions\": 64, \"vocab_size\": 65}",
     SNUG_BAD_FILE, "not a multiple"},
    {"epsilon", "{" GPT2 ", \"layer_norm_epsilon\": 0}", SNUG_BAD_FILE, "above 0"},
    {"epsilon as text", "{" GPT2 ", \"layer_norm_epsilon\": \"x\"}", SNUG_BAD_FILE, "a number"},
    {"dropout below 0", "{" GPT2 ", \"attn_pdrop\": -0.1}", SNUG_BAD_FILE,
     "\"attn_pdrop\" must be"},
    {"dropout of all", "{" GPT2 ", \"resid_pdrop\": 1}", SNUG_BAD_FILE, "\"resid_pdrop\" must be"},
    {"dropout as text", "{" GPT2 ", \"embd_pdrop\": \"x\"}", SNUG_BAD_FILE, "a number"},
    {"tied as text", "{" GPT2 ", \"tie_word_embeddings\": \"x\"}", SNUG_BAD_FILE, "true or false"},
    {"twice", "{" GPT2 ", \"n_layer\": 2}", SNUG_BAD_FILE, "duplicate"},
    {"not JSON", "{", SNUG_BAD_FILE, "not valid JSON"},
    {"a list", "[]", SNUG_BAD_FILE, "must contain a JSON object"},
    {"mlp without sizes", "{\"model_type\": \"snug-mlp\"}", SNUG_BAD_FILE, "\"sizes\""},
    {"mlp with one size", "{\"model_type\": \"snug-mlp\", \"sizes\": [3]}", SNUG_BAD_FILE, "2 to"},
    {"mlp with no size", "{\"model_type\": \"snug-mlp\", \"sizes\": [3, 0]}", SNUG_BAD_FILE,
     "\"sizes\": element 2 must be"},
    {"mlp loss",
     "{\"model_type\": \"snug-mlp\", \"sizes\": [3, 1], \"activation\": \"relu\", "
     "\"loss\": \"hinge\"}",
     SNUG_UNSUPPORTED, "\"hinge\""},
};

static void test_rows(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct hf_config config;
        struct snug_error err = {0};
        files_write_text(dir, "config.json", rows[i].text);
        enum snug_status status = hf_config_read(dir, &config, &err);
        if (status != rows[i].status || strstr(err.message, rows[i].words) == NULL ||
            (status != SNUG_OK && strstr(err.message, "config.json: ") == NULL))
            fail_msg("case '%s': status %d, '%s'", rows[i].name, status, err.message);
        if (status == SNUG_OK) {
            assert_int_equal(config.model, HF_DECODER);
            assert_int_equal(config.decoder.n_positions, 64);
            assert_true(config.decoder.norm_eps == 1e-5);
            assert_int_equal(config.decoder.activation, ACT_gelu);
        }
        free(config.source);
    }
    files_remove_dir(dir);
}

static void test_round_trip(void **state)
{
    struct decoder_shape relu = decoder_gpt2(1, 2, 8, 16, 11);
    relu.norm_eps = 1e-6, relu.activation = ACT_relu;
    const struct hf_config configs[] = {
        {.model = HF_DECODER, .decoder = decoder_gpt2(12, 12, 768, 1024, 50257)},
        {.model = HF_DECODER, .decoder = relu, .dropout = {0.1, 0.2, 0.3}},
        {.model = HF_MLP, .mlp = {3, {784, 512, 10}, ACT_relu, HF_CROSS_ENTROPY}},
        {.model = HF_MLP, .mlp = {2, {3, 1}, ACT_tanh, HF_MEAN_SQUARED_ERROR}},
    };
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < LENGTH(configs); i++) {
        struct hf_config back;
        struct snug_error err = {0};
        char *text = hf_config_text(&configs[i], DTYPE_f32);
        assert_non_null(text);
        files_write_text(dir, "config.json", text);
        free(text);
        assert_int_equal(hf_config_read(files_path(dir, "config.json"), &back, &err), SNUG_OK);
        const struct decoder_shape *a = &configs[i].decoder, *b = &back.decoder;
        assert_int_equal(back.model, configs[i].model);
        assert_true(a->n_layer == b->n_layer && a->n_head == b->n_head && a->n_embd == b->n_embd &&
                    a->n_positions == b->n_positions && a->vocab_size == b->vocab_size &&
                    a->norm_eps == b->norm_eps &&
                    a->activation == b->activation);
        const struct dropout_rates *p = &configs[i].dropout, *q = &back.dropout;
        assert_true(p->embedding == q->embedding && p->attention == q->attention &&
                    p->residual == q->residual);
        const struct hf_mlp *c = &configs[i].mlp, *d = &back.mlp;
        assert_true(c->n_sizes == d->n_sizes && c->activation == d->activation &&
                    c->loss == d->loss && memcmp(c->sizes, d->sizes, sizeof c->sizes) == 0);
        free(back.source);
    }
    struct hf_config config;
    struct snug_error err;
    assert_int_equal(hf_config_read(files_path(dir, "missing"), &config, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "No such file"));
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
