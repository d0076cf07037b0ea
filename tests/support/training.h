/*
 * training.h -- helpers for tests of training: recipes in one line, errors between tensors.
 */
#ifndef TESTS_SUPPORT_TRAINING_H
#define TESTS_SUPPORT_TRAINING_H

#include "compile/compile.h"
#include "io/safetensors.h"
#include "recipe/recipe.h"

/* Fails the test with the library's own message unless status is SNUG_OK. */
void must(enum snug_status status, const struct snug_error *err);

/* "lr=1e-3 threads=1 opt=beta1=0.9,beta2=0.95": a recipe with these keys set.  The caller frees it. */
snug_recipe *recipe_of(const char *keys);

/* Opens the model or fails the test. */
snug_model *model_of(const char *spec);

/* The ledger of one rank's plan; rank -1: of the rank with the highest peak. */
struct snug_ledger ledger_of(const char *model, const char *keys, int rank);

/* The whole step as it is trained with, planned so that no gradient's bytes are reused before its
 * end. */
void compile_keeping_gradients(const snug_model *model, const snug_recipe *recipe,
                               struct compiled_step *s);

/* The bytes of the tensor `name`, which must exist and have that size. */
void read_raw(struct safetensors *st, const char *name, void *out, size_t n_bytes);

/* |found - truth| / |truth| in the Euclidean norm; infinite if NaN, or if only the truth is 0. */
double relative_error(const double *found, const double *truth, int64_t n);

#endif
