/*
 * retained.h -- the retained older checkpoints of a run (--keep N).
 *
 *     RUN/checkpoints/step-000020/     RUN's files as they were after step 20; itself a valid run
 *
 * Checkpoint files never change once written (checkpoint.h).  A retained checkpoint therefore
 * consists of hard links and takes no disk space until RUN has saved again.  On file systems
 * without hard links it consists of copies.
 *
 * A folder gets the name step-N only when it is complete, and is renamed before its first file is
 * removed: a folder named step-N is complete even if the process is killed at any instant.  A
 * partly written or partly removed folder ends in .new or .old; the next call deletes it.
 *
 * A folder that a process trains in (its lock is held), or whose state.json has a step other than
 * the one in its name, has become a run of its own.  It is neither replaced nor removed.
 */
#ifndef SNUG_CHECKPOINT_RETAINED_H
#define SNUG_CHECKPOINT_RETAINED_H

#include "io/file.h"

/* Creates or replaces checkpoints/step-N from the named files of the folder ("model.safetensors",
 * "adapter/..."). */
enum snug_status retained_add(const char *dir, int64_t step, const char *const *names, int n_names,
                              struct file_faults *faults, struct snug_error *err);
/* Fails unless DIR/checkpoints is a writable folder or does not exist yet. */
enum snug_status retained_check_home(const char *dir, struct snug_error *err);
/* Is the path that of a retained checkpoint: RUN/checkpoints/step-N with a RUN/state.json?  The
 * folder itself need not exist. */
enum snug_status retained_is_one(const char *dir, bool *is_one, struct snug_error *err);
bool retained_has(const char *dir, int64_t step);
/* Removes all but the last n_keep checkpoints up to `step`.  Later ones are left alone: they were
 * saved before the run was resumed from an earlier step. */
enum snug_status retained_trim(const char *dir, int64_t step, int64_t n_keep,
                               struct file_faults *faults, struct snug_error *err);

#endif
