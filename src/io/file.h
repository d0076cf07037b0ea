/*
 * file.h -- atomic file writes, and checksums.
 *
 * Every function that changes the disk takes a struct file_faults, which is NULL outside of tests.
 * It counts the operations (create, write, sync, rename, remove, and the reads a save depends on)
 * and makes the Nth one fail.  A test can thus visit every place where a disk may fill up or fail,
 * or the process may die.
 */
#ifndef SNUG_IO_FILE_H
#define SNUG_IO_FILE_H

#include <stdbool.h>

#include "base/status.h"

struct file_faults {
    int64_t fail_at; /* the operation that fails, counted from 1; 0 if none */
    int64_t calls;   /* operations so far */
    int error;       /* errno of the failure; 0 means EIO */
    bool crash;      /* simulate the death of the process: every later operation fails too */
};

/* Reads the whole file and appends a NUL.  The caller frees *text.  Refuses files larger than
 * max_bytes. */
enum snug_status file_read_all(const char *path, int64_t max_bytes, char **text, size_t *n_bytes,
                               struct snug_error *err);

/* Counts a read as an operation that can be made to fail.  Call it before a read whose result
 * decides what is written. */
enum snug_status file_count_read(const char *path, struct file_faults *faults,
                                 struct snug_error *err);

/* Writes PATH.tmp, syncs it, renames it to PATH and syncs the folder: PATH is always either the old
 * file or the new one. */
enum snug_status file_write_atomic(const char *path, const void *bytes, size_t n_bytes,
                                   struct file_faults *faults, struct snug_error *err);

/* The single steps, for files that are written piece by piece. */

/* Creates a new file.  An existing file is unlinked first, not truncated: a rank of a killed run
 * may still be writing to it. */
enum snug_status file_create(const char *path, int *fd, struct file_faults *faults,
                             struct snug_error *err);
/* Opens for reading and writing, and creates the file if it does not exist.  Refuses a symbolic
 * link: somebody else may have planted it to get its target overwritten. */
enum snug_status file_open_update(const char *path, int *fd, struct snug_error *err);
/* Writes all bytes at offset_bytes.  Updates *crc with them if crc is not NULL. */
enum snug_status file_write_at(int fd, const char *path, const void *bytes, int64_t n_bytes,
                               int64_t offset_bytes, uint32_t *crc, struct file_faults *faults,
                               struct snug_error *err);
/* Truncates the file, or extends it with zeros. */
enum snug_status file_set_length(int fd, const char *path, int64_t n_bytes,
                                 struct file_faults *faults, struct snug_error *err);
/* Syncs and closes.  fd is closed even on failure. */
enum snug_status file_finish(int fd, const char *path, struct file_faults *faults,
                             struct snug_error *err);
enum snug_status file_rename(const char *from, const char *to, struct file_faults *faults,
                             struct snug_error *err);
enum snug_status file_sync_folder(const char *dir, struct file_faults *faults,
                                  struct snug_error *err);
void file_remove(const char *path, struct file_faults *faults); /* cleanup; ignores errors */

/* crc32.c.  CRC-32 as in zip and gzip.  Start with crc = 0; feed a long input piece by piece. */
uint32_t file_crc32(uint32_t crc, const void *bytes, size_t n_bytes);
/* The CRC of A followed by B, given the CRC of each and the length of B. */
uint32_t file_crc32_join(uint32_t crc_a, uint32_t crc_b, int64_t b_bytes);

#endif
