/*
 * checkpoint.h -- atomic checkpoints in a run's folder.
 *
 * A checkpoint is several files, and no file system replaces several files atomically.  So one file
 * decides: state.json lists the others with their sizes and checksums.
 *
 *     1  model.safetensors.new, optimizer.safetensors.new    written and synced
 *     2  state.json                                          replaced by rename: from this instant
 *                                                            the new checkpoint is the valid one
 *     3  *.new                                               renamed over the old files
 *
 * A reader opens, for each name, the file that state.json describes, NAME or NAME.new.  The next
 * save finishes step 3 first.  A process killed at any instant leaves the old checkpoint or the new
 * one.  Opening changes nothing on disk, so a run can be evaluated while it trains.
 */
#ifndef SNUG_CHECKPOINT_CHECKPOINT_H
#define SNUG_CHECKPOINT_CHECKPOINT_H

#include "io/safetensors.h"

struct checkpoint_file {
    const char *name; /* "model.safetensors", or in an existing subfolder: "adapter/..." */
    const struct st_entry *entries;
    int n;
};

/* Creates the folder and its parents if needed, and checks that the folder is writable. */
enum snug_status checkpoint_make_dir(const char *dir, struct snug_error *err);
/* The same for a subfolder of a run.  Refuses a symbolic link. */
enum snug_status checkpoint_make_inner_dir(const char *dir, struct snug_error *err);

/* Writes a small file of the folder (config.json, plan.json) atomically. */
enum snug_status checkpoint_write_text(const char *dir, const char *name, const char *text,
                                       struct file_faults *faults, struct snug_error *err);

/* `state` is the text of a JSON object.  It is stored in state.json together with the member
 * "files".  After a failure the folder holds either the old checkpoint or the new one.  The ranks
 * of `crew` help with step 1, one file after the other; NULL if this process writes alone.  A
 * model.safetensors of more than SHARDS_MOST_BYTES is split into shards (checkpoint/shards.h). */
enum snug_status checkpoint_save(const char *dir, const struct checkpoint_file *files, int n_files,
                                 const char *state, struct st_crew *crew,
                                 struct file_faults *faults, struct snug_error *err);
/* The same, with shards of at most shard_bytes. */
enum snug_status checkpoint_save_sharded(const char *dir, const struct checkpoint_file *files,
                                         int n_files, int64_t shard_bytes, const char *state,
                                         struct st_crew *crew, struct file_faults *faults,
                                         struct snug_error *err);

/* Does the folder have a state.json? */
enum snug_status checkpoint_exists(const char *dir, bool *exists, struct snug_error *err);
/* Fails for the folder of a run that has started (plan.json and metrics.jsonl exist) but has not
 * saved yet. */
enum snug_status checkpoint_refuse_begun(const char *dir, struct snug_error *err);
/* Finishes step 3 of an interrupted save: afterwards no file of the checkpoint ends in .new, and
 * shards have their index. */
enum snug_status checkpoint_settle(const char *dir, struct file_faults *faults,
                                   struct snug_error *err);

struct checkpoint;
enum snug_status checkpoint_open(const char *dir, struct checkpoint **checkpoint,
                                 struct snug_error *err);
void checkpoint_close(struct checkpoint *checkpoint);
/* The `state` that was passed to checkpoint_save.  Valid until the checkpoint is closed. */
const char *checkpoint_state(const struct checkpoint *checkpoint);
/* Its files by name, as state.json lists them. */
int checkpoint_count(const struct checkpoint *checkpoint);
const char *checkpoint_name(const struct checkpoint *checkpoint, int index);
/* One of its files, open until the checkpoint is closed; NULL if it has no file of that name.  If
 * model.safetensors is split into shards, this is the set of them. */
struct safetensors *checkpoint_find(const struct checkpoint *checkpoint, const char *name);
/* Compares the file's checksum with state.json.  Call it after reading the tensors: if they were
 * read in file order, the file is not read again. */
enum snug_status checkpoint_verify(const struct checkpoint *checkpoint, const char *name,
                                   struct snug_error *err);

#endif
