/*
 * config_hint.c -- which key of config.json explains that a model and its weights do not match.
 */
#include "checkpoint/config_hint.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "io/hf_config.h"

/* Tensors that a key turns on and off. */
static const struct {
    const char *ending, *keys;
} switched[] = {{HF_HEAD_NAME, "\"tie_word_embeddings\""},
                {"_proj.bias", "\"attention_bias\" and \"model_type\""}, /* Qwen2 has no key */
                {"q_norm.weight", "\"model_type\""},
                {"k_norm.weight", "\"model_type\""}};

/* The length of "layers.12." or "h.12." at the start of a bare name, or 0. */
static size_t layer_length(const char *name)
{
    static const char *const words[] = {"layers.", "h."};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]), digits = 0;
        if (strncmp(name, words[i], n) == 0)
            digits = strspn(name + n, "0123456789");
        if (digits > 0 && name[n + digits] == '.')
            return n + digits + 1;
    }
    return 0;
}

/* Does the model or the file lack the whole layer that this tensor belongs to? */
static bool is_layer_missing(const struct program *prog, const struct safetensors *st,
                             const char *name)
{
    size_t length = layer_length(name);
    bool in_model = false, in_file = false;
    for (int id = 0; id < prog->n_tensors; id++)
        in_model |= prog->tensors[id].role == ROLE_parameter &&
                    strncmp(hf_bare_name(prog->tensors[id].name), name, length) == 0;
    for (int k = 0; k < safetensors_count(st); k++)
        in_file |= strncmp(hf_bare_name(safetensors_entry(st, k)->name), name, length) == 0;
    return length > 0 && !(in_model && in_file);
}

const char *config_hint(const struct program *prog, const struct safetensors *st, const char *name,
                        char out[CONFIG_HINT_MAX])
{
    const char *bare = hf_bare_name(name), *keys = NULL;
    if (is_layer_missing(prog, st, bare))
        keys = bare[0] == 'h' ? "\"n_layer\"" : "\"num_hidden_layers\"";
    for (size_t i = 0; i < sizeof switched / sizeof *switched && keys == NULL; i++)
        if (text_ends_in(bare, switched[i].ending))
            keys = strstr(bare, "mlp.") != NULL ? "\"mlp_bias\"" : switched[i].keys;
    snprintf(out, CONFIG_HINT_MAX, "%s%s%s", keys == NULL ? "" : ": check ",
             keys == NULL ? "" : keys, keys == NULL ? "" : " in config.json");
    return out;
}
