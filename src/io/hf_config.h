/*
 * hf_config.h -- config.json of decoder language models in Hugging Face's format, and of snug's own
 * MLPs and image networks.
 *
 *     hf_config.c    GPT-2, MLPs, image networks
 *     hf_decoder.c   Llama, Mistral, Qwen
 */
#ifndef SNUG_IO_HF_CONFIG_H
#define SNUG_IO_HF_CONFIG_H

#include "io/safetensors.h"
#include "ir/decoder_shape.h"
#include "ir/dropout_rates.h"

enum hf_model { HF_DECODER, HF_MLP, HF_VISION };
enum hf_loss { HF_CROSS_ENTROPY, HF_MEAN_SQUARED_ERROR };
enum { HF_MAX_SIZES = 64 };

struct hf_mlp {
    int n_sizes;
    int64_t sizes[HF_MAX_SIZES]; /* input, hidden, output: 784, 512, 10 */
    enum act activation;         /* between the layers */
    enum hf_loss loss;
};

struct hf_vision {
    char network[32]; /* "resnet18" */
    int64_t channels, height, width, n_classes;
};

struct hf_config {
    enum hf_model model;
    struct decoder_shape decoder; /* `model` selects which of the three is valid */
    struct hf_mlp mlp;
    struct hf_vision vision;
    struct dropout_rates dropout; /* decoders only; rates missing from the file are 0 */
    bool has_dropout;             /* the file has at least one rate */
    bool tied_is_given;           /* else the weights tell whether the LM head is tied */
    /* Decoders: the text of the file read, or NULL.  hf_config_text carries its unknown keys over.
     * Malloc'ed by hf_config_read. */
    char *source;
};

/* `path` is config.json or its folder.  Refuses settings that snug does not implement; the error
 * names the key. */
enum snug_status hf_config_read(const char *path, struct hf_config *config, struct snug_error *err);

/* The text of config.json for weights saved as dtype.  The caller frees it.  NULL if out of
 * memory. */
char *hf_config_text(const struct hf_config *config, enum dtype dtype);

/* Finds a tensor by name, or returns NULL.  The prefix that classes with an LM head add to the
 * names ("transformer." or "model.") is optional both in `name` and in the file. */
const struct st_entry *hf_find_tensor(const struct safetensors *st, const char *name);
/* The name without that prefix, pointing into `name`. */
const char *hf_bare_name(const char *name);
/* The prefix that snug's names lack: "transformer." for GPT-2, "" for the others. */
const char *hf_prefix(enum decoder_family family);

/* The token embedding and the LM head of a decoder. */
const struct st_entry *hf_find_embedding(const struct safetensors *st);
#define HF_HEAD_NAME "lm_head.weight"

#endif
