/*
 * fit_api.c -- the snug_fit functions: the fastest recipe inside a budget.
 */
#include "report/report.h"
#include "checkpoint/adapter.h"
#include "compile/fit.h"
#include "compile/device_rates.h"

#include <stdlib.h>
#include <string.h>

enum { LOSERS_MAX = 16 };

struct snug_fit {
    struct fit fit;
    snug_recipe chosen;
    struct text recipe;        /* description of the user's recipe */
    struct text command, keys; /* of the chosen recipe */
    struct snug_fit_point *points;
    char **flags;       /* of each point */
    char **differences; /* of each point from the chosen one */
    int is_whole;       /* the frontier is complete */
    struct report_loser losers[LOSERS_MAX];
    int n_losers;
};

static void free_points(snug_fit *f, int n)
{
    for (int i = 0; i < n; i++) {
        if (f->flags != NULL)
            free(f->flags[i]);
        if (f->differences != NULL)
            free(f->differences[i]);
    }
    free(f->flags);
    free(f->differences);
    free(f->points);
    f->flags = f->differences = NULL;
    f->points = NULL;
}

static bool describe_point(snug_fit *f, int i)
{
    const struct fit *fit = &f->fit;
    const struct fit_candidate *c = &fit->candidates[fit->frontier[i]];
    struct text flags = {0}, difference = {0};
    text_add(&flags, "%s", "");
    text_add(&difference, "%s", "");
    fit_write_flags(fit, fit->frontier[i], &flags);
    if (fit->chosen >= 0)
        fit_write_difference(fit, fit->frontier[i], fit->chosen, &difference);
    f->flags[i] = text_take(&flags);
    f->differences[i] = text_take(&difference);
    f->points[i] = (struct snug_fit_point){.flags = f->flags[i],
                                           .total = c->total_bytes,
                                           .step_seconds = c->seconds,
                                           .fits = fit_needed(c) <= fit->recipe.memory,
                                           .is_chosen = fit->frontier[i] == fit->chosen};
    return f->flags[i] != NULL && f->differences[i] != NULL;
}

static enum snug_status describe_points(snug_fit *f, struct snug_error *err)
{
    size_t n = (size_t)f->fit.n_frontier;
    f->points = calloc(n, sizeof *f->points);
    f->flags = calloc(n, sizeof *f->flags);
    f->differences = calloc(n, sizeof *f->differences);
    bool done = f->points != NULL && f->flags != NULL && f->differences != NULL;
    for (int i = 0; i < f->fit.n_frontier && done; i++)
        done = describe_point(f, i);
    return done ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}

static enum snug_status add_loser(snug_fit *f, enum fit_axis_id axis, int value,
                                  struct snug_error *err)
{
    struct fit *fit = &f->fit;
    int other;
    TRY(fit_neighbour(fit, fit->chosen, axis, value, &other, err));
    if (other < 0 || f->n_losers == LOSERS_MAX)
        return SNUG_OK;
    f->losers[f->n_losers++] =
        (struct report_loser){.key = fit->axes[axis].key,
                              .value = fit->axes[axis].values[value],
                              .changes_training = axis >= FIT_STATE_BITS,
                              .needed_bytes = fit_needed(&fit->candidates[other]),
                              .seconds = fit->candidates[other].seconds};
    return SNUG_OK;
}

/* The neighbours of the choice: the next larger and smaller micro-batch, and every other value of
 * each other axis. */
static enum snug_status find_losers(snug_fit *f, struct snug_error *err)
{
    const struct fit *fit = &f->fit;
    for (int axis = 0; axis < FIT_N_AXES; axis++) {
        int own = fit_choice(fit, fit->chosen, axis);
        for (int value = 0; value < fit->axes[axis].n_values; value++)
            if (value != own && (axis > 0 || abs(value - own) == 1))
                TRY(add_loser(f, axis, value, err));
    }
    return SNUG_OK;
}

static enum snug_status describe_chosen(snug_fit *f, struct snug_error *err)
{
    TRY(fit_recipe(&f->fit, f->fit.chosen, &f->chosen, err));
    if (f->chosen.device == DEVICE_cuda) /* also if only --target implies it */
        TRY(snug_recipe_set(&f->chosen, "device", "cuda", err));
    if (f->chosen.ranks > 1)
        text_add(&f->command, "mpirun -n %lld ", (long long)f->chosen.ranks);
    text_add(&f->command, "snug train ");
    text_add_word(&f->command, f->fit.model->name);
    recipe_write_flags(&f->chosen, &f->command);
    struct snug_recipe sizes = f->chosen; /* with the sizes that the model decides */
    sizes.batch = f->fit.batch;
    if (sizes.micro_batch == 0)
        sizes.micro_batch = sizes.batch;
    if (sizes.seq == 0)
        sizes.seq = f->fit.seq;
    recipe_write(&sizes, &f->keys);
    if (f->command.failed || f->keys.failed)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    return find_losers(f, err);
}

