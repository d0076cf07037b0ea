/*
 * bench_text.c -- the results of snug bench: tables of rates and limits, or JSON.
 */
#include "report/report.h"

#include <string.h>

#include "report/pieces.h"

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void add_flops(struct text *out, double flops)
{
    double tera = flops * 1e-12;
    text_add(out, "%7.*f TFLOP/s", tera < 99.9995 ? 3 : 2, tera);
}

static void add_limit(struct text *out, const char *what, const char *limit, double flops,
                      double bytes)
{
    text_add(out, "  %-32s", what);
    if (flops > 0)
        add_flops(out, flops);
    else
        text_add(out, "%7.1f GB/s", bytes * 1e-9);
    if (limit != NULL)
        text_add(out, "%*s%s", flops > 0 ? 2 : 5, "", limit);
    text_add(out, "\n");
}

static void add_limits(struct text *out, const struct report_bench *b)
{
    if (b->on_gpu)
        text_add(out, "peak rates of this GPU\n");
    else
        text_add(out, "peak rates of this machine, %d thread%s\n", b->threads,
                 b->threads == 1 ? "" : "s");
    add_limit(out, "fp32 multiply-add in registers", "FMA", b->fma_flops, 0);
    if (b->amx_flops > 0)
        add_limit(out, b->on_gpu ? "bf16 matmul, 8192 cubed" : "bf16 matmul in tile registers",
                  b->on_gpu ? "tensor" : "AMX", b->amx_flops, 0);
    add_limit(out, "read memory", "memory (reads)", 0, b->read_bytes);
    add_limit(out, "copy memory, read + written", NULL, 0, b->copy_bytes);
    add_limit(out, "update memory, read + written", "memory (reads + writes)", 0, b->update_bytes);
}

/* Faster than its limit, so that the table shows more than 100%. */
static bool is_over(const struct report_rate *row)
{
    return row->floor_seconds >= 1.005 * row->seconds;
}

static void add_reasons(struct text *out, const struct report_bench *b)
{
    bool is_any = false;
    for (int i = 0; i < b->n_kernels; i++)
        is_any |= is_over(&b->kernels[i]);
    for (int i = 0; i < b->n_ops; i++)
        is_any |= is_over(&b->ops[i]);
    if (is_any)
        text_add(out,
                 "\n* More than 100%%: operands in a cache are read faster than from memory, a\n"
                 "convolution algorithm needs fewer multiplications than are counted, or other\n"
                 "programs ran while the limit was measured.\n");
    if (b->is_busy)
        text_add(out,
                 "\nThe machine was busy: repeated measurements of its limits differ by up to\n"
                 "%.0f%%. No rates were saved. Run the benchmark again on an idle machine.\n",
                 100 * b->limit_spread);
}

/* The last columns of both tables: rate, percent of the limit, name of the limit. */
static void add_rate(struct text *out, const struct report_rate *row)
{
    double seconds = row->seconds > 0 ? row->seconds : 1e-9;
    if (strcmp(row->limit, "memory") == 0)
        text_add(out, "%7.1f GB/s   ", row->bytes / seconds * 1e-9);
    else
        add_flops(out, row->flops / seconds);
    text_add(out, " %4.0f%% %s%s\n", percent(row->floor_seconds, seconds), row->limit,
             is_over(row) ? "*" : "");
}

static void add_kernels(struct text *out, const struct report_bench *b)
{
    text_add(out,
             "\nkernels in isolation: the largest of each kind in a step; best of several runs\n");
    text_add(out, "  %-14s %-4s %-20s %8s %11s %12s\n", "op", "type", "shape", "ms", "rate",
             "of limit");
    for (int i = 0; i < b->n_kernels; i++) {
        const struct report_rate *row = &b->kernels[i];
        text_add(out, "  %-14s %-4s %-20s %8.3f", row->op, row->type, row->shape,
                 row->seconds * 1e3);
        add_rate(out, row);
    }
}

static void add_step(struct text *out, const struct report_bench *b)
{
    struct text title = {0};
    text_add(&title, "a step of ");
    text_add_shown(&title, b->model);
    text_add(&title, ": %s; median of %d", b->recipe, b->n_steps);
    text_add(out, "\n");
    piece_wrapped(out, text_part(out, &title), 4);
    text_free(&title);
    text_add(out, "  %-26s %5s %9s %6s %11s %12s\n", "op", "calls", "ms", "share", "rate",
             "of limit");
    for (int i = 0; i < b->n_ops; i++) {
        const struct report_rate *row = &b->ops[i];
        text_add(out, "  %-26s %5d %9.3f %5.1f%%", row->op, row->n_calls, row->seconds * 1e3,
                 percent(row->seconds, b->step_seconds));
        add_rate(out, row);
    }
    text_add(out, "  %-26s %5s %9.3f %5.1f%% %14s %4.0f%%\n", "all", "", b->step_seconds * 1e3,
             100.0, "", percent(b->floor_seconds, b->step_seconds));
    text_add(out, "\n%.1f %s/s\n", (double)b->step_tokens / b->step_seconds, b->unit);
}

