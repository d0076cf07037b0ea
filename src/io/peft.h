/*
 * peft.h -- LoRA adapters in the format of Hugging Face's PEFT: a folder with adapter_config.json
 * and adapter_model.safetensors.
 *
 * The tensors of an adapter are base_model.model.MODULE.lora_A.weight [rank, in] and
 * ...lora_B.weight [out, rank], whatever the layout of the base weight.  MODULE is the layer's name
 * in transformers: hf_prefix (io/hf_config.h) and snug's name.
 */
#ifndef SNUG_IO_PEFT_H
#define SNUG_IO_PEFT_H

#include "base/strategies.h"
#include "io/safetensors.h"

#define PEFT_CONFIG_NAME "adapter_config.json"
#define PEFT_MODEL_NAME  "adapter_model.safetensors"
#define PEFT_A           ".lora_A.weight"
#define PEFT_B           ".lora_B.weight"

struct peft_config {
    int64_t rank;
    double alpha;
    /* reader only */
    double scale;             /* factor of B A, computed from alpha and rank */
    char layers[LORA_ON_MAX]; /* target_modules as for --lora-on; "" if they are not a list */
    /* writer only */
    bool is_language;           /* the base is a causal language model */
    bool in_out;                /* its matrices have layout [in, out] */
    const char *base;           /* path of the base model, or NULL */
    const char *const *targets; /* suffixes of the names of the layers with adapters */
    int n_targets;
};

/* Reads FOLDER/adapter_config.json.  Refuses adapters that are not plain LoRA; the error names the
 * key. */
enum snug_status peft_config_read(const char *folder, struct peft_config *config,
                                  struct snug_error *err);
/* The caller frees the text.  NULL if out of memory. */
char *peft_config_text(const struct peft_config *config);

/* "base_model.model.transformer.h.0..." -> "h.0...", pointing into `name`.  Names without the
 * prefixes are returned unchanged. */
const char *peft_bare_name(const char *name);

#endif
