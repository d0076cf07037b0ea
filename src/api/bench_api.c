/*
 * bench_api.c -- snug_bench: benchmarks this machine and a training step.
 */
#include "checkpoint/adapter.h"
#include "bench/bench.h"
#include "compile/budget.h"
#include "compile/device_rates.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 5 };

/* Measures the op rates and saves them, unless the machine was busy.  A failure to write the file
 * is not an error: the measurements are still reported. */
static enum snug_status save_rates(const struct compiled_step *compiled, const snug_recipe *recipe,
                                   struct report_bench *bench, char **path, struct snug_error *err)
{
    struct machine_rates rates;
    *path = NULL;
    if (recipe->kernels != 0 || bench->is_busy)
        return SNUG_OK;
    TRY(rates_measure(recipe, &rates, err));
    TRY(bench_measure_again(compiled, bench, err));
    if (!bench->is_busy &&
        rates_save(bench->threads, compiled->facts.isa, &rates, path, NULL) == SNUG_OK) {
        bench->n_rates = rates.rates.n_curves;
        bench->rates_file = *path;
    }
    return SNUG_OK;
}

static enum snug_status measure(const struct compiled_step *compiled, const snug_model *model,
                                const snug_recipe *recipe, bool with_rates, int as_json,
                                char **text, struct snug_error *err)
{
    struct text described = {0};
    compiled_step_describe(compiled, recipe, &described);
    struct report_bench bench = {.model = model->name, .recipe = described.data};
    char *rates_path = NULL;
    enum snug_status status = SNUG_OK;
    if (!described.failed)
        status = bench_run(compiled, STEPS, recipe_precision_name(recipe), &bench, err);
    if (status == SNUG_OK && with_rates)
        status = save_rates(compiled, recipe, &bench, &rates_path, err);
    if (status == SNUG_OK && !described.failed)
        *text = as_json ? report_bench_json(&bench) : report_bench_text(&bench);
    free(rates_path);
    text_free(&described);
    if (status == SNUG_OK && *text == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    return status;
}

enum snug_status snug_bench(const char *what, const snug_model *model, const snug_recipe *recipe,
                            int as_json, char **text, struct snug_error *err)
{
    struct compiled_step compiled;
    struct snug_model usual = {0};
    bool with_rates = model == NULL && strcmp(what, "cpu") == 0; /* only CPU rates are saved */
    *text = NULL;
    bool on_gpu = strcmp(what, "cuda") == 0;
    if (!on_gpu && strcmp(what, "cpu") != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "unknown benchmark \"%.40s\": use cpu or cuda",
                         what);
    struct snug_recipe own = *recipe;
    own.device = on_gpu ? DEVICE_cuda : DEVICE_cpu;
    recipe = &own;
    TRY(adapter_read_recipe(&own, err));
    if (model == NULL) {
        TRY(model_from_name("gpt-nano", &usual, err));
        model = &usual;
    }
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    TRY(compile_step(&q, &compiled, err));
    enum snug_status status = budget_check_run(model, recipe, &compiled, err);
    if (status == SNUG_OK)
        status = measure(&compiled, model, recipe, with_rates, as_json, text, err);
    compiled_step_free(&compiled);
    return status;
}
