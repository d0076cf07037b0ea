/*
 * plan_api.c -- the snug_plan functions: ledger, text, JSON, timeline, comparison, budget, dumps.
 */
#include "comm/launcher.h"
#include "plan/timeline.h"
#include "report/report.h"
#include "checkpoint/adapter.h"
#include "compile/advice.h"
#include "compile/budget.h"
#include "train/default_memory.h"
#include "compile/explain.h"
#include "train/step_report.h"
#include "compile/compile_target.h"

#include <stdlib.h>
#include <string.h>

struct snug_plan {
    struct compiled_step compiled;
    const snug_model *model;
    snug_recipe recipe;
    int rank;
    struct compile_target target;
    struct compile_request request; /* what was compiled; advice compiles variations of it */
};

/* --ranks, or the number of processes that mpirun started. */
static int64_t ranks_of(const snug_recipe *recipe)
{
    return recipe->ranks > 0 ? recipe->ranks : launcher_ranks();
}

/* What a plan and a dump add to the user's recipe: ranks, adapters, the default budget. */
static enum snug_status complete_recipe(const snug_recipe *recipe, snug_recipe *complete,
                                        struct snug_error *err)
{
    *complete = *recipe;
    complete->ranks = ranks_of(recipe);
    TRY(rates_check_target(recipe, err));
    TRY(adapter_read_recipe(complete, err));
    return default_memory_set(complete, 1, err);
}

/* rank NULL: plan the rank with the highest peak. */
static enum snug_status make(const snug_model *model, const snug_recipe *recipe, const int *rank,
                             snug_plan **out, struct snug_error *err)
{
    snug_plan *plan = calloc(1, sizeof *plan);
    *out = NULL;
    if (plan == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    plan->model = model;
    plan->rank = rank == NULL ? 0 : *rank;
    plan->request = (struct compile_request){.model = model,
                                             .recipe = &plan->recipe,
                                             .train = true,
                                             .rank = rank == NULL ? NULL : &plan->rank,
                                             .target = &plan->target};
    enum snug_status status = complete_recipe(recipe, &plan->recipe, err);
    if (status == SNUG_OK)
        status = compile_target_find(&plan->recipe, &plan->target, err);
    if (status == SNUG_OK)
        status = compile_step(&plan->request, &plan->compiled, err);
    if (status != SNUG_OK) {
        free(plan);
        return status;
    }
    *out = plan;
    return SNUG_OK;
}

enum snug_status snug_plan_make(const snug_model *model, const snug_recipe *recipe, snug_plan **out,
                                struct snug_error *err)
{
    return make(model, recipe, NULL, out, err);
}

enum snug_status snug_plan_make_rank(const snug_model *model, const snug_recipe *recipe, int rank,
                                     snug_plan **out, struct snug_error *err)
{
    int64_t n_ranks = ranks_of(recipe);
    *out = NULL;
    if (rank < 0 || rank >= n_ranks)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "there is no rank %d: the plan has %lld ranks, counted from 0", rank,
                         (long long)n_ranks);
    return make(model, recipe, &rank, out, err);
}

int snug_plan_ranks(const snug_plan *plan)
{
    return plan->compiled.n_ranks * plan->compiled.n_stages;
}

/* A table shared by the first and the last stage is reported for the first. */
int snug_plan_stage(const snug_plan *plan, const char **first, const char **last)
{
    const struct compiled_step *s = &plan->compiled;
    *first = *last = "";
    if (s->n_stages < 2 || s->whole.n_tensors == 0)
        return -1;
    for (int id = 0; id < s->whole.n_tensors; id++) {
        bool is_here =
            s->whole.tensors[id].role == ROLE_parameter && s->prog.tensors[id].persistent;
        if (!is_here || (s->stage > 0 && compiled_step_is_at_ends(s, id)))
            continue;
        *first = (*first)[0] == '\0' ? s->prog.tensors[id].name : *first;
        *last = s->prog.tensors[id].name;
    }
    return s->stage;
}

