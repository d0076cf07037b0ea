/*
 * kept.h -- the last checkpoints of a run, beside the one that it goes on from.
 *
 *     RUN/checkpoints/step-000020/     the files of RUN as they were after step 20: a run of its own
 *
 * The files of a checkpoint never change once they are written (checkpoint.h), so a kept one is made of hard
 * links and takes no room until RUN has moved on; where a file system has none, of copies.  A folder appears
 * under its name when it is complete and loses its name before its first file goes: what is called step-N is
 * whole, whenever the process is killed.  What is half made or half removed ends in .new or .old, and the next
 * call clears it away.
 *
 * A folder that a process trains in (its lock is held), or whose state.json is of another step than its name,
 * is somebody's run by now: it is neither replaced nor removed.
 */
#ifndef SNUG_IO_KEPT_H
#define SNUG_IO_KEPT_H

#include "io/file.h"

/* Makes checkpoints/step-N of the named files of the folder ("model.safetensors", "adapter/..."), in the
 * place of one that may be there. */
enum snug_status kept_add(const char *dir, int64_t step, const char *const *names, int n_names,
                          struct file_faults *faults, struct snug_error *err);
/* Is DIR/checkpoints a folder that they can be put into, or not there yet? */
enum snug_status kept_check_home(const char *dir, struct snug_error *err);
/* Is the folder itself a kept checkpoint, or the place of one: RUN/checkpoints/step-N beside RUN/state.json? */
enum snug_status kept_is_one(const char *dir, bool *is_one, struct snug_error *err);
bool kept_has(const char *dir, int64_t step);
/* Of those up to step N only the last n_keep stay.  Later ones are of a run that was taken back to N: they
 * are left alone. */
enum snug_status kept_trim(const char *dir, int64_t step, int64_t n_keep,
                           struct file_faults *faults, struct snug_error *err);

#endif
