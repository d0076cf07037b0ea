/*
 * recipe_hint.h -- helps with values that a recipe does not take.
 */
#ifndef SNUG_RECIPE_RECIPE_HINT_H
#define SNUG_RECIPE_RECIPE_HINT_H

#include <stdbool.h>
#include <stdint.h>

/* The value of the key that `typed` is near to, or that other programs call so; NULL: none.  `values` is the list
 * of its values, which is cut into words. */
const char *recipe_hint(const char *key, const char *typed, char *values);

/* A size without a unit that is too small to be meant: "24" for 24G. */
bool recipe_is_bare_size(const char *value, int64_t bytes);

#endif
