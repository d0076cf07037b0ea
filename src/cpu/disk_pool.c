/*
 * disk_pool.c -- the CPU's offload pool: an unlinked file, read and written at offsets.
 *
 * The file is unlinked as soon as it is created, so nothing is left behind however the process
 * ends.  All its bytes are allocated up front, so a disk that is too full is detected before the
 * run starts.
 *
 * The pool uses pread and pwrite rather than mmap: mapped pages count towards the memory of the
 * process, and mapping them costs more than the copy (docs/offload.md has the rates).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/text.h"
#include "cpu/cpu.h"

struct disk_pool {
    struct offload_pool pool; /* must come first: pointers to the two are cast into each other */
    int fd;
    char folder[]; /* for error messages */
};

static enum snug_status io_error(const struct disk_pool *s, const char *what,
                                 struct snug_error *err)
{
    return snug_fail(
        err, SNUG_IO_ERROR,
        "cannot %s the offload file in %.200s: %s; set --out or TMPDIR to another disk", what,
        s->folder, strerror(errno));
}

static enum snug_status read_pool(struct offload_pool *pool, int64_t at, void *to, int64_t n_bytes,
                                  struct snug_error *err)
{
    const struct disk_pool *s = (const struct disk_pool *)pool;
    for (int64_t done = 0; done < n_bytes;) {
        ssize_t n = pread(s->fd, (char *)to + done, (size_t)(n_bytes - done), at + done);
        if (n == 0)
            errno = EIO; /* cannot be the end: the whole file was allocated */
        if (n == 0 || (n < 0 && errno != EINTR))
            return io_error(s, "read", err);
        done += n > 0 ? n : 0;
    }
    return SNUG_OK;
}

static enum snug_status write_pool(struct offload_pool *pool, int64_t at, const void *from,
                                   int64_t n_bytes, struct snug_error *err)
{
    const struct disk_pool *s = (const struct disk_pool *)pool;
    for (int64_t done = 0; done < n_bytes;) {
        ssize_t n = pwrite(s->fd, (const char *)from + done, (size_t)(n_bytes - done), at + done);
        if (n == 0)
            errno = EIO;
        if (n == 0 || (n < 0 && errno != EINTR))
            return io_error(s, "write", err);
        done += n > 0 ? n : 0;
    }
    return SNUG_OK;
}

static void close_pool(struct offload_pool *pool)
{
    struct disk_pool *s = (struct disk_pool *)pool;
    close(s->fd);
    free(s);
}

static const char *temporary_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder != NULL && folder[0] != '\0' ? folder : "/tmp";
}

/* Above RLIMIT_FSIZE the OS would not fail the call but kill the process with SIGXFSZ. */
static int is_too_large(int64_t n_bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
           (rlim_t)n_bytes > limit.rlim_cur;
}

static int allocate(int fd, int64_t n_bytes)
{
    int error = EINTR;
    while (error == EINTR)
        error = is_too_large(n_bytes) ? EFBIG : posix_fallocate(fd, 0, n_bytes);
    return error;
}

static enum snug_status open_file(const char *folder, int64_t n_bytes, int *fd,
                                  struct snug_error *err)
{
    char path[PATH_MAX], size[TEXT_SIZE_MAX];
    if (snprintf(path, sizeof path, "%s/snug-offload-XXXXXX", folder) >= (int)sizeof path)
        return snug_fail(err, SNUG_BAD_FILE, "offload: the path of folder %.100s... is too long",
                         folder);
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "cannot create the offload file in %s: %s; set --out or TMPDIR to a "
                         "writable folder",
                         folder, strerror(errno));
    unlink(path);
    int error = allocate(*fd, n_bytes);
    if (error == 0)
        return SNUG_OK;
    close(*fd);
    return snug_fail(err, SNUG_OVER_BUDGET,
                     "the offload file needs %lld bytes (%s) in %s, which has too little space "
                     "(%s): free some, set --out or TMPDIR to another disk, or offload less",
                     (long long)n_bytes, text_size(n_bytes, size), folder, strerror(error));
}

enum snug_status cpu_open_pool(const struct device_facts *facts, int64_t n_bytes,
                               struct offload_pool **pool, struct snug_error *err)
{
    const char *folder = facts->pool_folder != NULL ? facts->pool_folder : temporary_folder();
    struct disk_pool *s = calloc(1, sizeof *s + strlen(folder) + 1);
    if (s == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory opening the offload pool");
    s->pool = (struct offload_pool){.read = read_pool, .write = write_pool, .close = close_pool};
    strcpy(s->folder, folder);
    enum snug_status status = open_file(folder, n_bytes, &s->fd, err);
    if (status != SNUG_OK) {
        free(s);
        return status;
    }
    *pool = &s->pool;
    return SNUG_OK;
}
