/*
 * hf_decoder.c -- read and write config.json of Llama, Mistral, Qwen2 and Qwen3; see hf_decoder.h.
 *
 * A file is read as transformers reads it.  Settings that would change the result and that
 * model/decoder.c does not have are refused by name; all other unknown keys are ignored.
 */
#include "io/hf_decoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/hf_rope.h"

/* How a family says that a token sees only the last tokens. */
enum window_keys {
    WINDOW_never,
    WINDOW_always, /* Mistral: sliding_window, for all layers; null turns it off */
    WINDOW_from    /* Qwen: if use_sliding_window, for the layers from max_window_layers on */
};

static const struct family {
    enum decoder_family family;
    const char *type, *architecture;
    enum window_keys window;
    bool has_qkv_bias;       /* Qwen2 has these biases, and no key for them */
    bool has_attention_bias; /* has the key attention_bias, for q, k, v and the output */
    bool has_mlp_bias, has_qk_norm;
    /* The defaults of transformers for keys that are missing (not null); 0: as for null. */
    int64_t n_kv_head, head_dim;
} families[] = {
    {DECODER_llama, "llama", "LlamaForCausalLM", WINDOW_never, false, true, true, false, 0, 0},
    {DECODER_mistral, "mistral", "MistralForCausalLM", WINDOW_always, false, false, false, false, 8,
     0},
    {DECODER_qwen2, "qwen2", "Qwen2ForCausalLM", WINDOW_from, true, false, false, false, 32, 0},
    {DECODER_qwen3, "qwen3", "Qwen3ForCausalLM", WINDOW_from, false, true, false, true, 32, 128}};
enum { N_FAMILIES = sizeof families / sizeof *families };

/* Defaults of the families with windows. */
enum { DEFAULT_WINDOW = 4096, QWEN_FULL_LAYERS = 28 };

static const struct {
    const char *key;
    size_t offset; /* in struct decoder_shape */
    int64_t max;
} sizes[] = {
    {"num_hidden_layers", offsetof(struct decoder_shape, n_layer), HF_LAYERS_MAX},
    {"hidden_size", offsetof(struct decoder_shape, n_embd), HF_WIDTH_MAX},
    {"intermediate_size", offsetof(struct decoder_shape, n_inner), 8 * HF_WIDTH_MAX},
    {"num_attention_heads", offsetof(struct decoder_shape, n_head), HF_HEADS_MAX},
    {"max_position_embeddings", offsetof(struct decoder_shape, n_positions), HF_POSITIONS_MAX},
    {"vocab_size", offsetof(struct decoder_shape, vocab_size), HF_VOCABULARY_MAX}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* Settings that change the result, and the value at which they do not.  null, false and empty
 * lists are harmless, too. */
static const struct {
    const char *key;
    double neutral;
    const char *what;
} refused[] = {{"num_experts", 0, "mixtures of experts"},
               {"num_local_experts", 0, "mixtures of experts"},
               {"n_routed_experts", 0, "mixtures of experts"},
               {"moe_num_experts", 0, "mixtures of experts"},
               {"kv_lora_rank", 0, "multi-head latent attention"},
               {"q_lora_rank", 0, "multi-head latent attention"},
               {"attn_logit_softcapping", 0, "capped attention scores"},
               {"final_logit_softcapping", 0, "capped logits"},
               {"partial_rotary_factor", 1, "a rotation of a part of each head"},
               {"rotary_pct", 1, "a rotation of a part of each head"},
               {"no_rope_layers", 0, "layers without rotation"},
               {"no_rope_layer_interval", 0, "layers without rotation"},
               {"attention_multiplier", NAN, "another scale of the attention scores"},
               {"query_pre_attn_scalar", NAN, "another scale of the attention scores"},
               {"attn_temperature_tuning", 0, "another scale of the attention scores"},
               {"residual_multiplier", 1, "scaled residual branches"},
               {"embedding_multiplier", 1, "scaled embeddings"},
               {"logits_scaling", 1, "scaled logits"},
               {"logit_scale", 1, "scaled logits"},
               {"attention_chunk_size", 0, "attention in chunks"},
               {"sliding_window_pattern", 0, "layers with different windows"},
               {"clip_qkv", 0, "clipped q, k and v"},
               {"alibi", 0, "ALiBi positions"},
               {"use_parallel_residual", 0, "parallel attention and MLP"},
               {"parallel_attn", 0, "parallel attention and MLP"},
               {"use_qk_norm", 0, "this norm of q and k"},
               {"qk_layernorm", 0, "this norm of q and k"},
               {"lm_head_bias", 0, "a bias of the LM head"},
               {"add_cross_attention", 0, "cross attention"},
               {"is_encoder_decoder", 0, "an encoder"},
               {"vision_config", 0, "a model of several parts"},
               {"text_config", 0, "a model of several parts"},
               {"num_nextn_predict_layers", 0, "multi-token prediction"},
               {"quantization_config", 0, "quantized files"}};
enum { N_REFUSED = sizeof refused / sizeof *refused };

static const struct family *find_type(const char *model_type)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(model_type, families[i].type) == 0)
            return &families[i];
    return NULL;
}

