/*
 * device_wait.c -- the host waits for the device, and does not wait for ever.
 *
 * Collectives that go from device to device (NCCL) are work on a stream that ends when all ranks have come
 * to it.  A rank that has died never comes.  So the host asks whether the work is done in place of waiting
 * for it, and in between whether the others are there; if not, the collectives are aborted, and the streams
 * run empty.
 */
#include "exec/local.h"

#include <sched.h>
#include <time.h>

/* The threads of other ranks and of the library want the processor too. */
static void pause_a_moment(int turn)
{
    enum { EAGER_TURNS = 1000 };
    static const struct timespec moment = {.tv_nsec = 20 * 1000};
    if (turn < EAGER_TURNS)
        sched_yield();
    else
        nanosleep(&moment, NULL);
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

/* NCCL may notice first that a rank is gone; but the watch says which, and that it was no fault of this
 * one. */
static enum snug_status say_who(const struct exec *exec, enum snug_status status,
                                struct snug_error *err)
{
    enum { TURNS = 100 };
    static const struct timespec moment = {.tv_nsec = 10 * 1000 * 1000};
    for (int turn = 0; turn < TURNS && exec->facts.comm->n_ranks > 1; turn++) {
        TRY(comm_check(exec->facts.comm, err));
        nanosleep(&moment, NULL);
    }
    return status;
}

/* For an event, or for all work: NULL. */
static enum snug_status ask_until_done(struct exec *exec, void *event, struct snug_error *err)
{
    bool done = false;
    for (int turn = 0; !done; turn += turn < 1 << 20) {
        enum snug_status status = comm_check(exec->facts.comm, err);
        if (status == SNUG_OK)
            status = directs_check(&exec->collective_runner, err);
        if (status == SNUG_OK)
            status = is_done(exec, event, &done, err);
        if (status != SNUG_OK) {
            status = say_who(exec, status, err);
            device_give_up(exec);
            return status;
        }
        if (!done)
            pause_a_moment(turn);
    }
    return SNUG_OK;
}

enum snug_status device_finish(struct exec *exec, struct snug_error *err)
{
    if (directs_are_open(&exec->collective_runner))
        TRY(ask_until_done(exec, NULL, err));
    return exec->hooks->synchronize(exec->facts.device, err);
}

enum snug_status device_finish_event(struct exec *exec, void *event, struct snug_error *err)
{
    if (directs_are_open(&exec->collective_runner))
        return ask_until_done(exec, event, err);
    return exec->hooks->event_finish(event, err);
}
