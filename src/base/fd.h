/*
 * fd.h -- opening files, and reading from a place, all or nothing.
 *
 * Data sets and checkpoints are read with pread straight to where the bytes belong; a file that
 * ends too early or a disk that fails is one line that names the file.
 */
#ifndef SNUG_BASE_FD_H
#define SNUG_BASE_FD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Opens a regular file for reading and says how long it is.  *fd is -1 after a failure. */
enum snug_status fd_open_read(const char *path, int *fd, int64_t *n_bytes, struct snug_error *err);

/* Refuses what is no regular file: a pipe or a device may never end. */
enum snug_status fd_check_regular(int fd, const char *path, int64_t *n_bytes,
                                  struct snug_error *err);

/* Reads exactly n_bytes at offset_bytes; `path` is for the message. */
enum snug_status fd_read_at(int fd, const char *path, void *out, int64_t n_bytes,
                            int64_t offset_bytes, struct snug_error *err);

/* The beginning of a file that the kernel makes up (/proc), with a NUL after it: as much as there is
 * room for.  Allocates nothing; false: there is no such file. */
bool fd_read_start(const char *path, char *out, size_t room);

/* "DIR/NAME" plus a suffix, the caller's; NULL: out of memory. */
char *path_join(const char *dir, const char *name, const char *suffix);

/* Is there a DIR/NAME?  Whether there is one may fail to be seen: that is not the same as "no". */
enum snug_status path_find(const char *dir, const char *name, bool *found, struct snug_error *err);

#endif
