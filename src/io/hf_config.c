/*
 * hf_config.c -- read and write config.json; see hf_config.h.
 */
#include "io/hf_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "io/json.h"

#define CONFIG_NAME "config.json"
#define PREFIX      "transformer."
#define MLP_TYPE    "snug-mlp"
#define VISION_TYPE "snug-vision"

/* The first entry of an activation is the name we write.  Our gelu is the tanh approximation. */
static const struct {
    const char *name;
    enum act act;
} activations[] = {{"gelu_new", ACT_gelu},  {"gelu_pytorch_tanh", ACT_gelu},
                   {"gelu_fast", ACT_gelu}, {"relu", ACT_relu},
                   {"tanh", ACT_tanh},      {"sigmoid", ACT_sigmoid},
                   {"linear", ACT_none}};

static const char *const loss_names[] = {
    [HF_CROSS_ENTROPY] = "cross_entropy", [HF_MEAN_SQUARED_ERROR] = "mean_squared_error"};

static enum snug_status get_activation(const json_t *root, const char *path, const char *key,
                                       enum act *act, struct snug_error *err)
{
    const char *name;
    TRY(json_get_string(root, path, key, &name, err));
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (strcmp(name, activations[i].name) == 0) {
            *act = activations[i].act;
            return SNUG_OK;
        }
    return snug_fail(
        err, SNUG_UNSUPPORTED,
        "%s: \"%s\": \"%s\" is not supported; use gelu_new, relu, tanh, sigmoid or linear", path,
        key, name);
}

static const char *activation_name(enum act act)
{
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (activations[i].act == act)
            return activations[i].name;
    return "linear";
}

/* Far above today's models (GPT-3: 96 layers; Llama 3.1 405B: 126 layers, width 16,384), but low
 * enough that a file of a hundred bytes cannot take minutes and gigabytes to plan. */
enum {
    LAYERS_MAX = 512,
    HEADS_MAX = 1024,
    WIDTH_MAX = 1 << 17,
    POSITIONS_MAX = 1 << 24,
    VOCABULARY_MAX = 1 << 24
};

/* ---- GPT-2 ------------------------------------------------------------------------------- */

/* Switches that change the computation must have the value that snug implements. */
static enum snug_status check_switches(const json_t *root, const char *path, struct snug_error *err)
{
    static const struct {
        const char *key;
        bool known;
    } switches[] = {{"scale_attn_weights", true},
                    {"scale_attn_by_inverse_layer_idx", false},
                    {"add_cross_attention", false},
                    {"tie_word_embeddings", true}};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        bool value = switches[i].known;
        if (json_has(root, switches[i].key))
            TRY(json_get_bool(root, path, switches[i].key, &value, err));
        if (value != switches[i].known)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "%s: \"%s\": %s is not supported for GPT-2; it must be %s", path,
                             switches[i].key, value ? "true" : "false", value ? "false" : "true");
    }
    return SNUG_OK;
}

static enum snug_status read_gpt2(const json_t *root, const char *path, struct decoder_shape *gpt2,
                                  struct snug_error *err)
{
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size, n_inner;
    TRY(json_get_integer(root, path, "n_layer", 1, LAYERS_MAX, &n_layer, err));
    TRY(json_get_integer(root, path, "n_head", 1, HEADS_MAX, &n_head, err));
    TRY(json_get_integer(root, path, "n_embd", 1, WIDTH_MAX, &n_embd, err));
    TRY(json_get_integer(root, path, "n_positions", 1, POSITIONS_MAX, &n_positions, err));
    TRY(json_get_integer(root, path, "vocab_size", 1, VOCABULARY_MAX, &vocab_size, err));
    *gpt2 = decoder_gpt2(n_layer, n_head, n_embd, n_positions, vocab_size);
    if (gpt2->n_embd % gpt2->n_head != 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"n_embd\" (%lld) is not a multiple of \"n_head\" (%lld)", path,
                         (long long)gpt2->n_embd, (long long)gpt2->n_head);
    if (json_has(root, "n_inner")) {
        TRY(json_get_integer(root, path, "n_inner", 1, INT64_MAX, &n_inner, err));
        if (n_inner != 4 * gpt2->n_embd)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "%s: \"n_inner\": %lld is not supported; it must be 4 x n_embd = %lld",
                             path, (long long)n_inner, (long long)(4 * gpt2->n_embd));
    }
    if (json_has(root, "layer_norm_epsilon"))
        TRY(json_get_real(root, path, "layer_norm_epsilon", &gpt2->norm_eps, err));
    if (!(gpt2->norm_eps > 0) || !isfinite(gpt2->norm_eps))
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"layer_norm_epsilon\" must be above 0", path);
    if (json_has(root, "activation_function"))
        TRY(get_activation(root, path, "activation_function", &gpt2->activation, err));
    return check_switches(root, path, err);
}

