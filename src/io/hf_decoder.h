/*
 * hf_decoder.h -- config.json of Llama, Mistral, Qwen2 and Qwen3, which share most of their keys.
 */
#ifndef SNUG_IO_HF_DECODER_H
#define SNUG_IO_HF_DECODER_H

#include "io/hf_config.h"
#include "io/json.h"

/* Far above today's models (GPT-3: 96 layers; Llama 3.1 405B: 126 layers, width 16,384), but low
 * enough that a file of a hundred bytes cannot take minutes and gigabytes to plan. */
enum {
    HF_LAYERS_MAX = 512,
    HF_HEADS_MAX = 1024,
    HF_WIDTH_MAX = 1 << 17,
    HF_POSITIONS_MAX = 1 << 24,
    HF_VOCABULARY_MAX = 1 << 24
};

/* Is this the "model_type" of one of these families? */
bool hf_decoder_has(const char *model_type);
/* Their names, for error messages: "llama, mistral, qwen2, qwen3". */
#define HF_DECODER_TYPES "llama, mistral, qwen2, qwen3"

enum snug_status hf_decoder_read(const json_t *root, const char *path, const char *model_type,
                                 struct hf_config *config, struct snug_error *err);
/* The keys of the family.  NULL if out of memory. */
json_t *hf_decoder_json(const struct hf_config *config);

/* Reads a number above 0, or a dropout rate, if the file has it. */
enum snug_status hf_read_positive(const json_t *root, const char *path, const char *key,
                                  double *value, struct snug_error *err);
enum snug_status hf_read_rate(const json_t *root, const char *path, const char *key, double *rate,
                              struct hf_config *config, struct snug_error *err);

#endif
