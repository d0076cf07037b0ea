/*
 * gunzip.c -- make a gzip file readable at any offset without loading it into memory.
 *
 * It is inflated into an unlinked temporary file, so nothing is left behind if the process dies.
 */
#include "data/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef SNUG_ZLIB
#include <zlib.h>

#include "base/fd.h"

enum { CHUNK_BYTES = 1 << 16 };
static const int64_t MAX_BYTES = (int64_t)16 << 30; /* more is a zip bomb, not a data set */

static enum snug_status inflate_into(gzFile gz, const char *path, int fd, int64_t *n_bytes,
                                     struct snug_error *err)
{
    char chunk[CHUNK_BYTES];
    int code = Z_OK;
    *n_bytes = 0;
    for (;;) {
        int got = gzread(gz, chunk, sizeof chunk);
        const char *reason = gzerror(gz, &code);
        if (code == Z_MEM_ERROR)
            return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory unpacking", path);
        if (got < 0 || code == Z_BUF_ERROR) /* Z_BUF_ERROR: the end is missing */
            return snug_fail(err, SNUG_BAD_FILE, "%s: damaged or truncated (%s): download it again",
                             path, reason);
        if (got == 0)
            return SNUG_OK;
        if (gzdirect(gz))
            return snug_fail(err, SNUG_BAD_FILE, "%s: not a gzip file, despite its name", path);
        *n_bytes += got;
        if (*n_bytes > MAX_BYTES)
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: unpacks to more than 16 GiB: if that is right, unpack it with "
                             "gunzip first",
                             path);
        if (!source_write(fd, chunk, (size_t)got))
            return snug_fail(err, SNUG_IO_ERROR, "%s: cannot unpack: %s; %s", path, strerror(errno),
                             errno == EFBIG ? "raise the file size limit (ulimit -f)"
                                            : "set TMPDIR to a folder with more space");
    }
}

enum snug_status source_gunzip(const char *path, int *fd, int64_t *n_bytes, struct snug_error *err)
{
    int in;
    int64_t n_packed;
    *fd = -1;
    TRY(fd_open_read(path, &in, &n_packed, err));
    gzFile gz = gzdopen(in, "rb");
    if (gz == NULL) {
        close(in);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory unpacking", path);
    }
    int out = source_temporary();
    enum snug_status status =
        out < 0 ? snug_fail(err, SNUG_IO_ERROR,
                            "%s: cannot create a temporary file to unpack into: %s; set TMPDIR",
                            path, strerror(errno))
                : inflate_into(gz, path, out, n_bytes, err);
    gzclose(gz);
    if (status == SNUG_OK)
        *fd = out;
    else if (out >= 0)
        close(out);
    return status;
}

#else

enum snug_status source_gunzip(const char *path, int *fd, int64_t *n_bytes, struct snug_error *err)
{
    *fd = -1;
    *n_bytes = 0;
    return snug_fail(err, SNUG_UNSUPPORTED,
                     "%s: this build cannot read gzip (no zlib): unpack it with gunzip %s", path,
                     path);
}

#endif
