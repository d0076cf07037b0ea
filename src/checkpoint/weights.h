/*
 * weights.h -- numbers for the persistent tensors: start values, files, checkpoints.
 */
#ifndef SNUG_CHECKPOINT_WEIGHTS_H
#define SNUG_CHECKPOINT_WEIGHTS_H

#include "io/checkpoint.h"
#include "compile/compile.h"
#include "exec/exec.h"

static inline bool weights_is_of_model(const struct tensor *t)
{
    return t->role == ROLE_parameter || t->role == ROLE_buffer;
}
/* The copy in fp32 that is updated in its place; TENSOR_NONE: it has none. */
tensor_id weights_master_of(const struct program *prog, tensor_id parameter);

/* weights_init.c: seeded start values of parameters, zeros for states, the scalar table at its beginning. */
enum snug_status weights_init(const struct compiled_step *compiled, struct exec *exec,
                              uint64_t seed, struct snug_error *err);
/* The states that start as their weight, once the weights have numbers. */
enum snug_status weights_start_copies(const struct compiled_step *compiled, struct exec *exec,
                                      struct snug_error *err);

/* Parameters from a file of any float type; a master copy gets the file's own precision.  Tensors that
 * are missing, of another shape, or that the model has no use for are refused by name. */
enum snug_status weights_load(const struct compiled_step *compiled, struct exec *exec,
                              struct safetensors *st, struct snug_error *err);

/* One parameter, and its master; and an entry as fp32. */
enum snug_status weights_read_entry(const struct compiled_step *compiled, struct exec *exec,
                                    tensor_id id, struct safetensors *st,
                                    const struct st_entry *entry, struct snug_error *err);
enum snug_status weights_read_f32(struct safetensors *st, const struct st_entry *entry, float *out,
                                  struct snug_error *err);

/* The weights of a folder: of the checkpoint if it is a run, else of its model.safetensors. */
enum snug_status weights_load_folder(const struct compiled_step *compiled, struct exec *exec,
                                     const char *folder, struct snug_error *err);

/* *name is the first parameter or optimizer state with a number that is not finite; NULL: none. */
enum snug_status weights_find_nonfinite(const struct compiled_step *compiled, struct exec *exec,
                                        const char **name, struct snug_error *err);

/* All numbers of a tensor, wherever it lies. */
enum snug_status weights_read(const struct compiled_step *compiled, struct exec *exec, tensor_id id,
                              float *values, struct snug_error *err);

/* All tensors of some roles (bit ROLE_...; buffers go with parameters) but those that are frozen, exactly
 * as they are: what a checkpoint holds.  entries is malloc'ed. */
enum snug_status weights_entries(const struct compiled_step *compiled, struct exec *exec,
                                 unsigned roles, struct st_entry **entries, int *n,
                                 struct snug_error *err);
/* The source of an entry is this tensor, wherever it lies. */
void weights_point(struct st_entry *entry, struct exec *exec, tensor_id id);
/* And back: same names, types and shapes, or refused. */
enum snug_status weights_restore(const struct compiled_step *compiled, struct exec *exec,
                                 unsigned roles, struct safetensors *st, struct snug_error *err);
/* The outputs average.WEIGHT of `averages` take the places of the weights in entries. */
void weights_use_averages(const struct compiled_step *averages, struct exec *exec,
                          struct st_entry *entries, int n);

#endif
