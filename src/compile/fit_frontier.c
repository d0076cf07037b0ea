/*
 * fit_frontier.c -- around the choice: the curve of memory against time, and single neighbours.
 *
 * A candidate is on the frontier if nothing faster needs less memory.  The frontier covers only the
 * tier of the chosen candidate: over all tiers, LoRA alone would be left.  --checkpoint auto is on
 * it only if it was chosen, because it fills the budget whatever that is.
 */
#include "compile/fit.h"

#include <stdlib.h>
#include <string.h>

/* Without --frontier, this many points on each side of the choice are placed. */
enum { NEAR = 3 };

struct ranked {
    int pace, candidate;
};

static int better_first(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->pace != y->pace ? (x->pace < y->pace ? -1 : 1) : x->candidate - y->candidate;
}

static int center(const struct fit *fit)
{
    return fit->chosen >= 0 ? fit->chosen : fit->smallest;
}

static int first_of_tier(const struct fit *fit)
{
    return center(fit) / fit_tier_size(fit) * fit_tier_size(fit);
}

static bool has_checkpoint(const struct fit *fit, int candidate, const char *name)
{
    int value = fit_choice(fit, candidate, FIT_CHECKPOINT);
    return value > 0 && strcmp(fit->axes[FIT_CHECKPOINT].values[value], name) == 0;
}

static bool is_eligible(const struct fit *fit, int candidate)
{
    const struct fit_candidate *c = &fit->candidates[candidate];
    return c->is_priced && c->is_possible &&
           (candidate == center(fit) || !has_checkpoint(fit, candidate, "auto"));
}

/* Sorts by pace and keeps the candidates that need less memory than all before them.  total_bytes
 * is exact for those that are placed, a lower bound for the others. */
static int keep_frontier(const struct fit *fit, struct ranked *ranked, int n)
{
    int64_t least = INT64_MAX;
    int n_kept = 0;
    for (int i = 0; i < n; i++)
        ranked[i].pace = fit_pace(fit->candidates[ranked[i].candidate].seconds);
    qsort(ranked, (size_t)n, sizeof *ranked, better_first);
    for (int i = 0; i < n; i++) {
        int64_t bytes = fit->candidates[ranked[i].candidate].total_bytes;
        if (bytes >= least)
            continue;
        least = bytes;
        ranked[n_kept++] = ranked[i];
    }
    return n_kept;
}

/* Keeps the candidates at most NEAR positions away from the center. */
static int keep_near(const struct fit *fit, struct ranked *ranked, int n)
{
    int own = 0, n_kept = 0;
    while (own < n - 1 && ranked[own].candidate != center(fit))
        own++;
    for (int i = own > NEAR ? own - NEAR : 0; i < n && i <= own + NEAR; i++)
        ranked[n_kept++] = ranked[i];
    return n_kept;
}

static enum snug_status place_frontier(struct fit *fit, struct ranked *ranked, int n, bool whole,
                                       struct snug_error *err)
{
    n = keep_frontier(fit, ranked, n);
    if (!whole)
        n = keep_near(fit, ranked, n);
    for (int i = 0; i < n; i++)
        fit->frontier[i] = ranked[i].candidate;
    TRY(fit_place(fit, fit->frontier, n, err));
    n = keep_frontier(fit, ranked, n);
    for (int i = 0; i < n; i++)
        fit->frontier[i] = ranked[i].candidate;
    fit->n_frontier = n;
    return SNUG_OK;
}

static enum snug_status sweep_fixed(struct fit *fit, int *list, struct snug_error *err)
{
    int first = first_of_tier(fit), n = 0;
    for (int i = first; i < first + fit_tier_size(fit); i++)
        if (!has_checkpoint(fit, i, "auto") && !has_checkpoint(fit, i, "all"))
            list[n++] = i;
    return fit_price(fit, list, n, err);
}

enum snug_status fit_find_frontier(struct fit *fit, bool whole, struct snug_error *err)
{
    int first = first_of_tier(fit), size = fit_tier_size(fit), n = 0;
    struct ranked *ranked = malloc((size_t)size * sizeof *ranked);
    free(fit->frontier);
    fit->n_frontier = 0;
    fit->frontier = malloc((size_t)size * sizeof *fit->frontier);
    enum snug_status status = SNUG_OK;
    if (ranked == NULL || fit->frontier == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (status == SNUG_OK && whole)
        status = sweep_fixed(fit, fit->frontier, err);
    if (status == SNUG_OK) {
        for (int i = first; i < first + size; i++)
            if (is_eligible(fit, i))
                ranked[n++].candidate = i;
        status = place_frontier(fit, ranked, n, whole, err);
    }
    free(ranked);
    return status;
}

enum snug_status fit_neighbour(struct fit *fit, int candidate, enum fit_axis_id axis, int value,
                               int *neighbour, struct snug_error *err)
{
    int choice[FIT_N_AXES];
    for (int i = 0; i < FIT_N_AXES; i++)
        choice[i] = fit_choice(fit, candidate, i);
    choice[axis] = value;
    int other = fit_index(fit, choice);
    const struct fit_candidate *c = &fit->candidates[other];
    bool is_slow = has_checkpoint(fit, other, "auto") || has_checkpoint(fit, other, "all");
    if (!c->is_priced && !is_slow)
        TRY(fit_price(fit, &other, 1, err));
    *neighbour = c->is_priced && c->is_possible ? other : -1;
    return SNUG_OK;
}
