/*
 * budget.c -- plans against a budget, and the recipes beside the one that was asked for.
 */
#include "train/budget.h"

#include "train/trainer.h"

#include <math.h>
#include <stdio.h>

static enum snug_status total_of(const struct snug_model *model, const struct snug_recipe *recipe,
                                 int64_t *total_bytes)
{
    struct session s;
    struct session_request q = {.model = model, .recipe = recipe, .train = true};
    TRY(session_make(&q, &s, NULL));
    *total_bytes = s.plan.arena_bytes;
    session_free(&s);
    return SNUG_OK;
}

/* The largest divisor of the batch that is at most `most` and less than micro_batch; 0: none. */
static int64_t smaller_micro_batch(int64_t batch, int64_t micro_batch, int64_t most)
{
    for (int64_t m = most < micro_batch ? most : micro_batch - 1; m >= 1; m--)
        if (batch % m == 0)
            return m;
    return 0;
}

static void add_alternative(const struct snug_model *model, const struct snug_recipe *recipe,
                            const char *flags, struct priced_recipe *out, int *n)
{
    if (*n < 0)
        return;
    enum snug_status status = total_of(model, recipe, &out[*n].total_bytes);
    if (status == SNUG_OK) {
        snprintf(out[*n].flags, sizeof out[*n].flags, "%s", flags);
        ++*n;
    } else if (status == SNUG_NO_MEMORY) {
        *n = -1;
    }
}

int budget_alternatives(const struct snug_model *model, const struct snug_recipe *recipe,
                        const struct session *s, struct priced_recipe out[BUDGET_ALTERNATIVES])
{
    int n = 0;
    struct snug_recipe other = *recipe;
    if (recipe->checkpoint == CHECKPOINT_auto)
        return 0; /* every one of them fills the same budget */
    int64_t quarter = smaller_micro_batch(s->batch, s->micro_batch, (s->micro_batch + 3) / 4);
    if (quarter > 0 && s->prog.loss != TENSOR_NONE) {
        char flags[64];
        other.batch = s->batch;
        other.micro_batch = quarter;
        snprintf(flags, sizeof flags, "--micro-batch %lld", (long long)quarter);
        add_alternative(model, &other, flags, out, &n);
    }
    other = *recipe;
    other.precision = DTYPE_bf16;
    if (recipe->precision == DTYPE_f32)
        add_alternative(model, &other, "--precision bf16", out, &n);
    other = *recipe;
    other.optimizer = &optimizer_sgd;
    other.opt[0] = '\0';
    if (recipe->optimizer != &optimizer_sgd)
        add_alternative(model, &other, "--optimizer sgd", out, &n);
    return n;
}

/* First fewer samples per pass, then 16 bits as well: true at the first that is within `room`;
 * else *found is the smallest of them all. */
static bool find_nearest(const struct snug_model *model, const struct snug_recipe *recipe,
                         const struct session *s, int64_t room, struct priced_recipe *found)
{
    int n_widths = recipe->precision == DTYPE_f32 ? 2 : 1; /* as asked for, then bf16 */
    *found = (struct priced_recipe){.total_bytes = INT64_MAX};
    for (int narrow = 0; narrow < n_widths && s->prog.loss != TENSOR_NONE; narrow++) {
        struct snug_recipe other = *recipe;
        other.batch = s->batch;
        if (narrow)
            other.precision = DTYPE_bf16;
        for (int64_t m = s->micro_batch; m > 0; m = smaller_micro_batch(s->batch, m, (m + 1) / 2)) {
            int64_t total_bytes;
            other.micro_batch = m;
            if (total_of(model, &other, &total_bytes) != SNUG_OK ||
                total_bytes >= found->total_bytes)
                continue;
            found->total_bytes = total_bytes;
            snprintf(found->flags, sizeof found->flags, "--batch %lld --micro-batch %lld%s",
                     (long long)s->batch, (long long)m, narrow ? " --precision bf16" : "");
            if (total_bytes <= room)
                return true;
        }
    }
    return false;
}

enum snug_status budget_check(const struct snug_model *model, const struct snug_recipe *recipe,
                              const struct session *s, int64_t limit_bytes, const char *limit_name,
                              struct snug_error *err)
{
    char planned[TEXT_SIZE_MAX], runtime[TEXT_SIZE_MAX], limit[TEXT_SIZE_MAX], other[TEXT_SIZE_MAX];
    struct priced_recipe found;
    int64_t beside = session_expected_runtime_bytes(s);
    if (limit_bytes <= 0 || s->plan.arena_bytes + beside <= limit_bytes)
        return SNUG_OK;
    text_size(s->plan.arena_bytes, planned);
    text_size(beside, runtime);
    text_size(limit_bytes, limit);
    if (find_nearest(model, recipe, s, limit_bytes - beside, &found))
        return snug_fail(err, SNUG_OVER_BUDGET,
                         "%s needs %s and %s of runtime, over %s of %s; this fits: %s (%s)",
                         model->name, planned, runtime, limit_name, limit, found.flags,
                         text_size(found.total_bytes, other));
    if (found.total_bytes == INT64_MAX)
        return snug_fail(err, SNUG_OVER_BUDGET, "%s needs %s, over %s of %s", model->name, planned,
                         limit_name, limit);
    /* rounded up to a tenth of a GiB, as one would type it */
    double tenths = ceil((double)(found.total_bytes + beside) / (double)(1 << 30) * 10);
    return snug_fail(err, SNUG_OVER_BUDGET,
                     "%s needs %s and %s of runtime, over %s of %s; with %s it needs %.1fG in all; "
                     "snug fit tries more",
                     model->name, planned, runtime, limit_name, limit, found.flags, tenths / 10);
}

/* --memory, or all the memory there is if that is less.  What a GPU has is found when the arena is made. */
static int64_t limit_of_run(const struct snug_recipe *recipe, const char **name)
{
    int64_t machine = recipe->device == DEVICE_cuda ? INT64_MAX : machine_bytes();
    bool by_recipe = recipe->memory > 0 && recipe->memory <= machine;
    *name = by_recipe ? "the budget" : "this machine's memory";
    return by_recipe ? recipe->memory : machine;
}

enum snug_status budget_check_run(const struct snug_model *model, const struct snug_recipe *recipe,
                                  const struct session *session, struct snug_error *err)
{
    const char *name;
    int64_t limit_bytes = limit_of_run(recipe, &name);
    return budget_check(model, recipe, session, limit_bytes, name, err);
}

enum snug_status budget_check_forward(const struct session *session,
                                      const struct snug_recipe *recipe, const char *name,
                                      struct snug_error *err)
{
    char needed[TEXT_SIZE_MAX], limit[TEXT_SIZE_MAX];
    const char *limit_name;
    int64_t limit_bytes = limit_of_run(recipe, &limit_name);
    int64_t needed_bytes = session->plan.arena_bytes + session_expected_runtime_bytes(session);
    if (needed_bytes <= limit_bytes)
        return SNUG_OK;
    return snug_fail(err, SNUG_OVER_BUDGET, "%s needs %s with its runtime, over %s of %s", name,
                     text_size(needed_bytes, needed), limit_name, text_size(limit_bytes, limit));
}
