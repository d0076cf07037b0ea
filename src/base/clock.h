/*
 * clock.h -- a monotonic clock, for measurements only: no result depends on it.
 */
#ifndef SNUG_BASE_CLOCK_H
#define SNUG_BASE_CLOCK_H

#include <time.h>

static inline double clock_read(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline double clock_seconds(void)
{
    return clock_read(CLOCK_MONOTONIC);
}

/* The CPU time of the calling thread. */
static inline double clock_thread_seconds(void)
{
    return clock_read(CLOCK_THREAD_CPUTIME_ID);
}

#endif
