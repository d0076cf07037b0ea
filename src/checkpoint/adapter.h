/*
 * adapter.h -- LoRA adapters of frozen matrices: PEFT files on disk, and merging into the model.
 *
 * A run with adapters saves both: RUN/adapter/ holds the adapter alone, RUN/model.safetensors the
 * model with W + scale B A instead of W.  They are in separate folders because transformers applies
 * an adapter that it finds next to a model, so it would count twice.
 */
#ifndef SNUG_CHECKPOINT_ADAPTER_H
#define SNUG_CHECKPOINT_ADAPTER_H

#include "io/peft.h"
#include "compile/compile.h"
#include "exec/exec.h"

#define ADAPTER_FOLDER "adapter"

/* Is this tensor an adapter matrix, A or B? */
bool adapter_has(const struct program *prog, tensor_id id);

/* Sets rank, alpha and, unless the user gave them, layers of a recipe that starts from an adapter,
 * from its adapter_config.json.  Call it before compiling the recipe.  Recipes that start from no
 * adapter are left unchanged. */
enum snug_status adapter_read_recipe(struct snug_recipe *recipe, struct snug_error *err);
/* Loads A and B, and their masters.  The file must have exactly the adapter matrices of the
 * program. */
enum snug_status adapter_load_file(const struct compiled_step *compiled, struct exec *exec,
                                   struct safetensors *st, struct snug_error *err);
enum snug_status adapter_load(const struct compiled_step *compiled, struct exec *exec,
                              const char *folder, struct snug_error *err);
/* Merges an adapter from its folder into the matrices of a model without adapters. */
enum snug_status adapter_merge(const struct compiled_step *compiled, struct exec *exec,
                               const char *folder, struct snug_error *err);

/* The text of adapter_config.json, for the caller to free.  base: the model's folder, or NULL. */
char *adapter_config_text(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                          bool is_language, const char *base);

/* The checksum of all frozen tensors: a run must resume with the base it started from. */
enum snug_status adapter_base_crc(const struct compiled_step *compiled, const struct exec *exec,
                                  uint32_t *crc, struct snug_error *err);

/* The files saved of a run.  parts: A and B under PEFT's names.  model: all frozen parameters in
 * the model's own type and shape, with the adapters merged. */
struct adapter_files {
    struct st_entry *parts, *model;
    int n_parts, n_model;
    struct adapter_merger *merger;
};
/* entries: A and B to save, under snug's names, which PEFT has with the prefix; they must outlive
 * the files. */
enum snug_status adapter_files_make(const struct compiled_step *compiled, struct exec *exec,
                                    const struct snug_recipe *recipe, const char *prefix,
                                    const struct st_entry *entries, int n,
                                    struct adapter_files *files, struct snug_error *err);
void adapter_files_free(struct adapter_files *files);

#endif
