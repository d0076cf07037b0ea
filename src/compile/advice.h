/*
 * advice.h -- recipes that need less memory than the one that was asked for, priced by planning them.
 */
#ifndef SNUG_COMPILE_ADVICE_H
#define SNUG_COMPILE_ADVICE_H

#include "compile/compile.h"

/* What a recipe changes for whoever trains with it, the mildest first. */
enum advice_changes { ADVICE_nothing, ADVICE_rounding, ADVICE_learning };

struct priced_recipe {
    char flags[192];    /* what to type: "--micro-batch 4" */
    char replaced[192]; /* of what was typed, what these stand for: "--micro-batch 8", or "" */
    enum advice_changes changes;
    bool reorders_sums; /* so that even a result that is the same is so up to rounding */
    int64_t total_bytes, runtime_bytes;
    double step_seconds;
};

/* The same plan with one flag changed, where that needs noticeably less.  Those that change nothing in the
 * result come first, then those that change rounding, last those that change what is learned; of the like,
 * the smallest first.  Returns how many there are; -1: no memory to plan them. */
enum { ADVICE_MOST = 4 };
int advice_list(const struct snug_model *model, const struct snug_recipe *recipe,
                const struct compiled_step *compiled, struct priced_recipe out[ADVICE_MOST]);

/* "the same result" */
const char *advice_change_words(const struct priced_recipe *priced);

static inline int64_t priced_needed(const struct priced_recipe *priced)
{
    return priced->total_bytes + priced->runtime_bytes;
}

/* The mildest recipe whose plan and runtime are within limit_bytes: true.  One flag is preferred to
 * several, and of single flags the fastest.  False: *found is the smallest that was looked at; its
 * total_bytes are INT64_MAX if there was none. */
bool advice_find_fitting(const struct snug_model *model, const struct snug_recipe *recipe,
                         const struct compiled_step *compiled, int64_t limit_bytes,
                         struct priced_recipe *found);

#endif
