/*
 * shards.h -- a large model.safetensors of a checkpoint is saved as several files, as transformers
 * does: model-00001-of-00003.safetensors..., and model.safetensors.index.json.
 *
 * state.json lists the shards like all files, so saving and opening need no further rules.  The
 * index is for other tools.  It follows from the shards, and is written when they are in place.
 */
#ifndef SNUG_CHECKPOINT_SHARDS_H
#define SNUG_CHECKPOINT_SHARDS_H

#include "checkpoint/checkpoint.h"

#define SHARDS_MOST_BYTES 5000000000 /* of the tensors of a file; the limit of transformers 4 */

/* Is this the name of a shard? */
bool shards_has_name(const char *name);

/* The files of a checkpoint, with a model.safetensors above the limit split.  Tensors keep their
 * order; one that is larger than the limit has a file of its own. */
struct shards {
    struct checkpoint_file *files;
    char (*names)[48];
    int n, n_names;
};
enum snug_status shards_split(const struct checkpoint_file *files, int n_files, int64_t most_bytes,
                              struct shards *shards, struct snug_error *err);
void shards_free(struct shards *shards);

/* Writes or removes the index of a folder whose checkpoint has been saved, and removes a
 * model.safetensors that shards have replaced.  `model` is the set of shards, NULL if there
 * are none. */
enum snug_status shards_write_index(const char *dir, const struct safetensors *model,
                                    struct file_faults *faults, struct snug_error *err);

#endif
