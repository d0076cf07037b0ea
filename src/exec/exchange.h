/*
 * exchange.h -- ops that ranks carry out together (ir/exchange.h), on an arena that the host reaches.
 */
#ifndef SNUG_EXEC_EXCHANGE_H
#define SNUG_EXEC_EXCHANGE_H

#include "comm/comm.h"
#include "exec/backend.h"

struct rank_exchanger {
    struct exchanger exchanger; /* first: the two are cast into each other */
    struct comm *comm;
    struct comm *const *groups; /* of it, by enum exchange_group; NULL: none */
};

struct rank_exchanger exchanger_over(struct comm *comm, struct comm *const *groups);

/* What such an op wants of workspace: its bucket. */
int64_t exchange_work_bytes(const struct program *prog, const struct op *op);

#endif
