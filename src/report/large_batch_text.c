/*
 * large_batch_text.c -- the table of `snug bench large-batch`.
 */
#include "report/report.h"

#include <math.h>
#include <stdio.h>

#include "base/text.h"

static void add_outcome(struct text *out, const struct report_large_batch *r,
                        const struct report_large_row *row)
{
    double scale = r->has_accuracy ? 100 : 1;
    int digits = r->has_accuracy ? 2 : 4;
    if (!isnan(row->mean))
        text_add(out, "%8.*f", digits, scale * row->mean);
    if (!isnan(row->deviation))
        text_add(out, " +- %.*f", digits, scale * row->deviation);
    if (row->n_diverged > 0)
        text_add(out, "%s%d of %lld diverged", isnan(row->mean) ? "  " : "; ", row->n_diverged,
                 (long long)r->n_seeds);
    text_add(out, "\n");
}

char *report_large_batch_text(const struct report_large_batch *r)
{
    struct text out = {0};
    char names[100];
    snprintf(names, sizeof names, "%.40s on %.40s", r->model, r->data);
    text_add(&out, "%s, %s\n%g epochs, k = %g, mean +- deviation over %lld seed%s\n\n",
             snug_printable(names), r->recipe, r->epochs, r->ratio, (long long)r->n_seeds,
             r->n_seeds == 1 ? "" : "s");
    text_add(&out, "%7s  %-9s  %-9s  %7s  %6s  %s\n", "batch", "lr", "", "warm-up", "steps",
             r->has_accuracy ? "test error, %" : "test loss");
    for (int i = 0; i < r->n_rows; i++) {
        const struct report_large_row *row = &r->rows[i];
        text_add(&out, "%7lld  %-9.4g  %-9s  ", (long long)row->batch, row->lr, row->rule);
        if (row->has_warmup)
            text_add(&out, "%7lld", (long long)row->warmup);
        else
            text_add(&out, "%7s", "-");
        text_add(&out, "  %6lld", (long long)row->steps);
        add_outcome(&out, r, row);
    }
    return text_take(&out);
}

static void add_number(struct text *out, const char *key, double value)
{
    if (isfinite(value))
        text_add(out, ", \"%s\": %.9g", key, value);
    else
        text_add(out, ", \"%s\": null", key);
}

char *report_large_batch_json(const struct report_large_batch *r)
{
    struct text out = {0};
    text_add(&out, "{\"model\": ");
    report_json_string(&out, r->model);
    text_add(&out, ", \"data\": ");
    report_json_string(&out, r->data);
    text_add(&out, ", \"recipe\": ");
    report_json_string(&out, r->recipe);
    text_add(&out,
             ", \"epochs\": %.9g, \"seeds\": %lld, \"k\": %.9g, \"measure\": \"%s\", \"rows\": [",
             r->epochs, (long long)r->n_seeds, r->ratio, r->has_accuracy ? "error" : "loss");
    for (int i = 0; i < r->n_rows; i++) {
        const struct report_large_row *row = &r->rows[i];
        text_add(
            &out,
            "%s{\"batch\": %lld, \"lr\": %.9g, \"rule\": \"%s\", \"warmup\": %lld, \"steps\": %lld",
            i > 0 ? ", " : "", (long long)row->batch, row->lr, row->rule, (long long)row->warmup,
            (long long)row->steps);
        add_number(&out, "mean", row->mean);
        add_number(&out, "deviation", row->deviation);
        text_add(&out, ", \"diverged\": %d}", row->n_diverged);
    }
    text_add(&out, "]}\n");
    return text_take(&out);
}
