/*
 * file.h -- writing files so that they are whole or not there, and checksums.
 *
 * Every function that changes the disk takes a struct file_faults, NULL but in tests: it counts the
 * operations (create, write, sync, rename, remove, and those reads that a save depends on) and makes
 * the Nth one fail, so that a test can walk through every place where a disk may fill up or break or
 * a process may die.
 */
#ifndef SNUG_IO_FILE_H
#define SNUG_IO_FILE_H

#include <stdbool.h>

#include "base/status.h"

struct file_faults {
    int64_t fail_at; /* which operation fails, counted from 1; 0: none */
    int64_t calls;   /* operations so far */
    int error;       /* its errno; 0: EIO */
    bool crash;      /* the process dies there: nothing after it happens either */
};

/* The whole file and a NUL after it, the caller's.  Refuses more than max_bytes. */
enum snug_status file_read_all(const char *path, int64_t max_bytes, char **text, size_t *n_bytes,
                               struct snug_error *err);

/* Called ahead of a read that decides what is written: a failure there is an operation too. */
enum snug_status file_count_read(const char *path, struct file_faults *faults,
                                 struct snug_error *err);

/* PATH.tmp, sync, rename, sync of the folder: at any instant PATH is the old file or the new. */
enum snug_status file_write_atomic(const char *path, const void *bytes, size_t n_bytes,
                                   struct file_faults *faults, struct snug_error *err);

/* The steps, for files that are written piece by piece. */
/* A new file in the place of one that may be there, which somebody may still write to: a rank of a run that
 * was killed. */
enum snug_status file_create(const char *path, int *fd, struct file_faults *faults,
                             struct snug_error *err);
/* For reading and writing, made if it is not there.  Never by way of a symbolic link: somebody else may
 * have put it there to have its target written over. */
enum snug_status file_open_update(const char *path, int *fd, struct snug_error *err);
/* Writes all bytes at offset_bytes and, if crc is not NULL, takes them into *crc on the way. */
enum snug_status file_write_at(int fd, const char *path, const void *bytes, int64_t n_bytes,
                               int64_t offset_bytes, uint32_t *crc, struct file_faults *faults,
                               struct snug_error *err);
/* As if zeros were written up to there. */
enum snug_status file_set_length(int fd, const char *path, int64_t n_bytes,
                                 struct file_faults *faults, struct snug_error *err);
/* Syncs and closes; fd is closed whatever happens. */
enum snug_status file_finish(int fd, const char *path, struct file_faults *faults,
                             struct snug_error *err);
enum snug_status file_rename(const char *from, const char *to, struct file_faults *faults,
                             struct snug_error *err);
enum snug_status file_sync_folder(const char *dir, struct file_faults *faults,
                                  struct snug_error *err);
void file_remove(const char *path, struct file_faults *faults); /* best effort, for clearing up */

/* CRC-32 as in zip and gzip; begin with 0 and feed pieces. */
uint32_t file_crc32(uint32_t crc, const void *bytes, size_t n_bytes);
/* The crc of A followed by B, from the crc of each and the length of B. */
uint32_t file_crc32_join(uint32_t crc_a, uint32_t crc_b, int64_t b_bytes);

#endif
