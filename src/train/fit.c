/*
 * fit.c -- the search for the fastest recipe that fits.
 *
 * Placing a plan takes most of the time of making one, and few placements matter.  So all
 * candidates are first priced without: seconds, and the lower bound of their bytes.  Then they are
 * walked from the fastest to the slowest.  One whose lower bound is no less than what a faster one
 * needs is on no frontier and is not placed; all others are.  The first that is within the budget is
 * the answer, and it is exact: what was skipped needs at least as much as something faster.
 */
#include "train/fit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What may be changed.  Values that this version does not take are left out when the search begins, so
 * a row may be here before its pass is.  The micro-batch comes first and has its values from the
 * batch. */
static const struct row {
    const char *key;
    bool changes_training; /* not the same weights in the end: asked for by --allow */
    const char *values[8];
} rows[] = {
    {"micro-batch", false, {NULL}},
    {"checkpoint", false, {"cheap", "every:2", "every:4", "sqrt", "all", "auto", NULL}},
    {"update", false, {"in-backward", NULL}},
    {"offload", false, {"states", "activations", NULL}},
    {"state-bits", true, {"16", "8", "4", NULL}},
    {"master", true, {"none", NULL}},
    {"lora", true, {"16", NULL}},
};
enum { N_ROWS = sizeof rows / sizeof *rows, MICRO_BATCH = 0 };
_Static_assert((int)N_ROWS <= (int)FIT_AXES_MAX, "an axis for every row");

/* Beyond so many, micro-batches larger than the first that does not fit are not looked at. */
enum { MANY_CANDIDATES = 1000 };

/* ---- what is searched ------------------------------------------------------------------------ */

/* Is `key` one of the names between commas? */
static bool is_allowed(const char *allow, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = allow; at != NULL && *at != '\0'; at += strspn(at, ",")) {
        size_t n = strcspn(at, ",");
        if ((n == length && strncmp(at, key, n) == 0) || (n == 3 && strncmp(at, "all", 3) == 0))
            return true;
        at += n;
    }
    return false;
}

static enum snug_status check_allow(const char *allow, struct snug_error *err)
{
    for (const char *at = allow; at != NULL && *at != '\0'; at += strspn(at, ",")) {
        size_t n = strcspn(at, ",");
        bool known = n == 3 && strncmp(at, "all", 3) == 0;
        for (int i = 0; i < N_ROWS; i++)
            known = known || (rows[i].changes_training && strlen(rows[i].key) == n &&
                              strncmp(at, rows[i].key, n) == 0);
        if (!known)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "--allow: \"%.*s\" is not one of state-bits, master, lora, all",
                             n > 60 ? 60 : (int)n, at);
        at += n;
    }
    return SNUG_OK;
}

static void add_value(const struct snug_recipe *recipe, struct fit_axis *axis, const char *value)
{
    struct snug_recipe tried = *recipe;
    if (axis->n_values < FIT_VALUES_MAX &&
        snug_recipe_set(&tried, axis->key, value, NULL) == SNUG_OK)
        snprintf(axis->values[axis->n_values++], FIT_VALUE_TEXT, "%s", value);
}

/* The first value is what the recipe has already. */
static void add_own_value(const struct fit *fit, struct fit_axis *axis)
{
    struct text own = {0};
    recipe_get(&fit->recipe, axis->key, &own);
    if (own.length == 0 && strcmp(axis->key, "micro-batch") == 0)
        text_add(&own, "%lld", (long long)fit->batch);
    else if (own.length == 0 && strcmp(axis->key, "state-bits") == 0)
        text_add(&own, "%d", recipe_state_bits(&fit->recipe));
    snprintf(axis->values[0], FIT_VALUE_TEXT, "%s", own.length > 0 ? own.data : "default");
    axis->n_values = 1;
    text_free(&own);
}