bool hf_decoder_has(const char *model_type)
{
    return find_type(model_type) != NULL;
}

/* ---- reading ------------------------------------------------------------------------------ */

static bool is_neutral(const json_t *value, double neutral)
{
    if (json_is_number(value))
        return json_number_value(value) == neutral;
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static enum snug_status refuse_value(const json_t *value, const char *path, const char *key,
                                     const char *what, struct snug_error *err)
{
    char *text = json_to_text(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory", path);
    snug_fail(err, SNUG_UNSUPPORTED, "%s: \"%s\": %.60s is not supported: snug does not have %s",
              path, key, text, what);
    free(text);
    return SNUG_UNSUPPORTED;
}

static enum snug_status refuse_unknown(const json_t *root, const char *path, struct snug_error *err)
{
    const char *act = "silu";
    for (int i = 0; i < N_REFUSED; i++) {
        const json_t *value = json_object_get(root, refused[i].key);
        if (!is_neutral(value, refused[i].neutral))
            return refuse_value(value, path, refused[i].key, refused[i].what, err);
    }
    if (json_has(root, "hidden_act"))
        TRY(json_get_string(root, path, "hidden_act", &act, err));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: \"hidden_act\": \"%.60s\" is not supported; it must be silu", path,
                         act);
    return SNUG_OK;
}

static enum snug_status get_flag(const json_t *root, const char *path, const char *key, bool *flag,
                                 struct snug_error *err)
{
    return json_has(root, key) ? json_get_bool(root, path, key, flag, err) : SNUG_OK;
}

static bool is_missing(const json_t *root, const char *key)
{
    return json_object_get(root, key) == NULL;
}

static enum snug_status read_kv_heads(const json_t *root, const char *path,
                                      const struct family *family, struct decoder_shape *d,
                                      struct snug_error *err)
{
    static const char key[] = "num_key_value_heads";
    bool is_default = is_missing(root, key) && family->n_kv_head > 0;
    d->n_kv_head = is_default ? family->n_kv_head : d->n_head;
    if (json_has(root, key))
        TRY(json_get_integer(root, path, key, 1, HF_HEADS_MAX, &d->n_kv_head, err));
    if (d->n_head % d->n_kv_head == 0)
        return SNUG_OK;
    if (is_default)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"%s\" is missing, and \"num_attention_heads\" (%lld) is not a "
                         "multiple of %lld, its default for %s",
                         path, key, (long long)d->n_head, (long long)d->n_kv_head, family->type);
    return snug_fail(err, SNUG_BAD_FILE,
                     "%s: \"num_attention_heads\" (%lld) is not a multiple of \"%s\" (%lld)", path,
                     (long long)d->n_head, key, (long long)d->n_kv_head);
}

static enum snug_status read_heads(const json_t *root, const char *path,
                                   const struct family *family, struct decoder_shape *d,
                                   struct snug_error *err)
{
    TRY(read_kv_heads(root, path, family, d, err));
    if (json_has(root, "head_dim"))
        TRY(json_get_integer(root, path, "head_dim", 1, HF_WIDTH_MAX, &d->head_dim, err));
    else if (is_missing(root, "head_dim") && family->head_dim > 0)
        d->head_dim = family->head_dim;
    else if (d->n_embd % d->n_head != 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"hidden_size\" (%lld) is not a multiple of \"num_attention_heads\" "
                         "(%lld), and there is no \"head_dim\"",
                         path, (long long)d->n_embd, (long long)d->n_head);
    else
        d->head_dim = d->n_embd / d->n_head;
    if (d->head_dim % 2 != 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"head_dim\" is %lld, and rotary positions need an even number", path,
                         (long long)d->head_dim);
    if (d->n_head * d->head_dim > HF_WIDTH_MAX)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: %lld heads of \"head_dim\" %lld are wider than %d", path,
                         (long long)d->n_head, (long long)d->head_dim, HF_WIDTH_MAX);
    return SNUG_OK;
}

