/*
 * allocations.c -- the wrapped functions; see allocations.h.
 */
#include "fault/allocations.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef SNUG_ZLIB
#include <zlib.h>
#endif

static struct allocations *armed;
static atomic_long n_calls;
static long first_failure;
static bool goes_on;

void allocations_arm(struct allocations *counts, long fail_at, bool on)
{
    void *frame;
    backtrace(&frame, 1); /* loads what it needs now */
    *counts = (struct allocations){0};
    first_failure = fail_at;
    goes_on = on;
    atomic_store(&n_calls, 0);
    armed = counts;
}

static bool must_fail(void)
{
    if (armed == NULL)
        return false;
    long n = atomic_fetch_add(&n_calls, 1) + 1;
    armed->calls = n;
    if (first_failure == 0 || n < first_failure || (n > first_failure && !goes_on))
        return false;
    if (armed->failed++ == 0)
        armed->n_frames = backtrace(armed->frames, ALLOCATIONS_DEPTH);
    errno = ENOMEM;
    return true;
}

static int take_base(struct dl_phdr_info *info, size_t size, void *base)
{
    (void)size;
    *(size_t *)base = (size_t)info->dlpi_addr;
    return 1; /* the first is the program */
}

void allocations_print_place(const struct allocations *counts)
{
    size_t base = 0;
    char command[2048] = "addr2line -sfpe /proc/$PPID/exe";
    dl_iterate_phdr(take_base, &base);
    for (int i = 2; i < counts->n_frames; i++) {
        size_t at = strlen(command);
        snprintf(command + at, sizeof command - at, " %zx", (size_t)counts->frames[i] - base - 1);
    }
    strcat(command, " 2>/dev/null | grep -v '^[?]' | sed 's/^/#     /'");
    fflush(stdout);
    if (system(command) != 0)
        puts("#     (no addr2line here)");
}

/* NAME fails by giving `failure`. */
#define WRAP(type, name, parameters, arguments, failure)          \
    type __real_##name parameters;                                \
    type __wrap_##name parameters;                                \
    type __wrap_##name parameters                                 \
    {                                                             \
        return must_fail() ? (failure) : __real_##name arguments; \
    }
WRAP(void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(void *, calloc, (size_t n, size_t bytes), (n, bytes), NULL)
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes), NULL)
WRAP(char *, strdup, (const char *text), (text), NULL)
WRAP(char *, strndup, (const char *text, size_t most), (text, most), NULL)
WRAP(ssize_t, getline, (char **line, size_t *capacity, FILE *file), (line, capacity, file), -1)
WRAP(ssize_t, __getdelim, (char **line, size_t *capacity, int end, FILE *file),
     (line, capacity, end, file), -1) /* what getline is to an optimizing compiler */
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode), NULL)
WRAP(FILE *, fdopen, (int fd, const char *mode), (fd, mode), NULL)
WRAP(DIR *, opendir, (const char *path), (path), NULL)
WRAP(void *, mmap, (void *at, size_t bytes, int may, int flags, int fd, off_t from),
     (at, bytes, may, flags, fd, from), MAP_FAILED)
WRAP(int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *with, void *(*work)(void *), void *its),
     (thread, with, work, its), EAGAIN)
#ifdef SNUG_ZLIB
WRAP(gzFile, gzdopen, (int fd, const char *mode), (fd, mode), NULL)
#endif

/* It allocates if it is given no room. */
char *__real_realpath(const char *path, char *resolved);
char *__wrap_realpath(const char *path, char *resolved);
char *__wrap_realpath(const char *path, char *resolved)
{
    return resolved == NULL && must_fail() ? NULL : __real_realpath(path, resolved);
}
