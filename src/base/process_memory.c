/*
 * process_memory.c -- memory use and memory limits of this process, from /proc and cgroups.
 */
#include "base/process_memory.h"

#include "base/fd.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Reads a line such as "VmRSS:   1234 kB" of /proc/self/status, in bytes; -1 if there is none. */
static int64_t status_line(const char *key)
{
    char lines[4096];
    long long kib;
    const char *line = fd_read_start("/proc/self/status", lines, sizeof lines) ? lines : NULL;
    size_t length = strlen(key);
    while (line != NULL && strncmp(line, key, length) != 0) {
        line = strchr(line, '\n');
        line = line == NULL ? NULL : line + 1;
    }
    return line != NULL && sscanf(line + length, ": %lld", &kib) == 1 ? (int64_t)kib * 1024 : -1;
}

int64_t process_resident_bytes(void)
{
    int64_t bytes = status_line("VmRSS");
    return bytes < 0 ? process_peak_bytes() : bytes;
}

int64_t process_peak_bytes(void)
{
    struct rusage usage;
    int64_t bytes = status_line("VmHWM");
    if (bytes < 0 && getrusage(RUSAGE_SELF, &usage) == 0)
        bytes = (int64_t)usage.ru_maxrss * 1024;
    return bytes;
}

void process_give_back(void)
{
#if defined(__GLIBC__)
    (void)malloc_trim(0);
#endif
}

/* Reads a limit from a file; INT64_MAX if there is none ("max", or no such file). */
static int64_t limit_in(const char *path)
{
    char words[64];
    long long limit;
    bool is_known = fd_read_start(path, words, sizeof words) && sscanf(words, "%lld", &limit) == 1;
    return is_known && limit > 0 ? (int64_t)limit : INT64_MAX;
}

/* The smallest limit of a control group and all its parents, which apply too. */
static int64_t limit_above(const char *folder, char *group, const char *file)
{
    char path[1024];
    int64_t least = INT64_MAX;
    for (bool is_root = false; !is_root;) {
        char *slash = strrchr(group, '/');
        is_root = slash == NULL;
        snprintf(path, sizeof path, "%s%s/%s", folder, group, file);
        int64_t limit = limit_in(path);
        least = limit < least ? limit : least;
        if (!is_root)
            *slash = '\0';
    }
    return least;
}

/* Parses lines "0::/a/b" (cgroup v2) and "4:memory:/a/b" (v1).  In a container the path may not
 * exist; the root is then the container's group. */
int64_t control_group_limit(const char *root, const char *own)
{
    char lines[4096], folder[512], *rest = lines;
    int64_t least = INT64_MAX;
    if (!fd_read_start(own, lines, sizeof lines))
        lines[0] = '\0';
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
        char *group = strchr(line, '/');
        bool is_second = strncmp(line, "0::/", 4) == 0;
        if (group == NULL || (!is_second && strstr(line, ":memory:/") == NULL))
            continue;
        snprintf(folder, sizeof folder, "%s%s", root, is_second ? "" : "/memory");
        int64_t limit =
            limit_above(folder, group, is_second ? "memory.max" : "memory.limit_in_bytes");
        least = limit < least ? limit : least;
    }
    return least;
}

int64_t machine_bytes(void)
{
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int64_t limit = control_group_limit("/sys/fs/cgroup", "/proc/self/cgroup");
    return limit < bytes ? limit : bytes;
}
