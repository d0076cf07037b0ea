/*
 * fit.h -- the question turned round: which recipe is the fastest inside a budget?
 *
 * Every combination of the values in the table of fit.c is a candidate, but for the keys that the
 * user has set.  Few are priced: fit_search.c says which, and why the rest need not be.  To price is
 * to build the program: its seconds, and a lower bound of its bytes.  To place it as well gives the
 * exact bytes, and takes most of the time.
 *
 * fit.c: candidates and their prices.  fit_search.c: the choice.  fit_frontier.c: what is beside it.
 */
#ifndef SNUG_COMPILE_FIT_H
#define SNUG_COMPILE_FIT_H

#include "compile/device_rates.h"
#include "compile/compile.h"

/* The axes, in the order of the table.  Those from FIT_STATE_BITS on change what is learned. */
enum fit_axis_id {
    FIT_MICRO_BATCH,
    FIT_CHECKPOINT,
    FIT_UPDATE,
    FIT_OFFLOAD,
    FIT_STATE_BITS,
    FIT_MASTER,
    FIT_LORA,
    FIT_N_AXES
};

enum { FIT_VALUES_MAX = 64, FIT_VALUE_TEXT = 24 };

struct fit_axis {
    const char *key;
    int n_values; /* the first is the user's own, and is not set */
    char values[FIT_VALUES_MAX][FIT_VALUE_TEXT];
};

struct fit_candidate {
    bool is_priced;
    bool is_possible;                 /* the recipe can be planned; what is below holds */
    bool is_placed;                   /* total_bytes is exact, else the lower bound */
    int64_t total_bytes, least_bytes; /* least: before it was placed */
    int64_t runtime_bytes;            /* expected beside them */
    int64_t parameter_bytes;          /* of total_bytes, at the peak */
    double seconds;
};

struct fit {
    const struct snug_model *model;
    struct snug_recipe recipe; /* the user's */
    struct machine_rates rates;
    struct fit_axis axes[FIT_N_AXES];
    struct fit_candidate *candidates;
    int n_candidates;
    int chosen;    /* a candidate; -1: none fits */
    int smallest;  /* if none fits: of those that were priced */
    int *frontier; /* candidates, the fastest first: each needs less than all before it */
    int n_frontier;
    int64_t batch, seq;
    int64_t runtime_bytes; /* of the recipe as it is; candidates have their own */
};

/* allow: keys that change what is learned and may be touched all the same, separated by commas, or
 * "all"; NULL: none.  SNUG_OVER_BUDGET: nothing fits; *fit is made and its frontier can be read.
 * Free it unless another failure is returned. */
enum snug_status fit_search(const struct snug_model *model, const struct snug_recipe *recipe,
                            const char *allow, struct fit *fit, struct snug_error *err);
void fit_free(struct fit *fit);

/* ---- candidates: fit.c ------------------------------------------------------------------------ */

int fit_index(const struct fit *fit, const int choice[FIT_N_AXES]);
int fit_choice(const struct fit *fit, int candidate, enum fit_axis_id axis);         /* its value */
int fit_find_value(const struct fit *fit, enum fit_axis_id axis, const char *value); /* -1: none */
/* Candidates that change training in the same way are neighbours in the numbering: so many. */
int fit_tier_size(const struct fit *fit);

/* The recipe of a candidate: the user's, and what it sets. */
enum snug_status fit_recipe(const struct fit *fit, int candidate, struct snug_recipe *recipe,
                            struct snug_error *err);
/* "--micro-batch 2 --checkpoint sqrt": what it sets. */
void fit_write_flags(const struct fit *fit, int candidate, struct text *out);
/* "micro-batch 4, offload none": what it has that `than` has not. */
void fit_write_difference(const struct fit *fit, int candidate, int than, struct text *out);

/* Prices those of the list that are not yet; some at a time, so none may be in it twice. */
enum snug_status fit_price(struct fit *fit, const int *list, int n, struct snug_error *err);
/* Places those that can be and are not yet. */
enum snug_status fit_place(struct fit *fit, const int *list, int n, struct snug_error *err);

/* ---- the choice: fit_search.c ------------------------------------------------------------------ */

/* Sets chosen, or smallest. */
enum snug_status fit_choose(struct fit *fit, struct snug_error *err);
/* Sets smallest, of what may be changed the most; looks at few. */
enum snug_status fit_find_smallest(struct fit *fit, struct snug_error *err);

/* ---- what is beside it: fit_frontier.c --------------------------------------------------------- */

/* The frontier of the candidates that change training as the chosen one does.  whole: of all with a
 * fixed checkpointing, else of what the search has priced, near the choice. */
enum snug_status fit_find_frontier(struct fit *fit, bool whole, struct snug_error *err);
/* The candidate that differs in one value, priced; *neighbour is -1 if it cannot be, or would take
 * long. */
enum snug_status fit_neighbour(struct fit *fit, int candidate, enum fit_axis_id axis, int value,
                               int *neighbour, struct snug_error *err);

/* Room of the budget for the plan of the recipe as it is. */
static inline int64_t fit_room(const struct fit *fit)
{
    return fit->recipe.memory - fit->runtime_bytes;
}

/* Times are estimates: those in one step of a thousandth are equal, and of equal ones the simpler,
 * which has the lower number, is preferred: offload last, then the update, then checkpointing. */
int fit_pace(double seconds);
/* Is a to be preferred, for its time and then for its number? */
bool fit_is_better(const struct fit *fit, int a, int b);

/* What it takes of the budget. */
static inline int64_t fit_needed(const struct fit_candidate *c)
{
    return c->total_bytes + c->runtime_bytes;
}

/* By what is known of it. */
static inline bool fit_fits(const struct fit *fit, int candidate)
{
    const struct fit_candidate *c = &fit->candidates[candidate];
    return c->is_priced && c->is_possible && fit_needed(c) <= fit->recipe.memory;
}

#endif
