/*
 * copies.c -- the copy lane; see copies.h.
 *
 * A ring of ops, two counters and two condition variables.  Both threads sleep when they have
 * nothing to do.
 */
#include "exec/copies.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

struct copies {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t issued, done;
    int *ring; /* op `number` is at number % most */
    int most;
    int64_t n_issued, n_done;
    bool stop;
    copies_run *run;
    copies_idle *idle;
    void *user;
    enum snug_status status; /* of the first op that failed */
    struct snug_error error;
};

/* Sleeps until there is an op.  While something is in flight it sleeps for short, growing intervals
 * instead; growing, because the compute ops need the processor. */
static void rest(struct copies *c, struct timespec *interval)
{
    enum { LONGEST_NS = 120 * 1000 };
    if (c->idle == NULL || !c->idle(c->user)) {
        pthread_cond_wait(&c->issued, &c->mutex);
        return;
    }
    pthread_mutex_unlock(&c->mutex);
    nanosleep(interval, NULL);
    interval->tv_nsec = interval->tv_nsec < LONGEST_NS ? 2 * interval->tv_nsec : LONGEST_NS;
    pthread_mutex_lock(&c->mutex);
}

/* Waits for the next op; false if there will be none. */
static bool take(struct copies *c, int *op)
{
    struct timespec interval = {.tv_nsec = 30 * 1000};
    pthread_mutex_lock(&c->mutex);
    while (c->n_done == c->n_issued && !c->stop)
        rest(c, &interval);
    bool found = c->n_done < c->n_issued;
    if (found)
        *op = c->ring[c->n_done % c->most];
    pthread_mutex_unlock(&c->mutex);
    return found;
}

static void *work(void *argument)
{
    struct copies *c = argument;
    int op;
    while (take(c, &op)) {
        struct snug_error error = {0};
        /* status is written by this thread, and by copies_finish while this one sleeps */
        enum snug_status status = c->status == SNUG_OK ? c->run(c->user, op, &error) : SNUG_OK;
        pthread_mutex_lock(&c->mutex);
        if (status != SNUG_OK) {
            c->status = status;
            c->error = error;
        }
        c->n_done++;
        pthread_cond_signal(&c->done);
        pthread_mutex_unlock(&c->mutex);
    }
    return NULL;
}

/* Blocks all signals in the new thread: the main thread handles them. */
static int start(struct copies *c)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&c->thread, NULL, work, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

enum snug_status copies_create(int most, copies_run *run, copies_idle *idle, void *user,
                               struct copies **copies, struct snug_error *err)
{
    struct copies *c = calloc(1, sizeof *c);
    int *ring = calloc((size_t)most + 1, sizeof *ring);
    if (c == NULL || ring == NULL) {
        free(c);
        free(ring);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    c->ring = ring;
    c->most = most;
    c->run = run;
    c->idle = idle;
    c->user = user;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->issued, NULL);
    pthread_cond_init(&c->done, NULL);
    if (start(c) != 0) {
        free(ring);
        free(c);
        return snug_fail(err, SNUG_NO_MEMORY, "cannot start the copy thread");
    }
    *copies = c;
    return SNUG_OK;
}

void copies_free(struct copies *c)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->mutex);
    c->stop = true;
    pthread_cond_signal(&c->issued);
    pthread_mutex_unlock(&c->mutex);
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->issued);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->mutex);
    free(c->ring);
    free(c);
}

int64_t copies_issue(struct copies *c, int op)
{
    pthread_mutex_lock(&c->mutex);
    c->ring[c->n_issued % c->most] = op;
    int64_t number = c->n_issued++;
    pthread_cond_signal(&c->issued);
    pthread_mutex_unlock(&c->mutex);
    return number;
}

enum snug_status copies_wait(struct copies *c, int64_t number, struct snug_error *err)
{
    pthread_mutex_lock(&c->mutex);
    while (c->n_done <= number)
        pthread_cond_wait(&c->done, &c->mutex);
    enum snug_status status = c->status;
    if (status != SNUG_OK)
        snug_fail(err, status, "%s", c->error.message);
    pthread_mutex_unlock(&c->mutex);
    return status;
}

enum snug_status copies_finish(struct copies *c, struct snug_error *err)
{
    enum snug_status status = copies_wait(c, c->n_issued - 1, err);
    c->status = SNUG_OK;
    return status;
}
