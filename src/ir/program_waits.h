/*
 * program_waits.h -- which copy an op has to wait for, for the planner and all executors.
 *
 * Ops with TRAIT_copy run in order on the copy lane, concurrently with the other ops (see
 * program_section_last).  Planner and executor must agree on when a copy is complete, because the
 * planner reuses the bytes of its input from then on.  plan/check.c implements the rule a second
 * time on purpose, so that it does not depend on this code.
 */
#ifndef SNUG_IR_PROGRAM_WAITS_H
#define SNUG_IR_PROGRAM_WAITS_H

#include "ir/program.h"

/* Sets waits_for[i] to the copy that must be complete, with all copies before it, when op i starts,
 * or to -1.  Only copies of op i's section count: at the end of a section all are complete.
 *
 *   compute op                   the newest copy that wrote one of its inputs
 *   last op of a section         the newest copy of the section
 *   evict, send                  the newest copy that wrote the operand (they may run on another
 *                                stream than the other copies)
 *   sent                         the newest send of its tensor, in any section
 *   other copies                 -1: copies run in order
 *
 * is_last_round selects the last micro-batch.  In the others, ops that are in_last do not run, and
 * their entry is -1.  scratch has 2 ints per tensor. */
void program_find_waits(const struct program *prog, bool is_last_round, int *waits_for,
                        int *scratch);

#endif
