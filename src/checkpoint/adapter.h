/*
 * adapter.h -- adapters beside frozen matrices: on disk as PEFT has them, and added into them.
 *
 * A run with adapters has both: RUN/adapter/ holds the adapter alone, and RUN/model.safetensors the
 * model with W + scale B A in the place of W.  They lie in two folders because transformers adds an
 * adapter that it finds beside a model to that model: it would count twice.
 */
#ifndef SNUG_CHECKPOINT_ADAPTER_H
#define SNUG_CHECKPOINT_ADAPTER_H

#include "io/peft.h"
#include "compile/compile.h"
#include "exec/exec.h"

#define ADAPTER_FOLDER "adapter"

/* Is it a matrix A or B beside a frozen one? */
bool adapter_has(const struct program *prog, tensor_id id);

/* The folder's adapter_config.json decides over rank and alpha of a recipe that starts from it; to be
 * read before a compiled step is made of the recipe.  Of one that starts from none nothing is changed. */
enum snug_status adapter_read_recipe(struct snug_recipe *recipe, struct snug_error *err);
/* A and B, and their masters, from an adapter; there must be those of the program and no more. */
enum snug_status adapter_load_file(const struct compiled_step *compiled, struct exec *exec,
                                   struct safetensors *st, struct snug_error *err);
enum snug_status adapter_load(const struct compiled_step *compiled, struct exec *exec,
                              const char *folder, struct snug_error *err);
/* Adds an adapter from its folder into the matrices of a model without adapters. */
enum snug_status adapter_merge(const struct compiled_step *compiled, struct exec *exec,
                               const char *folder, struct snug_error *err);

/* The text of adapter_config.json; base: the folder of the model, or NULL.  The caller's. */
char *adapter_config_text(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                          bool is_gpt2, const char *base);

/* The checksum of all that is frozen: a run goes on with the base that it began with. */
enum snug_status adapter_base_crc(const struct compiled_step *compiled, const struct exec *exec,
                                  uint32_t *crc, struct snug_error *err);

/* What is saved of a run.  parts: A and B under PEFT's names; model: all frozen parameters as the
 * model knows them, with what the parts add. */
struct adapter_files {
    struct st_entry *parts, *model;
    int n_parts, n_model;
    struct adapter_merger *merger;
};
/* entries: A and B as they are to be saved, under their own names; they must stay until the files
 * are freed. */
enum snug_status adapter_files_make(const struct compiled_step *compiled, struct exec *exec,
                                    const struct snug_recipe *recipe, bool is_gpt2,
                                    const struct st_entry *entries, int n,
                                    struct adapter_files *files, struct snug_error *err);
void adapter_files_free(struct adapter_files *files);

#endif
