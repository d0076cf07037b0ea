/*
 * fit.h -- the question turned round: which recipe is the fastest inside a budget?
 *
 * Every combination of the values in the table of fit.c is a candidate, but for the keys that the
 * user has set.  Each is priced: its least bytes and its seconds by building its program, its exact
 * bytes by placing it, where that can still matter.
 */
#ifndef SNUG_TRAIN_FIT_H
#define SNUG_TRAIN_FIT_H

#include "train/rates.h"
#include "train/session.h"

enum { FIT_AXES_MAX = 8, FIT_VALUES_MAX = 64, FIT_VALUE_TEXT = 24 };

struct fit_axis {
    const char *key;
    int n_values; /* the first is the user's own, and is not set */
    char values[FIT_VALUES_MAX][FIT_VALUE_TEXT];
};

struct fit_candidate {
    int choice[FIT_AXES_MAX]; /* a value of each axis */
    bool is_possible;         /* the recipe can be planned */
    bool is_placed;           /* total_bytes is exact, else the lower bound */
    int64_t total_bytes;
    int64_t parameter_bytes; /* of those, at the peak */
    double seconds;
};

struct fit {
    const struct snug_model *model;
    struct snug_recipe recipe; /* the user's */
    struct machine_rates rates;
    struct fit_axis axes[FIT_AXES_MAX];
    int n_axes;
    struct fit_candidate *candidates;
    int n_candidates;
    int *frontier; /* candidates, the fastest first: each needs less than all before it */
    int n_frontier;
    int chosen; /* a candidate; -1: none fits */
    int64_t batch, seq, runtime_bytes;
};

/* allow: keys that change what is learned and may be touched all the same, separated by commas, or
 * "all"; NULL: none.  SNUG_OVER_BUDGET: nothing fits; *fit is made and its frontier can be read.
 * Free it unless another failure is returned. */
enum snug_status fit_search(const struct snug_model *model, const struct snug_recipe *recipe,
                            const char *allow, struct fit *fit, struct snug_error *err);
void fit_free(struct fit *fit);

/* The recipe of a candidate: the user's, and what it sets. */
enum snug_status fit_recipe(const struct fit *fit, int candidate, struct snug_recipe *recipe,
                            struct snug_error *err);
/* " --micro-batch 2 --checkpoint sqrt": what it sets. */
void fit_write_flags(const struct fit *fit, int candidate, struct text *out);
/* The candidate that differs in one value, or -1; it is placed if it can be. */
int fit_neighbour(struct fit *fit, int candidate, int axis, int value);

/* Room of the budget for the plan. */
static inline int64_t fit_room(const struct fit *fit)
{
    return fit->recipe.memory - fit->runtime_bytes;
}

#endif
