/*
 * comm.c -- connect to the other ranks through an MPI plugin, and exchange messages with them.
 *
 * The launcher of the process (launcher.h) determines which MPI to use.  Its plugin is next to the
 * program, or where it was installed.  SNUG_MPI names another plugin.
 */
#include "comm/comm.h"

#include "base/plugin_file.h"
#include "base/text.h"
#include "comm/launcher.h"
#include "comm/watch.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct posted {
    const void *data; /* of the whole message; NULL: this slot is free */
    int number;       /* the plugin's number of the send */
};

struct ranks {
    struct comm comm; /* first member: the two are cast into each other */
    void *library;
    const struct comm_plugin *plugin;
    struct watch *watch;
    /* Held around each call of the plugin: MPI allows one thread at a time, and the copy lane of a
     * run makes progress on its posted sends while an evaluation communicates. */
    pthread_mutex_t mutex;
    struct posted *posted;
    int n_posted;
};

/* ---- waiting --------------------------------------------------------------------------------- */

/* The processor is shared with the ops of this rank, and often with other ranks: poll eagerly at
 * first, then sleep in between. */
static void back_off(int n_polls)
{
    enum { EAGER_POLLS = 64 };
    static const struct timespec interval = {.tv_nsec = 30 * 1000};
    if (n_polls < EAGER_POLLS)
        sched_yield();
    else
        nanosleep(&interval, NULL);
}

static enum snug_status transfer(struct comm *comm, const struct comm_message *messages, int n,
                                 struct snug_error *err)
{
    struct ranks *r = (struct ranks *)comm;
    char why[COMM_WHY_MAX] = "";
    bool done = n == 0;
    TRY(comm_check(comm, err));
    pthread_mutex_lock(&r->mutex);
    bool works = done || r->plugin->start(messages, n, why);
    pthread_mutex_unlock(&r->mutex);
    if (!works)
        return snug_fail(err, SNUG_IO_ERROR, "%s: %s", r->plugin->name, why);
    for (int n_polls = 0; !done; n_polls += n_polls < 1 << 20) {
        pthread_mutex_lock(&r->mutex);
        works = r->plugin->test(&done, why);
        pthread_mutex_unlock(&r->mutex);
        if (!works) {
            TRY(comm_check(comm, err)); /* a dead rank explains more than the MPI error it causes */
            return snug_fail(err, SNUG_IO_ERROR, "%s: %s", r->plugin->name, why);
        }
        if (!done) {
            TRY(comm_check(comm, err));
            back_off(n_polls);
        }
    }
    return SNUG_OK;
}

/* ---- non-blocking sends ---------------------------------------------------------------------- */

/* The array grows to the largest number of sends that were ever in flight at once. */
static struct posted *free_place(struct ranks *r)
{
    for (int i = 0; i < r->n_posted; i++)
        if (r->posted[i].data == NULL)
            return &r->posted[i];
    struct posted *grown = realloc(r->posted, ((size_t)r->n_posted + 1) * sizeof *grown);
    if (grown == NULL)
        return NULL;
    r->posted = grown;
    r->posted[r->n_posted] = (struct posted){0};
    return &r->posted[r->n_posted++];
}

/* Splits data that is longer than a message may be. */
static enum snug_status post(struct comm *comm, int to, const void *data, int64_t n_bytes,
                             struct snug_error *err)
{
    struct ranks *r = (struct ranks *)comm;
    char why[COMM_WHY_MAX] = "";
    for (int64_t at = 0, n; at < n_bytes; at += n) {
        n = n_bytes - at < COMM_MESSAGE_BYTES_MAX ? n_bytes - at : COMM_MESSAGE_BYTES_MAX;
        struct comm_message message = {.peer = to, .data = (char *)data + at, .n_bytes = n};
        pthread_mutex_lock(&r->mutex);
        struct posted *place = free_place(r);
        bool works = place != NULL && r->plugin->post(&message, &place->number, why);
        if (works)
            place->data = data;
        pthread_mutex_unlock(&r->mutex);
        if (!works)
            return place == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory")
                                 : snug_fail(err, SNUG_IO_ERROR, "%s: %s", r->plugin->name, why);
    }
    return SNUG_OK;
}

/* The number of sends with this data (NULL: with any) that are still in flight; -1 if one
 * failed. */
static int test_posted(struct ranks *r, const void *data, char why[COMM_WHY_MAX])
{
    int n_left = 0;
    pthread_mutex_lock(&r->mutex);
    for (int i = 0; i < r->n_posted && n_left >= 0; i++) {
        struct posted *p = &r->posted[i];
        bool done = false;
        if (p->data == NULL || (data != NULL && p->data != data))
            continue;
        bool works = r->plugin->test_post(p->number, &done, why);
        if (done)
            p->data = NULL;
        n_left = works ? n_left + !done : -1;
    }
    pthread_mutex_unlock(&r->mutex);
    return n_left;
}

