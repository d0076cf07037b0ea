/*
 * mpi_plugin.c -- messages over MPI; built as a shared object for each MPI found at build time.
 *
 * It uses only MPI_Isend and MPI_Irecv.  snug computes the sums of collectives itself, so that they
 * are deterministic.
 */
#include "comm/mpi_plugin.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static MPI_Comm world; /* static: a process can initialize MPI only once */
static MPI_Request *requests;
static int n_requests, capacity;
static MPI_Request *posts; /* MPI_REQUEST_NULL: the slot is free */
static int n_posts;

static bool failed(int code, char why[COMM_WHY_MAX])
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS)
        return false;
    MPI_Error_string(code, text, &length);
    length = length < COMM_WHY_MAX - 1 ? length : COMM_WHY_MAX - 1;
    memcpy(why, text, (size_t)length);
    why[length] = '\0';
    return true;
}

static bool begin(int *rank, int *n_ranks, char why[COMM_WHY_MAX])
{
    int had = 0, ended = 0, level = 0;
    MPI_Initialized(&had);
    MPI_Finalized(&ended);
    if (ended) {
        strcpy(why, "MPI was finalized in this process and cannot be initialized again");
        return false;
    }
    if (!had && failed(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), why))
        return false;
    if (had)
        MPI_Query_thread(&level);
    if (level < MPI_THREAD_SERIALIZED) {
        strcpy(why, "this MPI was built without thread support (MPI_THREAD_SERIALIZED): install "
                    "one with it");
        return false;
    }
    if (failed(MPI_Comm_dup(MPI_COMM_WORLD, &world), why))
        return false;
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world, rank);
    MPI_Comm_size(world, n_ranks);
    return true;
}

static int begin_message(const struct comm_message *m, MPI_Request *request)
{
    return m->receives ? MPI_Irecv(m->data, (int)m->n_bytes, MPI_BYTE, m->peer, 0, world, request)
                       : MPI_Isend(m->data, (int)m->n_bytes, MPI_BYTE, m->peer, 0, world, request);
}

static bool start(const struct comm_message *messages, int n, char why[COMM_WHY_MAX])
{
    if (n > capacity) {
        MPI_Request *grown = realloc(requests, (size_t)n * sizeof *grown);
        if (grown == NULL) {
            strcpy(why, "out of memory");
            return false;
        }
        requests = grown;
        capacity = n;
    }
    for (n_requests = 0; n_requests < n; n_requests++)
        if (failed(begin_message(&messages[n_requests], &requests[n_requests]), why))
            return false;
    return true;
}

static bool test(bool *done, char why[COMM_WHY_MAX])
{
    int all = 0;
    if (failed(MPI_Testall(n_requests, requests, &all, MPI_STATUSES_IGNORE), why))
        return false;
    *done = all != 0;
    return true;
}

/* The array grows to the largest number of posts that were ever in flight at once. */
static bool post(const struct comm_message *message, int *number, char why[COMM_WHY_MAX])
{
    int at = 0;
    while (at < n_posts && posts[at] != MPI_REQUEST_NULL)
        at++;
    if (at == n_posts) {
        MPI_Request *grown = realloc(posts, ((size_t)n_posts + 1) * sizeof *grown);
        if (grown == NULL) {
            strcpy(why, "out of memory");
            return false;
        }
        posts = grown;
        n_posts++;
    }
    posts[at] = MPI_REQUEST_NULL;
    *number = at;
    return !failed(begin_message(message, &posts[at]), why);
}

static bool test_post(int number, bool *done, char why[COMM_WHY_MAX])
{
    int is_done = 0;
    if (failed(MPI_Test(&posts[number], &is_done, MPI_STATUS_IGNORE), why))
        return false;
    *done = is_done != 0;
    return true;
}

static void end(void)
{
    free(requests);
    free(posts);
    requests = posts = NULL;
    capacity = n_posts = 0;
    MPI_Comm_free(&world);
    MPI_Finalize();
}

__attribute__((visibility("default"))) comm_plugin_fn snug_comm_plugin;
const struct comm_plugin *snug_comm_plugin(void)
{
    static const struct comm_plugin plugin = {
        .version = COMM_PLUGIN_VERSION,
        .name = SNUG_MPI_NAME,
        .begin = begin,
        .start = start,
        .test = test,
        .post = post,
        .test_post = test_post,
        .end = end,
    };
    return &plugin;
}
