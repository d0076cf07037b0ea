/*
 * step_report.c -- the report of a compiled step.
 */
#include "train/step_report.h"

/* One line: where --update in-backward placed the updates, and which flag would change that. */
static const char *updates_text(const struct compiled_step *s, const struct snug_recipe *recipe)
{
    bool is_fp16 = recipe->precision == DTYPE_f16;
    if (!recipe->in_backward)
        return NULL;
    switch (s->update_place) {
    case UPDATES_AT_END:
        return "model states only: all gradients are counted";
    case UPDATES_WAIT:
        return is_fp16 ? "at the end: accumulated gradients wait for fp16's loss scale"
                       : "at the end: clipping needs the norm of accumulated gradients";
    case UPDATES_IN_BACKWARD:
        return "in backward: a gradient lives until its update";
    case UPDATES_IN_LAST:
        return "in the last micro-batch: gradients accumulate until then";
    case UPDATES_IN_SECOND:
        return is_fp16 ? "backward twice, for fp16's loss scale"
                       : "backward twice, to clip (--clip 0: once)";
    }
    return NULL;
}

bool step_report(const struct compiled_step *s, const struct snug_recipe *recipe,
                 const char *model_name, struct text *line, struct report_plan *report)
{
    *report = (struct report_plan){.model = model_name,
                                   .n_ranks = s->n_ranks * s->n_stages,
                                   .batch = s->batch,
                                   .seq = s->seq,
                                   .longest_seq = s->longest_seq,
                                   .usual_batch = s->usual_batch,
                                   .n_stages = s->n_stages,
                                   .bubble = compiled_step_bubble(s, recipe)};
    if (s->prog.loss != TENSOR_NONE) {
        compiled_step_describe(s, recipe, line);
        const struct op *op = &s->prog.ops[s->plan.peak_op];
        report->peak_kind = op_infos[op->kind].name;
        for (int k = op->n_out - 1; k >= 0; k--)
            if (op->out[k] != TENSOR_NONE)
                report->peak_name = s->prog.tensors[op->out[k]].name;
    }
    report->recipe = line->data;
    report->updates = updates_text(s, recipe);
    report->updates_flops = (int64_t)s->repeated_flops;
    report->offloaded_to = s->backend->pool_place;
    report->rates = s->rates_origin[0] != '\0' ? s->rates_origin : NULL;
    report->budget_origin = recipe->memory_origin[0] != '\0' ? recipe->memory_origin : NULL;
    report->runtime_bytes = compiled_step_runtime_bytes(s);
    compiled_step_ledger(s, recipe, &report->ledger);
    return !line->failed;
}

char *step_report_json(const struct compiled_step *s, const struct snug_recipe *recipe,
                       const char *model_name)
{
    struct text line = {0};
    struct report_plan report;
    bool ok = step_report(s, recipe, model_name, &line, &report);
    char *out = ok ? report_plan_json(&report) : NULL;
    text_free(&line);
    return out;
}
