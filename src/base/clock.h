/*
 * clock.h -- how long something took: seconds of a clock that never goes back.  For measuring only;
 * nothing that is computed depends on it.
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

/* What the calling thread has had of a processor. */
static inline double clock_thread_seconds(void)
{
    return clock_read(CLOCK_THREAD_CPUTIME_ID);
}

#endif
