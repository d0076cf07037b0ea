/*
 * watch.h -- who of the ranks is still there.
 *
 * A rank that waits for a message of a process that was killed waits for ever, unless the launcher
 * notices.  So every rank keeps a connection to rank 0 beside the library of messages, on which nothing
 * is said until something is wrong: when a process dies the system closes its end, and rank 0 tells the
 * others.  The same connections carry the message of a rank that failed.
 */
#ifndef SNUG_COMM_WATCH_H
#define SNUG_COMM_WATCH_H

#include "comm/comm.h"

struct watch;

/* All ranks come to it; the address travels over comm. */
enum snug_status watch_open(struct comm *comm, struct watch **watch, struct snug_error *err);
/* Says goodbye, so that nobody takes the end of this process for a death. */
void watch_close(struct watch *watch);

/* SNUG_OK, or what was found out: SNUG_IO_ERROR on the rank that has to say it, else SNUG_PEER_FAILED. */
enum snug_status watch_check(struct watch *watch, struct snug_error *err);
/* Is this rank, which failed, the one that has to say so?  Tells the others. */
bool watch_claim(struct watch *watch, const char *message);

#endif