static enum snug_status wait_post(struct comm *comm, const void *data, struct snug_error *err)
{
    struct ranks *r = (struct ranks *)comm;
    char why[COMM_WHY_MAX] = "";
    int n_left;
    for (int n_polls = 0; (n_left = test_posted(r, data, why)) != 0; n_polls += n_polls < 1 << 20) {
        TRY(comm_check(comm, err));
        if (n_left < 0)
            return snug_fail(err, SNUG_IO_ERROR, "%s: %s", r->plugin->name, why);
        back_off(n_polls);
    }
    return SNUG_OK;
}

/* Ignores failures: wait_post finds them again and reports them. */
static bool progress(struct comm *comm)
{
    char why[COMM_WHY_MAX];
    return test_posted((struct ranks *)comm, NULL, why) > 0;
}

static void close_ranks(struct comm *comm, bool orderly)
{
    struct ranks *r = (struct ranks *)comm;
    orderly = orderly && comm_barrier(comm, NULL) == SNUG_OK;
    watch_close(r->watch);
    if (orderly)
        r->plugin->end();
    pthread_mutex_destroy(&r->mutex);
    free(r->posted);
    free(comm->messages);
    free(r); /* the library stays: MPI leaves threads behind */
}

static const struct comm_table table = {
    .name = "mpi",
    .transfer = transfer,
    .all_reduce = collect_all_reduce,
    .reduce_scatter = collect_reduce_scatter,
    .all_gather = collect_all_gather,
    .post = post,
    .wait_post = wait_post,
    .progress = progress,
    .close = close_ranks,
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Searches next to the program and where it is installed, then where the system looks. */
static void *load(const char *name, char why[COMM_WHY_MAX])
{
    char path[PATH_MAX];
    /* RTLD_GLOBAL: MPI loads components that look up its symbols */
    void *library = plugin_file_find(name, path) ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (library == NULL)
        library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        snprintf(why, COMM_WHY_MAX, "%s", dlerror());
    return library;
}

void comm_describe(struct text *out)
{
    char path[PATH_MAX];
    const char *plugin;
    int n = 0;
    for (int i = 0; (plugin = launcher_plugin(i)) != NULL; i++)
        if (plugin_file_find(plugin, path))
            text_add(out, "%s%s", n++ == 0 ? "MPI: plugins " : ", ", plugin);
    text_add(out, n > 0 ? "\n" : "without MPI: no plugin was built or found; one rank\n");
}

static enum snug_status load_plugin(struct ranks *r, const struct launcher *launcher,
                                    struct snug_error *err)
{
    char why[COMM_WHY_MAX] = "";
    const char *name = getenv("SNUG_MPI");
    if (name == NULL)
        name = launcher->plugin;
    r->library = load(name, why);
    if (r->library == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "several ranks need MPI: %.200s; install MPI and rebuild snug, or run "
                         "on one rank",
                         why);
    comm_plugin_fn *find = NULL;
    *(void **)&find = dlsym(r->library, COMM_PLUGIN_SYMBOL);
    r->plugin = find == NULL ? NULL : find();
    if (r->plugin == NULL || r->plugin->version != COMM_PLUGIN_VERSION)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s is not an MPI plugin of this version of snug: rebuild it", name);
    return SNUG_OK;
}

static enum snug_status begin(struct ranks *r, const struct launcher *launcher,
                              struct snug_error *err)
{
    char why[COMM_WHY_MAX] = "";
    TRY(load_plugin(r, launcher, err));
    if (!r->plugin->begin(&r->comm.rank, &r->comm.n_ranks, why))
        return snug_fail(err, SNUG_IO_ERROR, "%s failed to start: %s", r->plugin->name, why);
    enum snug_status status = launcher_check_size(launcher, r->plugin->name, r->comm.n_ranks, err);
    if (status != SNUG_OK) {
        r->plugin->end();
        return status;
    }
    return r->comm.n_ranks > 1 ? watch_open(&r->comm, &r->watch, err) : SNUG_OK;
}

enum snug_status comm_open(int64_t n_ranks, struct comm **comm, struct snug_error *err)
{
    const struct launcher *launcher = launcher_find();
    bool is_alone = launcher == NULL || launcher_size(launcher) == 1;
    *comm = NULL;
    if (launcher == NULL)
        TRY(launcher_check_tasks(err));
    if (is_alone && n_ranks <= 1)
        return comm_open_self(comm, err);
    if (is_alone)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--ranks %lld: only one process was started; use mpirun -n %lld snug "
                         "train ...",
                         (long long)n_ranks, (long long)n_ranks);
    struct ranks *r = calloc(1, sizeof *r);
    if (r == NULL) {
        comm_abandon();
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    r->comm.table = &table;
    pthread_mutex_init(&r->mutex, NULL);
    enum snug_status status = begin(r, launcher, err);
    if (status != SNUG_OK) {
        pthread_mutex_destroy(&r->mutex);
        free(r);
        return status;
    }
    r->comm.messages = calloc(2 * (size_t)r->comm.n_ranks, sizeof *r->comm.messages);
    if (r->comm.messages == NULL) {
        snug_fail(err, SNUG_NO_MEMORY, "out of memory");
        comm_claim(&r->comm, err);
        comm_close(&r->comm, false);
        return SNUG_NO_MEMORY;
    }
    *comm = &r->comm;
    return SNUG_OK;
}

void comm_abandon(void)
{
    struct ranks r = {.comm.table = &table}; /* on the stack: the heap may be exhausted */
    const struct launcher *launcher = launcher_find();
    if (launcher == NULL || launcher_size(launcher) == 1)
        return;
    pthread_mutex_init(&r.mutex, NULL);
    if (begin(&r, launcher, NULL) == SNUG_OK) {
        struct snug_error why = {.status = SNUG_NO_MEMORY, .message = "out of memory"};
        comm_claim(&r.comm, &why);
        watch_close(r.watch);
    }
    pthread_mutex_destroy(&r.mutex);
}

void comm_close(struct comm *comm, bool orderly)
{
    if (comm != NULL)
        comm->table->close(comm, orderly);
}

static struct watch *watch_of(const struct comm *comm)
{
    return comm == NULL || comm->table != &table ? NULL : ((const struct ranks *)comm)->watch;
}

enum snug_status comm_check(const struct comm *comm, struct snug_error *err)
{
    return watch_check(watch_of(comm), err);
}

void comm_claim(struct comm *comm, struct snug_error *err)
{
    struct watch *watch = watch_of(comm);
    if (watch == NULL || err->status == SNUG_PEER_FAILED)
        return;
    char message[sizeof err->message];
    snprintf(message, sizeof message, "rank %d: %.480s", comm->rank, err->message);
    enum snug_status status = watch_claim(watch, message) ? err->status : SNUG_PEER_FAILED;
    snug_fail(err, status, "%s", message);
}

/* ---- small data ------------------------------------------------------------------------------ */

static enum snug_status one(struct comm *comm, int peer, void *data, int64_t n_bytes, bool receives,
                            struct snug_error *err)
{
    for (int64_t at = 0, n; at < n_bytes; at += n) {
        n = n_bytes - at < COMM_MESSAGE_BYTES_MAX ? n_bytes - at : COMM_MESSAGE_BYTES_MAX;
        struct comm_message message = {
            .peer = peer, .data = (char *)data + at, .n_bytes = n, .receives = receives};
        TRY(comm->table->transfer(comm, &message, 1, err));
    }
    return SNUG_OK;
}

enum snug_status comm_send(struct comm *comm, int to, const void *data, int64_t n_bytes,
                           struct snug_error *err)
{
    return one(comm, to, (void *)data, n_bytes, false, err);
}

enum snug_status comm_recv(struct comm *comm, int from, void *data, int64_t n_bytes,
                           struct snug_error *err)
{
    return one(comm, from, data, n_bytes, true, err);
}

enum snug_status comm_broadcast(struct comm *comm, int from, void *data, int64_t n_bytes,
                                struct snug_error *err)
{
    if (comm->rank != from)
        return comm_recv(comm, from, data, n_bytes, err);
    for (int rank = 0; rank < comm->n_ranks; rank++)
        if (rank != from)
            TRY(comm_send(comm, rank, data, n_bytes, err));
    return SNUG_OK;
}

enum snug_status comm_gather(struct comm *comm, int to, const void *data, int64_t n_bytes,
                             void *all, struct snug_error *err)
{
    if (comm->rank != to)
        return comm_send(comm, to, data, n_bytes, err);
    for (int rank = 0; rank < comm->n_ranks; rank++) {
        char *place = (char *)all + rank * n_bytes;
        if (rank == to)
            memcpy(place, data, (size_t)n_bytes);
        else
            TRY(comm_recv(comm, rank, place, n_bytes, err));
    }
    return SNUG_OK;
}

enum snug_status comm_max(struct comm *comm, double *value, struct snug_error *err)
{
    if (comm->rank != 0)
        TRY(comm_send(comm, 0, value, sizeof *value, err));
    for (int rank = 1; rank < comm->n_ranks && comm->rank == 0; rank++) {
        double other;
        TRY(comm_recv(comm, rank, &other, sizeof other, err));
        *value = other > *value ? other : *value;
    }
    return comm_broadcast(comm, 0, value, sizeof *value, err);
}

enum snug_status comm_barrier(struct comm *comm, struct snug_error *err)
{
    double nothing = 0;
    return comm_max(comm, &nothing, err);
}
