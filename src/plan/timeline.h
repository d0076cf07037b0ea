/*
 * timeline.h -- the bytes alive at each op of a planned program.
 */
#ifndef SNUG_PLAN_TIMELINE_H
#define SNUG_PLAN_TIMELINE_H

#include "plan/plan.h"

struct timeline_point {
    int64_t bytes[ROLE_COUNT], total;
};

/* Fills one point per op; a program without ops has one point.  The largest total is the plan's
 * lower_bound, at peak_op. */
enum snug_status plan_timeline(const struct program *prog, const struct plan *plan,
                               struct timeline_point *points, struct snug_error *err);

#endif
