/*
 * bench_api.c -- measurements of this machine, to read, to paste into a report, or as JSON.
 */
#include "train/bench.h"
#include "train/budget.h"
#include "train/large_batch.h"

#include <string.h>

enum { STEPS = 5 };

static enum snug_status measure(const struct session *session, const snug_model *model,
                                const snug_recipe *recipe, int as_json, char **text,
                                struct snug_error *err)
{
    struct text described = {0};
    session_describe(session, recipe, &described);
    struct report_bench bench = {.model = model->name, .recipe = described.data};
    enum snug_status status = SNUG_OK;
    if (!described.failed)
        status = bench_run(session, STEPS, recipe_precision_name(recipe), &bench, err);
    if (status == SNUG_OK && !described.failed)
        *text = as_json ? report_bench_json(&bench) : report_bench_text(&bench);
    text_free(&described);
    if (status == SNUG_OK && *text == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    return status;
}

enum snug_status snug_bench(const char *what, const snug_model *model, const snug_recipe *recipe,
                            int as_json, char **text, struct snug_error *err)
{
    struct session session;
    *text = NULL;
    if (strcmp(what, "cpu") != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "there is no bench \"%.40s\"; there are: cpu, large-batch", what);
    struct session_request q = {.model = model, .recipe = recipe, .train = true};
    TRY(session_make(&q, &session, err));
    enum snug_status status = budget_check_run(model, recipe, &session, err);
    if (status == SNUG_OK)
        status = measure(&session, model, recipe, as_json, text, err);
    session_free(&session);
    return status;
}

enum snug_status snug_bench_large_batch(const snug_model *model, const snug_recipe *recipe,
                                        const struct snug_large_batch *options, int as_json,
                                        snug_say_fn *say, void *user, char **text,
                                        struct snug_error *err)
{
    struct report_large_batch result = {.model = model->name,
                                        .data = options->data == NULL ? "random" : options->data,
                                        .recipe = recipe->optimizer->name};
    *text = NULL;
    TRY(large_batch_run(model, recipe, options, say, user, &result, err));
    *text = as_json ? report_large_batch_json(&result) : report_large_batch_text(&result);
    return *text != NULL ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}
