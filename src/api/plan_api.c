/*
 * plan_api.c -- plans as the public interface gives them: ledger, text, JSON, the budget, dumps.
 */
#include "report/report.h"
#include "train/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ALTERNATIVES = 4 };

struct snug_plan {
    struct session session;
    const snug_model *model; /* borrowed: only while the plan is made */
    snug_recipe recipe;
    char model_name[128];
    struct {
        char flags[96];
        int64_t total;   /* 0: none */
    } nearest, smallest; /* over budget: the nearest recipe that fits, and the smallest of all */
    struct {
        char flag[64];
        int64_t total;
    } alternatives[MAX_ALTERNATIVES];
    int n_alternatives;
};

static bool total_of(const snug_model *model, const snug_recipe *recipe, int64_t *total)
{
    struct session s;
    struct session_request q = {.model = model, .recipe = recipe, .train = true};
    if (session_make(&q, &s, NULL) != SNUG_OK)
        return false;
    *total = s.plan.arena_bytes;
    session_free(&s);
    return true;
}

/* The next smaller number of samples per pass that divides the batch; 0 if there is none. */
static int64_t smaller_micro_batch(int64_t batch, int64_t micro_batch, int64_t target)
{
    for (int64_t m = target < micro_batch ? target : micro_batch - 1; m >= 1; m--)
        if (batch % m == 0)
            return m;
    return 0;
}

static void add_alternative(snug_plan *plan, const snug_recipe *recipe, const char *flag)
{
    int64_t total;
    if (plan->n_alternatives < MAX_ALTERNATIVES && total_of(plan->model, recipe, &total)) {
        snprintf(plan->alternatives[plan->n_alternatives].flag, 64, "%s", flag);
        plan->alternatives[plan->n_alternatives++].total = total;
    }
}

/* What one flag would change: the sentence under the table picks the best. */
static void find_alternatives(snug_plan *plan)
{
    const struct session *s = &plan->session;
    snug_recipe other = plan->recipe;
    int64_t smaller = smaller_micro_batch(s->batch, s->micro_batch, (s->micro_batch + 3) / 4);
    char flag[64];
    if (plan->model->family == MODEL_psi)
        smaller = 0;
    if (smaller > 0) {
        other.batch = s->batch;
        other.micro_batch = smaller;
        snprintf(flag, sizeof flag, "--micro-batch %lld", (long long)smaller);
        add_alternative(plan, &other, flag);
    }
    other = plan->recipe;
    if (other.precision == DTYPE_f32) {
        other.precision = DTYPE_bf16;
        add_alternative(plan, &other, "--precision bf16");
    }
    other = plan->recipe;
    if (other.optimizer != &optimizer_sgd) {
        other.optimizer = &optimizer_sgd;
        add_alternative(plan, &other, "--optimizer sgd");
    }
}

/* Over budget: first fewer samples per pass, then 16 bits as well. */
static void find_nearest(snug_plan *plan)
{
    const struct session *s = &plan->session;
    int64_t room = plan->recipe.memory - session_expected_runtime_bytes(s);
    int n_widths = plan->recipe.precision == DTYPE_f32 ? 2 : 1; /* as asked for, then bf16 */
    for (int narrow = 0; narrow < n_widths; narrow++) {
        snug_recipe other = plan->recipe;
        other.batch = s->batch;
        if (narrow)
            other.precision = DTYPE_bf16;
        for (int64_t m = s->micro_batch; m > 0; m = smaller_micro_batch(s->batch, m, (m + 1) / 2)) {
            int64_t total;
            other.micro_batch = m;
            if (!total_of(plan->model, &other, &total))
                return;
            if (plan->smallest.total > 0 && total >= plan->smallest.total)
                continue;
            plan->smallest.total = total;
            snprintf(plan->smallest.flags, sizeof plan->smallest.flags,
                     "--batch %lld --micro-batch %lld%s", (long long)s->batch, (long long)m,
                     narrow ? " --precision bf16" : "");
            if (total <= room) {
                plan->nearest = plan->smallest;
                return;
            }
        }
    }
}

static bool over_budget(const snug_plan *plan)
{
    return plan->recipe.memory > 0 &&
           plan->session.plan.arena_bytes + session_expected_runtime_bytes(&plan->session) >
               plan->recipe.memory;
}

