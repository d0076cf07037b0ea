/*
 * disk_pool.c -- the CPU's store: a file without a name, read and written at offsets.
 *
 * The file is unlinked as soon as it is there, so that nothing is left behind however the process
 * ends. All its bytes are allocated before the first is used: a disk that is too full is found out
 * before the start of a run, not in its middle.
 *
 * pread and pwrite, not a mapping: pages of a mapping count as the process's own while they are
 * mapped, and to map them costs more than the copy (docs/offload.md has the rates).
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
    struct offload_pool pool; /* first: the two are cast into each other */
    int fd;
};

static enum snug_status io_error(const char *what, struct snug_error *err)
{
    return snug_fail(err, SNUG_IO_ERROR, "%s the file of what is offloaded: %s", what,
                     strerror(errno));
}

static enum snug_status read_pool(struct offload_pool *pool, int64_t at, void *to, int64_t n_bytes,
                                  struct snug_error *err)
{
    const struct disk_pool *s = (const struct disk_pool *)pool;
    for (int64_t done = 0; done < n_bytes;) {
        ssize_t n = pread(s->fd, (char *)to + done, (size_t)(n_bytes - done), at + done);
        if (n == 0)
            errno = EIO; /* it was allocated whole */
        if (n == 0 || (n < 0 && errno != EINTR))
            return io_error("reading", err);
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
            return io_error("writing", err);
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

/* The folder for temporary files. */
static const char *usual_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder != NULL && folder[0] != '\0' ? folder : "/tmp";
}

/* Beyond this size the system would not refuse but end the process, with SIGXFSZ. */
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
        return snug_fail(err, SNUG_BAD_FILE, "the name of %.100s... is too long", folder);
    *fd = mkostemp(path, O_CLOEXEC);
    if (*fd < 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "no file for what is offloaded can be made in %s: %s; set --out or TMPDIR "
                         "to a folder that can be written to",
                         folder, strerror(errno));
    unlink(path);
    int error = allocate(*fd, n_bytes);
    if (error == 0)
        return SNUG_OK;
    close(*fd);
    return snug_fail(err, SNUG_OVER_BUDGET,
                     "%lld bytes (%s) are to be offloaded to a file in %s, which has no room for "
                     "them (%s): free some, set --out or TMPDIR to another disk, or offload less",
                     (long long)n_bytes, text_size(n_bytes, size), folder, strerror(error));
}

enum snug_status cpu_open_pool(const struct device_facts *facts, int64_t n_bytes,
                               struct offload_pool **pool, struct snug_error *err)
{
    struct disk_pool *s = calloc(1, sizeof *s);
    if (s == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    s->pool = (struct offload_pool){.read = read_pool, .write = write_pool, .close = close_pool};
    const char *folder = facts->pool_folder != NULL ? facts->pool_folder : usual_folder();
    enum snug_status status = open_file(folder, n_bytes, &s->fd, err);
    if (status != SNUG_OK) {
        free(s);
        return status;
    }
    *pool = &s->pool;
    return SNUG_OK;
}