static enum snug_status read_biases(const json_t *root, const char *path,
                                    const struct family *family, struct decoder_shape *d,
                                    struct snug_error *err)
{
    bool attention = false, mlp = false;
    TRY(get_flag(root, path, "attention_bias", &attention, err));
    TRY(get_flag(root, path, "mlp_bias", &mlp, err));
    if ((attention && !family->has_attention_bias && !family->has_qkv_bias) ||
        (mlp && !family->has_mlp_bias))
        return snug_fail(err, SNUG_UNSUPPORTED, "%s: \"%s\": true is not supported for %s", path,
                         mlp ? "mlp_bias" : "attention_bias", family->type);
    d->qkv_bias = family->has_qkv_bias || attention;
    d->out_bias = family->has_attention_bias && attention;
    d->mlp_bias = mlp;
    return SNUG_OK;
}

/* Counts the sliding layers in "layer_types", -1 if there is none. */
static enum snug_status count_sliding(const json_t *root, const char *path, int64_t n_layer,
                                      int64_t *n_sliding, struct snug_error *err)
{
    const json_t *types = json_object_get(root, "layer_types");
    *n_sliding = -1;
    if (!json_has(root, "layer_types"))
        return SNUG_OK;
    if (!json_is_array(types) || (int64_t)json_array_size(types) != n_layer)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"layer_types\" must be a list with an entry for each of the %lld "
                         "layers",
                         path, (long long)n_layer);
    *n_sliding = 0;
    for (int64_t i = 0; i < n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool slides = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (type == NULL || (!slides && strcmp(type, "full_attention") != 0))
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "%s: \"layer_types\": \"%.60s\" is not supported; use full_attention "
                             "or sliding_attention",
                             path, type == NULL ? "" : type);
        *n_sliding += slides;
    }
    return SNUG_OK;
}

/* Without "layer_types", Qwen's layers slide from max_window_layers on. */
static enum snug_status read_qwen_window(const json_t *root, const char *path, int64_t n_layer,
                                         int64_t *n_sliding, struct snug_error *err)
{
    bool uses = false;
    int64_t n_full = QWEN_FULL_LAYERS;
    TRY(get_flag(root, path, "use_sliding_window", &uses, err));
    if (*n_sliding > 0 && !uses)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"layer_types\" has sliding_attention, but \"use_sliding_window\" is "
                         "not true",
                         path);
    if (json_has(root, "max_window_layers"))
        TRY(json_get_integer(root, path, "max_window_layers", 0, INT64_MAX, &n_full, err));
    if (*n_sliding >= 0)
        return SNUG_OK;
    bool has_window = is_missing(root, "sliding_window") || json_has(root, "sliding_window");
    bool slides = uses && has_window && n_full < n_layer;
    if (slides && n_full > 0)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: \"use_sliding_window\" with \"max_window_layers\": %lld gives some "
                         "of the %lld layers a window; snug needs all or none",
                         path, (long long)n_full, (long long)n_layer);
    *n_sliding = slides ? n_layer : 0;
    return SNUG_OK;
}

/* A Mistral with "layer_types" is a Ministral to transformers: they win. */
static enum snug_status read_window(const json_t *root, const char *path,
                                    const struct family *family, struct decoder_shape *d,
                                    struct snug_error *err)
{
    int64_t n_sliding;
    bool is_default = is_missing(root, "sliding_window");
    TRY(count_sliding(root, path, d->n_layer, &n_sliding, err));
    if (n_sliding > 0 && (family->window == WINDOW_never || n_sliding < d->n_layer))
        return snug_fail(
            err, SNUG_UNSUPPORTED, "%s: \"layer_types\": %s not supported for %s", path,
            family->window == WINDOW_never ? "\"sliding_attention\" is" : "layers that differ are",
            family->type);
    if (family->window == WINDOW_from)
        TRY(read_qwen_window(root, path, d->n_layer, &n_sliding, err));
    else if (family->window == WINDOW_always && n_sliding < 0 &&
             (is_default || json_has(root, "sliding_window")))
        n_sliding = d->n_layer;
    if (n_sliding <= 0)
        return SNUG_OK;
    d->window = DEFAULT_WINDOW;
    if (is_default)
        return SNUG_OK;
    return json_get_integer(root, path, "sliding_window", 1, INT32_MAX, &d->window, err);
}

