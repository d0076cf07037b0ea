/*
 * peft.h -- adapters as Hugging Face's PEFT keeps them: a folder with adapter_config.json and
 * adapter_model.safetensors.
 *
 * A tensor of the adapter is called base_model.model.MODULE.lora_A.weight [rank, in] and
 * ...lora_B.weight [out, rank], whatever the layout of the matrix beside it.  MODULE is the name
 * that transformers has for the layer: for GPT-2 it begins with "transformer.".
 */
#ifndef SNUG_IO_PEFT_H
#define SNUG_IO_PEFT_H

#include "io/safetensors.h"

#define PEFT_CONFIG_NAME "adapter_config.json"
#define PEFT_MODEL_NAME  "adapter_model.safetensors"
#define PEFT_A           ".lora_A.weight"
#define PEFT_B           ".lora_B.weight"

struct peft_config {
    int64_t rank;
    double alpha;
    double
        scale; /* what the matmul of B and A is multiplied with; by alpha, the writer ignores it */
    bool is_gpt2;               /* written: a language model, its matrices lie [in, out] */
    const char *base;           /* written: where the model lies that it was trained on, or NULL */
    const char *const *targets; /* written: ends of the names of layers that have adapters */
    int n_targets;
};

/* What a reader needs of FOLDER/adapter_config.json.  Adapters that are not plain LoRA, or that
 * hold more than it, are refused by the name of the key. */
enum snug_status peft_config_read(const char *folder, struct peft_config *config,
                                  struct snug_error *err);
char *peft_config_text(const struct peft_config *config); /* the caller's; NULL: out of memory */

/* "base_model.model.transformer.h.0..." -> "h.0...", a part of the name; others as they are. */
const char *peft_bare_name(const char *name);

#endif
