/*
 * bench_api.c -- measurements of this machine, as text to read and to paste into a report.
 */
#include "train/bench.h"
#include "train/budget.h"

#include <string.h>

enum { STEPS = 5 };

static void add_rate(struct text *out, const struct bench_row *row,
                     const struct device_limits *limits)
{
    bool by_flops = row->flops / limits->f32_flops > row->bytes / limits->copy_bytes;
    double rate = (by_flops ? row->flops : row->bytes) / row->seconds * 1e-9;
    text_add(out, "%8.1f %-7s", rate, by_flops ? "GFLOP/s" : "GB/s");
}

static void add_step(struct text *out, const struct bench_result *r, const char *unit)
{
    text_add(out, "  %-27s %6s %10s %7s  %-16s %6s\n", "op", "calls", "ms", "share", "    rate",
             "limit");
    for (int i = 0; i < r->n_rows; i++) {
        const struct bench_row *row = &r->rows[i];
        text_add(out, "  %-27s %6d %10.3f %6.1f%%  ", op_infos[row->kind].name, row->n_calls,
                 row->seconds * 1e3, 100 * row->seconds / r->step_seconds);
        add_rate(out, row, &r->limits);
        text_add(out, " %5.0f%%\n", 100 * row->floor_seconds / row->seconds);
    }
    text_add(out, "  %-27s %6s %10.3f %6.1f%%  %8.1f %s/s, %.0f%% of the limit\n", "all", "",
             r->step_seconds * 1e3, 100.0, (double)r->tokens / r->step_seconds, unit,
             100 * r->floor_seconds / r->step_seconds);
}

enum snug_status snug_bench(const char *what, const snug_model *model, const snug_recipe *recipe,
                            char **text, struct snug_error *err)
{
    struct bench_result result;
    struct session session;
    *text = NULL;
    if (strcmp(what, "cpu") != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "there is no bench \"%.40s\"; there is: cpu",
                         what);
    struct session_request q = {.model = model, .recipe = recipe, .train = true};
    TRY(session_make(&q, &session, err));
    enum snug_status status = budget_check_run(model, recipe, &session, err);
    if (status == SNUG_OK)
        status = bench_step(&session, STEPS, &result, err);
    if (status == SNUG_OK) {
        struct text out = {0};
        text_add(&out, "this machine, %d thread%s\n", session.facts.threads,
                 session.facts.threads == 1 ? "" : "s");
        text_add(&out, "  fp32 multiply-add %10.1f GFLOP/s\n", result.limits.f32_flops * 1e-9);
        text_add(&out, "  memory, read      %10.1f GB/s\n", result.limits.read_bytes * 1e-9);
        text_add(&out, "  memory, copy      %10.1f GB/s, read and written\n\n",
                 result.limits.copy_bytes * 1e-9);
        text_add(&out, "a step of %s: ", model->name);
        session_describe(&session, recipe, &out);
        text_add(&out, "; median of %d\n", STEPS);
        add_step(&out, &result, session.seq > 0 ? "tokens" : "samples");
        *text = text_take(&out);
        if (*text == NULL)
            status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    session_free(&session);
    return status;
}
