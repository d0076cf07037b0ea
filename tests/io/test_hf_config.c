/*
 * test_hf_config.c -- reading and writing config.json, and refused values, which are named.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
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

/* ---- Llama, Mistral, Qwen ----------------------------------------------------------------- */

/* A file has these members, but for those that the row has itself. */
static const struct {
    const char *key, *value;
} least[] = {
    {"model_type", "\"llama\""},       {"num_hidden_layers", "2"},   {"hidden_size", "48"},
    {"intermediate_size", "80"},       {"num_attention_heads", "4"}, {"num_key_value_heads", "2"},
    {"max_position_embeddings", "64"}, {"vocab_size", "65"}};

static void write_config(const char *dir, const char *members)
{
    struct text text = {0};
    text_add(&text, "{%s", members);
    for (size_t i = 0; i < LENGTH(least); i++) {
        char quoted[64];
        snprintf(quoted, sizeof quoted, "\"%s\"", least[i].key);
        if (strstr(members, quoted) == NULL)
            text_add(&text, "%s%s: %s", text.length > 1 ? ", " : "", quoted, least[i].value);
    }
    text_add(&text, "}");
    files_write_text(dir, "config.json", text.data);
    text_free(&text);
}

/* The settings that families and files differ in. */
static void settings_of(const struct hf_config *config, char out[256])
{
    const struct decoder_shape *d = &config->decoder;
    const struct rope_attrs *r = &d->rope;
    snprintf(out, 256,
             "family %d, kv %" PRId64 " x %" PRId64 ", window %" PRId64
             ", theta %g, rope %g %g %g %" PRId64
             ", bias %d %d %d, norm %d, tied %d %d, eps %g, std %g, dropout %g",
             (int)d->family, d->n_kv_head, d->head_dim, d->window, r->theta, r->rope_factor,
             r->low_freq, r->high_freq, r->rope_length, d->qkv_bias, d->out_bias, d->mlp_bias,
             d->qk_norm, d->tied, config->tied_is_given, d->norm_eps, d->init_std,
             config->dropout.attention);
}

#define LLAMA3                                                           \
    "\"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4.0, " \
    "\"original_max_position_embeddings\": 8192"
#define MISTRAL "\"model_type\": \"mistral\", "
#define QWEN2   "\"model_type\": \"qwen2\", "
#define QWEN3   "\"model_type\": \"qwen3\", "
/* A member that makes write_config leave out the key. */
#define WITHOUT(key) "\"without\": [\"" key "\"]"
#define FULL         "\"full_attention\""
#define SLIDES       "\"sliding_attention\""

