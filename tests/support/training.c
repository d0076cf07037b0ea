/*
 * training.c -- see training.h.
 */
#include "support/training.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void must(enum snug_status status, const struct snug_error *err)
{
    if (status != SNUG_OK)
        fail_msg("%s: %s", snug_status_name(status), err->message);
}

snug_recipe *recipe_of(const char *keys)
{
    char copy[512], *rest;
    struct snug_error err;
    snug_recipe *recipe = snug_recipe_new();
    assert_non_null(recipe);
    assert_true(snprintf(copy, sizeof copy, "%s", keys) < (int)sizeof copy);
    for (char *key = strtok_r(copy, " ", &rest); key != NULL; key = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(key, '=');
        assert_non_null(equals);
        *equals = '\0';
        must(snug_recipe_set(recipe, key, equals + 1, &err), &err);
    }
    return recipe;
}

snug_model *model_of(const char *spec)
{
    struct snug_error err;
    snug_model *model = NULL;
    must(snug_model_open(spec, &model, &err), &err);
    return model;
}

struct snug_ledger ledger_of(const char *model_name, const char *keys, int rank)
{
    struct snug_error err = {0};
    struct snug_ledger ledger;
    snug_plan *plan;
    snug_model *model = model_of(model_name);
    snug_recipe *recipe = recipe_of(keys);
    must(rank < 0 ? snug_plan_make(model, recipe, &plan, &err)
                  : snug_plan_make_rank(model, recipe, rank, &plan, &err),
         &err);
    snug_plan_ledger(plan, &ledger);
    snug_plan_free(plan);
    snug_recipe_free(recipe);
    snug_model_free(model);
    return ledger;
}

void compile_keeping_gradients(const snug_model *model, const snug_recipe *recipe,
                               struct compiled_step *s)
{
    struct snug_error err;
    struct compile_request q = {
        .model = model, .recipe = recipe, .train = true, .last_pass = "last"};
    struct device_rates rates = {.flops = 1e9, .bytes = 1e9};
    must(compile_step(&q, s, &err), &err);
    for (int i = 0; i < s->prog.n_tensors; i++)
        s->prog.tensors[i].is_output |= s->prog.tensors[i].role == ROLE_gradient;
    must(plan_make(&s->prog, s->backend->alignment, &rates, &s->plan, &err), &err);
    must(plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err),
         &err);
}

void read_raw(struct safetensors *st, const char *name, void *out, size_t n_bytes)
{
    struct snug_error err;
    const struct st_entry *entry = safetensors_find(st, name);
    if (entry == NULL)
        fail_msg("%s holds no %s", safetensors_path(st), name);
    assert_int_equal(entry->n_bytes, n_bytes);
    must(safetensors_read(st, entry, out, &err), &err);
}

double relative_error(const double *found, const double *truth, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (found[i] - truth[i]) * (found[i] - truth[i]);
        size += truth[i] * truth[i];
    }
    if (difference == 0)
        return 0;
    double error = sqrt(difference / size);
    return isnan(error) ? INFINITY : error;
}
