/*
 * plan_oracle.h -- what plan_check and the ledger must agree with, written as slowly and plainly as
 * possible and without a line of theirs.
 */
#ifndef SNUG_TESTS_PLAN_ORACLE_H
#define SNUG_TESTS_PLAN_ORACLE_H

#include "ir/program.h"

/* Does anybody read a byte that somebody else wrote last, over two steps of two rounds, or do two
 * operands of one op share bytes that they must not, or does anything end beyond the arena? */
bool oracle_plan_is_wrong(const struct program *prog, const int64_t *offset, int64_t arena_bytes);

/* Do two tensors of different lanes share bytes? */
bool oracle_lanes_meet(const struct program *prog, const int64_t *offset);

/* The most bytes that are in use at one op, counted byte by byte: what shares bytes in place counts
 * once. */
int64_t oracle_most_alive(const struct program *prog, const int64_t *offset, int64_t arena_bytes);

#endif
