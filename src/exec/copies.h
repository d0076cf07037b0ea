/*
 * copies.h -- the lane of copies: a thread that runs the ops it is given, in their order.
 *
 * One thread issues ops and waits for them; the copies run beside what it does in between.
 */
#ifndef SNUG_EXEC_COPIES_H
#define SNUG_EXEC_COPIES_H

#include "base/status.h"

#include <stdbool.h>

struct copies;

typedef enum snug_status copies_run(void *user, int op, struct snug_error *err);
/* What the lane does when it has no op: helps along what earlier ops left under way.  False: there is
 * nothing, and will be nothing before the next op. */
typedef bool copies_idle(void *user);

/* `most`: ops that are ever under way at once.  idle NULL: it sleeps. */
enum snug_status copies_create(int most, copies_run *run, copies_idle *idle, void *user,
                               struct copies **copies, struct snug_error *err);
void copies_free(struct copies *copies); /* waits for what is under way */

/* The number of the op, to wait for. */
int64_t copies_issue(struct copies *copies, int op);
/* Until op `number` and all before it are done.  After a failure no copy runs any more, and every
 * wait returns that failure, until copies_finish. */
enum snug_status copies_wait(struct copies *copies, int64_t number, struct snug_error *err);
/* Until all are; a failure is reported and forgotten. */
enum snug_status copies_finish(struct copies *copies, struct snug_error *err);

#endif