enum snug_status hf_read_positive(const json_t *root, const char *path, const char *key,
                                  double *value, struct snug_error *err)
{
    if (json_has(root, key))
        TRY(json_get_real(root, path, key, value, err));
    if (!(*value > 0) || !isfinite(*value))
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"%s\" must be above 0", path, key);
    return SNUG_OK;
}

enum snug_status hf_read_rate(const json_t *root, const char *path, const char *key, double *rate,
                              struct hf_config *config, struct snug_error *err)
{
    if (!json_has(root, key))
        return SNUG_OK;
    TRY(json_get_real(root, path, key, rate, err));
    if (!(*rate >= 0) || !(*rate < 1))
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"%s\" must be at least 0 and below 1", path,
                         key);
    config->has_dropout = true;
    return SNUG_OK;
}

enum snug_status hf_decoder_read(const json_t *root, const char *path, const char *model_type,
                                 struct hf_config *config, struct snug_error *err)
{
    const struct family *family = find_type(model_type);
    struct decoder_shape *d = &config->decoder;
    *d = (struct decoder_shape){.family = family->family,
                                .norm_eps = 1e-6,
                                .init_std = 0.02,
                                .qk_norm = family->has_qk_norm};
    TRY(refuse_unknown(root, path, err));
    for (int i = 0; i < N_SIZES; i++)
        TRY(json_get_integer(root, path, sizes[i].key, 1, sizes[i].max,
                             (int64_t *)(void *)((char *)d + sizes[i].offset), err));
    TRY(read_heads(root, path, family, d, err));
    TRY(read_biases(root, path, family, d, err));
    TRY(read_window(root, path, family, d, err));
    TRY(hf_read_positive(root, path, "rms_norm_eps", &d->norm_eps, err));
    TRY(hf_read_positive(root, path, "initializer_range", &d->init_std, err));
    TRY(hf_read_rate(root, path, "attention_dropout", &config->dropout.attention, config, err));
    config->tied_is_given = json_has(root, "tie_word_embeddings");
    TRY(get_flag(root, path, "tie_word_embeddings", &d->tied, err));
    return hf_rope_read(root, path, &d->rope, err);
}

/* ---- writing ------------------------------------------------------------------------------ */

static void put_window(json_t **root, const struct family *family, const struct decoder_shape *d)
{
    json_t *window = d->window > 0 ? json_integer(d->window) : json_null();
    if (family->window == WINDOW_never) {
        json_decref(window);
        return;
    }
    json_put(root, "sliding_window", window);
    if (family->window != WINDOW_from)
        return;
    json_put(root, "use_sliding_window", json_boolean(d->window > 0));
    if (d->window > 0)
        json_put(root, "max_window_layers", json_integer(0));
}

json_t *hf_decoder_json(const struct hf_config *config)
{
    const struct decoder_shape *d = &config->decoder;
    const struct family *family = families;
    while (family->family != d->family)
        family++;
    json_t *root = json_object();
    json_put(&root, "model_type", json_string(family->type));
    json_put(&root, "architectures", json_pack("[s]", family->architecture));
    json_put(&root, "hidden_act", json_string("silu"));
    for (int i = 0; i < N_SIZES; i++) {
        const void *size = (const char *)d + sizes[i].offset;
        json_put(&root, sizes[i].key, json_integer(*(const int64_t *)size));
    }
    json_put(&root, "num_key_value_heads", json_integer(d->n_kv_head));
    json_put(&root, "head_dim", json_integer(d->head_dim));
    json_put(&root, "rms_norm_eps", json_real(d->norm_eps));
    json_put(&root, "initializer_range", json_real(d->init_std));
    json_put(&root, "tie_word_embeddings", json_boolean(d->tied));
    json_put(&root, "attention_dropout", json_real(config->dropout.attention));
    if (family->has_attention_bias)
        json_put(&root, "attention_bias", json_boolean(d->out_bias));
    if (family->has_mlp_bias)
        json_put(&root, "mlp_bias", json_boolean(d->mlp_bias));
    put_window(&root, family, d);
    hf_rope_put(&root, &d->rope);
    return root;
}
