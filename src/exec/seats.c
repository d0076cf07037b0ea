/*
 * seats.c -- ranks find out about each other's GPUs.
 *
 * Which ranks share a machine is told by its name, so that it does not matter who started them.  What each
 * rank has is told to all, and all draw the same conclusion.
 */
#include "exec/seats.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HOST_MAX = 64 };

struct seat { /* of one rank, as it tells the others */
    char host[HOST_MAX], place[DEVICE_TEXT_MAX];
    int32_t gpu, has_direct;
    char direct[DEVICE_TEXT_MAX]; /* what it has, or why it has none */
};

static bool wish_is(const char *wish)
{
    const char *given = getenv("SNUG_NCCL");
    return given != NULL && strcmp(given, wish) == 0;
}

bool seats_are_forced(void)
{
    return wish_is("force");
}

void seats_free(struct seats *seats)
{
    if (seats != NULL)
        free(seats->gpu);
    free(seats);
}

/* What each rank has, to all of them. */
static enum snug_status tell_all(struct comm *comm, const struct seat *own, struct seat *all,
                                 struct snug_error *err)
{
    TRY(comm_gather(comm, 0, own, sizeof *own, all, err));
    return comm_broadcast(comm, 0, all, (int64_t)sizeof *all * comm->n_ranks, err);
}

static struct seat seat_of_host(void)
{
    struct seat seat = {0};
    gethostname(seat.host, sizeof seat.host - 1);
    return seat;
}

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}

static enum snug_status own_number(struct comm *comm, int n_gpus, int *number,
                                   struct snug_error *err)
{
    struct seat *all = calloc((size_t)comm->n_ranks, sizeof *all), own = seat_of_host();
    if (all == NULL)
        return no_memory(err);
    enum snug_status status = tell_all(comm, &own, all, err);
    int before = 0;
    for (int rank = 0; rank < comm->rank; rank++)
        before += strcmp(all[rank].host, own.host) == 0;
    *number = n_gpus > 0 ? before % n_gpus : 0;
    free(all);
    return status;
}

enum snug_status seats_take(struct comm *comm, const struct device_hooks *hooks,
                            struct device **device, struct snug_error *err)
{
    int number = 0;
    if (comm != NULL)
        TRY(own_number(comm, hooks->count(), &number, err));
    return hooks->open(number, device, err);
}

/* ---- which way ------------------------------------------------------------------------------- */

/* Why not directly; false: nothing is in the way. */
static bool find_hindrance(const struct seat *all, int n_ranks, char why[SEATS_WAY_MAX])
{
    if (wish_is("off")) {
        snprintf(why, SEATS_WAY_MAX, "SNUG_NCCL is off");
        return true;
    }
    for (int b = 1; b < n_ranks; b++)
        for (int a = 0; a < b; a++)
            if (strcmp(all[a].host, all[b].host) == 0 && strcmp(all[a].place, all[b].place) == 0) {
                snprintf(why, SEATS_WAY_MAX, "ranks %d and %d share a GPU", a, b);
                return true;
            }
    for (int a = 0; a < n_ranks; a++)
        if (!all[a].has_direct) {
            snprintf(why, SEATS_WAY_MAX, "rank %d has no NCCL, %s", a, all[a].direct);
            return true;
        }
    return false;
}

/* To open waits for all ranks: by a thread of its own, so that this one can see that another has failed and
 * will never come.  Then the thread is left to itself, and what it works on with it. */
struct opening {
    const struct device_hooks *hooks;
    struct device *device;
    unsigned char id[DIRECT_ID_BYTES];
    int rank, n_ranks;
    struct direct *direct;
    enum snug_status status;
    struct snug_error why;
    atomic_bool is_done;
};

static void *open_beside(void *argument)
{
    struct opening *o = argument;
    o->hooks->use(o->device);
    o->status = o->hooks->direct->open(o->device, o->id, o->rank, o->n_ranks, &o->direct, &o->why);
    atomic_store(&o->is_done, true);
    return NULL;
}

/* Signals are for the thread that runs the program. */
static bool start_thread(struct opening *o, pthread_t *thread)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, open_beside, o) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static enum snug_status wait_for_opening(struct opening *o, const struct comm *comm,
                                         struct snug_error *err)
{
    static const struct timespec moment = {.tv_nsec = 500 * 1000};
    pthread_t thread;
    if (!start_thread(o, &thread)) { /* without one: as long as it takes */
        (void)open_beside(o);
        return SNUG_OK;
    }
    while (!atomic_load(&o->is_done)) {
        enum snug_status status = comm_check(comm, err);
        if (status != SNUG_OK) {
            pthread_detach(thread);
            return status;
        }
        nanosleep(&moment, NULL);
    }
    pthread_join(thread, NULL);
    return SNUG_OK;
}

static enum snug_status open_direct(struct comm *comm, const struct device_hooks *hooks,
                                    struct device *device, struct direct **direct,
                                    struct snug_error *err)
{
    struct opening *o = calloc(1, sizeof *o);
    if (o == NULL)
        return no_memory(err);
    o->hooks = hooks;
    o->device = device;
    o->rank = comm->rank;
    o->n_ranks = comm->n_ranks;
    enum snug_status status = comm->rank == 0 ? hooks->direct->make_id(o->id, err) : SNUG_OK;
    if (status == SNUG_OK)
        status = comm_broadcast(comm, 0, o->id, sizeof o->id, err);
    if (status != SNUG_OK) {
        free(o);
        return status;
    }
    TRY(wait_for_opening(o, comm, err));
    *direct = o->direct;
    status = o->status;
    if (status != SNUG_OK)
        snug_fail(err, status, "%.400s; with SNUG_NCCL=off ranks exchange through the host",
                  o->why.message);
    free(o);
    return status;
}

static enum snug_status choose_way(struct comm *comm, const struct device_hooks *hooks,
                                   struct device *device, const struct seat *all,
                                   struct seats *seats, struct direct **direct,
                                   struct snug_error *err)
{
    char why[SEATS_WAY_MAX] = "";
    if (!find_hindrance(all, comm->n_ranks, why)) {
        snprintf(seats->way, sizeof seats->way, "%s", all[0].direct);
        return open_direct(comm, hooks, device, direct, err);
    }
    if (seats_are_forced())
        return snug_fail(err, SNUG_UNSUPPORTED, "SNUG_NCCL=force: %s", why);
    snprintf(seats->way, sizeof seats->way, "MPI through the host's memory: %.180s", why);
    return SNUG_OK;
}

enum snug_status seats_agree(struct comm *comm, const struct device_hooks *hooks,
                             struct device *device, struct seats **out, struct direct **direct,
                             struct snug_error *err)
{
    struct seat *all = calloc((size_t)comm->n_ranks, sizeof *all), own = seat_of_host();
    struct seats *seats = *out = calloc(1, sizeof *seats);
    char name[DEVICE_TEXT_MAX];
    if (seats != NULL)
        seats->gpu = calloc((size_t)comm->n_ranks, sizeof *seats->gpu);
    if (all == NULL || seats == NULL || seats->gpu == NULL) {
        free(all);
        return no_memory(err);
    }
    seats->n_ranks = comm->n_ranks;
    own.gpu = hooks->number(device);
    hooks->identify(device, name, own.place);
    own.has_direct = hooks->direct->find(own.direct);
    enum snug_status status = tell_all(comm, &own, all, err);
    for (int rank = 0; rank < comm->n_ranks; rank++)
        seats->gpu[rank] = all[rank].gpu;
    if (status == SNUG_OK)
        status = choose_way(comm, hooks, device, all, seats, direct, err);
    free(all);
    return status;
}
