/*
 * program_waits.h -- when an op waits for a copy: the one rule, for the planner and for executors of every device.
 *
 * Ops whose row says COPIES run on a lane of their own, in their order, beside the others (see
 * program_section_last).  Planner and executor have to agree on when one of them is done: the bytes of what it
 * reads are free from then on.  plan/check.c, which trusts nobody, has the rule once more, on purpose.
 */
#ifndef SNUG_IR_PROGRAM_WAITS_H
#define SNUG_IR_PROGRAM_WAITS_H

#include "ir/program.h"

/* waits_for[i]: the copy that has to be done, and with it all copies before it, when op i begins; -1: none.  Only
 * copies of op i's section count, since at the end of a section all are done.
 *
 *   an op that is no copy        the newest that wrote one of its inputs
 *   the last op of a section     the newest of the section
 *   evict, send                  the newest that wrote the operand: they may leave on a stream of their own
 *   sent                         the newest send of its tensor, of any section
 *   other copies                 none: they come after those before them
 *
 * is_last_round: of the last micro-batch, or of one before it, in which some ops do not run (their entry is -1).
 * scratch: 2 ints for each tensor. */
void program_find_waits(const struct program *prog, bool is_last_round, int *waits_for,
                        int *scratch);

#endif
