/*
 * compile_target.c -- read the machine that a step is compiled for.
 */
#include "compile/compile_target.h"

#include "exec/collective_plan.h"

enum snug_status compile_target_find(const struct snug_recipe *recipe,
                                     struct compile_target *target, struct snug_error *err)
{
    target->threads = recipe_threads(recipe);
    target->isa = recipe->device == DEVICE_cuda ? NULL : backend_cpu_isa();
    target->nccl_is_forced = collectives_are_forced();
    return rates_of_recipe(recipe, target->threads, target->isa, &target->rates, err);
}

void compile_target_of_run(const struct compiled_step *run, struct compile_target *target)
{
    target->threads = run->facts.threads;
    target->isa = run->facts.isa;
    target->nccl_is_forced = run->collectives_alone;
    target->rates.rates = (struct device_rates){0};
    target->rates.origin[0] = '\0';
}
