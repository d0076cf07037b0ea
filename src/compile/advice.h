/*
 * advice.h -- suggest recipes that need less memory than the given one; each suggestion is planned.
 */
#ifndef SNUG_COMPILE_ADVICE_H
#define SNUG_COMPILE_ADVICE_H

#include "compile/compile.h"

/* What a suggestion changes in the training result, mildest first. */
enum advice_changes { ADVICE_nothing, ADVICE_rounding, ADVICE_learning };

struct priced_recipe {
    char flags[192];    /* flags to add: "--micro-batch 4" */
    char replaced[192]; /* the user's flags that they replace: "--micro-batch 8", or "" */
    enum advice_changes changes;
    bool reorders_sums; /* gradients are summed in another order: same up to rounding */
    int64_t total_bytes, runtime_bytes;
    double step_seconds;
};

/* Lists recipes that change one flag and need noticeably less memory.  Order: same result, then
 * different rounding, then different training; within each group the smallest first.  `request` is
 * the one that gave `compiled`: each recipe is planned for the same rank and target.  Returns the
 * number of entries, or -1 if there is no memory to plan them. */
enum { ADVICE_MOST = 4 };
int advice_list(const struct compile_request *request, const struct compiled_step *compiled,
                struct priced_recipe out[ADVICE_MOST]);

/* "same result", "changes rounding"... */
const char *advice_change_words(const struct priced_recipe *priced);

static inline int64_t priced_needed(const struct priced_recipe *priced)
{
    return priced->total_bytes + priced->runtime_bytes;
}

/* Finds the mildest recipe whose plan and runtime fit into limit_bytes.  One flag is preferred to
 * several; among single flags the fastest wins.  The rank with the highest peak must fit, whichever
 * rank `compiled` is: a run needs all of them.  If none fits, returns false and *found is the
 * smallest recipe that was tried, with total_bytes INT64_MAX if none could be planned. */
bool advice_find_fitting(const struct snug_model *model, const struct snug_recipe *recipe,
                         const struct compiled_step *compiled, int64_t limit_bytes,
                         struct priced_recipe *found);

#endif
