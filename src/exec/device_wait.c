/*
 * device_wait.c -- the host waits for the device, but not forever.
 *
 * An NCCL collective on a stream finishes only when all ranks have reached it.  A rank that has
 * died never does.  So instead of blocking, the host polls whether the work is done and whether the
 * other ranks are alive.  If one is not, it aborts the collectives, and the streams drain.
 */
#include "exec/local.h"

#include <sched.h>
#include <time.h>

/* Threads of other ranks and of NCCL need the processor too: yield at first, then sleep. */
static void back_off(int n_polls)
{
    enum { EAGER_POLLS = 1000 };
    static const struct timespec interval = {.tv_nsec = 20 * 1000};
    if (n_polls < EAGER_POLLS)
        sched_yield();
    else
        nanosleep(&interval, NULL);
}

static enum snug_status is_done(const struct exec *exec, void *event, bool *done,
                                struct snug_error *err)
{
    return event != NULL ? exec->hooks->event_is_done(event, done, err)
                         : exec->hooks->is_done(exec->facts.device, done, err);
}

void device_give_up(struct exec *exec)
{
    directs_abort(&exec->collective_runner);
    (void)exec->hooks->synchronize(exec->facts.device, NULL);
}

/* NCCL may notice first that a rank has died.  The watch knows which one, and that this rank did
 * not fail itself, so give it a second to report. */
static enum snug_status name_dead_rank(const struct exec *exec, enum snug_status status,
                                       struct snug_error *err)
{
    enum { POLLS = 100 };
    static const struct timespec interval = {.tv_nsec = 10 * 1000 * 1000};
    for (int poll = 0; poll < POLLS && exec->facts.comm->n_ranks > 1; poll++) {
        TRY(comm_check(exec->facts.comm, err));
        nanosleep(&interval, NULL);
    }
    return status;
}

/* Waits for an event, or with NULL for all work. */
static enum snug_status poll_until_done(struct exec *exec, void *event, struct snug_error *err)
{
    bool done = false;
    for (int n_polls = 0; !done; n_polls += n_polls < 1 << 20) {
        enum snug_status status = comm_check(exec->facts.comm, err);
        if (status == SNUG_OK)
            status = directs_check(&exec->collective_runner, err);
        if (status == SNUG_OK)
            status = is_done(exec, event, &done, err);
        if (status != SNUG_OK) {
            status = name_dead_rank(exec, status, err);
            device_give_up(exec);
            return status;
        }
        if (!done)
            back_off(n_polls);
    }
    return SNUG_OK;
}

enum snug_status device_finish(struct exec *exec, struct snug_error *err)
{
    if (directs_are_open(&exec->collective_runner))
        TRY(poll_until_done(exec, NULL, err));
    return exec->hooks->synchronize(exec->facts.device, err);
}

enum snug_status device_finish_event(struct exec *exec, void *event, struct snug_error *err)
{
    if (directs_are_open(&exec->collective_runner))
        return poll_until_done(exec, event, err);
    return exec->hooks->event_finish(event, err);
}