static enum snug_status read_dropout(const json_t *root, const char *path, struct hf_config *config,
                                     struct snug_error *err)
{
    const struct {
        const char *key;
        double *rate;
    } rates[] = {{"embd_pdrop", &config->dropout.embedding},
                 {"attn_pdrop", &config->dropout.attention},
                 {"resid_pdrop", &config->dropout.residual}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        if (!json_has(root, rates[i].key))
            continue;
        TRY(json_get_real(root, path, rates[i].key, rates[i].rate, err));
        if (!(*rates[i].rate >= 0) || !(*rates[i].rate < 1))
            return snug_fail(err, SNUG_BAD_FILE, "%s: \"%s\" must be at least 0 and below 1", path,
                             rates[i].key);
        config->has_dropout = true;
    }
    return SNUG_OK;
}

static const char *torch_name(enum dtype dtype)
{
    return dtype == DTYPE_bf16 ? "bfloat16" : dtype == DTYPE_f16 ? "float16" : "float32";
}

static json_t *gpt2_json(const struct hf_config *config, enum dtype dtype)
{
    const struct decoder_shape *gpt2 = &config->decoder;
    enum { END_OF_TEXT = 50256 }; /* the default of transformers */
    bool has_end_of_text = gpt2->vocab_size > END_OF_TEXT;
    const struct {
        const char *key;
        json_t *value;
    } members[] = {
        {"model_type", json_string("gpt2")},
        {"architectures", json_pack("[s]", "GPT2LMHeadModel")},
        {"activation_function", json_string(activation_name(gpt2->activation))},
        {"n_layer", json_integer(gpt2->n_layer)},
        {"n_head", json_integer(gpt2->n_head)},
        {"n_embd", json_integer(gpt2->n_embd)},
        {"n_inner", json_null()},
        {"n_positions", json_integer(gpt2->n_positions)},
        {"n_ctx", json_integer(gpt2->n_positions)},
        {"vocab_size", json_integer(gpt2->vocab_size)},
        {"layer_norm_epsilon", json_real(gpt2->norm_eps)},
        {"tie_word_embeddings", json_true()},
        {"initializer_range", json_real(0.02)},
        {"bos_token_id", has_end_of_text ? json_integer(END_OF_TEXT) : json_null()},
        {"eos_token_id", has_end_of_text ? json_integer(END_OF_TEXT) : json_null()},
        {"embd_pdrop", json_real(config->dropout.embedding)},
        {"attn_pdrop", json_real(config->dropout.attention)},
        {"resid_pdrop", json_real(config->dropout.residual)},
        {"torch_dtype", json_string(torch_name(dtype))},
    };
    json_t *root = json_object();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        json_put(&root, members[i].key, members[i].value);
    return root;
}

/* ---- mlp --------------------------------------------------------------------------------- */

static enum snug_status read_mlp(const json_t *root, const char *path, struct hf_mlp *mlp,
                                 struct snug_error *err)
{
    const json_t *sizes = json_object_get(root, "sizes");
    const char *loss;
    *mlp = (struct hf_mlp){0};
    if (json_array_size(sizes) < 2 || json_array_size(sizes) > HF_MAX_SIZES)
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"sizes\" must be a list of 2 to %d integers",
                         path, HF_MAX_SIZES);
    mlp->n_sizes = (int)json_array_size(sizes);
    for (int i = 0; i < mlp->n_sizes; i++) {
        const json_t *size = json_array_get(sizes, (size_t)i);
        mlp->sizes[i] = json_integer_value(size);
        if (!json_is_integer(size) || mlp->sizes[i] < 1 || mlp->sizes[i] > INT32_MAX)
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: \"sizes\": element %d must be an integer from 1 to %d", path,
                             i + 1, INT32_MAX);
    }
    TRY(get_activation(root, path, "activation", &mlp->activation, err));
    TRY(json_get_string(root, path, "loss", &loss, err));
    for (int i = 0; i < 2; i++)
        if (strcmp(loss, loss_names[i]) == 0) {
            mlp->loss = (enum hf_loss)i;
            return SNUG_OK;
        }
    return snug_fail(err, SNUG_UNSUPPORTED, "%s: \"loss\": \"%s\" is not supported; use %s or %s",
                     path, loss, loss_names[0], loss_names[1]);
}

