/*
 * plan_api.c -- plans as the public interface gives them: ledger, text, JSON, the budget, dumps.
 */
#include "report/report.h"
#include "train/adapter.h"
#include "train/budget.h"
#include "train/plan_json.h"

#include <stdlib.h>

struct snug_plan {
    struct session session;
    const snug_model *model;
    snug_recipe recipe;
};

enum snug_status snug_plan_make(const snug_model *model, const snug_recipe *recipe, snug_plan **out,
                                struct snug_error *err)
{
    snug_plan *plan = calloc(1, sizeof *plan);
    *out = NULL;
    if (plan == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    plan->model = model;
    plan->recipe = *recipe;
    struct session_request q = {.model = model, .recipe = &plan->recipe, .train = true};
    enum snug_status status =
        recipe->lora_from[0] == '\0' ? SNUG_OK : adapter_read_recipe(&plan->recipe, err);
    if (status == SNUG_OK)
        status = session_make(&q, &plan->session, err);
    if (status != SNUG_OK) {
        free(plan);
        return status;
    }
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
    return budget_check(plan->model, &plan->recipe, &plan->session, plan->recipe.memory,
                        "the budget", err);
}

char *snug_plan_text(const snug_plan *plan, int color)
{
    struct priced_recipe priced[BUDGET_ALTERNATIVES];
    struct report_alternative alternatives[BUDGET_ALTERNATIVES];
    struct text recipe = {0};
    struct report_plan report;
    int n = budget_alternatives(plan->model, &plan->recipe, &plan->session, priced);
    for (int i = 0; i < n; i++)
        alternatives[i] = (struct report_alternative){priced[i].flags, priced[i].total_bytes};
    plan_report(&plan->session, &plan->recipe, plan->model->name, &recipe, &report);
    report.alternatives = alternatives;
    report.n_alternatives = n;
    char *out = report_plan_text(&report, color);
    text_free(&recipe);
    return out;
}

char *snug_plan_json(const snug_plan *plan)
{
    return plan_json(&plan->session, &plan->recipe, plan->model->name);
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
