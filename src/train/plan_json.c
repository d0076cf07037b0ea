/*
 * plan_json.c -- a session as its report.
 */
#include "train/plan_json.h"

void plan_report(const struct session *s, const struct snug_recipe *recipe, const char *model_name,
                 struct text *line, struct report_plan *report)
{
    *report = (struct report_plan){.model = model_name, .n_ranks = 1};
    if (s->prog.loss != TENSOR_NONE) {
        session_describe(s, recipe, line);
        const struct op *op = &s->prog.ops[s->plan.peak_op];
        report->peak_kind = op_infos[op->kind].name;
        for (int k = op->n_out - 1; k >= 0; k--)
            if (op->out[k] != TENSOR_NONE)
                report->peak_name = s->prog.tensors[op->out[k]].name;
    }
    report->recipe = line->data;
    report->rates = s->rates_origin[0] != '\0' ? s->rates_origin : NULL;
    report->runtime_bytes = session_expected_runtime_bytes(s);
    session_ledger(s, recipe, &report->ledger);
}

char *plan_json(const struct session *s, const struct snug_recipe *recipe, const char *model_name)
{
    struct text line = {0};
    struct report_plan report;
    plan_report(s, recipe, model_name, &line, &report);
    char *out = report_plan_json(&report);
    text_free(&line);
    return out;
}
