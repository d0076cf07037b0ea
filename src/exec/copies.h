/*
 * copies.h -- the copy lane: a thread that runs the ops it is given, in order.
 *
 * One thread issues copies and waits for them; in between, copies overlap with its computation.
 */
#ifndef SNUG_EXEC_COPIES_H
#define SNUG_EXEC_COPIES_H

#include "base/status.h"

#include <stdbool.h>

struct copies;

typedef enum snug_status copies_run(void *user, int op, struct snug_error *err);
/* Called while the lane has no op, to make progress on what earlier ops left in flight.  False:
 * there is nothing in flight until the next op. */
typedef bool copies_idle(void *user);

/* most: the largest number of ops in flight.  With idle NULL the thread sleeps while it has no
 * op. */
enum snug_status copies_create(int most, copies_run *run, copies_idle *idle, void *user,
                               struct copies **copies, struct snug_error *err);
void copies_free(struct copies *copies); /* waits for ops in flight */

/* Returns the number of the op, for copies_wait. */
int64_t copies_issue(struct copies *copies, int op);
/* Waits until op `number` and all before it are done.  After a failure no copy runs, and every wait
 * returns that failure, until copies_finish. */
enum snug_status copies_wait(struct copies *copies, int64_t number, struct snug_error *err);
/* Waits for all ops; reports a failure and clears it. */
enum snug_status copies_finish(struct copies *copies, struct snug_error *err);

#endif
