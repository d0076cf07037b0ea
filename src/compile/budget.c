/*
 * budget.c -- check a plan against a memory budget; a refusal names a recipe that would fit.
 */
#include "compile/budget.h"

#include "base/process_memory.h"
#include "compile/advice.h"

#include <math.h>
#include <stdio.h>

const char *budget_name(const struct snug_recipe *recipe)
{
    return recipe->memory_origin[0] == '\0'             ? "the budget"
           : target_is_gpu((enum target)recipe->target) ? "the memory of the target GPU"
           : recipe->device == DEVICE_cuda              ? "the GPU's memory"
                                                        : "the default budget";
}

const char *budget_size(int64_t bytes, char out[TEXT_SIZE_MAX])
{
    double value = (double)bytes, unit = 1;
    while (value >= 1000) {
        value /= 1024;
        unit *= 1024;
    }
    double last_digit = unit / (value >= 100 || bytes < 1000 ? 1 : value >= 10 ? 10 : 100);
    return text_size((int64_t)(ceil((double)bytes / last_digit) * last_digit), out);
}

enum snug_status budget_check(const struct snug_model *model, const struct snug_recipe *recipe,
                              const struct compiled_step *s, int64_t limit_bytes,
                              const char *limit_name, struct snug_error *err)
{
    char planned[TEXT_SIZE_MAX], runtime[TEXT_SIZE_MAX], limit[TEXT_SIZE_MAX], other[TEXT_SIZE_MAX];
    struct priced_recipe found;
    int64_t beside = compiled_step_runtime_bytes(s);
    if (limit_bytes <= 0 || s->plan.arena_bytes + beside <= limit_bytes)
        return SNUG_OK;
    text_size(s->plan.arena_bytes, planned);
    text_size(beside, runtime);
    text_size(limit_bytes, limit);
    bool fits = advice_find_fitting(model, recipe, s, limit_bytes, &found);
    const char *instead = found.replaced[0] != '\0' ? " instead of " : "";
    if (fits)
        return snug_fail(err, SNUG_OVER_BUDGET,
                         "%s needs %s plus %s for the runtime, over %s of %s; this fits: %s%s%s "
                         "(%s, %s)",
                         model->name, planned, runtime, limit_name, limit, found.flags, instead,
                         found.replaced, text_size(found.total_bytes, other),
                         advice_change_words(&found));
    if (found.total_bytes == INT64_MAX)
        return snug_fail(err, SNUG_OVER_BUDGET, "%s needs %s, over %s of %s", model->name, planned,
                         limit_name, limit);
    return snug_fail(
        err, SNUG_OVER_BUDGET,
        "%s needs %s plus %s for the runtime, over %s of %s; the smallest recipe found, "
        "%s%s%s, needs %s with the runtime: %s",
        model->name, planned, runtime, limit_name, limit,
        found.flags[0] != '\0' ? found.flags : "this recipe", instead, found.replaced,
        budget_size(priced_needed(&found), other),
        limit_bytes == recipe->memory
            ? "raise --memory or try snug fit"
            : "try snug fit, --lora 16 --lora-base 4, or a machine with more memory");
}

/* --memory, or the machine's memory if that is less.  A GPU's memory is only known when the arena
 * is allocated. */
static int64_t limit_of_run(const struct snug_recipe *recipe, const char **name)
{
    int64_t machine = recipe->device == DEVICE_cuda ? INT64_MAX : machine_bytes();
    bool by_recipe = recipe->memory > 0 && recipe->memory <= machine;
    *name = by_recipe ? budget_name(recipe) : "this machine's memory";
    return by_recipe ? recipe->memory : machine;
}

enum snug_status budget_check_run(const struct snug_model *model, const struct snug_recipe *recipe,
                                  const struct compiled_step *compiled, struct snug_error *err)
{
    const char *name;
    int64_t limit_bytes = limit_of_run(recipe, &name);
    return budget_check(model, recipe, compiled, limit_bytes, name, err);
}

enum snug_status budget_check_forward(const struct compiled_step *compiled,
                                      const struct snug_recipe *recipe, const char *name,
                                      struct snug_error *err)
{
    char needed[TEXT_SIZE_MAX], limit[TEXT_SIZE_MAX];
    const char *limit_name;
    int64_t limit_bytes = limit_of_run(recipe, &limit_name);
    int64_t needed_bytes = compiled->plan.arena_bytes + compiled_step_runtime_bytes(compiled);
    if (needed_bytes <= limit_bytes)
        return SNUG_OK;
    return snug_fail(err, SNUG_OVER_BUDGET, "%s needs %s including the runtime, over %s of %s",
                     name, text_size(needed_bytes, needed), limit_name,
                     text_size(limit_bytes, limit));
}