void snug_plan_free(snug_plan *plan)
{
    if (plan == NULL)
        return;
    compiled_step_free(&plan->compiled);
    free(plan);
}

void snug_plan_ledger(const snug_plan *plan, struct snug_ledger *ledger)
{
    compiled_step_ledger(&plan->compiled, &plan->recipe, ledger);
}

enum snug_status snug_plan_check_budget(const snug_plan *plan, struct snug_error *err)
{
    return budget_check(plan->model, &plan->recipe, &plan->compiled, plan->recipe.memory,
                        budget_name(&plan->recipe), err);
}

char *snug_plan_text(const snug_plan *plan, int color)
{
    struct priced_recipe priced[ADVICE_MOST];
    struct report_alternative alternatives[ADVICE_MOST];
    struct text recipe = {0};
    struct report_plan report;
    int n = advice_list(&plan->request, &plan->compiled, priced);
    if (n < 0)
        return NULL;
    for (int i = 0; i < n; i++)
        alternatives[i] =
            (struct report_alternative){priced[i].flags, advice_change_words(&priced[i]),
                                        priced[i].total_bytes, priced[i].step_seconds};
    struct explanation explained[EXPLAIN_MOST];
    struct report_remark remarks[EXPLAIN_MOST];
    int n_remarks = explain_plan(&plan->request, &plan->compiled, explained);
    if (n_remarks < 0)
        return NULL;
    for (int i = 0; i < n_remarks; i++)
        remarks[i] = (struct report_remark){explained[i].about, explained[i].words};
    bool ok = step_report(&plan->compiled, &plan->recipe, plan->model->name, &recipe, &report);
    report.alternatives = alternatives;
    report.n_alternatives = n;
    report.remarks = remarks;
    report.n_remarks = n_remarks;
    char *out = ok ? report_plan_text(&report, color) : NULL;
    text_free(&recipe);
    return out;
}

char *snug_plan_json(const snug_plan *plan)
{
    return step_report_json(&plan->compiled, &plan->recipe, plan->model->name);
}

/* ---- the timeline ---------------------------------------------------------------------------- */

static void describe_point(const struct program *prog, int64_t i, struct snug_timeline_point *out)
{
    out->op = out->tensor = "";
    if (i >= prog->n_ops)
        return;
    const struct op *op = &prog->ops[i];
    out->op = op_infos[op->kind].name;
    for (int k = op->n_out - 1; k >= 0; k--)
        if (op->out[k] != TENSOR_NONE)
            out->tensor = prog->tensors[op->out[k]].name;
}

enum snug_status snug_plan_timeline(const snug_plan *plan, struct snug_timeline_point **points,
                                    int64_t *n_points, struct snug_error *err)
{
    const struct program *prog = &plan->compiled.prog;
    const struct plan *p = &plan->compiled.plan;
    size_t n = prog->n_ops > 0 ? (size_t)prog->n_ops : 1;
    struct timeline_point *raw = malloc(n * sizeof *raw);
    *n_points = (int64_t)n;
    *points = malloc(n * sizeof **points);
    enum snug_status status = raw == NULL || *points == NULL
                                  ? snug_fail(err, SNUG_NO_MEMORY, "out of memory")
                                  : plan_timeline(prog, p, raw, err);
    if (status == SNUG_OK) {
        /* memory that a run needs between steps is counted at the peak, as in the ledger */
        int64_t between = p->lower_bound - raw[p->peak_op].total;
        raw[p->peak_op].bytes[ROLE_temporary] += between;
        raw[p->peak_op].total += between;
    }
    for (size_t i = 0; i < n && status == SNUG_OK; i++) {
        const int64_t *bytes = raw[i].bytes;
        (*points)[i] =
            (struct snug_timeline_point){.parameters = bytes[ROLE_parameter] + bytes[ROLE_buffer],
                                         .gradients = bytes[ROLE_gradient],
                                         .optimizer = bytes[ROLE_optimizer],
                                         .activations = bytes[ROLE_activation] + bytes[ROLE_input],
                                         .temporary = bytes[ROLE_temporary],
                                         .total = raw[i].total};
        describe_point(prog, (int64_t)i, &(*points)[i]);
    }
    free(raw);
    if (status != SNUG_OK) {
        free(*points);
        *points = NULL;
    }
    return status;
}

