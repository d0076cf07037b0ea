/*
 * decoders.c -- see decoders.h.
 */
#include "support/decoders.h"

#include <stddef.h>

#include "support/files.h"

#define SIZES(width, inner, heads, kv_heads, vocabulary)                                   \
    "\"hidden_size\":" #width ",\"intermediate_size\":" #inner ",\"num_hidden_layers\":4," \
    "\"num_attention_heads\":" #heads ",\"num_key_value_heads\":" #kv_heads                \
    ",\"vocab_size\":" #vocabulary                                                         \
    ",\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"hidden_act\":\"silu\","

static const struct {
    const char *family, *config;
} decoders[] = {
    {"llama",
     "{\"model_type\":\"llama\"," SIZES(
         48, 80, 6, 2,
         71) "\"rope_theta\":10000.0,\"attention_bias\":true,\"mlp_bias\":true,"
             "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
             "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":16},"
             "\"tie_word_embeddings\":false}"},
    {"smollm2", "{\"model_type\":\"llama\"," SIZES(
                    48, 96, 3, 1, 64) "\"rope_theta\":100000.0,\"tie_word_embeddings\":true}"},
    {"mistral", "{\"model_type\":\"mistral\"," SIZES(
                    40, 72, 4, 4, 67) "\"rope_theta\":10000.0,\"head_dim\":16,\"sliding_window\":5,"
                                      "\"tie_word_embeddings\":false}"},
    {"qwen2", "{\"model_type\":\"qwen2\"," SIZES(
                  48, 88, 4, 2, 73) "\"rope_theta\":1000000.0,\"tie_word_embeddings\":true}"},
    {"qwen3", "{\"model_type\":\"qwen3\"," SIZES(
                  40, 64, 6, 3,
                  69) "\"rope_theta\":1000000.0,\"head_dim\":16,\"tie_word_embeddings\":false}"},
};
enum { N_DECODERS = (int)(sizeof decoders / sizeof *decoders) };

const char *decoders_family(int i)
{
    return i < N_DECODERS ? decoders[i].family : NULL;
}

void decoders_write(const char *dir)
{
    for (int i = 0; i < N_DECODERS; i++) {
        files_make_subdir(dir, decoders[i].family);
        files_write_text(files_path(dir, decoders[i].family), "config.json", decoders[i].config);
    }
}

const char *decoders_spec(const char *dir, const char *model)
{
    return model[0] == '@' ? files_path(dir, model + 1) : model;
}