static const struct {
    const char *name, *members;
    enum snug_status status;
    const char *words; /* of the settings or the error */
} decoders[] = {
    {"least", "", SNUG_OK,
     "family 1, kv 2 x 12, window 0, theta 10000, rope 1 1 4 0, bias 0 0 0, norm 0, tied 0 0, "
     "eps 1e-06, std 0.02, dropout 0"},
    {"llama", "\"rms_norm_eps\": 1e-5, \"attention_bias\": true, \"tie_word_embeddings\": true",
     SNUG_OK, "bias 1 1 0, norm 0, tied 1 1, eps 1e-05"},
    {"mlp bias", "\"mlp_bias\": true, \"initializer_range\": 0.04", SNUG_OK,
     "bias 0 0 1, norm 0, tied 0 0, eps 1e-06, std 0.04"},
    {"dropout", "\"attention_dropout\": 0.25", SNUG_OK, "dropout 0.25"},
    {"kv heads absent", "\"num_key_value_heads\": null", SNUG_OK, "kv 4 x 12"},
    {"head_dim", "\"head_dim\": 32", SNUG_OK, "kv 2 x 32"},
    {"head_dim null", "\"head_dim\": null", SNUG_OK, "kv 2 x 12"},
    {"ends", "\"eos_token_id\": [1, 2], \"bos_token_id\": 3, \"pad_token_id\": null", SNUG_OK, ""},
    {"harmless",
     "\"pretraining_tp\": 2, \"use_cache\": true, \"torch_dtype\": \"bfloat16\", "
     "\"residual_multiplier\": 1.0, \"partial_rotary_factor\": 1, \"num_experts\": 0, "
     "\"num_experts_per_tok\": 2, \"quantization_config\": null, \"whatever\": {\"a\": [1]}",
     SNUG_OK, "family 1"},
    {"mistral", MISTRAL "\"sliding_window\": 16", SNUG_OK, "family 2, kv 2 x 12, window 16"},
    {"mistral without window", MISTRAL "\"sliding_window\": null", SNUG_OK, "window 0"},
    {"mistral by default", MISTRAL "\"rope_theta\": 1e6", SNUG_OK, "window 4096, theta 1e+06"},
    {"mistral slides", MISTRAL "\"sliding_window\": 16, \"layer_types\": [" SLIDES "," SLIDES "]",
     SNUG_OK, "window 16"},
    {"mistral does not slide",
     MISTRAL "\"sliding_window\": 16, \"layer_types\": [" FULL "," FULL "]", SNUG_OK, "window 0"},
    {"llama has no window", "\"sliding_window\": 16", SNUG_OK, "window 0"},
    {"full layers", "\"layer_types\": [" FULL "," FULL "]", SNUG_OK, "window 0"},
    {"qwen2", QWEN2 "\"tie_word_embeddings\": true", SNUG_OK,
     "family 3, kv 2 x 12, window 0, theta 10000, rope 1 1 4 0, bias 1 0 0, norm 0, tied 1 1"},
    {"qwen2 ignores the window",
     QWEN2 "\"sliding_window\": 16, \"use_sliding_window\": false, \"max_window_layers\": 0",
     SNUG_OK, "window 0"},
    {"qwen2 slides",
     QWEN2 "\"sliding_window\": 16, \"use_sliding_window\": true, \"max_window_layers\": 0",
     SNUG_OK, "window 16"},
    {"no layer is late enough",
     QWEN2 "\"sliding_window\": 16, \"use_sliding_window\": true, \"max_window_layers\": 2",
     SNUG_OK, "window 0"},
    {"28 by default", QWEN2 "\"sliding_window\": 16, \"use_sliding_window\": true", SNUG_OK,
     "window 0"},
    {"types win",
     QWEN3 "\"sliding_window\": 16, \"use_sliding_window\": true, \"max_window_layers\": 1, "
           "\"layer_types\": [" SLIDES "," SLIDES "]",
     SNUG_OK, "window 16"},
    {"qwen2 slides by 4096", QWEN2 "\"use_sliding_window\": true, \"max_window_layers\": 0",
     SNUG_OK, "window 4096"},
    {"qwen3 slides by 4096",
     QWEN3 "\"use_sliding_window\": true, \"layer_types\": [" SLIDES "," SLIDES "]", SNUG_OK,
     "window 4096"},
    {"qwen2 without a window",
     QWEN2 "\"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": null",
     SNUG_OK, "window 0"},
    {"as many kv heads as heads", WITHOUT("num_key_value_heads"), SNUG_OK, "kv 4 x 12"},
    {"kv heads of null", QWEN2 "\"num_key_value_heads\": null", SNUG_OK, "kv 4 x 12"},
    {"8 kv heads",
     MISTRAL "\"num_attention_heads\": 16, \"head_dim\": 6, " WITHOUT("num_key_value_heads"),
     SNUG_OK, "kv 8 x 6"},
    {"32 kv heads", QWEN3 "\"num_attention_heads\": 32, " WITHOUT("num_key_value_heads"), SNUG_OK,
     "kv 32 x 128"},
    {"qwen3's heads", QWEN3 "\"attention_bias\": false", SNUG_OK, "kv 2 x 128"},
    {"swish is silu", "\"hidden_act\": \"swish\"", SNUG_OK, "family 1"},
    {"qwen3", QWEN3 "\"head_dim\": 64, \"attention_bias\": true", SNUG_OK,
     "family 4, kv 2 x 64, window 0, theta 10000, rope 1 1 4 0, bias 1 1 0, norm 1"},
    {"llama 3 of transformers 4",
     "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}", SNUG_OK,
     "theta 500000, rope 8 1 4 8192"},
    {"llama 3, older", "\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}",
     SNUG_OK, "theta 500000, rope 8 1 4 8192"},
    {"llama 3 of transformers 5",
     "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, " LLAMA3 "}",
     SNUG_OK, "theta 500000, rope 8 1 4 8192"},
    {"default of transformers 5",
     "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e6}, \"rope_scaling\": "
     "null",
     SNUG_OK, "theta 1e+06, rope 1 1 4 0"},
    {"both",
     "\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}, "
     "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 500000, " LLAMA3 "}",
     SNUG_OK, "theta 500000, rope 8 1 4 8192"},
    {"both, one with a default",
     "\"rope_theta\": 10000.0, \"rope_scaling\": null, "
     "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 500000}",
     SNUG_OK, "theta 500000"},
    {"both, unlike theta", "\"rope_theta\": 2e4, \"rope_parameters\": {\"rope_theta\": 5e5}",
     SNUG_BAD_FILE, "\"rope_theta\" is 20000 in one place and 500000 in another"},
    {"both, unlike scaling",
     "\"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}, "
     "\"rope_parameters\": {\"rope_type\": \"default\"}",
     SNUG_BAD_FILE, "\"rope_scaling\" and \"rope_parameters\" differ"},

    {"yarn", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}", SNUG_UNSUPPORTED,
     "\"rope_scaling\": \"rope_type\": \"yarn\" is not supported: snug has RoPE without scaling"},
    {"dynamic", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4}", SNUG_UNSUPPORTED,
     "\"dynamic\" is not supported"},
    {"linear", "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4}", SNUG_UNSUPPORTED,
     "\"rope_parameters\": \"rope_type\": \"linear\" is not supported"},
    {"rope of each kind of layer", "\"rope_parameters\": {" FULL ": {\"rope_theta\": 1e4}}",
     SNUG_UNSUPPORTED, "\"full_attention\" is not supported"},
    {"rope of a part", "\"rope_parameters\": {\"partial_rotary_factor\": 0.5}", SNUG_UNSUPPORTED,
     "\"partial_rotary_factor\" is not supported"},
    {"rope as text", "\"rope_scaling\": \"llama3\"", SNUG_BAD_FILE, "\"rope_scaling\" must be an"},
    {"rope without factor", "\"rope_scaling\": {\"rope_type\": \"llama3\"}", SNUG_BAD_FILE,
     "\"factor\" is missing"},
    {"rope factor", "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 0}", SNUG_BAD_FILE,
     "\"factor\" must be above 0"},
    {"rope bands",
     "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}",
     SNUG_BAD_FILE, "must be below \"high_freq_factor\""},
    {"theta", "\"rope_theta\": 0", SNUG_BAD_FILE, "\"rope_theta\" must be above 0"},
    {"experts", "\"num_local_experts\": 8", SNUG_UNSUPPORTED,
     "\"num_local_experts\": 8 is not supported: snug does not have mixtures of experts"},
    {"experts of qwen", QWEN3 "\"num_experts\": 128", SNUG_UNSUPPORTED, "\"num_experts\": 128"},
    {"latent attention", "\"kv_lora_rank\": 512", SNUG_UNSUPPORTED, "\"kv_lora_rank\": 512"},
    {"softcap", "\"attn_logit_softcapping\": 50.0", SNUG_UNSUPPORTED, "\"attn_logit_softcapping\""},
    {"partial", "\"partial_rotary_factor\": 0.75", SNUG_UNSUPPORTED,
     "\"partial_rotary_factor\": 0.75 is not supported"},
    {"granite", "\"attention_multiplier\": 1.0", SNUG_UNSUPPORTED, "\"attention_multiplier\": 1.0"},
    {"granite residual", "\"residual_multiplier\": 0.22", SNUG_UNSUPPORTED,
     "\"residual_multiplier\": 0.22 is not supported: snug does not have scaled residual"},
    {"granite embedding", "\"embedding_multiplier\": 12", SNUG_UNSUPPORTED, "embedding_multiplier"},
    {"granite logits", "\"logits_scaling\": 8", SNUG_UNSUPPORTED, "\"logits_scaling\": 8"},
    {"quantized", "\"quantization_config\": {\"quant_method\": \"gptq\"}", SNUG_UNSUPPORTED,
     "\"quantization_config\": {\"quant_method\":\"gptq\"} is not supported"},
    {"gelu", "\"hidden_act\": \"gelu\"", SNUG_UNSUPPORTED,
     "\"hidden_act\": \"gelu\" is not supported; it must be silu"},
    {"linear layers", "\"layer_types\": [" FULL ", \"linear_attention\"]", SNUG_UNSUPPORTED,
     "\"layer_types\": \"linear_attention\" is not supported"},
    {"layers that differ",
     QWEN2 "\"use_sliding_window\": true, \"sliding_window\": 16, \"layer_types\": [" FULL
           "," SLIDES "]",
     SNUG_UNSUPPORTED, "\"layer_types\": layers that differ are not supported for qwen2"},
    {"windows that differ",
     QWEN2 "\"sliding_window\": 16, \"use_sliding_window\": true, \"max_window_layers\": 1",
     SNUG_UNSUPPORTED, "\"max_window_layers\": 1 gives some of the 2 layers a window"},
    {"llama slides", "\"sliding_window\": 16, \"layer_types\": [" SLIDES "," SLIDES "]",
     SNUG_UNSUPPORTED, "\"sliding_attention\" is not supported for llama"},
    {"slides and does not",
     QWEN3 "\"use_sliding_window\": false, \"sliding_window\": 16, \"layer_types\": [" SLIDES
           "," SLIDES "]",
     SNUG_BAD_FILE, "but \"use_sliding_window\" is not true"},
    {"slides, but not by default",
     QWEN3 "\"sliding_window\": 16, \"layer_types\": [" SLIDES "," SLIDES "]", SNUG_BAD_FILE,
     "but \"use_sliding_window\" is not true"},
    {"slides without a window",
     QWEN3 "\"use_sliding_window\": true, \"sliding_window\": null, \"layer_types\": [" SLIDES
           "," SLIDES "]",
     SNUG_BAD_FILE, "\"sliding_window\" must be an integer"},
    {"mistral's default of kv heads", MISTRAL WITHOUT("num_key_value_heads"), SNUG_BAD_FILE,
     "\"num_key_value_heads\" is missing, and \"num_attention_heads\" (4) is not a multiple of 8"},
    {"too few types", "\"layer_types\": [" FULL "]", SNUG_BAD_FILE, "each of the 2 layers"},
    {"mistral bias", MISTRAL "\"attention_bias\": true", SNUG_UNSUPPORTED,
     "\"attention_bias\": true is not supported for mistral"},
    {"qwen bias", QWEN2 "\"mlp_bias\": true", SNUG_UNSUPPORTED, "\"mlp_bias\": true is not"},
    {"kv heads", "\"num_key_value_heads\": 3", SNUG_BAD_FILE,
     "\"num_attention_heads\" (4) is not a multiple of \"num_key_value_heads\" (3)"},
    {"more kv heads", "\"num_key_value_heads\": 8", SNUG_BAD_FILE, "not a multiple"},
    {"no kv heads", "\"num_key_value_heads\": 0", SNUG_BAD_FILE, "\"num_key_value_heads\" is 0"},
    {"odd head", "\"head_dim\": 15", SNUG_BAD_FILE, "\"head_dim\" is 15, and rotary positions"},
    {"odd head by division", "\"hidden_size\": 36", SNUG_BAD_FILE, "\"head_dim\" is 9"},
    {"no head", "\"head_dim\": 0", SNUG_BAD_FILE, "\"head_dim\" is 0"},
    {"wide heads", "\"head_dim\": 65536", SNUG_BAD_FILE, "wider than 131072"},
    {"heads do not divide", "\"num_attention_heads\": 5, \"num_key_value_heads\": 5", SNUG_BAD_FILE,
     "\"hidden_size\" (48) is not a multiple of \"num_attention_heads\" (5)"},
    {"no layers", "\"num_hidden_layers\": 0", SNUG_BAD_FILE, "\"num_hidden_layers\" is 0"},
    {"layers below 0", "\"num_hidden_layers\": -2", SNUG_BAD_FILE, "\"num_hidden_layers\" is -2"},
    {"all layers", "\"num_hidden_layers\": 9223372036854775807", SNUG_BAD_FILE,
     "\"num_hidden_layers\" is 9223372036854775807"},
    {"huge vocabulary", "\"vocab_size\": 1099511627776", SNUG_BAD_FILE, "\"vocab_size\" is 1099"},
    {"width as text", "\"hidden_size\": \"48\"", SNUG_BAD_FILE, "\"hidden_size\" must be an int"},
    {"inner null", "\"intermediate_size\": null", SNUG_BAD_FILE,
     "\"intermediate_size\" must be an integer"},
    {"epsilon", "\"rms_norm_eps\": 0", SNUG_BAD_FILE, "\"rms_norm_eps\" must be above 0"},
    {"range", "\"initializer_range\": -1", SNUG_BAD_FILE, "\"initializer_range\" must be above 0"},
    {"tied as text", "\"tie_word_embeddings\": \"no\"", SNUG_BAD_FILE, "true or false"},
};

