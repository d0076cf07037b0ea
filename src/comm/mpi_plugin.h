/*
 * mpi_plugin.h -- the interface between comm.c and an MPI library.
 *
 * snug itself does not link to MPI, so it runs on machines without it.  For each MPI found at build
 * time, mpi_plugin.c is built into a small shared object, which is loaded when a run has several
 * ranks.  The object includes only this header of snug, so either side can be built without the
 * other.
 *
 * Only one thread may call at a time.  A function that fails returns false and sets `why`.
 */
#ifndef SNUG_COMM_MPI_PLUGIN_H
#define SNUG_COMM_MPI_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COMM_PLUGIN_VERSION = 2, COMM_WHY_MAX = 256, COMM_MESSAGE_BYTES_MAX = 1 << 30 };

struct comm_message {
    int peer;
    void *data;
    int64_t n_bytes; /* at least 1, at most COMM_MESSAGE_BYTES_MAX */
    bool receives;
};

struct comm_plugin {
    int version;
    const char *name; /* "Open MPI" */
    bool (*begin)(int *rank, int *n_ranks, char why[COMM_WHY_MAX]);
    /* Starts sends and receives; `test` reports when all are done.  Between two ranks, messages
     * arrive in the order in which they were sent. */
    bool (*start)(const struct comm_message *messages, int n, char why[COMM_WHY_MAX]);
    bool (*test)(bool *done, char why[COMM_WHY_MAX]);
    /* Starts one more message, independent of `start`.  test_post reports when it is done; `number`
     * may then be reused.  It keeps its place in the order of messages between two ranks. */
    bool (*post)(const struct comm_message *message, int *number, char why[COMM_WHY_MAX]);
    bool (*test_post)(int number, bool *done, char why[COMM_WHY_MAX]);
    void (*end)(void); /* all ranks must call it */
};

/* The one symbol of the shared object. */
#define COMM_PLUGIN_SYMBOL "snug_comm_plugin"
typedef const struct comm_plugin *comm_plugin_fn(void);

#endif