/* Of the batch, falling; where there are too many, the smallest. */
static void add_divisors(const struct fit *fit, struct fit_axis *axis)
{
    int64_t low[FIT_VALUES_MAX] = {0}, high[FIT_VALUES_MAX] = {0};
    int n_low = 0, n_high = 0;
    for (int64_t d = 1; d * d <= fit->batch; d++) {
        if (fit->batch % d != 0)
            continue;
        if (n_low < FIT_VALUES_MAX)
            low[n_low++] = d;
        if (d > 1 && d * d < fit->batch)
            high[n_high++ % FIT_VALUES_MAX] = fit->batch / d; /* falling: the last are kept */
    }
    int kept = n_high < FIT_VALUES_MAX - 1 - n_low ? n_high : FIT_VALUES_MAX - 1 - n_low;
    for (int i = n_high - (kept > 0 ? kept : 0); i < n_high + n_low; i++) {
        char value[FIT_VALUE_TEXT];
        int64_t m = i < n_high ? high[i % FIT_VALUES_MAX] : low[n_low - 1 - (i - n_high)];
        snprintf(value, sizeof value, "%lld", (long long)m);
        if (m < fit->batch)
            add_value(&fit->recipe, axis, value);
    }
}

static void add_axis(struct fit *fit, const struct row *row, const char *allow, bool has_loss)
{
    struct fit_axis *axis = &fit->axes[fit->n_axes++];
    axis->key = row->key;
    add_own_value(fit, axis);
    if (recipe_is_given(&fit->recipe, row->key) ||
        (row->changes_training && !is_allowed(allow, row->key)))
        return;
    if (row == &rows[MICRO_BATCH] && has_loss)
        add_divisors(fit, axis);
    for (int i = 0; row->values[i] != NULL; i++)
        if (strcmp(row->values[i], axis->values[0]) != 0)
            add_value(&fit->recipe, axis, row->values[i]);
}

static int count_candidates(const struct fit *fit)
{
    int n = 1;
    for (int i = 0; i < fit->n_axes; i++)
        n *= fit->axes[i].n_values;
    return n;
}

/* Candidates are numbered like the digits of a clock; the micro-batch is the one that turns fastest. */
static int index_of(const struct fit *fit, const int choice[FIT_AXES_MAX])
{
    int index = 0;
    for (int i = fit->n_axes - 1; i >= 0; i--)
        index = index * fit->axes[i].n_values + choice[i];
    return index;
}

static void number_candidates(struct fit *fit)
{
    for (int c = 0; c < fit->n_candidates; c++)
        for (int i = 0, rest = c; i < fit->n_axes; i++) {
            fit->candidates[c].choice[i] = rest % fit->axes[i].n_values;
            rest /= fit->axes[i].n_values;
        }
}

/* ---- prices ---------------------------------------------------------------------------------- */

enum snug_status fit_recipe(const struct fit *fit, int candidate, struct snug_recipe *recipe,
                            struct snug_error *err)
{
    const struct fit_candidate *c = &fit->candidates[candidate];
    *recipe = fit->recipe;
    for (int i = 0; i < fit->n_axes; i++)
        if (c->choice[i] != 0)
            TRY(snug_recipe_set(recipe, fit->axes[i].key, fit->axes[i].values[c->choice[i]], err));
    return SNUG_OK;
}

void fit_write_flags(const struct fit *fit, int candidate, struct text *out)
{
    const struct fit_candidate *c = &fit->candidates[candidate];
    for (int i = 0; i < fit->n_axes; i++)
        if (c->choice[i] != 0)
            text_add(out, "%s--%s %s", out->length > 0 ? " " : "", fit->axes[i].key,
                     fit->axes[i].values[c->choice[i]]);
}

static enum snug_status price(struct fit *fit, int candidate, bool place, struct snug_error *err)
{
    struct fit_candidate *c = &fit->candidates[candidate];
    struct snug_recipe recipe;
    struct session s;
    TRY(fit_recipe(fit, candidate, &recipe, err));
    struct session_request q = {.model = fit->model,
                                .recipe = &recipe,
                                .train = true,
                                .estimate = !place,
                                .rates = &fit->rates.rates};
    TRY(session_make(&q, &s, err));
    c->is_possible = true;
    c->is_placed = place;
    c->total_bytes = s.plan.arena_bytes;
    c->parameter_bytes = s.plan.at_peak[ROLE_parameter];
    c->seconds = s.plan.step_seconds;
    session_free(&s);
    return SNUG_OK;
}

