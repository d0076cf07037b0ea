/*
 * timeline.h -- the bytes that are alive at each op of a planned program.
 */
#ifndef SNUG_PLAN_TIMELINE_H
#define SNUG_PLAN_TIMELINE_H

#include "plan/plan.h"

struct timeline_point {
    int64_t bytes[ROLE_COUNT], total;
};

/* moments has a place for every op, and one for a program that has none.  The largest total is the
 * plan's lower bound, at its peak. */
enum snug_status plan_timeline(const struct program *prog, const struct plan *plan,
                               struct timeline_point *points, struct snug_error *err);

#endif
