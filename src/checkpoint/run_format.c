/*
 * run_format.c -- what changed between the formats of a saved run, and how older runs are migrated.
 *
 *     1 -> 2   adam and amsgrad: weight decay became coupled.  Older runs get the option
 *              `decoupled`.  Keys that an optimizer used to ignore are now applied or refused.
 *              They had no effect, so they are removed from the recipe.
 *     2 -> 3   the recipe key `order` (fixed, any) became `deterministic` (yes, no).
 */
#include "checkpoint/run_format.h"

#include "recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

static const char *value_of(const json_t *recipe, const char *key)
{
    const char *value = json_string_value(json_object_get(recipe, key));
    return value == NULL ? "" : value;
}

static bool is_above_0(const json_t *recipe, const char *key)
{
    return strtod(value_of(recipe, key), NULL) > 0;
}

static enum snug_status add_option(json_t *recipe, const char *option, struct snug_error *err)
{
    const char *options = value_of(recipe, "opt");
    struct text all = {0};
    text_add(&all, "%s%s%s", options, options[0] == '\0' ? "" : ",", option);
    bool is_set = !all.failed && json_object_set_new(recipe, "opt", json_string(all.data)) == 0;
    text_free(&all);
    return is_set ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}

/* Does the saved optimizer, with its options, have states that --state-bits applies to? */
static bool has_state_bits(const json_t *recipe)
{
    const struct optimizer *optimizer = optimizer_find(value_of(recipe, "optimizer"));
    double options[MAX_OPTIONS];
    if (optimizer == NULL)
        return true;
    optimizer_default_options(optimizer, options);
    return optimizer_read_options(optimizer, value_of(recipe, "opt"), options, NULL) != SNUG_OK ||
           optimizer_has_state_bits(optimizer, options);
}

static enum snug_status from_1(json_t *recipe, struct snug_error *err)
{
    static const char *const of_rate[] = {"schedule", "warmup", "scale-lr", "base-batch"};
    const char *optimizer = value_of(recipe, "optimizer");
    bool was_decoupled = strcmp(optimizer, "adam") == 0 || strcmp(optimizer, "amsgrad") == 0;
    if (was_decoupled && is_above_0(recipe, "weight-decay"))
        TRY(add_option(recipe, "decoupled=1", err));
    if (strcmp(optimizer, "amos") == 0)
        json_object_del(recipe, "weight-decay");
    if (strcmp(optimizer, "cyclic-lr") == 0)
        json_object_del(recipe, "schedule");
    bool is_relative = strcmp(optimizer, "adafactor") == 0 && !is_above_0(recipe, "lr");
    for (size_t i = 0; i < sizeof of_rate / sizeof *of_rate && is_relative; i++)
        json_object_del(recipe, of_rate[i]);
    if (!has_state_bits(recipe))
        json_object_del(recipe, "state-bits");
    return SNUG_OK;
}

static enum snug_status from_2(json_t *recipe, struct snug_error *err)
{
    const char *order = value_of(recipe, "order");
    const char *value = strcmp(order, "any") == 0 ? "no" : "yes";
    if (order[0] != '\0' && json_object_set_new(recipe, "deterministic", json_string(value)) != 0)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    json_object_del(recipe, "order");
    return SNUG_OK;
}

enum snug_status run_format_migrate(json_t *state, const char *run, struct snug_error *err)
{
    int64_t format;
    json_t *recipe;
    TRY(json_get_integer(state, run, "format", 1, INT64_MAX / 2, &format, err));
    if (format > RUN_FORMAT)
        return snug_fail(
            err, SNUG_BAD_FILE,
            "%s: state.json has format %lld, but this snug reads formats up to %d: use "
            "the version that saved it, or a later one",
            run, (long long)format, RUN_FORMAT);
    if (format == RUN_FORMAT)
        return SNUG_OK;
    TRY(json_get_object(state, run, "recipe", &recipe, err));
    if (format < 2)
        TRY(from_1(recipe, err));
    return from_2(recipe, err);
}
