/*
 * fd.c -- opening and reading files; see fd.h.
 */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

enum snug_status fd_check_regular(int fd, const char *path, int64_t *n_bytes,
                                  struct snug_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return snug_fail(err, SNUG_IO_ERROR, "%s: cannot stat it: %s", path, strerror(errno));
    *n_bytes = info.st_size;
    if (!S_ISREG(info.st_mode))
        return snug_fail(err, SNUG_BAD_FILE, "%s: is %s, not a regular file", path,
                         kind_of(info.st_mode));
    return SNUG_OK;
}

enum snug_status fd_open_read(const char *path, int *fd, int64_t *n_bytes, struct snug_error *err)
{
    /* O_NONBLOCK: do not wait for a writer if this is a FIFO; fd_check_regular rejects it */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return snug_fail(err, errno == ENOMEM ? SNUG_NO_MEMORY : SNUG_BAD_FILE,
                         "%s: cannot open it: %s", path, strerror(errno));
    enum snug_status status = fd_check_regular(*fd, path, n_bytes, err);
    if (status != SNUG_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

enum snug_status fd_read_at(int fd, const char *path, void *out, int64_t n_bytes,
                            int64_t offset_bytes, struct snug_error *err)
{
    char *to = out;
    int64_t done = 0;
    while (done < n_bytes) {
        ssize_t got = pread(fd, to + done, (size_t)(n_bytes - done), offset_bytes + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return snug_fail(err, SNUG_IO_ERROR, "%s: cannot read at byte %lld: %s", path,
                             (long long)(offset_bytes + done), strerror(errno));
        if (got == 0)
            return snug_fail(
                err, SNUG_BAD_FILE,
                "%s: truncated: it ends at byte %lld, %lld bytes too early; restore or "
                "download it again",
                path, (long long)(offset_bytes + done), (long long)(n_bytes - done));
        done += got;
    }
    return SNUG_OK;
}

bool fd_read_start(const char *path, char *out, size_t out_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t done = 0;
    if (fd < 0)
        return false;
    while (done < out_bytes - 1) {
        ssize_t got = read(fd, out + done, out_bytes - 1 - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    close(fd);
    out[done] = '\0';
    return done > 0;
}

char *path_join(const char *dir, const char *name, const char *suffix)
{
    size_t bytes = strlen(dir) + strlen(name) + strlen(suffix) + 2;
    char *path = malloc(bytes);
    if (path != NULL)
        snprintf(path, bytes, "%s/%s%s", dir, name, suffix);
    return path;
}

enum snug_status path_find(const char *dir, const char *name, bool *found, struct snug_error *err)
{
    char *path = path_join(dir, name, "");
    *found = path != NULL && access(path, F_OK) == 0;
    int error = path == NULL ? ENOMEM : *found ? 0 : errno;
    free(path);
    if (error == 0 || error == ENOENT || error == ENOTDIR)
        return SNUG_OK;
    if (error == ENOMEM)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: no memory to look for %s", dir, name);
    return snug_fail(err, SNUG_IO_ERROR, "%s/%s: cannot check whether it exists: %s", dir, name,
                     strerror(error));
}
