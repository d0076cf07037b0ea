/*
 * collective_plan.h -- what a plan has to know of collectives before any rank is there.
 */
#ifndef SNUG_EXEC_COLLECTIVE_PLAN_H
#define SNUG_EXEC_COLLECTIVE_PLAN_H

#include "ir/program.h"

/* The workspace of a collective: its bucket. */
int64_t collective_work_bytes(const struct program *prog, const struct op *op);

/* SNUG_NCCL: "off", collectives between GPUs never use NCCL; "force", they do or the run fails, and a single
 * rank runs collectives with itself. */
bool collectives_are_off(void);
bool collectives_are_forced(void);

#endif
