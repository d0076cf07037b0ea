/*
 * device_rates.h -- how fast the device of a recipe is: measured on this machine, or from a table.
 *
 * `snug bench cpu` measures the rates of this machine and stores them in
 * $XDG_CACHE_HOME/snug/rates.json (or ~/.cache/snug), one entry per CPU, instruction set level and
 * number of threads.
 */
#ifndef SNUG_COMPILE_DEVICE_RATES_H
#define SNUG_COMPILE_DEVICE_RATES_H

#include "plan/rates.h"
#include "recipe/recipe.h"

struct cpu_isa;

enum { RATE_CURVES_MAX = 160 };

struct machine_rates {
    struct device_rates rates; /* points to the curves below: do not copy one without the other */
    struct rate_curve curves[RATE_CURVES_MAX];
    char origin[96]; /* "by rates measured here, 2 threads", "for an assumed H100 80G" */
};

/* Refuses a --target that contradicts --device. */
enum snug_status rates_check_target(const struct snug_recipe *recipe, struct snug_error *err);

/* The memory of a target card as its driver reports it, rounded down to half a GiB, and its name.
 * 0 if the target is not a card. */
int64_t rates_card_memory(enum target target, const char **name);

/* The rates of the recipe's device; a CPU is looked up by threads and instructions.  A machine that
 * was never measured counts as a generic CPU. */
enum snug_status rates_of_recipe(const struct snug_recipe *recipe, int threads,
                                 const struct cpu_isa *isa, struct machine_rates *rates,
                                 struct snug_error *err);
struct device_rates rates_generic_cpu(int threads);

/* device_rates_file.c: *path is the file that was written, for the caller to free; NULL on
 * failure. */
enum snug_status rates_save(int threads, const struct cpu_isa *isa,
                            const struct machine_rates *rates, char **path, struct snug_error *err);
/* *found: the file has an entry for this machine. */
enum snug_status rates_load(int threads, const struct cpu_isa *isa, struct machine_rates *rates,
                            bool *found, struct snug_error *err);

#endif
