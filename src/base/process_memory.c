/*
 * process_memory.c -- what the operating system says: how much this process holds, how much it may.
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

/* A line "VmRSS:   1234 kB" of /proc/self/status, in bytes; -1 where there is no such file. */
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

int64_t machine_bytes(void)
{
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    char share[64]; /* a container's */
    long long limit;
    if (fd_read_start("/sys/fs/cgroup/memory.max", share, sizeof share) &&
        sscanf(share, "%lld", &limit) == 1 && limit > 0 && limit < bytes)
        bytes = limit;
    return bytes;
}
