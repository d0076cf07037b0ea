/*
 * checkpoint.h -- a run's folder: a checkpoint that is there whole or not at all.
 *
 * A checkpoint is several files, and no file system replaces several at once.  So one of them
 * decides: state.json names the others with their sizes and checksums.
 *
 *     1  model.safetensors.new, optimizer.safetensors.new    written and synced
 *     2  state.json                                          replaced by rename: the new checkpoint
 *                                                            holds from this instant on
 *     3  *.new                                               renamed over the old ones
 *
 * Whoever opens the folder takes of each file the one that state.json names, be it still `.new` or
 * not; the next save finishes step 3 first.  A process killed at any instant leaves the old
 * checkpoint or the new one.  Opening changes nothing on the disk, so a run can be evaluated while
 * it trains.
 */
#ifndef SNUG_IO_CHECKPOINT_H
#define SNUG_IO_CHECKPOINT_H

#include "io/safetensors.h"

struct checkpoint_file {
    const char *name; /* "model.safetensors", or inside a folder that is there: "adapter/..." */
    const struct st_entry *entries;
    int n;
};

/* Makes the folder, and those above it, unless it is there; checks that it can be written to. */
enum snug_status checkpoint_make_dir(const char *dir, struct snug_error *err);
/* A folder inside that one, which must not be a link to another place. */
enum snug_status checkpoint_make_inner_dir(const char *dir, struct snug_error *err);

/* A small file of the folder (config.json, plan.json), replaced at once. */
enum snug_status checkpoint_write_text(const char *dir, const char *name, const char *text,
                                       struct file_faults *faults, struct snug_error *err);

/* `state` is the text of a JSON object, stored in state.json beside the member "files".  After a
 * failure the folder holds the old checkpoint, or already the new one.  A crew helps with step 1, one file
 * after the other; NULL: nobody does. */
enum snug_status checkpoint_save(const char *dir, const struct checkpoint_file *files, int n_files,
                                 const char *state, struct st_crew *crew,
                                 struct file_faults *faults, struct snug_error *err);

/* Is there a state.json? */
enum snug_status checkpoint_exists(const char *dir, bool *exists, struct snug_error *err);
/* Refuses the folder of a run that has begun, with plan.json and metrics.jsonl, and has not saved yet. */
enum snug_status checkpoint_refuse_begun(const char *dir, struct snug_error *err);
/* Finishes step 3 of a save that was cut off there: every file has its own name afterwards. */
enum snug_status checkpoint_settle(const char *dir, struct file_faults *faults,
                                   struct snug_error *err);

struct checkpoint;
enum snug_status checkpoint_open(const char *dir, struct checkpoint **checkpoint,
                                 struct snug_error *err);
void checkpoint_close(struct checkpoint *checkpoint);
/* The object that was given to checkpoint_save, as text; lives as long as the checkpoint. */
const char *checkpoint_state(const struct checkpoint *checkpoint);
/* One of its files, open until the checkpoint is closed; NULL: it has none of that name. */
struct safetensors *checkpoint_find(const struct checkpoint *checkpoint, const char *name);
/* Do the bytes have the checksum that state.json promises?  To be called after the tensors were
 * read: in file order, then it costs nothing more. */
enum snug_status checkpoint_verify(const struct checkpoint *checkpoint, const char *name,
                                   struct snug_error *err);

#endif
