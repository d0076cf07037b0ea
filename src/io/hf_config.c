/*
 * hf_config.c -- read and write config.json; see hf_config.h.
 */
#include "io/hf_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "io/hf_decoder.h"

#define CONFIG_NAME "config.json"
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

static enum snug_status read_gpt2(const json_t *root, const char *path, struct hf_config *config,
                                  struct snug_error *err)
{
    struct decoder_shape *gpt2 = &config->decoder;
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size, n_inner;
    TRY(json_get_integer(root, path, "n_layer", 1, HF_LAYERS_MAX, &n_layer, err));
    TRY(json_get_integer(root, path, "n_head", 1, HF_HEADS_MAX, &n_head, err));
    TRY(json_get_integer(root, path, "n_embd", 1, HF_WIDTH_MAX, &n_embd, err));
    TRY(json_get_integer(root, path, "n_positions", 1, HF_POSITIONS_MAX, &n_positions, err));
    TRY(json_get_integer(root, path, "vocab_size", 1, HF_VOCABULARY_MAX, &vocab_size, err));
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
    TRY(hf_read_positive(root, path, "layer_norm_epsilon", &gpt2->norm_eps, err));
    TRY(hf_read_positive(root, path, "initializer_range", &gpt2->init_std, err));
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
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        TRY(hf_read_rate(root, path, rates[i].key, rates[i].rate, config, err));
    return SNUG_OK;
}

static json_t *gpt2_json(const struct hf_config *config)
{
    const struct decoder_shape *gpt2 = &config->decoder;
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
        {"initializer_range", json_real(gpt2->init_std)},
        {"embd_pdrop", json_real(config->dropout.embedding)},
        {"attn_pdrop", json_real(config->dropout.attention)},
        {"resid_pdrop", json_real(config->dropout.residual)},
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

static enum snug_status read_object(const json_t *root, const char *path, struct hf_config *config,
                                    struct snug_error *err)
{
    const char *type;
    TRY(json_get_string(root, path, "model_type", &type, err));
    if (strcmp(type, MLP_TYPE) == 0) {
        config->model = HF_MLP;
        return read_mlp(root, path, &config->mlp, err);
    }
    if (strcmp(type, VISION_TYPE) == 0) {
        config->model = HF_VISION;
        return read_vision(root, path, &config->vision, err);
    }
    config->model = HF_DECODER;
    if (hf_decoder_has(type)) {
        TRY(hf_decoder_read(root, path, type, config, err));
    } else if (strcmp(type, "gpt2") == 0) {
        TRY(read_gpt2(root, path, config, err));
        TRY(read_dropout(root, path, config, err));
        config->tied_is_given = true;
    } else {
        return snug_fail(
            err, SNUG_UNSUPPORTED,
            "%s: \"model_type\": \"%.60s\" is not supported; use gpt2, " HF_DECODER_TYPES
            ", " MLP_TYPE " or " VISION_TYPE,
            path, type);
    }
    config->source = json_to_text(root, JSON_COMPACT);
    return config->source != NULL ? SNUG_OK
                                  : snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory", path);
}

static enum snug_status read_file(const char *path, struct hf_config *config,
                                  struct snug_error *err)
{
    json_t *root;
    TRY(json_read_object(path, &root, err));
    enum snug_status status = read_object(root, path, config, err);
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

static const char *torch_name(enum dtype dtype)
{
    return dtype == DTYPE_bf16 ? "bfloat16" : dtype == DTYPE_f16 ? "float16" : "float32";
}

/* GPT-2's is the default of transformers.  Others have none that fits every tokenizer. */
static void put_ends(json_t **root, const struct decoder_shape *d)
{
    enum { END_OF_TEXT = 50256 };
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    bool has_end = d->family == DECODER_gpt2 && d->vocab_size > END_OF_TEXT;
    for (int i = 0; i < 2; i++)
        if (json_object_get(*root, keys[i]) == NULL)
            json_put(root, keys[i], has_end ? json_integer(END_OF_TEXT) : json_null());
}

/* Is this key of the file read replaced by others in the file written? */
static bool is_replaced(const char *key)
{
    static const char *const keys[] = {"rope_parameters", "layer_types", "dtype"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* Carries over what the file read says about things that snug does not know. */
static void put_others(json_t **root, const char *source)
{
    json_t *others = NULL, *value;
    const char *key;
    if (source == NULL)
        return;
    if (json_parse(source, strlen(source), CONFIG_NAME, &others, NULL) != SNUG_OK) {
        json_decref(*root);
        *root = NULL;
        return;
    }
    json_object_foreach(others, key,
                        value) if (json_object_get(*root, key) == NULL && !is_replaced(key))
        json_put(root, key, json_incref(value));
    json_decref(others);
}

static json_t *decoder_json(const struct hf_config *config, enum dtype dtype)
{
    const struct decoder_shape *d = &config->decoder;
    json_t *root = d->family == DECODER_gpt2 ? gpt2_json(config) : hf_decoder_json(config);
    json_put(&root, "torch_dtype", json_string(torch_name(dtype)));
    put_others(&root, config->source);
    put_ends(&root, d);
    return root;
}

char *hf_config_text(const struct hf_config *config, enum dtype dtype)
{
    json_t *root = config->model == HF_DECODER ? decoder_json(config, dtype)
                   : config->model == HF_MLP   ? mlp_json(&config->mlp)
                                               : vision_json(&config->vision);
    char *text = json_to_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(root);
    return text;
}

/* The classes with an LM head add one of these to the names of the model inside. */
static const char *const prefixes[] = {"transformer.", "model."};

const char *hf_prefix(enum decoder_family family)
{
    return family == DECODER_gpt2 ? prefixes[0] : "";
}

const char *hf_bare_name(const char *name)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

const struct st_entry *hf_find_tensor(const struct safetensors *st, const char *name)
{
    const struct st_entry *entry = safetensors_find(st, name);
    const char *bare = hf_bare_name(name);
    char longer[256];
    if (entry == NULL && bare != name)
        return safetensors_find(st, bare);
    for (size_t i = 0; entry == NULL && i < sizeof prefixes / sizeof *prefixes; i++)
        if ((size_t)snprintf(longer, sizeof longer, "%s%s", prefixes[i], name) < sizeof longer)
            entry = safetensors_find(st, longer);
    return entry;
}

const struct st_entry *hf_find_embedding(const struct safetensors *st)
{
    const struct st_entry *table = hf_find_tensor(st, "model.embed_tokens.weight");
    return table != NULL ? table : hf_find_tensor(st, "wte.weight");
}