enum snug_status snug_plan_make(const snug_model *model, const snug_recipe *recipe, snug_plan **out,
                                struct snug_error *err)
{
    snug_plan *plan = calloc(1, sizeof *plan);
    *out = NULL;
    if (plan == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    plan->model = model;
    plan->recipe = *recipe;
    snprintf(plan->model_name, sizeof plan->model_name, "%s", model->name);
    struct session_request q = {.model = model, .recipe = recipe, .train = true};
    enum snug_status status = session_make(&q, &plan->session, err);
    if (status != SNUG_OK) {
        free(plan);
        return status;
    }
    find_alternatives(plan);
    if (over_budget(plan) && model->family != MODEL_psi)
        find_nearest(plan);
    plan->model = NULL;
    *out = plan;
    return SNUG_OK;
}

void snug_plan_free(snug_plan *plan)
{
    if (plan == NULL)
        return;
    session_free(&plan->session);
    free(plan);
}

void snug_plan_ledger(const snug_plan *plan, struct snug_ledger *ledger)
{
    session_ledger(&plan->session, &plan->recipe, ledger);
}

enum snug_status snug_plan_check_budget(const snug_plan *plan, struct snug_error *err)
{
    char planned[TEXT_SIZE_MAX], runtime[TEXT_SIZE_MAX], budget[TEXT_SIZE_MAX],
        other[TEXT_SIZE_MAX];
    if (!over_budget(plan))
        return SNUG_OK;
    int64_t beside = session_expected_runtime_bytes(&plan->session);
    text_size(plan->session.plan.arena_bytes, planned);
    text_size(beside, runtime);
    text_size(plan->recipe.memory, budget);
    if (plan->nearest.total > 0)
        return snug_fail(err, SNUG_OVER_BUDGET,
                         "%s needs %s and %s of runtime, over the budget of %s; this fits: %s (%s)",
                         plan->model_name, planned, runtime, budget, plan->nearest.flags,
                         text_size(plan->nearest.total, other));
    if (plan->smallest.total == 0)
        return snug_fail(err, SNUG_OVER_BUDGET, "%s needs %s, over the budget of %s",
                         plan->model_name, planned, budget);
    /* rounded up to a tenth of a GiB, so that the advice can be typed */
    double tenths = ceil((double)(plan->smallest.total + beside) / (double)(1 << 30) * 10);
    return snug_fail(err, SNUG_OVER_BUDGET,
                     "%s needs %s and %s of runtime, over the budget of %s; the smallest that "
                     "fits: %s --memory %.1fG",
                     plan->model_name, planned, runtime, budget, plan->smallest.flags, tenths / 10);
}

/* ---- reports ----------------------------------------------------------------------------------- */

static char *report(const snug_plan *plan, int color, bool json)
{
    const struct session *s = &plan->session;
    struct text recipe = {0};
    struct report_alternative alternatives[MAX_ALTERNATIVES];
    struct report_plan r = {.model = plan->model_name,
                            .n_ranks = 1,
                            .alternatives = alternatives,
                            .n_alternatives = plan->n_alternatives};
    if (s->prog.loss != TENSOR_NONE) {
        session_describe(s, &plan->recipe, &recipe);
        const struct op *op = &s->prog.ops[s->plan.peak_op];
        r.peak_kind = op_infos[op->kind].name;
        for (int k = op->n_out - 1; k >= 0; k--)
            if (op->out[k] != TENSOR_NONE)
                r.peak_name = s->prog.tensors[op->out[k]].name;
    }
    r.recipe = recipe.data;
    snug_plan_ledger(plan, &r.ledger);
    r.runtime_bytes = session_expected_runtime_bytes(s);
    for (int i = 0; i < plan->n_alternatives; i++)
        alternatives[i] =
            (struct report_alternative){plan->alternatives[i].flag, plan->alternatives[i].total};
    char *out = json ? report_plan_json(&r) : report_plan_text(&r, color);
    text_free(&recipe);
    return out;
}

char *snug_plan_text(const snug_plan *plan, int color)
{
    return report(plan, color, false);
}

char *snug_plan_json(const snug_plan *plan)
{
    return report(plan, 0, true);
}

enum snug_status snug_dump(const snug_model *model, const snug_recipe *recipe,
                           const char *after_pass, char **text, struct snug_error *err)
{
    struct session s;
    struct session_request q = {.model = model, .recipe = recipe, .train = true};
    TRY(session_program(&q, after_pass, &s, err));
    struct text out = {0};
    program_dump(&s.prog, &out);
    session_free(&s);
    *text = text_take(&out);
    return *text == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
}
