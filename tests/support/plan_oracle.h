/*
 * plan_oracle.h -- an oracle for plan_check and the ledger, written as plainly as possible and
 * without sharing a line with them.
 */
#ifndef SNUG_TESTS_PLAN_ORACLE_H
#define SNUG_TESTS_PLAN_ORACLE_H

#include "ir/program.h"

/* Over two steps of two rounds: does an op read a byte that another tensor wrote last, do two operands
 * of an op illegally share bytes, or does a tensor end beyond the arena? */
bool oracle_plan_is_wrong(const struct program *prog, const int64_t *offset, int64_t arena_bytes);

/* The most bytes in use at one op, counted byte by byte; tensors that alias count once. */
int64_t oracle_most_alive(const struct program *prog, const int64_t *offset, int64_t arena_bytes);

#endif
