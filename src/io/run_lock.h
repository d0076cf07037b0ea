/*
 * run_lock.h -- one process at a time writes to the folder of a run.
 *
 * The lock is flock on DIR/.lock: the kernel frees it when its holder ends, however that ends.  The file names
 * the holder, for the message of those that are refused, and is removed when the lock is given back; after
 * kill -9 it stays, and means nothing.  Whoever only reads a run needs no lock (checkpoint.h).
 */
#ifndef SNUG_IO_RUN_LOCK_H
#define SNUG_IO_RUN_LOCK_H

#include "io/file.h"

#define RUN_LOCK_NAME ".lock"

struct run_lock;

/* Takes the lock of a folder that is there.  make: with a new file if there is none; else *lock is NULL where
 * there is no file.  SNUG_BUSY: another process has it, and the message says which.  A file system without
 * locks (NFS or Lustre may be mounted so) is used without: see run_lock_is_held. */
enum snug_status run_lock_take(const char *dir, bool make, struct run_lock **lock,
                               struct file_faults *faults, struct snug_error *err);
bool run_lock_is_held(const struct run_lock *lock);
void run_lock_give_back(struct run_lock *lock); /* NULL: nothing */

#endif