static json_t *mlp_json(const struct hf_mlp *mlp)
{
    json_t *sizes = json_array();
    for (int i = 0; i < mlp->n_sizes; i++)
        json_push(&sizes, json_integer(mlp->sizes[i]));
    return json_pack("{s:s, s:o, s:s, s:s}", "model_type", MLP_TYPE, "sizes", sizes, "activation",
                     activation_name(mlp->activation), "loss", loss_names[mlp->loss]);
}

/* ---- image networks ----------------------------------------------------------------------- */

static enum snug_status read_vision(const json_t *root, const char *path, struct hf_vision *vision,
                                    struct snug_error *err)
{
    const char *network;
    *vision = (struct hf_vision){0};
    TRY(json_get_string(root, path, "network", &network, err));
    TRY(json_get_integer(root, path, "num_channels", 1, INT16_MAX, &vision->channels, err));
    TRY(json_get_integer(root, path, "image_height", 1, INT16_MAX, &vision->height, err));
    TRY(json_get_integer(root, path, "image_width", 1, INT16_MAX, &vision->width, err));
    TRY(json_get_integer(root, path, "num_classes", 1, INT32_MAX, &vision->n_classes, err));
    if ((size_t)snprintf(vision->network, sizeof vision->network, "%s", network) >=
        sizeof vision->network)
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"network\": the name is too long", path);
    return SNUG_OK;
}

static json_t *vision_json(const struct hf_vision *vision)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "model_type", VISION_TYPE, "network",
                     vision->network, "num_channels", (json_int_t)vision->channels, "image_height",
                     (json_int_t)vision->height, "image_width", (json_int_t)vision->width,
                     "num_classes", (json_int_t)vision->n_classes);
}

/* ---- all -------------------------------------------------------------------------------- */

static enum snug_status read_file(const char *path, struct hf_config *config,
                                  struct snug_error *err)
{
    json_t *root;
    const char *type;
    TRY(json_read_object(path, &root, err));
    enum snug_status status = json_get_string(root, path, "model_type", &type, err);
    if (status != SNUG_OK) {
        /* err is set */
    } else if (strcmp(type, "gpt2") == 0) {
        config->model = HF_DECODER;
        status = read_gpt2(root, path, &config->decoder, err);
        if (status == SNUG_OK)
            status = read_dropout(root, path, config, err);
    } else if (strcmp(type, MLP_TYPE) == 0) {
        config->model = HF_MLP;
        status = read_mlp(root, path, &config->mlp, err);
    } else if (strcmp(type, VISION_TYPE) == 0) {
        config->model = HF_VISION;
        status = read_vision(root, path, &config->vision, err);
    } else {
        status = snug_fail(err, SNUG_UNSUPPORTED,
                           "%s: \"model_type\": \"%s\" is not supported; use gpt2, %s or %s", path,
                           type, MLP_TYPE, VISION_TYPE);
    }
    json_decref(root);
    return status;
}

enum snug_status hf_config_read(const char *path, struct hf_config *config, struct snug_error *err)
{
    struct stat info;
    *config = (struct hf_config){0};
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return read_file(path, config, err);
    char *inside = path_join(path, CONFIG_NAME, "");
    if (inside == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the folder", path);
    enum snug_status status = read_file(inside, config, err);
    free(inside);
    return status;
}

char *hf_config_text(const struct hf_config *config, enum dtype dtype)
{
    json_t *root = config->model == HF_DECODER  ? gpt2_json(config, dtype)
                   : config->model == HF_MLP ? mlp_json(&config->mlp)
                                             : vision_json(&config->vision);
    char *text = json_to_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(root);
    return text;
}

const struct st_entry *hf_find_tensor(const struct safetensors *st, const char *name)
{
    const struct st_entry *entry = safetensors_find(st, name);
    char longer[256];
    if (entry != NULL)
        return entry;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) == 0)
        return safetensors_find(st, name + sizeof PREFIX - 1);
    if ((size_t)snprintf(longer, sizeof longer, PREFIX "%s", name) >= sizeof longer)
        return NULL;
    return safetensors_find(st, longer);
}
