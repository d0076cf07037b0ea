/*
 * large_batch.c -- the same model at a small and at a large batch, as many epochs each.
 *
 * With k times the batch there are k times fewer updates.  The rules of thumb are a learning rate
 * times k (the updates of an epoch add up to as much) and times the root of k (the noise of an update
 * stays as it was), both with a warm-up while the weights change fast.  A run that diverges is a
 * result too: it is counted, not averaged.
 */
#include "bench/large_batch.h"

#include "train/trainer.h"

#include <math.h>
#include <stdio.h>

static const double warmup_share = 0.1; /* of the steps, unless the recipe says how many */
enum { DEFAULT_BATCH = 64 };

struct comparison {
    const snug_model *model;
    const struct snug_recipe *recipe;
    const struct snug_large_batch *options;
    snug_say_fn *say;
    void *user;
    struct report_large_batch *result;
};

static int keep_last(const struct snug_metrics *metrics, void *user)
{
    *(struct snug_metrics *)user = *metrics;
    return 0;
}

static void say_run(const struct comparison *c, const struct report_large_row *row, int64_t seed,
                    double value)
{
    char line[160], outcome[40];
    if (isnan(value))
        snprintf(outcome, sizeof outcome, "diverged");
    else if (c->result->has_accuracy)
        snprintf(outcome, sizeof outcome, "test error %.2f%%", 100 * value);
    else
        snprintf(outcome, sizeof outcome, "test loss %.4f", value);
    snprintf(line, sizeof line, "batch %lld, lr %g, warm-up %lld of %lld steps, seed %lld: %s",
             (long long)row->batch, row->lr, (long long)row->warmup, (long long)row->steps,
             (long long)seed, outcome);
    if (c->say != NULL)
        c->say(line, c->user);
}

/* How many steps a run has is known when its data is open: the warm-up is set then. */
static void set_warmup(const struct comparison *c, struct snug_trainer *t,
                       struct report_large_row *row)
{
    row->steps = t->n_steps;
    if (row->has_warmup && c->recipe->warmup > 0)
        row->warmup = c->recipe->warmup;
    else if (row->has_warmup)
        row->warmup = (int64_t)ceil(warmup_share * (double)t->n_steps);
    t->recipe.warmup = row->warmup;
}

/* The test error (or loss) of one run; NaN: it diverged. */
static enum snug_status run_once(const struct comparison *c, struct report_large_row *row,
                                 int64_t seed, double *value, struct snug_error *err)
{
    struct snug_recipe recipe = *c->recipe;
    struct snug_train_options options = {.data = c->options->data, .epochs = c->options->epochs};
    struct snug_metrics last = {0};
    snug_trainer *trainer;
    recipe.batch = row->batch;
    if (recipe.micro_batch > row->batch)
        recipe.micro_batch = 0;
    recipe.lr = row->lr;
    recipe.warmup = 0;
    recipe.seed = seed;
    recipe.scale_lr = SCALE_LR_none;
    recipe.base_batch = 0;
    TRY(snug_trainer_open(c->model, &recipe, &options, &trainer, err));
    set_warmup(c, trainer, row);
    enum snug_status status = recipe_check_steps(&trainer->recipe, row->steps, err);
    if (status == SNUG_OK)
        status = snug_trainer_run(trainer, keep_last, &last, err);
    snug_trainer_free(trainer);
    *value = NAN;
    if (status == SNUG_DIVERGED)
        return SNUG_OK;
    TRY(status);
    if (!last.has_validation)
        return snug_fail(err, SNUG_BAD_FILE, "%s has no held-out data to test on",
                         c->options->data == NULL ? "random" : c->options->data);
    c->result->has_accuracy = last.has_accuracy;
    *value = last.has_accuracy ? 1 - last.val_accuracy : last.val_loss;
    return SNUG_OK;
}

static enum snug_status run_row(const struct comparison *c, struct report_large_row *row,
                                struct snug_error *err)
{
    int n = 0;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < c->options->n_seeds; i++) {
        double value;
        int64_t seed = c->recipe->seed + i;
        TRY(run_once(c, row, seed, &value, err));
        say_run(c, row, seed, value);
        if (isnan(value)) {
            row->n_diverged++;
            continue;
        }
        n++;
        double before = value - row->mean; /* Welford: nothing cancels */
        row->mean += before / n;
        squares += before * (value - row->mean);
        sum += value;
    }
    row->mean = n > 0 ? sum / n : NAN;
    row->deviation = n > 1 ? sqrt(squares / (n - 1)) : NAN;
    return SNUG_OK;
}

static enum snug_status check_options(const struct snug_large_batch *o, int64_t small,
                                      struct snug_error *err)
{
    if (o->large <= small)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--large %lld is not larger than --batch %lld",
                         (long long)o->large, (long long)small);
    if (o->n_seeds < 1 || !(o->epochs > 0))
        return snug_fail(err, SNUG_BAD_ARGUMENT, "at least one seed and more than 0 epochs");
    return SNUG_OK;
}

enum snug_status large_batch_run(const snug_model *model, const struct snug_recipe *recipe,
                                 const struct snug_large_batch *options, snug_say_fn *say,
                                 void *user, struct report_large_batch *result,
                                 struct snug_error *err)
{
    int64_t small = recipe->batch > 0 ? recipe->batch : DEFAULT_BATCH;
    struct comparison c = {model, recipe, options, say, user, result};
    TRY(check_options(options, small, err));
    double ratio = (double)options->large / (double)small, lr = recipe_lr(recipe);
    if (lr <= 0)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "--optimizer %s finds a learning rate of its own, and this compares rates: "
            "give --lr",
            recipe->optimizer->name);
    const struct {
        const char *name;
        double factor;
    } rules[] = {{"unchanged", 1}, {"x sqrt(k)", sqrt(ratio)}, {"x k", ratio}};
    result->ratio = ratio;
    result->n_seeds = options->n_seeds;
    result->epochs = options->epochs;
    result->rows[result->n_rows++] =
        (struct report_large_row){.batch = small, .lr = lr, .rule = "as given"};
    for (int warmup = 0; warmup < 2; warmup++)
        for (int i = 0; i < 3; i++)
            result->rows[result->n_rows++] = (struct report_large_row){.batch = options->large,
                                                                       .lr = lr * rules[i].factor,
                                                                       .rule = rules[i].name,
                                                                       .has_warmup = warmup};
    for (int i = 0; i < result->n_rows; i++)
        TRY(run_row(&c, &result->rows[i], err));
    return SNUG_OK;
}
