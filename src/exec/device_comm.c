/*
 * device_comm.c -- open, use and close the NCCL communicators of a run.
 *
 * A communicator runs its operations one after another, in the order they were enqueued, and a send
 * completes only when it is received.  So sends need a communicator of their own per direction: in
 * a pipeline an activation that goes up crosses a gradient that comes down, and neither may wait
 * for the other, nor for the embedding that the first stage sends to the last.  Each group of ranks
 * that runs collectives has its own communicator too.  tests/pass/test_stages.c simulates this.
 */
#include "exec/collective.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* ---- opening --------------------------------------------------------------------------------- */

/* Opening waits for all ranks.  It runs in a thread of its own, so that this thread can notice that
 * another rank has failed and will never arrive.  The thread and its struct are then abandoned. */
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

static void *open_in_thread(void *argument)
{
    struct opening *o = argument;
    o->hooks->use(o->device);
    o->status = o->hooks->direct->open(o->device, o->id, o->rank, o->n_ranks, &o->direct, &o->why);
    atomic_store(&o->is_done, true);
    return NULL;
}

/* Blocks all signals in the new thread: the main thread handles them. */
static bool start_thread(struct opening *o, pthread_t *thread)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, open_in_thread, o) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static enum snug_status wait_for_opening(struct opening *o, const struct comm *all,
                                         struct snug_error *err)
{
    static const struct timespec interval = {.tv_nsec = 500 * 1000};
    pthread_t thread;
    if (!start_thread(o, &thread)) { /* without a thread, wait as long as it takes */
        (void)open_in_thread(o);
        return SNUG_OK;
    }
    while (!atomic_load(&o->is_done)) {
        enum snug_status status = comm_check(all, err);
        if (status != SNUG_OK) {
            pthread_detach(thread);
            return status;
        }
        nanosleep(&interval, NULL);
    }
    pthread_join(thread, NULL);
    return SNUG_OK;
}

/* Opens a communicator for the ranks of `comm`, all ranks or a group. */
static enum snug_status open_one(const struct rank_collectives *ranks, struct comm *comm,
                                 struct direct **direct, struct snug_error *err)
{
    struct opening *o = calloc(1, sizeof *o);
    if (o == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    o->hooks = ranks->hooks;
    o->device = ranks->device;
    o->rank = comm->rank;
    o->n_ranks = comm->n_ranks;
    enum snug_status status = comm->rank == 0 ? o->hooks->direct->make_id(o->id, err) : SNUG_OK;
    if (status == SNUG_OK)
        status = comm_broadcast(comm, 0, o->id, sizeof o->id, err);
    if (status != SNUG_OK) {
        free(o);
        return status;
    }
    TRY(wait_for_opening(o, ranks->comm, err));
    *direct = o->direct;
    status = o->status;
    if (status != SNUG_OK)
        snug_fail(err, status, "%.400s; with SNUG_NCCL=off ranks communicate through the host",
                  o->why.message);
    free(o);
    return status;
}

bool p2p_is_far(const struct rank_collectives *ranks, const struct op *op)
{
    int stage_ranks = ranks->groups == NULL ? 1 : ranks->groups[GROUP_STAGE]->n_ranks;
    return abs(p2p_peer(op) - ranks->comm->rank) > stage_ranks;
}

/* The index of the communicator that an op uses, or -1.  All its ranks have such ops. */
static int direct_index(const struct rank_collectives *ranks, const struct op *op)
{
    if (op_has(op, TRAIT_collective))
        return ranks->groups == NULL ? GROUP_ALL : (int)collective_group(op);
    if (op->kind != OP_send && op->kind != OP_recv)
        return -1;
    bool goes_up = (op->kind == OP_send) == (p2p_peer(op) > ranks->comm->rank);
    return p2p_is_far(ranks, op) ? (goes_up ? DIRECT_LAST : DIRECT_FIRST)
                                 : (goes_up ? DIRECT_UP : DIRECT_DOWN);
}

static struct comm *comm_of(const struct rank_collectives *ranks, int which)
{
    bool at_ends = which == GROUP_ENDS || which == DIRECT_LAST || which == DIRECT_FIRST;
    return at_ends                ? ranks->groups[GROUP_ENDS]
           : which == GROUP_STAGE ? ranks->groups[GROUP_STAGE]
                                  : ranks->comm;
}

/* All ranks open them in the same order.  Every rank of a pipeline has sends or recvs in both
 * directions. */
enum snug_status directs_open(struct rank_collectives *ranks, const struct program *prog,
                              struct snug_error *err)
{
    bool is_used[N_DIRECTS] = {[GROUP_ALL] = true};
    for (int i = 0; i < prog->n_ops; i++) {
        int which = direct_index(ranks, &prog->ops[i]);
        if (which >= 0)
            is_used[which] = true;
    }
    for (int i = 0; i < N_DIRECTS; i++)
        if (is_used[i])
            TRY(open_one(ranks, comm_of(ranks, i), &ranks->directs[i], err));
    return SNUG_OK;
}

/* ---- while they are open
 * ---------------------------------------------------------------------- */

bool directs_are_open(const struct rank_collectives *ranks)
{
    return ranks->directs[GROUP_ALL] != NULL;
}

struct direct *direct_of_p2p(const struct rank_collectives *ranks, const struct op *op, int *peer)
{
    int which = direct_index(ranks, op);
    *peer = p2p_is_far(ranks, op) ? 1 - ranks->groups[GROUP_ENDS]->rank : p2p_peer(op);
    return ranks->directs[which];
}

enum snug_status directs_check(const struct rank_collectives *ranks, struct snug_error *err)
{
    for (int i = 0; i < N_DIRECTS; i++)
        if (ranks->directs[i] != NULL)
            TRY(ranks->hooks->direct->check(ranks->directs[i], err));
    return SNUG_OK;
}

void directs_abort(const struct rank_collectives *ranks)
{
    for (int i = 0; i < N_DIRECTS; i++)
        if (ranks->directs[i] != NULL)
            ranks->hooks->direct->abort(ranks->directs[i]);
}

void directs_close(struct rank_collectives *ranks)
{
    for (int i = 0; i < N_DIRECTS; i++) {
        if (ranks->directs[i] != NULL)
            ranks->hooks->direct->close(ranks->directs[i]);
        ranks->directs[i] = NULL;
    }
}
