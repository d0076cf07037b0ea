/*
 * recipe_values.c -- the default recipe, and values that depend on the optimizer or on other keys.
 */
#include "recipe/recipe.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

snug_recipe *snug_recipe_new(void)
{
    snug_recipe *recipe = malloc(sizeof *recipe);
    if (recipe != NULL)
        *recipe = (snug_recipe){.precision = DTYPE_f32,
                                .optimizer = &optimizer_adamw,
                                .lr = NAN,
                                .weight_decay = NAN,
                                .lora_on = LORA_ON_DEFAULT,
                                .lora_alpha = NAN,
                                .clip = 1,
                                .lr_end = 0.1,
                                .cycles = 4,
                                .decay_from = 0.8,
                                .seed = 1};
    return recipe;
}

void snug_recipe_free(snug_recipe *recipe)
{
    free(recipe);
}

snug_recipe *snug_recipe_copy(const snug_recipe *recipe)
{
    snug_recipe *copy = malloc(sizeof *copy);
    if (copy != NULL)
        *copy = *recipe;
    return copy;
}

enum dtype recipe_dtype(const struct snug_recipe *recipe)
{
    return (enum dtype)recipe->precision;
}

enum snug_status recipe_options(const struct snug_recipe *recipe, double values[MAX_OPTIONS],
                                struct snug_error *err)
{
    optimizer_default_options(recipe->optimizer, values);
    return optimizer_read_options(recipe->optimizer, recipe->opt, values, err);
}

int recipe_state_bits(const struct snug_recipe *recipe)
{
    int usual = recipe->optimizer->state_bits;
    return recipe->state_bits != 0 ? recipe->state_bits : usual != 0 ? usual : 32;
}

int recipe_stages(const struct snug_recipe *recipe)
{
    int64_t ranks = recipe->ranks > 1 ? recipe->ranks : 1;
    if (recipe->pipeline == PIPELINE_none)
        return 1;
    return (int)(recipe->stages > 0 ? recipe->stages : ranks < STAGES_MAX ? ranks : STAGES_MAX);
}

double recipe_lora_alpha(const struct snug_recipe *recipe)
{
    return isnan(recipe->lora_alpha) ? 2 * (double)recipe->lora : recipe->lora_alpha;
}

void recipe_clear_lora(struct snug_recipe *recipe)
{
    recipe->lora = 0;
    recipe->lora_alpha = NAN;
    strcpy(recipe->lora_on, LORA_ON_DEFAULT);
    recipe->lora_base = 0;
    recipe->lora_from[0] = '\0';
}

double recipe_lr(const struct snug_recipe *recipe)
{
    return isnan(recipe->lr) ? recipe->optimizer->default_lr : recipe->lr;
}

double recipe_weight_decay(const struct snug_recipe *recipe)
{
    return isnan(recipe->weight_decay) ? recipe->optimizer->default_decay : recipe->weight_decay;
}

/* The cores available to this process: in a container or under a scheduler fewer than the machine
 * has. */
int recipe_threads(const struct snug_recipe *recipe)
{
    if (recipe->threads > 0)
        return recipe->threads;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        cores = CPU_COUNT(&allowed);
#endif
    /* Slurm may not bind a task to its cores */
    const char *share = getenv("SLURM_CPUS_PER_TASK");
    long n = share == NULL ? 0 : strtol(share, NULL, 10);
    if (n > 0 && n < cores)
        cores = n;
    return cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores;
}
