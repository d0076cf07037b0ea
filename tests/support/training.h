/*
 * training.h -- what the tests of training share: recipes in one line, errors between tensors.
 */
#ifndef TESTS_SUPPORT_TRAINING_H
#define TESTS_SUPPORT_TRAINING_H

#include "io/safetensors.h"
#include "recipe/recipe.h"

/* Fails the test with the library's own message unless status is SNUG_OK. */
void must(enum snug_status status, const struct snug_error *err);

/* "lr=1e-3 threads=1 opt=beta1=0.9,beta2=0.95": defaults with these keys set.  Free it. */
snug_recipe *recipe_of(const char *keys);

/* Opens the model or fails the test. */
snug_model *model_of(const char *spec);

/* The ledger of one rank's plan, or of the fullest one's: rank -1. */
struct snug_ledger ledger_of(const char *model, const char *keys, int rank);

/* The bytes of the tensor `name`, which must be there and of that size. */
void read_raw(struct safetensors *st, const char *name, void *out, size_t n_bytes);

/* |found - truth| / |truth| in the Euclidean norm; NaN or a difference from 0 is infinite. */
double relative_error(const double *found, const double *truth, int64_t n);

#endif
