/*
 * file.c -- atomic file writes with fault injection; see file.h.
 */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

enum { PIECE_BYTES = 1 << 20 }; /* per write: small enough to be checksummed while in cache */

static bool must_fail(struct file_faults *faults)
{
    if (faults == NULL)
        return false;
    faults->calls++;
    errno = faults->error != 0 ? faults->error : EIO;
    return faults->fail_at > 0 &&
           (faults->calls == faults->fail_at || (faults->crash && faults->calls > faults->fail_at));
}

static enum snug_status failed(struct snug_error *err, const char *path, const char *doing)
{
    const char *advice = errno == ENOSPC || errno == EDQUOT ? "; free disk space and save again"
                         : errno == EFBIG ? "; raise the file size limit (ulimit -f)"
                         : errno == ELOOP ? "; it is a symbolic link: remove it"
                                          : "";
    return snug_fail(err, SNUG_IO_ERROR, "%s: cannot %s: %s%s", path, doing, strerror(errno),
                     advice);
}

enum snug_status file_read_all(const char *path, int64_t max_bytes, char **text, size_t *n_bytes,
                               struct snug_error *err)
{
    int fd;
    int64_t size;
    *text = NULL;
    TRY(fd_open_read(path, &fd, &size, err));
    enum snug_status status = SNUG_OK;
    if (size > max_bytes)
        status =
            snug_fail(err, SNUG_BAD_FILE, "%s: the file has %lld bytes; at most %lld are allowed",
                      path, (long long)size, (long long)max_bytes);
    else if ((*text = malloc((size_t)size + 1)) == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory reading %lld bytes", path,
                           (long long)size);
    else
        status = fd_read_at(fd, path, *text, size, 0, err);
    close(fd);
    if (status != SNUG_OK) {
        free(*text);
        *text = NULL;
        return status;
    }
    (*text)[size] = '\0';
    *n_bytes = (size_t)size;
    return SNUG_OK;
}

enum snug_status file_count_read(const char *path, struct file_faults *faults,
                                 struct snug_error *err)
{
    return must_fail(faults) ? failed(err, path, "read") : SNUG_OK;
}

enum snug_status file_create(const char *path, int *fd, struct file_faults *faults,
                             struct snug_error *err)
{
    *fd = -1;
    if (!must_fail(faults)) {
        (void)unlink(path);
        *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return *fd < 0 ? failed(err, path, "create") : SNUG_OK;
}

enum snug_status file_open_update(const char *path, int *fd, struct snug_error *err)
{
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int64_t n_bytes;
    *fd = open(path, flags, 0666);
    if (*fd < 0)
        return failed(err, path, "open for writing");
    enum snug_status status = fd_check_regular(*fd, path, &n_bytes, err);
    if (status != SNUG_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static ssize_t write_piece(int fd, const char *bytes, size_t n_bytes, int64_t offset,
                           struct file_faults *faults)
{
    if (!must_fail(faults))
        return pwrite(fd, bytes, n_bytes, offset);
    int reason = errno;
    if (faults->calls == faults->fail_at && pwrite(fd, bytes, n_bytes / 2, offset) < 0)
        return -1; /* a failed write may leave some of its bytes in the file */
    errno = reason;
    return -1;
}

enum snug_status file_write_at(int fd, const char *path, const void *bytes, int64_t n_bytes,
                               int64_t offset_bytes, uint32_t *crc, struct file_faults *faults,
                               struct snug_error *err)
{
    const char *from = bytes;
    for (int64_t done = 0; done < n_bytes;) {
        size_t piece = (size_t)(n_bytes - done < PIECE_BYTES ? n_bytes - done : PIECE_BYTES);
        ssize_t put = write_piece(fd, from + done, piece, offset_bytes + done, faults);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return failed(err, path, "write");
        if (crc != NULL)
            *crc = file_crc32(*crc, from + done, (size_t)put);
        done += put;
    }
    return SNUG_OK;
}

enum snug_status file_set_length(int fd, const char *path, int64_t n_bytes,
                                 struct file_faults *faults, struct snug_error *err)
{
    if (must_fail(faults) || ftruncate(fd, n_bytes) != 0)
        return failed(err, path, "set the file size");
    return SNUG_OK;
}

enum snug_status file_finish(int fd, const char *path, struct file_faults *faults,
                             struct snug_error *err)
{
    enum snug_status status = SNUG_OK;
    if (must_fail(faults) || fsync(fd) != 0)
        status = failed(err, path, "sync to disk");
    if (close(fd) != 0 && status == SNUG_OK)
        status = failed(err, path, "close");
    return status;
}

enum snug_status file_rename(const char *from, const char *to, struct file_faults *faults,
                             struct snug_error *err)
{
    if (must_fail(faults) || rename(from, to) != 0)
        return failed(err, to, "rename the new file into place");
    return SNUG_OK;
}

enum snug_status file_sync_folder(const char *dir, struct file_faults *faults,
                                  struct snug_error *err)
{
    int fd = must_fail(faults) ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return failed(err, dir, "open the folder");
    /* EINVAL: the file system cannot sync folders */
    bool synced = fsync(fd) == 0 || errno == EINVAL;
    enum snug_status status = synced ? SNUG_OK : failed(err, dir, "sync the folder to disk");
    close(fd);
    return status;
}

void file_remove(const char *path, struct file_faults *faults)
{
    if (!must_fail(faults))
        unlink(path);
}

/* The folder that contains PATH.  The caller frees it. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static char *with_suffix(const char *path, const char *suffix)
{
    size_t bytes = strlen(path) + strlen(suffix) + 1;
    char *out = malloc(bytes);
    if (out != NULL)
        snprintf(out, bytes, "%s%s", path, suffix);
    return out;
}

static enum snug_status write_new(const char *path, const void *bytes, size_t n_bytes,
                                  struct file_faults *faults, struct snug_error *err)
{
    int fd;
    TRY(file_create(path, &fd, faults, err));
    enum snug_status status =
        file_write_at(fd, path, bytes, (int64_t)n_bytes, 0, NULL, faults, err);
    if (status == SNUG_OK)
        return file_finish(fd, path, faults, err);
    close(fd);
    return status;
}

enum snug_status file_write_atomic(const char *path, const void *bytes, size_t n_bytes,
                                   struct file_faults *faults, struct snug_error *err)
{
    char *folder = folder_of(path);
    char *fresh = with_suffix(path, ".tmp");
    enum snug_status status = SNUG_OK;
    if (folder == NULL || fresh == NULL) {
        status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory writing the file", path);
        goto done;
    }
    status = write_new(fresh, bytes, n_bytes, faults, err);
    if (status == SNUG_OK)
        status = file_rename(fresh, path, faults, err);
    if (status == SNUG_OK)
        status = file_sync_folder(folder, faults, err);
    else
        file_remove(fresh, faults);
done:
    free(folder);
    free(fresh);
    return status;
}
