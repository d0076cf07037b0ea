/*
 * decoder_presets.c -- the published decoder language models by name, and gpt-nano and lm-nano.
 *
 * Sizes are those of each model's config.json; tests/plan/test_presets.c holds the parameter
 * counts.
 */
#include <string.h>

#include "model/model.h"

/* n_embd / n_head is the width of a head. */
#define GPT2(layers, heads, width, positions, vocabulary)                                  \
    {                                                                                      \
        .family = DECODER_gpt2, .n_layer = layers, .n_head = heads, .n_kv_head = heads,    \
        .head_dim = (width) / (heads), .n_embd = width, .n_inner = 4 * (width),            \
        .n_positions = positions, .vocab_size = vocabulary, .norm_eps = 1e-5,              \
        .init_std = 0.02, .activation = ACT_gelu, .tied = true, .qkv_bias = true,          \
        .out_bias = true, .mlp_bias = true                                                 \
    }
/* Further settings follow as .name = value; a later one replaces an earlier one. */
#define ROPE_DECODER(which, layers, heads, kv_heads, depth, width, inner, positions, vocabulary,  \
                     eps, ...)                                                                    \
    {                                                                                             \
        .family = DECODER_##which, .n_layer = layers, .n_head = heads, .n_kv_head = kv_heads,     \
        .head_dim = depth, .n_embd = width, .n_inner = inner, .n_positions = positions,           \
        .vocab_size = vocabulary, .norm_eps = eps, .init_std = 0.02, __VA_ARGS__                  \
    }
#define LLAMA(...)         ROPE_DECODER(llama, __VA_ARGS__)
#define QWEN2(...)         ROPE_DECODER(qwen2, __VA_ARGS__, .rope = ROPE(1e6), .qkv_bias = true)
#define QWEN3(...)         ROPE_DECODER(qwen3, __VA_ARGS__, .rope = ROPE(1e6), .qk_norm = true)
#define ROPE_DEFAULTS      .rope_factor = 1, .low_freq = 1, .high_freq = 4
#define ROPE(base)         {.theta = base, ROPE_DEFAULTS}
#define LLAMA3_ROPE(ratio) {ROPE_DEFAULTS, .theta = 5e5, .rope_factor = ratio, .rope_length = 8192}

static const struct decoder_preset presets[] = {
    /* layers, heads, width, positions, vocabulary */
    {"gpt-nano", GPT2(6, 6, 384, 256, 256)},
    {"gpt2", GPT2(12, 12, 768, 1024, 50257)},
    {"gpt2-medium", GPT2(24, 16, 1024, 1024, 50257)},
    {"gpt2-large", GPT2(36, 20, 1280, 1024, 50257)},
    {"gpt2-xl", GPT2(48, 25, 1600, 1024, 50257)},
    {"gpt3-175b", GPT2(96, 96, 12288, 2048, 50257)},
    /* layers, heads, kv heads, width of a head, width, inner width, positions, vocabulary, eps */
    {"lm-nano", LLAMA(4, 4, 2, 32, 128, 320, 256, 256, 1e-5, .rope = ROPE(1e4), .tied = true)},
    {"smollm2-135m", LLAMA(30, 9, 3, 64, 576, 1536, 8192, 49152, 1e-5, .rope = ROPE(1e5),
                           .tied = true, .init_std = 1.0 / 24)},
    {"smollm2-360m", LLAMA(32, 15, 5, 64, 960, 2560, 8192, 49152, 1e-5, .rope = ROPE(1e5),
                           .tied = true)},
    {"smollm2-1.7b", LLAMA(24, 32, 32, 64, 2048, 8192, 8192, 49152, 1e-5, .rope = ROPE(1.3e5),
                           .tied = true)},
    {"tinyllama-1.1b", LLAMA(22, 32, 4, 64, 2048, 5632, 2048, 32000, 1e-5, .rope = ROPE(1e4))},
    {"llama-3.2-1b", LLAMA(16, 32, 8, 64, 2048, 8192, 131072, 128256, 1e-5,
                           .rope = LLAMA3_ROPE(32), .tied = true)},
    {"llama-3.2-3b", LLAMA(28, 24, 8, 128, 3072, 8192, 131072, 128256, 1e-5,
                           .rope = LLAMA3_ROPE(32), .tied = true)},
    {"llama-3.1-8b", LLAMA(32, 32, 8, 128, 4096, 14336, 131072, 128256, 1e-5,
                           .rope = LLAMA3_ROPE(8))},
    {"llama-3.1-70b", LLAMA(80, 64, 8, 128, 8192, 28672, 131072, 128256, 1e-5,
                            .rope = LLAMA3_ROPE(8))},
    {"llama-3.1-405b", LLAMA(126, 128, 8, 128, 16384, 53248, 131072, 128256, 1e-5,
                             .rope = LLAMA3_ROPE(8))},
    {"mistral-7b", ROPE_DECODER(mistral, 32, 32, 8, 128, 4096, 14336, 32768, 32000, 1e-5,
                                .rope = ROPE(1e4), .window = 4096)},
    {"qwen2.5-0.5b", QWEN2(24, 14, 2, 64, 896, 4864, 32768, 151936, 1e-6, .tied = true)},
    {"qwen2.5-1.5b", QWEN2(28, 12, 2, 128, 1536, 8960, 131072, 151936, 1e-6, .tied = true)},
    {"qwen2.5-3b", QWEN2(36, 16, 2, 128, 2048, 11008, 32768, 151936, 1e-6, .tied = true)},
    {"qwen2.5-7b", QWEN2(28, 28, 4, 128, 3584, 18944, 131072, 152064, 1e-6)},
    {"qwen2.5-14b", QWEN2(48, 40, 8, 128, 5120, 13824, 131072, 152064, 1e-5)},
    {"qwen2.5-32b", QWEN2(64, 40, 8, 128, 5120, 27648, 131072, 152064, 1e-5)},
    {"qwen2.5-72b", QWEN2(80, 64, 8, 128, 8192, 29568, 131072, 152064, 1e-5)},
    {"qwen3-0.6b", QWEN3(28, 16, 8, 128, 1024, 3072, 40960, 151936, 1e-6, .tied = true)},
    {"qwen3-1.7b", QWEN3(28, 16, 8, 128, 2048, 6144, 40960, 151936, 1e-6, .tied = true)},
    {"qwen3-4b", QWEN3(36, 32, 8, 128, 2560, 9728, 40960, 151936, 1e-6, .tied = true)},
    {"qwen3-8b", QWEN3(36, 32, 8, 128, 4096, 12288, 40960, 151936, 1e-6)},
    {"qwen3-14b", QWEN3(40, 40, 8, 128, 5120, 17408, 40960, 151936, 1e-6)},
    {"qwen3-32b", QWEN3(64, 64, 8, 128, 5120, 25600, 40960, 151936, 1e-6)},
};
enum { N_PRESETS = (int)(sizeof presets / sizeof *presets) };

const struct decoder_preset *decoder_preset(int i)
{
    return i >= 0 && i < N_PRESETS ? &presets[i] : NULL;
}

bool decoder_find(const char *name, struct decoder_shape *shape)
{
    for (int i = 0; i < N_PRESETS; i++)
        if (strcmp(name, presets[i].name) == 0) {
            *shape = presets[i].shape;
            return true;
        }
    return false;
}
