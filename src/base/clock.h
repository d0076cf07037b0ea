/*
 * clock.h -- how long something took: seconds of a clock that never goes back.  For measuring only;
 * nothing that is computed depends on it.
 */
#ifndef SNUG_BASE_CLOCK_H
#define SNUG_BASE_CLOCK_H

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
