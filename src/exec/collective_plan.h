/*
 * collective_plan.h -- what planning needs to know about collectives, before any rank is connected.
 */
#ifndef SNUG_EXEC_COLLECTIVE_PLAN_H
#define SNUG_EXEC_COLLECTIVE_PLAN_H

#include "ir/program.h"

/* The workspace of a collective, its bucket. */
int64_t collective_work_bytes(const struct program *prog, const struct op *op);

/* SNUG_NCCL=off: never use NCCL.  SNUG_NCCL=force: fail without NCCL, and let a single rank run
 * collectives with itself. */
bool collectives_are_off(void);
bool collectives_are_forced(void);

#endif
