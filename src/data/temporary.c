/*
 * temporary.c -- unlinked temporary files, which vanish with the process.
 */
#include "data/source.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fd.h"

int source_temporary(void)
{
    const char *const places[] = {getenv("TMPDIR"), "/var/tmp", "/tmp"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (places[i] == NULL || *places[i] == '\0')
            continue;
        char *path = path_join(places[i], "snug-XXXXXX", "");
        int fd = path == NULL ? -1 : mkstemp(path);
        if (fd >= 0)
            unlink(path);
        free(path);
        if (fd >= 0)
            return fd;
    }
    return -1;
}

bool source_write(int fd, const void *bytes, size_t n_bytes)
{
    const char *at = bytes;
    while (n_bytes > 0) {
        ssize_t put = write(fd, at, n_bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        at += put;
        n_bytes -= (size_t)put;
    }
    return true;
}
