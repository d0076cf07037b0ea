/*
 * device_rates.h -- how fast the device of a recipe is: a measured machine, or one from a table.
 *
 * Rates of a machine are measured by `snug bench cpu` and kept in $XDG_CACHE_HOME/snug/rates.json
 * (or ~/.cache/snug), an entry for each CPU, level of kernels and number of threads.
 */
#ifndef SNUG_COMPILE_DEVICE_RATES_H
#define SNUG_COMPILE_DEVICE_RATES_H

#include "plan/rates.h"
#include "recipe/recipe.h"

enum { RATE_CURVES_MAX = 160 };

struct machine_rates {
    struct device_rates rates; /* its curves are those below: do not copy one without the other */
    struct rate_curve curves[RATE_CURVES_MAX];
    char origin[96]; /* "measured here with 2 threads", "of an A100, assumed" */
};

/* Refuses a target that is not of the device that was given. */
enum snug_status rates_check_target(const struct snug_recipe *recipe, struct snug_error *err);

/* What a card has as its driver reports it, rounded down to half a GiB, and its name; 0: the target is not a
 * card. */
int64_t rates_card_memory(enum target target, const char **name);

/* The device that the recipe names.  A machine that was not measured is a generic CPU. */
enum snug_status rates_of_recipe(const struct snug_recipe *recipe, struct machine_rates *rates,
                                 struct snug_error *err);
struct device_rates rates_generic_cpu(int threads);

/* measure_rates.c: runs steps of small models for some seconds. */
enum snug_status rates_measure(const struct snug_recipe *recipe, struct machine_rates *rates,
                               struct snug_error *err);
/* device_rates_file.c.  path is the caller's, of the file that was written; NULL if it failed. */
enum snug_status rates_save(int threads, const struct machine_rates *rates, char **path,
                            struct snug_error *err);
/* *found: there are some. */
enum snug_status rates_load(int threads, struct machine_rates *rates, bool *found,
                            struct snug_error *err);

#endif
