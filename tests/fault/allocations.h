/*
 * allocations.h -- makes the Nth allocation of snug's own code fail.
 *
 * The program is linked with --wrap for every function that allocates for its caller, so the calls
 * of snug are counted and, because the program sets jansson's allocator, those of jansson.  Other
 * libraries (OpenMP, oneDNN, MPI, libc before main) are not affected.
 */
#ifndef TESTS_FAULT_ALLOCATIONS_H
#define TESTS_FAULT_ALLOCATIONS_H

#include <stdbool.h>

enum { ALLOCATIONS_DEPTH = 24 };
struct allocations { /* in memory that a child shares with its parent */
    long calls;      /* allocations so far */
    long failed;     /* those of them that were made to fail */
    int n_frames;    /* where the first of these was called from */
    void *frames[ALLOCATIONS_DEPTH];
};

/* From here on the call `fail_at` fails, and if `on` all after it; 0: only count. */
void allocations_arm(struct allocations *counts, long fail_at, bool on);
/* For people: the lines of source where it failed. */
void allocations_print_place(const struct allocations *counts);

#endif