static enum snug_status describe_recipe(snug_fit *f, struct snug_error *err)
{
    struct compiled_step s;
    struct compile_request q = {.model = f->fit.model,
                                .recipe = &f->fit.recipe,
                                .train = true,
                                .estimate = true,
                                .target = &f->fit.target};
    enum snug_status status = compile_step(&q, &s, NULL);
    if (status != SNUG_OK && status != SNUG_NO_MEMORY)
        return SNUG_OK; /* a recipe that does not compile has no description */
    if (status != SNUG_OK)
        return snug_fail(err, status, "out of memory");
    if (s.prog.loss != TENSOR_NONE)
        compiled_step_describe(&s, &f->fit.recipe, &f->recipe);
    compiled_step_free(&s);
    return f->recipe.failed ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
}

enum snug_status snug_fit_make(const snug_model *model, const snug_recipe *recipe,
                               const char *allow, snug_fit **out, struct snug_error *err)
{
    struct snug_recipe own = *recipe;
    *out = NULL;
    TRY(rates_check_target(recipe, err));
    TRY(adapter_read_recipe(&own, err));
    snug_fit *f = calloc(1, sizeof *f);
    if (f == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status found = fit_search(model, &own, allow, &f->fit, err);
    if (found != SNUG_OK && found != SNUG_OVER_BUDGET) {
        free(f);
        return found;
    }
    f->fit.target.rates.rates.curves = f->fit.target.rates.curves;
    struct snug_error why = {0}; /* err may already say that nothing fits */
    enum snug_status status = describe_recipe(f, &why);
    if (status == SNUG_OK)
        status = describe_points(f, &why);
    if (status == SNUG_OK && f->fit.chosen >= 0)
        status = describe_chosen(f, &why);
    if (status != SNUG_OK) {
        snug_fit_free(f);
        return snug_fail(err, status, "%s", why.message);
    }
    *out = f;
    return found;
}

enum snug_status snug_fit_sweep(snug_fit *f, struct snug_error *err)
{
    free_points(f, f->fit.n_frontier);
    TRY(fit_find_frontier(&f->fit, true, err));
    f->is_whole = 1;
    return describe_points(f, err);
}

void snug_fit_free(snug_fit *f)
{
    if (f == NULL)
        return;
    free_points(f, f->fit.n_frontier);
    text_free(&f->recipe);
    text_free(&f->command);
    text_free(&f->keys);
    fit_free(&f->fit);
    free(f);
}

const snug_recipe *snug_fit_recipe(const snug_fit *f)
{
    return f->fit.chosen >= 0 ? &f->chosen : NULL;
}

char *snug_fit_command(const snug_fit *f)
{
    struct text copy = {0};
    if (f->command.data == NULL)
        return NULL;
    text_add(&copy, "%s", f->command.data);
    return text_take(&copy);
}

int snug_fit_n_points(const snug_fit *f)
{
    return f->fit.n_frontier;
}

void snug_fit_point(const snug_fit *f, int index, struct snug_fit_point *point)
{
    *point = f->points[index];
}

static struct report_fit report_of(const snug_fit *f)
{
    const struct fit *fit = &f->fit;
    bool has_choice = fit->chosen >= 0;
    struct report_fit r = {.model = fit->model->name,
                           .recipe = f->recipe.data == NULL ? "" : f->recipe.data,
                           .budget = fit->recipe.memory,
                           .runtime_bytes = has_choice ? fit->candidates[fit->chosen].runtime_bytes
                                                       : fit->runtime_bytes,
                           .command = f->command.data,
                           .keys = f->keys.data,
                           .points = f->points,
                           .differences = (const char *const *)f->differences,
                           .is_whole = f->is_whole,
                           .n_points = fit->n_frontier,
                           .chosen = -1,
                           .losers = f->losers,
                           .n_losers = f->n_losers,
                           .tokens = (double)(fit->batch * (fit->seq > 0 ? fit->seq : 1)),
                           .unit = fit->seq > 0 ? "tokens" : "samples",
                           .rates = fit->target.rates.origin};
    for (int i = 0; i < fit->n_frontier; i++)
        if (f->points[i].is_chosen)
            r.chosen = i;
    return r;
}

char *snug_fit_text(const snug_fit *f, int whole_frontier, int color)
{
    struct report_fit report = report_of(f);
    return report_fit_text(&report, whole_frontier, color);
}

char *snug_fit_json(const snug_fit *f)
{
    struct report_fit report = report_of(f);
    return report_fit_json(&report);
}
