/*
 * peft.c -- read and write adapter_config.json; see peft.h.
 */
#include "io/peft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "io/json.h"

/* Settings that make the adapter something other than W + scale B A.  A setting is off if it is
 * absent, null, false or empty. */
static const char *const refused[] = {
    "use_dora",          "modules_to_save",         "rank_pattern",
    "alpha_pattern",     "layer_replication",       "trainable_token_indices",
    "lora_bias",         "megatron_config",         "use_qalora",
    "target_parameters", "alora_invocation_tokens", "arrow_config"};

static bool is_off(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static enum snug_status check_kind(const json_t *root, const char *path, struct snug_error *err)
{
    const char *type, *bias = "none";
    TRY(json_get_string(root, path, "peft_type", &type, err));
    if (strcmp(type, "LORA") != 0)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: \"peft_type\": \"%.60s\" is not supported; only LORA is", path, type);
    if (json_has(root, "bias"))
        TRY(json_get_string(root, path, "bias", &bias, err));
    if (strcmp(bias, "none") != 0)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: \"bias\": \"%.60s\" is not supported; only \"none\" is", path, bias);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!is_off(json_object_get(root, refused[i])))
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "%s: \"%s\" is not supported: snug reads only plain LoRA adapters",
                             path, refused[i]);
    return SNUG_OK;
}

/* PEFT's target_modules are the ends of names, and so may be the words of --lora-on.  A pattern
 * (a regular expression) leaves `layers` empty. */
static enum snug_status read_layers(const json_t *root, const char *path,
                                    struct peft_config *config, struct snug_error *err)
{
    const json_t *targets = json_object_get(root, "target_modules"), *target;
    size_t length = 0, i;
    if (json_is_string(targets) && strcmp(json_string_value(targets), "all-linear") == 0)
        strcpy(config->layers, "all");
    if (!json_is_array(targets))
        return SNUG_OK;
    json_array_foreach(targets, i, target)
    {
        const char *word = json_string_value(target);
        if (word == NULL)
            return snug_fail(err, SNUG_BAD_FILE, "%s: \"target_modules\" must hold names", path);
        int n = snprintf(config->layers + length, sizeof config->layers - length, "%s%s",
                         i == 0 ? "" : ",", word);
        length += (size_t)n;
        if (length >= sizeof config->layers) { /* every layer by its full name: too many words */
            config->layers[0] = '\0';
            return SNUG_OK;
        }
    }
    return SNUG_OK;
}

static enum snug_status read_config(const json_t *root, const char *path,
                                    struct peft_config *config, struct snug_error *err)
{
    bool use_rslora = false;
    TRY(check_kind(root, path, err));
    TRY(json_get_integer(root, path, "r", 1, INT32_MAX, &config->rank, err));
    TRY(json_get_real(root, path, "lora_alpha", &config->alpha, err));
    if (!isfinite(config->alpha) || config->alpha <= 0)
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"lora_alpha\" must be above 0", path);
    if (json_has(root, "use_rslora"))
        TRY(json_get_bool(root, path, "use_rslora", &use_rslora, err));
    config->scale =
        config->alpha / (use_rslora ? sqrt((double)config->rank) : (double)config->rank);
    return read_layers(root, path, config, err);
}

enum snug_status peft_config_read(const char *folder, struct peft_config *config,
                                  struct snug_error *err)
{
    json_t *root = NULL;
    char *path = path_join(folder, PEFT_CONFIG_NAME, "");
    *config = (struct peft_config){0};
    if (path == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the adapter", folder);
    enum snug_status status = json_read_object(path, &root, err);
    if (status == SNUG_OK)
        status = read_config(root, path, config, err);
    json_decref(root);
    free(path);
    return status;
}

char *peft_config_text(const struct peft_config *config)
{
    json_t *targets = json_array();
    for (int i = 0; i < config->n_targets; i++)
        json_push(&targets, json_string(config->targets[i]));
    json_t *alpha = config->alpha == floor(config->alpha) && fabs(config->alpha) < 1e15
                        ? json_integer((json_int_t)config->alpha)
                        : json_real(config->alpha);
    json_t *root =
        json_pack("{s:s, s:o, s:b, s:b, s:b, s:I, s:o, s:f, s:s, s:o}", "peft_type", "LORA",
                  "task_type", config->is_language ? json_string("CAUSAL_LM") : json_null(),
                  "fan_in_fan_out", config->in_out ? 1 : 0, "inference_mode", 1,
                  "init_lora_weights", 1, "r", (json_int_t)config->rank, "lora_alpha", alpha,
                  "lora_dropout", 0.0, "bias", "none", "target_modules", targets);
    json_put(&root, "base_model_name_or_path",
             config->base == NULL ? json_null() : json_string(config->base));
    char *text = json_to_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(root);
    return text;
}

const char *peft_bare_name(const char *name)
{
    static const char *const prefixes[] = {"base_model.model.", "transformer."};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) != 0)
            return name; /* the second prefix counts only after the first */
        name += n;
    }
    return name;
}
