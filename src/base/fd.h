/*
 * fd.h -- open files and read from them, completely or not at all.
 *
 * Data sets and checkpoints are read with pread, directly to their destination.
 */
#ifndef SNUG_BASE_FD_H
#define SNUG_BASE_FD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Opens a regular file for reading and returns its size.  *fd is -1 after a failure. */
enum snug_status fd_open_read(const char *path, int *fd, int64_t *n_bytes, struct snug_error *err);

/* Returns the size of a regular file.  Fails for pipes and devices, which may never end. */
enum snug_status fd_check_regular(int fd, const char *path, int64_t *n_bytes,
                                  struct snug_error *err);

/* Reads exactly n_bytes at offset_bytes; `path` is for the error message. */
enum snug_status fd_read_at(int fd, const char *path, void *out, int64_t n_bytes,
                            int64_t offset_bytes, struct snug_error *err);

/* Reads the beginning of a file, such as one in /proc, into `out` and terminates it with NUL.
 * Allocates nothing.  Returns false if the file does not exist or is empty. */
bool fd_read_start(const char *path, char *out, size_t out_bytes);

/* Returns DIR/NAME with a suffix, malloc'ed, or NULL when out of memory. */
char *path_join(const char *dir, const char *name, const char *suffix);

/* Does DIR/NAME exist?  Fails if that cannot be determined. */
enum snug_status path_find(const char *dir, const char *name, bool *found, struct snug_error *err);

#endif
