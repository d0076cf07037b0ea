/*
 * run_lock.h -- the lock that lets only one process write to a run's folder.
 *
 * The lock is an flock on DIR/.lock.  The kernel releases it when the holder exits, even after
 * kill -9.  The file names the holder, for the error message that other processes print.  It is
 * removed on release; one left behind by kill -9 is harmless.  Readers of a run need no lock (see
 * checkpoint.h).
 */
#ifndef SNUG_CHECKPOINT_RUN_LOCK_H
#define SNUG_CHECKPOINT_RUN_LOCK_H

#include "io/file.h"

#define RUN_LOCK_NAME ".lock"

struct run_lock;

/* Locks an existing folder.  If there is no lock file, creates it if `make` is set and otherwise
 * leaves *lock NULL.  Returns SNUG_BUSY, with a message that names the holder, if another process
 * has the lock.  On a file system without locks (some NFS and Lustre mounts) it succeeds without
 * holding the lock: see run_lock_is_held. */
enum snug_status run_lock_take(const char *dir, bool make, struct run_lock **lock,
                               struct file_faults *faults, struct snug_error *err);
bool run_lock_is_held(const struct run_lock *lock);
void run_lock_give_back(struct run_lock *lock); /* releases it; accepts NULL */

#endif