static void test_decoders(void **state)
{
    char dir[FILES_PATH_MAX], settings[256], again[256];
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < LENGTH(decoders); i++) {
        struct hf_config config, back;
        struct snug_error err = {0};
        write_config(dir, decoders[i].members);
        enum snug_status status = hf_config_read(dir, &config, &err);
        settings_of(&config, settings);
        const char *said = status == SNUG_OK ? settings : err.message;
        if (status != decoders[i].status || strstr(said, decoders[i].words) == NULL ||
            (status != SNUG_OK && strstr(said, "config.json: ") == NULL))
            fail_msg("case '%s': status %d, '%s'", decoders[i].name, status, said);
        if (status == SNUG_OK) { /* what is written reads back the same */
            config.tied_is_given = true;
            settings_of(&config, settings);
            char *text = hf_config_text(&config, DTYPE_bf16);
            assert_non_null(text);
            files_write_text(dir, "config.json", text);
            free(text);
            assert_int_equal(hf_config_read(dir, &back, &err), SNUG_OK);
            settings_of(&back, again);
            assert_string_equal(settings, again);
            free(back.source);
        }
        free(config.source);
    }
    files_remove_dir(dir);
}

/* A run keeps what its first config.json says about the tokenizer and the like, in the spelling that
 * both versions of transformers read. */