static int64_t loss_op(const struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_out; k++)
            if (prog->loss != TENSOR_NONE && prog->ops[i].out[k] == prog->loss)
                return i;
    return 0;
}

/* as_json: the JSON of the plan, with its timeline. */
static char *timeline(const snug_plan *plan, bool as_json, int color)
{
    const struct program *prog = &plan->compiled.prog;
    struct snug_timeline_point *points;
    struct text recipe = {0};
    struct report_plan report;
    struct report_timeline t = {.model = plan->model->name,
                                .peak_op = plan->compiled.plan.peak_op,
                                .loss_op = loss_op(prog),
                                .update_op = program_body_end(prog),
                                .n_repeat = prog->n_repeat};
    if (snug_plan_timeline(plan, &points, &t.n_points, NULL) != SNUG_OK)
        return NULL;
    bool ok = step_report(&plan->compiled, &plan->recipe, plan->model->name, &recipe, &report);
    t.points = points;
    t.recipe = recipe.data;
    report.timeline = &t;
    char *out = !ok ? NULL : as_json ? report_plan_json(&report) : report_timeline_text(&t, color);
    text_free(&recipe);
    free(points);
    return out;
}

char *snug_plan_timeline_text(const snug_plan *plan, int color)
{
    return timeline(plan, false, color);
}

char *snug_plan_timeline_json(const snug_plan *plan)
{
    return timeline(plan, true, 0);
}

/* ---- comparison ---------------------------------------------------------------------------- */

static char *compare(const snug_plan *const *plans, const char *const *names, int n_plans,
                     bool as_json, int color)
{
    struct report_plan *reports = calloc((size_t)n_plans, sizeof *reports);
    struct text *lines = calloc((size_t)n_plans, sizeof *lines);
    char *out = NULL;
    bool ok = reports != NULL && lines != NULL;
    for (int i = 0; i < n_plans && ok; i++) {
        ok = step_report(&plans[i]->compiled, &plans[i]->recipe, plans[i]->model->name, &lines[i],
                         &reports[i]);
        reports[i].compared = names[i];
    }
    if (ok)
        out = as_json ? report_compare_json(reports, n_plans)
                      : report_compare_text(reports, n_plans, color);
    for (int i = 0; i < n_plans && lines != NULL; i++)
        text_free(&lines[i]);
    free(reports);
    free(lines);
    return out;
}

char *snug_compare_text(const snug_plan *const *plans, const char *const *names, int n_plans,
                        int color)
{
    return compare(plans, names, n_plans, false, color);
}

char *snug_compare_json(const snug_plan *const *plans, const char *const *names, int n_plans)
{
    return compare(plans, names, n_plans, true, 0);
}

/* ---- programs -------------------------------------------------------------------------------- */

enum snug_status snug_dump(const snug_model *model, const snug_recipe *recipe,
                           const char *after_pass, char **text, struct snug_error *err)
{
    struct compiled_step s;
    struct snug_recipe own;
    bool kernels = strcmp(after_pass, "kernels") == 0;
    struct compile_request q = {
        .model = model, .recipe = &own, .train = true, .last_pass = kernels ? NULL : after_pass};
    TRY(complete_recipe(recipe, &own, err));
    TRY(compile_step(&q, &s, err));
    struct text out = {0};
    if (kernels)
        compiled_step_kernels(&s, &out);
    else
        program_dump(&s.prog, &out);
    compiled_step_free(&s);
    *text = text_take(&out);
    return *text == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
}
