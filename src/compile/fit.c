/*
 * fit.c -- the candidates of a fit: what may be changed, the price of each, and the error if none
 * fits.
 */
#include "compile/fit.h"

#include "compile/budget.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The keys that may be changed.  The values of micro-batch are the divisors of the batch. */
static const struct axis_info {
    const char *key;
    bool changes_training; /* needs --allow */
    const char *values[8];
} axis_infos[FIT_N_AXES] = {
    [FIT_MICRO_BATCH] = {"micro-batch", false, {NULL}},
    [FIT_CHECKPOINT] = {"checkpoint", false, {"cheap", "every:1", "auto", "all", NULL}},
    [FIT_UPDATE] = {"update", false, {"in-backward", NULL}},
    [FIT_OFFLOAD] = {"offload", false, {"states", "activations", "states+activations", NULL}},
    [FIT_STATE_BITS] = {"state-bits", true, {"16", "8", "4", NULL}},
    [FIT_MASTER] = {"master", true, {"none", NULL}},
    [FIT_LORA] = {"lora", true, {"16", NULL}},
    [FIT_LORA_BASE] = {"lora-base", true, {"8", "4", NULL}},
};

/* ---- what is searched ------------------------------------------------------------------------ */

/* Does the comma-separated list name this key, or "all"? */
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
        for (int i = 0; i < FIT_N_AXES; i++)
            known = known || (axis_infos[i].changes_training && strlen(axis_infos[i].key) == n &&
                              strncmp(at, axis_infos[i].key, n) == 0);
        if (!known)
            return snug_fail(
                err, SNUG_BAD_ARGUMENT,
                "--allow: \"%.*s\" is not one of state-bits, master, lora, lora-base, all",
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

/* The first value of an axis is the recipe's own. */
static bool add_own_value(const struct fit *fit, struct fit_axis *axis)
{
    struct text own = {0};
    recipe_get(&fit->recipe, axis->key, &own);
    if (own.length == 0 && strcmp(axis->key, "micro-batch") == 0)
        text_add(&own, "%lld", (long long)fit->batch);
    else if (own.length == 0 && strcmp(axis->key, "state-bits") == 0)
        text_add(&own, "%d", recipe_state_bits(&fit->recipe));
    else if (own.length == 0 && strcmp(axis->key, "lora-base") == 0)
        text_add(&own, "%d", 8 * (int)dtype_bytes(recipe_dtype(&fit->recipe)));
    snprintf(axis->values[0], FIT_VALUE_TEXT, "%s", own.length > 0 ? own.data : "none");
    axis->n_values = 1;
    bool ok = !own.failed;
    text_free(&own);
    return ok;
}

/* The divisors of the batch in descending order; the smallest ones if there are too many. */
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
            high[n_high++ % FIT_VALUES_MAX] = fit->batch / d; /* a ring: the last ones stay */
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

/* False if out of memory. */
static bool add_axis(struct fit *fit, enum fit_axis_id id, const char *allow, bool has_loss)
{
    const struct axis_info *info = &axis_infos[id];
    struct fit_axis *axis = &fit->axes[id];
    axis->key = info->key;
    if (!add_own_value(fit, axis))
        return false;
    if (recipe_is_given(&fit->recipe, info->key) ||
        (info->changes_training && !is_allowed(allow, info->key)))
        return true;
    if (id == FIT_MICRO_BATCH && has_loss)
        add_divisors(fit, axis);
    for (int i = 0; info->values[i] != NULL; i++)
        if (strcmp(info->values[i], axis->values[0]) != 0)
            add_value(&fit->recipe, axis, info->values[i]);
    return true;
}

int fit_find_value(const struct fit *fit, enum fit_axis_id axis, const char *value)
{
    for (int i = 0; i < fit->axes[axis].n_values; i++)
        if (strcmp(fit->axes[axis].values[i], value) == 0)
            return i;
    return -1;
}

/* A candidate's number in mixed radix: one digit per axis, the micro-batch varies fastest. */
int fit_index(const struct fit *fit, const int choice[FIT_N_AXES])
{
    int index = 0;
    for (int i = FIT_N_AXES - 1; i >= 0; i--)
        index = index * fit->axes[i].n_values + choice[i];
    return index;
}

/* The difference in number between two neighbouring values of an axis. */
static int stride(const struct fit *fit, int axis)
{
    int n = 1;
    for (int i = 0; i < axis; i++)
        n *= fit->axes[i].n_values;
    return n;
}

int fit_choice(const struct fit *fit, int candidate, enum fit_axis_id axis)
{
    return candidate / stride(fit, (int)axis) % fit->axes[axis].n_values;
}

int fit_tier_size(const struct fit *fit)
{
    return stride(fit, FIT_STATE_BITS);
}

/* ---- prices ---------------------------------------------------------------------------------- */

enum snug_status fit_recipe(const struct fit *fit, int candidate, struct snug_recipe *recipe,
                            struct snug_error *err)
{
    *recipe = fit->recipe;
    for (int i = 0; i < FIT_N_AXES; i++) {
        int value = fit_choice(fit, candidate, i);
        if (value != 0)
            TRY(snug_recipe_set(recipe, fit->axes[i].key, fit->axes[i].values[value], err));
    }
    return SNUG_OK;
}

void fit_write_flags(const struct fit *fit, int candidate, struct text *out)
{
    for (int i = 0; i < FIT_N_AXES; i++) {
        int value = fit_choice(fit, candidate, i);
        if (value != 0)
            text_add(out, "%s--%s %s", out->length > 0 ? " " : "", fit->axes[i].key,
                     fit->axes[i].values[value]);
    }
}

void fit_write_difference(const struct fit *fit, int candidate, int than, struct text *out)
{
    for (int i = 0; i < FIT_N_AXES; i++) {
        int value = fit_choice(fit, candidate, i);
        if (value != fit_choice(fit, than, i))
            text_add(out, "%s%s %s", out->length > 0 ? ", " : "", fit->axes[i].key,
                     fit->axes[i].values[value]);
    }
}

static enum snug_status price(struct fit *fit, int candidate, bool place, struct snug_error *err)
{
    struct fit_candidate *c = &fit->candidates[candidate];
    struct snug_recipe recipe;
    struct compiled_step s;
    TRY(fit_recipe(fit, candidate, &recipe, err));
    struct compile_request q = {.model = fit->model,
                                .recipe = &recipe,
                                .train = true,
                                .estimate = !place,
                                .target = &fit->target};
    TRY(compile_step(&q, &s, err));
    c->is_possible = true;
    c->is_placed = place;
    c->total_bytes = s.plan.arena_bytes;
    if (!place)
        c->least_bytes = s.plan.arena_bytes;
    c->runtime_bytes = compiled_step_runtime_bytes(&s);
    c->parameter_bytes = s.plan.at_peak[ROLE_parameter];
    c->seconds = s.plan.step_seconds;
    compiled_step_free(&s);
    return SNUG_OK;
}

/* A recipe that contradicts itself is no candidate; any other failure ends the search. */
static enum snug_status try_price(struct fit *fit, int candidate, bool place,
                                  struct snug_error *err)
{
    enum snug_status status = price(fit, candidate, place, err);
    bool is_refused = status == SNUG_BAD_ARGUMENT || status == SNUG_UNSUPPORTED ||
                      status == SNUG_OVER_BUDGET || status == SNUG_MISMATCH;
    if (is_refused)
        fit->candidates[candidate].is_possible = false;
    fit->candidates[candidate].is_priced = true;
    return is_refused ? SNUG_OK : status;
}

/* The recipe may be for a machine with more cores than this one. */
static int search_threads(const struct fit *fit)
{
    struct snug_recipe here = fit->recipe;
    here.threads = 0;
    int cores = recipe_threads(&here), own = fit->target.threads;
    return own < cores ? own : cores;
}

static enum snug_status price_list(struct fit *fit, const int *list, int n, bool place,
                                   struct snug_error *err)
{
    enum snug_status status = SNUG_OK;
    int threads = search_threads(fit);
    (void)threads; /* without OpenMP */
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < n; i++) {
        const struct fit_candidate *c = &fit->candidates[list[i]];
        bool is_wanted = place ? c->is_possible && !c->is_placed : !c->is_priced;
        struct snug_error own;
        enum snug_status failed = is_wanted ? try_price(fit, list[i], place, &own) : SNUG_OK;
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

enum snug_status fit_price(struct fit *fit, const int *list, int n, struct snug_error *err)
{
    return price_list(fit, list, n, false, err);
}

enum snug_status fit_place(struct fit *fit, const int *list, int n, struct snug_error *err)
{
    return price_list(fit, list, n, true, err);
}

int fit_pace(double seconds)
{
    return seconds > 1e-12 ? (int)floor(log(seconds) / log1p(1e-3)) : INT_MIN;
}

bool fit_is_better(const struct fit *fit, int a, int b)
{
    int pace_a = fit_pace(fit->candidates[a].seconds),
        pace_b = fit_pace(fit->candidates[b].seconds);
    return pace_a != pace_b ? pace_a < pace_b : a < b;
}

/* ---- from end to end ------------------------------------------------------------------------- */

static void write_smallest(const struct fit *fit, struct text *out)
{
    struct text flags = {0};
    fit_write_flags(fit, fit->smallest, &flags);
    const char *words = text_part(out, &flags);
    char needed[TEXT_SIZE_MAX];
    text_add(out, "%s needs %s", *words != '\0' ? words : "the recipe unchanged",
             budget_size(fit_needed(&fit->candidates[fit->smallest]), needed));
    text_free(&flags);
}

static enum snug_status begin(struct fit *fit, const char *allow, struct snug_error *err)
{
    struct compiled_step s;
    struct compile_request q = {.model = fit->model,
                                .recipe = &fit->recipe,
                                .train = true,
                                .estimate = true,
                                .target = &fit->target};
    TRY(check_allow(allow, err));
    if (fit->recipe.memory <= 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "fit needs a memory budget: add --memory 24G");
    TRY(compile_target_find(&fit->recipe, &fit->target, err));
    TRY(compile_step(&q, &s, err));
    fit->batch = s.batch;
    fit->seq = s.seq;
    fit->runtime_bytes = compiled_step_runtime_bytes(&s);
    bool ok = true;
    for (int i = 0; i < FIT_N_AXES && ok; i++)
        ok = add_axis(fit, i, allow, s.prog.loss != TENSOR_NONE);
    compiled_step_free(&s);
    fit->n_candidates = ok ? stride(fit, FIT_N_AXES) : 0;
    fit->candidates = ok ? calloc((size_t)fit->n_candidates, sizeof *fit->candidates) : NULL;
    if (fit->candidates == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    return SNUG_OK;
}

/* Adds what --allow all would need, if that can be planned and is less. */
static void write_wider(const struct fit *fit, struct text *out)
{
    struct fit wider = {.model = fit->model, .recipe = fit->recipe, .chosen = -1, .smallest = -1};
    if (begin(&wider, "all", NULL) == SNUG_OK && fit_find_smallest(&wider, NULL) == SNUG_OK &&
        fit_needed(&wider.candidates[wider.smallest]) <
            fit_needed(&fit->candidates[fit->smallest])) {
        text_add(out, "; with --allow all: ");
        write_smallest(&wider, out);
    }
    fit_free(&wider);
}

static enum snug_status nothing_fits(const struct fit *fit, const char *allow,
                                     struct snug_error *err)
{
    char budget[TEXT_SIZE_MAX], weights[TEXT_SIZE_MAX], runtime[TEXT_SIZE_MAX];
    struct text line = {0};
    const struct fit_candidate *smallest = &fit->candidates[fit->smallest];
    text_size(fit->recipe.memory, budget);
    text_size(smallest->parameter_bytes, weights);
    text_size(smallest->runtime_bytes, runtime);
    if (smallest->runtime_bytes > fit->recipe.memory)
        text_add(&line, "%s: the runtime alone needs %s, over the budget of %s", fit->model->name,
                 runtime, budget);
    else if (smallest->parameter_bytes > fit->recipe.memory)
        text_add(&line, "%s: the weights alone need %s, over the budget of %s", fit->model->name,
                 weights, budget);
    else if (smallest->parameter_bytes + smallest->runtime_bytes > fit->recipe.memory)
        text_add(&line, "%s: the weights (%s) plus the runtime (%s) are over the budget of %s",
                 fit->model->name, weights, runtime, budget);
    else
        text_add(&line, "%s: no recipe fits in %s", fit->model->name, budget);
    text_add(&line, "; the smallest: ");
    write_smallest(fit, &line);
    if (!is_allowed(allow, "all"))
        write_wider(fit, &line);
    snug_fail(err, SNUG_OVER_BUDGET, "%.480s", line.data == NULL ? "no recipe fits" : line.data);
    text_free(&line);
    return SNUG_OVER_BUDGET;
}

enum snug_status fit_search(const struct snug_model *model, const struct snug_recipe *recipe,
                            const char *allow, struct fit *fit, struct snug_error *err)
{
    *fit = (struct fit){.model = model, .recipe = *recipe, .chosen = -1, .smallest = -1};
    enum snug_status status = begin(fit, allow, err);
    if (status == SNUG_OK)
        status = fit_choose(fit, err);
    if (status == SNUG_OK)
        status = fit_find_frontier(fit, false, err);
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