/* A recipe that contradicts itself is no candidate; anything else that fails ends the search. */
static enum snug_status try_price(struct fit *fit, int candidate, bool place,
                                  struct snug_error *err)
{
    enum snug_status status = price(fit, candidate, place, err);
    bool is_refused = status == SNUG_BAD_ARGUMENT || status == SNUG_UNSUPPORTED ||
                      status == SNUG_OVER_BUDGET || status == SNUG_MISMATCH;
    if (is_refused)
        fit->candidates[candidate].is_possible = false;
    return is_refused ? SNUG_OK : status;
}

/* All micro-batches of one setting of the other axes, the smallest first: the peak grows with them. */
static enum snug_status estimate_setting(struct fit *fit, int first, struct snug_error *err)
{
    bool prunes = fit->n_candidates > MANY_CANDIDATES;
    for (int m = fit->axes[MICRO_BATCH].n_values - 1; m >= 0; m--) {
        TRY(try_price(fit, first + m, false, err));
        const struct fit_candidate *c = &fit->candidates[first + m];
        if (prunes && c->is_possible && c->total_bytes > fit_room(fit))
            break;
    }
    return SNUG_OK;
}

static enum snug_status estimate_all(struct fit *fit, struct snug_error *err)
{
    int n_micro = fit->axes[MICRO_BATCH].n_values, n_settings = fit->n_candidates / n_micro;
    enum snug_status status = SNUG_OK;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < n_settings; i++) {
        struct snug_error own;
        enum snug_status failed = estimate_setting(fit, i * n_micro, &own);
        if (failed != SNUG_OK) {
#pragma omp critical
            {
                status = failed;
                if (err != NULL)
                    *err = own;
            }
        }
    }
    return status;
}

/* ---- the frontier ---------------------------------------------------------------------------- */

struct ranked {
    double seconds;
    int64_t bytes;
    int candidate;
};

static int faster_first(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return x->candidate - y->candidate;
}

static enum snug_status walk(struct fit *fit, const struct ranked *ranked, int n,
                             struct snug_error *err)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < n; i++) {
        struct fit_candidate *c = &fit->candidates[ranked[i].candidate];
        if (c->total_bytes >= least)
            continue;
        TRY(try_price(fit, ranked[i].candidate, true, err));
        if (!c->is_possible || c->total_bytes >= least)
            continue;
        least = c->total_bytes;
        fit->frontier[fit->n_frontier++] = ranked[i].candidate;
        if (fit->chosen < 0 && least <= fit_room(fit))
            fit->chosen = ranked[i].candidate;
    }
    return SNUG_OK;
}

static enum snug_status find_frontier(struct fit *fit, struct snug_error *err)
{
    struct ranked *ranked = malloc((size_t)fit->n_candidates * sizeof *ranked);
    int n = 0;
    fit->frontier = malloc((size_t)fit->n_candidates * sizeof *fit->frontier);
    enum snug_status status = SNUG_OK;
    if (ranked == NULL || fit->frontier == NULL) {
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    } else {
        for (int i = 0; i < fit->n_candidates; i++)
            if (fit->candidates[i].is_possible)
                ranked[n++] =
                    (struct ranked){fit->candidates[i].seconds, fit->candidates[i].total_bytes, i};
        qsort(ranked, (size_t)n, sizeof *ranked, faster_first);
        status = walk(fit, ranked, n, err);
    }
    free(ranked);
    return status;
}

int fit_neighbour(struct fit *fit, int candidate, int axis, int value)
{
    int choice[FIT_AXES_MAX];
    if (value < 0 || value >= fit->axes[axis].n_values)
        return -1;
    memcpy(choice, fit->candidates[candidate].choice, sizeof choice);
    choice[axis] = value;
    int other = index_of(fit, choice);
    struct fit_candidate *c = &fit->candidates[other];
    if (!c->is_placed && try_price(fit, other, true, NULL) != SNUG_OK)
        return -1;
    return c->is_possible ? other : -1;
}

/* ---- from end to end ------------------------------------------------------------------------- */

/* Rounded up to a tenth of a GiB, or to a MiB, as one would type it. */
static void write_budget(int64_t bytes, struct text *out)
{
    int64_t tenth = ((int64_t)1 << 30) / 10, mebi = 1 << 20;
    int64_t tenths = (bytes + tenth - 1) / tenth;
    if (tenths > 10)
        text_add(out, "%lld.%lldG", (long long)(tenths / 10), (long long)(tenths % 10));
    else
        text_add(out, "%lldM", (long long)((bytes + mebi - 1) / mebi));
}