static void test_carried_over(void **state)
{
    static const char *const kept[] = {
        "\"eos_token_id\": [",           "\"bos_token_id\": 3",    "\"mine\": {",
        "\"torch_dtype\": \"bfloat16\"", "\"rope_theta\": 500000", "\"rope_type\": \"llama3\"",
        "\"Qwen3ForCausalLM\""};
    static const char *const gone[] = {"rope_parameters", "layer_types", "\"dtype\"", "Sequence"};
    char dir[FILES_PATH_MAX];
    struct hf_config config;
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    write_config(dir, QWEN3
                 "\"eos_token_id\": [1, 2], \"bos_token_id\": 3, \"mine\": {\"a\": 1}, "
                 "\"dtype\": \"float32\", \"layer_types\": [" FULL "," FULL "], "
                 "\"architectures\": [\"Qwen3ForSequenceClassification\"], "
                 "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 5e5, " LLAMA3
                 "}");
    assert_int_equal(hf_config_read(dir, &config, &err), SNUG_OK);
    char *text = hf_config_text(&config, DTYPE_bf16);
    assert_non_null(text);
    for (size_t i = 0; i < LENGTH(kept); i++)
        if (strstr(text, kept[i]) == NULL)
            fail_msg("%s is missing from %s", kept[i], text);
    for (size_t i = 0; i < LENGTH(gone); i++)
        if (strstr(text, gone[i]) != NULL)
            fail_msg("%s is still in %s", gone[i], text);
    free(text);
    free(config.source);
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
                    a->norm_eps == b->norm_eps && a->activation == b->activation);
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
        cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_carried_over),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
