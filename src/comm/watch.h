/*
 * watch.h -- detect ranks that have failed or died.
 *
 * A rank that waits for a message from a killed process waits forever, unless the launcher notices.
 * So every rank keeps a TCP connection to rank 0, separate from MPI, which is silent until
 * something goes wrong.  When a process dies, the system closes its end, and rank 0 informs the
 * others.  The same connections carry the error message of a rank that failed.
 */
#ifndef SNUG_COMM_WATCH_H
#define SNUG_COMM_WATCH_H

#include "comm/comm.h"

struct watch;

/* Collective; rank 0's address is broadcast over comm. */
enum snug_status watch_open(struct comm *comm, struct watch **watch, struct snug_error *err);
/* Sends a goodbye first, so that the exit of this process does not count as a death. */
void watch_close(struct watch *watch);

/* SNUG_OK while all ranks are alive.  Otherwise SNUG_IO_ERROR on the rank that must report it, and
 * SNUG_PEER_FAILED on the others. */
enum snug_status watch_check(struct watch *watch, struct snug_error *err);
/* Called by a rank that failed: informs the others.  True if this rank must report its error. */
bool watch_claim(struct watch *watch, const char *message);

#endif
