/*
 * mpi_plugin.h -- what a library of messages offers to comm.c.
 *
 * The program itself knows no MPI: it runs where there is none.  Each MPI that is found at build time
 * gets a small shared object of its own (mpi_plugin.c), loaded when a run has several ranks.  The object
 * sees this header and nothing else of snug, so that either side can be built without the other.
 *
 * One thread at a time calls.  A function that fails returns false and leaves the cause in `why`.
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
    /* Sends and receives that are under way until `test` says that all are done.  Between two ranks,
     * messages arrive in the order in which they were sent. */
    bool (*start)(const struct comm_message *messages, int n, char why[COMM_WHY_MAX]);
    bool (*test)(bool *done, char why[COMM_WHY_MAX]);
    /* One more message that is under way beside those, until its own test says that it is done; `number` is
     * then free for others.  Its turn among the messages of two ranks is when it was posted. */
    bool (*post)(const struct comm_message *message, int *number, char why[COMM_WHY_MAX]);
    bool (*test_post)(int number, bool *done, char why[COMM_WHY_MAX]);
    void (*end)(void); /* when all ranks come to it */
};

/* The one symbol of the shared object. */
#define COMM_PLUGIN_SYMBOL "snug_comm_plugin"
typedef const struct comm_plugin *comm_plugin_fn(void);

#endif
