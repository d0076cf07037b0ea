/*
 * plan_json.c -- the plan as one JSON object.  Scripts rely on its keys and their order.
 *
 * Written by hand: the object is flat, a fixed order keeps diffs between runs small, and bytes must
 * stay 64-bit integers.
 */
#include "report/report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/text.h"

void report_json_string(struct text *out, const char *value)
{
    text_add(out, "\"");
    for (size_t length; *value != '\0'; value += length) {
        unsigned code;
        length = text_utf8_length(value);
        if (length == 0) {
            text_add(out, "\\ufffd");
            length = 1;
        } else if (*value == '"' || *value == '\\') {
            text_add(out, "\\%c", *value);
        } else if (text_is_control(value, length, &code)) {
            text_add(out, "\\u%04x", code);
        } else {
            text_add_bytes(out, value, length);
        }
    }
    text_add(out, "\"");
}

static void add_integer(struct text *out, const char *key, int64_t value, const char *after)
{
    text_add(out, "\"%s\": %" PRId64 "%s", key, value, after);
}

void report_plan_object(const struct report_plan *plan, struct text *out)
{
    const struct snug_ledger *ledger = &plan->ledger;
    struct text name = {0};
    text_add(out, "{\"model\": ");
    report_json_string(out, plan->model);
    text_add(out, ", ");
    if (plan->compared != NULL) {
        text_add(out, "\"recipe\": ");
        report_json_string(out, plan->compared);
        text_add(out, ", ");
    }
    add_integer(out, "parameters", ledger->n_parameters, ", ");
    add_integer(out, "trainable", ledger->n_trained, ", \"bytes\": {");
    add_integer(out, "parameters", ledger->parameters, ", ");
    add_integer(out, "gradients", ledger->gradients, ", ");
    add_integer(out, "optimizer", ledger->optimizer, ", ");
    add_integer(out, "activations", ledger->activations, ", ");
    add_integer(out, "temporary", ledger->temporary, ", ");
    add_integer(out, "fragmentation", ledger->fragmentation, ", ");
    add_integer(out, "total", ledger->total, "}, \"peak\": {");
    add_integer(out, "op", ledger->peak_op, ", \"name\": ");
    text_add(&name, "%s", plan->peak_kind == NULL ? "" : plan->peak_kind);
    if (plan->peak_name != NULL && plan->peak_name[0] != '\0')
        text_add(&name, " %s", plan->peak_name);
    report_json_string(out, text_part(out, &name));
    text_add(out, "}, ");
    add_integer(out, "recompute_flops", ledger->recompute_flops, ", ");
    add_integer(out, "forward_flops", ledger->forward_flops, ", ");
    text_add(out, "\"step_seconds\": %.9g, ",
             isfinite(ledger->step_seconds) ? ledger->step_seconds : 0.0);
    add_integer(out, "runtime", plan->runtime_bytes, ", ");
    if (ledger->budget > 0)
        add_integer(out, "budget", ledger->budget, ", ");
    if (plan->budget_origin != NULL) {
        text_add(out, "\"budget_from\": ");
        report_json_string(out, plan->budget_origin);
        text_add(out, ", ");
    }
    add_integer(out, "ranks", plan->n_ranks, ", ");
    if (plan->n_stages > 1) {
        add_integer(out, "stages", plan->n_stages, ", ");
        text_add(out, "\"bubble\": %.9g, ", plan->bubble);
    }
    text_add(out, "\"offloaded\": {");
    add_integer(out, "bytes", ledger->offloaded, ", \"where\": ");
    report_json_string(out, ledger->offloaded > 0 ? plan->offloaded_to : "");
    text_add(out, "}");
    if (plan->timeline != NULL) {
        text_add(out, ", \"timeline\": ");
        report_timeline_json(plan->timeline, out);
    }
    text_add(out, "}");
    text_free(&name);
}

char *report_plan_json(const struct report_plan *plan)
{
    struct text out = {0};
    report_plan_object(plan, &out);
    text_add(&out, "\n");
    return text_take(&out);
}
