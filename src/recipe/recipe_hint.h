/*
 * recipe_hint.h -- hints for invalid recipe values.
 */
#ifndef SNUG_RECIPE_RECIPE_HINT_H
#define SNUG_RECIPE_RECIPE_HINT_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the value of the key that is nearest to `typed`, or that other programs call `typed`, or
 * NULL.  `values` lists the key's values and is split into words in place. */
const char *recipe_hint(const char *key, const char *typed, char *values);

/* Is the value a size without a unit and below 1 MiB, such as "24" for 24G? */
bool recipe_is_bare_size(const char *value, int64_t bytes);

#endif
