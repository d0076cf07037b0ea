/*
 * weights.h -- values of the persistent tensors: initialization, files, checkpoints.
 */
#ifndef SNUG_CHECKPOINT_WEIGHTS_H
#define SNUG_CHECKPOINT_WEIGHTS_H

#include "checkpoint/checkpoint.h"
#include "compile/compile.h"
#include "exec/exec.h"

static inline bool weights_is_of_model(const struct tensor *t)
{
    return t->role == ROLE_parameter || t->role == ROLE_buffer;
}
/* The fp32 master copy of a parameter, or TENSOR_NONE. */
tensor_id weights_master_of(const struct program *prog, tensor_id parameter);

/* weights_init.c: seeded initial values of parameters, zeros for states, initial scalars. */
enum snug_status weights_init(const struct compiled_step *compiled, struct exec *exec,
                              uint64_t seed, struct snug_error *err);
/* Initializes the states that start as copies of their weight; call it after setting the
 * weights. */
enum snug_status weights_start_copies(const struct compiled_step *compiled, struct exec *exec,
                                      struct snug_error *err);

/* Loads parameters from a file of any float type; a master copy gets the file's full precision.
 * Missing tensors, wrong shapes and unexpected tensors are refused by name. */
enum snug_status weights_load(const struct compiled_step *compiled, struct exec *exec,
                              struct safetensors *st, struct snug_error *err);

/* Loads one parameter and its master; reads an entry as fp32. */
enum snug_status weights_read_entry(const struct compiled_step *compiled, struct exec *exec,
                                    tensor_id id, struct safetensors *st,
                                    const struct st_entry *entry, struct snug_error *err);
enum snug_status weights_read_f32(struct safetensors *st, const struct st_entry *entry, float *out,
                                  struct snug_error *err);

/* Loads the weights of a folder: its checkpoint if it is a run, else its model.safetensors. */
enum snug_status weights_load_folder(const struct compiled_step *compiled, struct exec *exec,
                                     const char *folder, struct snug_error *err);

/* *name is the first persistent tensor with a non-finite element, or NULL. */
enum snug_status weights_find_nonfinite(const struct compiled_step *compiled, struct exec *exec,
                                        const char **name, struct snug_error *err);

/* Reads all elements of a tensor as fp32, from the arena or the offload pool. */
enum snug_status weights_read(const struct compiled_step *compiled, struct exec *exec, tensor_id id,
                              float *values, struct snug_error *err);

/* The entries of a checkpoint: all tensors of some roles (bit ROLE_...; buffers go with parameters)
 * that are not frozen, bit for bit.  The caller frees entries. */
enum snug_status weights_entries(const struct compiled_step *compiled, struct exec *exec,
                                 unsigned roles, struct st_entry **entries, int *n,
                                 struct snug_error *err);
/* Makes a tensor the source of an entry. */
void weights_point(struct st_entry *entry, struct exec *exec, tensor_id id);
/* Restores a checkpoint; names, types and shapes must match. */
enum snug_status weights_restore(const struct compiled_step *compiled, struct exec *exec,
                                 unsigned roles, struct safetensors *st, struct snug_error *err);
/* Replaces the weights in entries by their averages, the outputs average.WEIGHT of `averages`. */
void weights_use_averages(const struct compiled_step *averages, struct exec *exec,
                          struct st_entry *entries, int n);

#endif