/* A target for tuning: a step of only its matmuls, all at the rate of the fastest one above.  Left
 * out for networks that are mostly convolutions. */
static void add_gemms(struct text *out, const struct report_bench *b)
{
    if (!(b->best_gemm_flops > 0) || b->gemm_flops < b->conv_flops)
        return;
    double alone = b->gemm_flops / b->best_gemm_flops;
    text_add(out,
             "The matmuls of a step (linear, attention, head) are %.3g TFLOP.\n"
             "At the rate of the fastest matmul above, %.3g TFLOP/s, they would take\n"
             "%.3g s: the step runs at %.0f%% of that speed.\n",
             b->gemm_flops * 1e-12, b->best_gemm_flops * 1e-12, alone,
             percent(alone, b->step_seconds));
}

static void add_rates_file(struct text *out, const struct report_bench *b)
{
    if (b->rates_file != NULL)
        text_add(out, "\n%d op rates saved for the time estimates of plan and fit:\n%s\n",
                 b->n_rates, b->rates_file);
}

char *report_bench_text(const struct report_bench *bench)
{
    struct text out = {0};
    add_limits(&out, bench);
    add_kernels(&out, bench);
    add_step(&out, bench);
    add_gemms(&out, bench);
    add_reasons(&out, bench);
    add_rates_file(&out, bench);
    return text_take(&out);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void add_string(struct text *out, const char *key, const char *value)
{
    text_add(out, "\"%s\": ", key);
    report_json_string(out, value);
    text_add(out, ", ");
}

static void add_rows(struct text *out, const char *key, const struct report_rate *rows, int n_rows)
{
    text_add(out, "\"%s\": [", key);
    for (int i = 0; i < n_rows; i++) {
        const struct report_rate *row = &rows[i];
        text_add(out, i == 0 ? "{" : ", {");
        add_string(out, "op", row->op);
        if (row->type != NULL) {
            add_string(out, "type", row->type);
            add_string(out, "shape", row->shape);
        } else {
            text_add(out, "\"calls\": %d, ", row->n_calls);
        }
        add_string(out, "limit", row->limit);
        text_add(out,
                 "\"seconds\": %.6g, \"flops\": %.6g, \"bytes\": %.6g, \"limit_seconds\": %.6g}",
                 row->seconds, row->flops, row->bytes, row->floor_seconds);
    }
    text_add(out, "]");
}

char *report_bench_json(const struct report_bench *b)
{
    struct text out = {0};
    text_add(&out, "{");
    add_string(&out, "model", b->model);
    add_string(&out, "recipe", b->recipe);
    text_add(&out,
             "\"threads\": %d, \"limits\": {\"fma_flops_per_s\": %.6g, \"amx_flops_per_s\": %.6g, "
             "\"read_bytes_per_s\": %.6g, \"copy_bytes_per_s\": %.6g, "
             "\"update_bytes_per_s\": %.6g}, ",
             b->threads, b->fma_flops, b->amx_flops, b->read_bytes, b->copy_bytes, b->update_bytes);
    add_rows(&out, "kernels", b->kernels, b->n_kernels);
    text_add(&out, ", ");
    add_rows(&out, "ops", b->ops, b->n_ops);
    text_add(&out,
             ", \"step\": {\"seconds\": %.6g, \"limit_seconds\": %.6g, \"%s\": %lld, "
             "\"matmul_flops\": %.6g, \"best_matmul_flops_per_s\": %.6g}",
             b->step_seconds, b->floor_seconds, b->unit, (long long)b->step_tokens, b->gemm_flops,
             b->best_gemm_flops);
    if (!b->on_gpu)
        text_add(&out, ", \"limit_spread\": %.6g, \"busy\": %s", b->limit_spread,
                 b->is_busy ? "true" : "false");
    if (b->rates_file != NULL) {
        text_add(&out, ", \"rates_file\": ");
        report_json_string(&out, b->rates_file);
    }
    text_add(&out, "}\n");
    return text_take(&out);
}