/* The smallest candidate is the last of the frontier. */
static void write_smallest(const struct fit *fit, struct text *out)
{
    int smallest = fit->frontier[fit->n_frontier - 1];
    struct text flags = {0};
    fit_write_flags(fit, smallest, &flags);
    text_add(out, "%s needs ", flags.length > 0 ? flags.data : "the recipe as it is");
    write_budget(fit->candidates[smallest].total_bytes + fit->runtime_bytes, out);
    text_free(&flags);
}

/* What more could be allowed. */
static void write_wider(const struct fit *fit, struct text *out)
{
    struct fit wider;
    enum snug_status status = fit_search(fit->model, &fit->recipe, "all", &wider, NULL);
    if (status != SNUG_OK && status != SNUG_OVER_BUDGET)
        return;
    text_add(out, "; with --allow all: ");
    write_smallest(&wider, out);
    fit_free(&wider);
}

static enum snug_status nothing_fits(const struct fit *fit, const char *allow,
                                     struct snug_error *err)
{
    char budget[TEXT_SIZE_MAX], weights[TEXT_SIZE_MAX];
    struct text line = {0};
    const struct fit_candidate *smallest = &fit->candidates[fit->frontier[fit->n_frontier - 1]];
    text_size(fit->recipe.memory, budget);
    if (smallest->parameter_bytes > fit_room(fit))
        text_add(&line, "%s: its weights alone are %s, over the budget of %s", fit->model->name,
                 text_size(smallest->parameter_bytes, weights), budget);
    else
        text_add(&line, "%s: nothing fits in %s", fit->model->name, budget);
    text_add(&line, "; the smallest: ");
    write_smallest(fit, &line);
    if (!is_allowed(allow, "all"))
        write_wider(fit, &line);
    snug_fail(err, SNUG_OVER_BUDGET, "%.480s", line.data == NULL ? "nothing fits" : line.data);
    text_free(&line);
    return SNUG_OVER_BUDGET;
}

static enum snug_status begin(struct fit *fit, const char *allow, struct snug_error *err)
{
    struct session s;
    struct session_request q = {.model = fit->model,
                                .recipe = &fit->recipe,
                                .train = true,
                                .estimate = true,
                                .rates = &fit->rates.rates};
    TRY(check_allow(allow, err));
    if (fit->recipe.memory <= 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "fit needs a budget: --memory 24G");
    rates_of_recipe(&fit->recipe, &fit->rates);
    TRY(session_make(&q, &s, err));
    fit->batch = s.batch;
    fit->seq = s.seq;
    fit->runtime_bytes = session_expected_runtime_bytes(&s);
    for (int i = 0; i < N_ROWS; i++)
        add_axis(fit, &rows[i], allow, s.prog.loss != TENSOR_NONE);
    session_free(&s);
    fit->n_candidates = count_candidates(fit);
    fit->candidates = calloc((size_t)fit->n_candidates, sizeof *fit->candidates);
    if (fit->candidates == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    number_candidates(fit);
    return SNUG_OK;
}

enum snug_status fit_search(const struct snug_model *model, const struct snug_recipe *recipe,
                            const char *allow, struct fit *fit, struct snug_error *err)
{
    *fit = (struct fit){.model = model, .recipe = *recipe, .chosen = -1};
    enum snug_status status = begin(fit, allow, err);
    if (status == SNUG_OK)
        status = estimate_all(fit, err);
    if (status == SNUG_OK)
        status = find_frontier(fit, err);
    if (status == SNUG_OK && fit->n_frontier == 0)
        status = snug_fail(err, SNUG_BAD_ARGUMENT, "%s: no recipe can be planned", model->name);
    if (status != SNUG_OK)
        fit_free(fit);
    else if (fit->chosen < 0)
        status = nothing_fits(fit, allow, err);
    return status;
}

void fit_free(struct fit *fit)
{
    free(fit->candidates);
    free(fit->frontier);
    fit->candidates = NULL;
    fit->frontier = NULL;
}
