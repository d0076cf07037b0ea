/*
 * hf_config.h -- config.json: GPT-2 as Hugging Face's libraries write it, our own `mlp` and networks for
 * images.
 */
#ifndef SNUG_IO_HF_CONFIG_H
#define SNUG_IO_HF_CONFIG_H

#include "io/safetensors.h"
#include "ir/dropout_rates.h"

enum hf_model { HF_GPT2, HF_MLP, HF_VISION };
enum hf_loss { HF_CROSS_ENTROPY, HF_MEAN_SQUARED_ERROR };
enum { HF_MAX_SIZES = 64 };

struct hf_gpt2 {
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
    double layer_norm_epsilon;
    enum act activation;
};

struct hf_mlp {
    int n_sizes;
    int64_t sizes[HF_MAX_SIZES]; /* 784, 512, 10: inputs, hidden, outputs */
    enum act activation;         /* between the layers */
    enum hf_loss loss;
};

struct hf_vision {
    char network[32]; /* "resnet18" */
    int64_t channels, height, width, n_classes;
};

struct hf_config {
    enum hf_model model;
    struct hf_gpt2 gpt2; /* the one that `model` says */
    struct hf_mlp mlp;
    struct hf_vision vision;
    struct dropout_rates dropout; /* of a GPT-2; what the file does not say is 0 */
    bool has_dropout;             /* it says at least one */
};

/* `path`: config.json itself, or the folder that holds it.  What would make the model compute
 * something else than snug does is refused by its name. */
enum snug_status hf_config_read(const char *path, struct hf_config *config, struct snug_error *err);

/* The text of config.json, the caller's; NULL: out of memory.  dtype: of the saved weights. */
char *hf_config_text(const struct hf_config *config, enum dtype dtype);

/* A tensor by its name, with or without the prefix "transformer." on either side; or NULL. */
const struct st_entry *hf_find_tensor(const struct safetensors *st, const char *name);

#endif
