/*
 * fit.h -- `snug fit`: which recipe is the fastest within a memory budget?
 *
 * Every combination of the values in the table of fit.c is a candidate; keys that the user has set
 * stay fixed.  Pricing a candidate builds its program, which gives the seconds of a step and a
 * lower bound of the bytes.  Placing it assigns the offsets as well, which gives the exact bytes
 * and takes most of the time.  fit_search.c prices only a few candidates and explains why the rest
 * cannot win.
 *
 * fit.c: the candidates and their prices.  fit_search.c: the choice.  fit_frontier.c: the curve of
 * memory against time around it.
 */
#ifndef SNUG_COMPILE_FIT_H
#define SNUG_COMPILE_FIT_H

#include "compile/compile_target.h"

/* The axes, in the order of the table.  Those from FIT_STATE_BITS on change training. */
enum fit_axis_id {
    FIT_MICRO_BATCH,
    FIT_CHECKPOINT,
    FIT_UPDATE,
    FIT_OFFLOAD,
    FIT_STATE_BITS,
    FIT_MASTER,
    FIT_LORA,
    FIT_LORA_BASE,
    FIT_N_AXES
};

enum { FIT_VALUES_MAX = 64, FIT_VALUE_TEXT = 24 };

struct fit_axis {
    const char *key;
    int n_values; /* the first is the recipe's own value, which needs no flag */
    char values[FIT_VALUES_MAX][FIT_VALUE_TEXT];
};

struct fit_candidate {
    bool is_priced;
    bool is_possible;                 /* the recipe can be planned; the fields below are valid */
    bool is_placed;                   /* total_bytes is exact; otherwise it is the lower bound */
    int64_t total_bytes, least_bytes; /* least_bytes: the lower bound */
    int64_t runtime_bytes;            /* expected in addition */
    int64_t parameter_bytes;          /* the part of total_bytes that is parameters, at the peak */
    double seconds;
};

struct fit {
    const struct snug_model *model;
    struct snug_recipe recipe; /* the user's */
    struct compile_target target;
    struct fit_axis axes[FIT_N_AXES];
    struct fit_candidate *candidates;
    int n_candidates;
    int chosen;    /* a candidate, or -1 if none fits */
    int smallest;  /* if none fits: the smallest priced candidate */
    int *frontier; /* candidates, the fastest first; each needs less memory than all before it */
    int n_frontier;
    int64_t batch, seq;
    int64_t runtime_bytes; /* of the user's recipe; candidates have their own */
};

/* allow: keys that change training and may be searched nevertheless, separated by commas, or "all";
 * NULL for none.  If nothing fits, returns SNUG_OVER_BUDGET with a valid *fit and its frontier.
 * Free *fit after success and after SNUG_OVER_BUDGET. */
enum snug_status fit_search(const struct snug_model *model, const struct snug_recipe *recipe,
                            const char *allow, struct fit *fit, struct snug_error *err);
void fit_free(struct fit *fit);

/* ---- candidates: fit.c
 * ------------------------------------------------------------------------ */

int fit_index(const struct fit *fit, const int choice[FIT_N_AXES]);
int fit_choice(const struct fit *fit, int candidate, enum fit_axis_id axis); /* index of a value */
int fit_find_value(const struct fit *fit, enum fit_axis_id axis, const char *value); /* or -1 */
/* A tier is the candidates that change training in the same way.  They have consecutive numbers;
 * this is how many there are. */
int fit_tier_size(const struct fit *fit);

/* The recipe of a candidate: the user's recipe with the candidate's values set. */
enum snug_status fit_recipe(const struct fit *fit, int candidate, struct snug_recipe *recipe,
                            struct snug_error *err);
/* The flags of a candidate: "--micro-batch 2 --checkpoint sqrt". */
void fit_write_flags(const struct fit *fit, int candidate, struct text *out);
/* The values in which a candidate differs from `than`: "micro-batch 4, offload none". */
void fit_write_difference(const struct fit *fit, int candidate, int than, struct text *out);

/* Prices the listed candidates that are not priced yet.  Runs in parallel: list none twice. */
enum snug_status fit_price(struct fit *fit, const int *list, int n, struct snug_error *err);
/* Places the listed candidates that are possible and not placed yet. */
enum snug_status fit_place(struct fit *fit, const int *list, int n, struct snug_error *err);

/* ---- the choice: fit_search.c
 * ------------------------------------------------------------------ */

/* Sets `chosen`, or `smallest` if nothing fits. */
enum snug_status fit_choose(struct fit *fit, struct snug_error *err);
/* Sets `smallest`, from the few candidates of the tiers that save the most memory. */
enum snug_status fit_find_smallest(struct fit *fit, struct snug_error *err);

/* ---- around the choice: fit_frontier.c
 * --------------------------------------------------------- */

/* The frontier of the chosen candidate's tier.  whole: over all candidates with a fixed
 * checkpointing; else over those that the search has priced, near the choice. */
enum snug_status fit_find_frontier(struct fit *fit, bool whole, struct snug_error *err);
/* The candidate that differs in one value, priced.  *neighbour is -1 if it cannot be planned or
 * would take long to price. */
enum snug_status fit_neighbour(struct fit *fit, int candidate, enum fit_axis_id axis, int value,
                               int *neighbour, struct snug_error *err);

/* The part of the budget that is left for the plan, after the runtime of the user's recipe. */
static inline int64_t fit_room(const struct fit *fit)
{
    return fit->recipe.memory - fit->runtime_bytes;
}

/* The time rounded to a step of a thousandth.  Times are estimates: candidates with the same pace
 * are equally fast, and the one with the lower number is preferred.  Lower numbers are simpler
 * recipes: they avoid offload first, then in-backward updates, then checkpointing. */
int fit_pace(double seconds);
/* Is a preferred to b, by pace and then by number? */
bool fit_is_better(const struct fit *fit, int a, int b);

/* The bytes of the budget that a candidate needs. */
static inline int64_t fit_needed(const struct fit_candidate *c)
{
    return c->total_bytes + c->runtime_bytes;
}

/* Does it fit, by its exact bytes if it is placed, else by its lower bound? */
static inline bool fit_fits(const struct fit *fit, int candidate)
{
    const struct fit_candidate *c = &fit->candidates[candidate];
    return c->is_priced && c->is_possible && fit_needed(c) <= fit->recipe.memory;
}

#endif
