/*
 * plan_text.c -- the plan as text: where the bytes go, and which flags would reduce them.
 *
 *     gpt2: batch 32 x 1024, fp32, adamw
 *
 *       parameters      497,759,232   475 MiB    6.4%  ▊
 *       ...
 *       total         7,741,241,344  7.21 GiB
 *
 * The bytes are exact and add up to the total.  The bars are relative to the largest kind.
 */
#include "report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/pieces.h"

enum { KIND_WIDTH = 13, HUMAN_WIDTH = 8, BAR_MOST = 30, LABEL_WIDTH = 15, N_KINDS = 6 };

struct kind {
    const char *name;
    const char *subject; /* begins the sentence of the advice */
    int64_t bytes;
};

static void list_kinds(const struct snug_ledger *ledger, struct kind kinds[N_KINDS])
{
    const struct kind all[N_KINDS] = {
        {"parameters", "Parameters are", ledger->parameters},
        {"gradients", "Gradients are", ledger->gradients},
        {"optimizer", "Optimizer states are", ledger->optimizer},
        {"activations", "Activations are", ledger->activations},
        {"temporary", "Temporary buffers are", ledger->temporary},
        {"fragmentation", "Fragmentation is", ledger->fragmentation},
    };
    memcpy(kinds, all, sizeof all);
}

static const struct kind *largest_kind(const struct kind kinds[N_KINDS])
{
    const struct kind *largest = &kinds[0];
    for (int i = 1; i < N_KINDS; i++)
        if (kinds[i].bytes > largest->bytes)
            largest = &kinds[i];
    return largest;
}

static double share_of(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0.0;
}

static void add_table(struct text *out, const struct snug_ledger *ledger, const struct style *style)
{
    struct kind kinds[N_KINDS];
    char count[TEXT_SIZE_MAX + 8], size[TEXT_SIZE_MAX];
    list_kinds(ledger, kinds);
    int64_t largest = largest_kind(kinds)->bytes;
    int bytes_width = (int)strlen(text_count(ledger->total, count));
    if (bytes_width < 5)
        bytes_width = 5;
    int bar_width = PAGE_WIDTH - 2 - KIND_WIDTH - 2 - bytes_width - 2 - HUMAN_WIDTH - 2 - 6 - 2;
    if (bar_width > BAR_MOST)
        bar_width = BAR_MOST;

    text_add(out, "  %-*s  %*s  %*s  %6s\n", KIND_WIDTH, "", bytes_width, "bytes", HUMAN_WIDTH,
             "size", "share");
    for (int i = 0; i < N_KINDS; i++) {
        double share = share_of(kinds[i].bytes, ledger->total);
        text_add(out, "  %-*s  %*s  %*s  %5.1f%%", KIND_WIDTH, kinds[i].name, bytes_width,
                 text_count(kinds[i].bytes, count), HUMAN_WIDTH, text_size(kinds[i].bytes, size),
                 100 * share);
        if (kinds[i].bytes > 0) {
            text_add(out, "  %s", style->bar);
            piece_bar(out, share_of(kinds[i].bytes, largest), bar_width);
            text_add(out, "%s", style->off);
        }
        text_add(out, "\n");
    }
    text_add(out, "  %s%-*s  %*s  %*s%s\n", style->bold, KIND_WIDTH, "total", bytes_width,
             text_count(ledger->total, count), HUMAN_WIDTH, text_size(ledger->total, size),
             style->off);
}

/* "874 GFLOP" */
static const char *flops_text(int64_t flops, char out[32])
{
    static const char *const units[] = {"FLOP",  "kFLOP", "MFLOP", "GFLOP",
                                        "TFLOP", "PFLOP", "EFLOP"};
    double value = (double)flops;
    int unit = 0;
    while (value >= 999.5 && unit < 6) {
        value /= 1000;
        unit++;
    }
    snprintf(out, 32, "%.*f %s",
             unit == 0 || value >= 99.95 ? 0
             : value < 9.995             ? 2
                                         : 1,
             value, units[unit]);
    return out;
}

static void add_label(struct text *out, const char *label)
{
    text_add(out, "  %-*s", LABEL_WIDTH, label);
}

/* A name that is too long loses its head: the tail identifies the tensor in its layer. */
static void add_peak(struct text *out, const struct report_plan *plan)
{
    char index[TEXT_SIZE_MAX + 8], n_ops[TEXT_SIZE_MAX + 8], head[160];
    struct text shown = {0};
    text_add_shown(&shown, plan->peak_name == NULL ? "" : plan->peak_name);
    const char *name = text_part(out, &shown);
    int length =
        snprintf(head, sizeof head, "op %s of %s, %s", text_count(plan->ledger.peak_op, index),
                 text_count(plan->ledger.n_ops, n_ops), plan->peak_kind);
    int width = PAGE_WIDTH - 2 - LABEL_WIDTH - length - 1;
    int name_length = (int)strlen(name);
    add_label(out, "peak at");
    text_add(out, "%s", head);
    if (name_length > 0 && name_length <= width)
        text_add(out, " %s", name);
    else if (name_length > 0 && width > 12)
        text_add(out, " ...%s", name + name_length - (width - 3));
    text_add(out, "\n");
    text_free(&shown);
}

/* The budget covers the plan and the runtime memory. */
static void add_budget(struct text *out, const struct report_plan *plan, const struct style *style)
{
    char size[TEXT_SIZE_MAX];
    int64_t spare = plan->ledger.budget - plan->ledger.total - plan->runtime_bytes;
    add_label(out, "budget");
    text_add(out, "%s: %sthe plan ", text_size(plan->ledger.budget, size),
             spare < 0 ? style->warning : "");
    if (plan->runtime_bytes > 0)
        text_add(out, "and %s of runtime ", text_size(plan->runtime_bytes, size));
    if (spare >= 0)
        text_add(out, "leave%s %s free\n", plan->runtime_bytes > 0 ? "" : "s",
                 text_size(spare, size));
    else
        text_add(out, "%s %s over%s\n", plan->runtime_bytes > 0 ? "are" : "is",
                 text_size(-spare, size), style->off);
    if (plan->budget_origin != NULL) {
        struct text line = {0};
        add_label(&line, "");
        text_add(&line, "default: %s; set another with --memory", plan->budget_origin);
        piece_wrapped(out, text_part(out, &line), 2 + LABEL_WIDTH);
        text_free(&line);
    }
}

static void add_trained(struct text *out, const struct snug_ledger *ledger)
{
    char trained[TEXT_SIZE_MAX + 8], frozen[TEXT_SIZE_MAX + 8];
    text_count(ledger->n_trained, trained);
    add_label(out, "trained");
    if (ledger->n_trained == ledger->n_parameters)
        text_add(out, "%s parameters\n", trained);
    else
        text_add(out, "%s parameters in adapters; %s are frozen\n", trained,
                 text_count(ledger->n_parameters, frozen));
}

static void add_facts(struct text *out, const struct report_plan *plan, const struct style *style)
{
    const struct snug_ledger *ledger = &plan->ledger;
    char count[TEXT_SIZE_MAX + 8], forward[32], step[32], again[32];
    add_trained(out, ledger);
    add_label(out, "lower bound");
    text_add(out, "%s bytes; fragmentation adds %.2f%%\n", text_count(ledger->lower_bound, count),
             100 * share_of(ledger->total - ledger->lower_bound, ledger->lower_bound));
    if (ledger->offloaded > 0) {
        char size[TEXT_SIZE_MAX];
        struct text line = {0};
        add_label(&line, "offloaded");
        text_add(&line, "%s bytes (%s) to %s, not in the total",
                 text_count(ledger->offloaded, count), text_size(ledger->offloaded, size),
                 plan->offloaded_to);
        piece_wrapped(out, text_part(out, &line), 2 + LABEL_WIDTH);
        text_free(&line);
    }
    if (plan->peak_kind != NULL)
        add_peak(out, plan);
    if (ledger->step_flops > 0) {
        add_label(out, "compute");
        text_add(out, "%s a step, of which %s forward", flops_text(ledger->step_flops, step),
                 flops_text(ledger->forward_flops, forward));
        text_add(out, "\n");
    }
    if (plan->updates != NULL) {
        add_label(out, "updates");
        text_add(out, "%s", plan->updates);
        if (plan->updates_flops > 0)
            text_add(out, ", +%s a step", flops_text(plan->updates_flops, again));
        text_add(out, "\n");
    }
    if (ledger->recompute_flops > 0) {
        add_label(out, "recomputed");
        double percent = 100 * share_of(ledger->recompute_flops, ledger->forward_flops);
        text_add(out,
                 percent < 1000 ? "%s, %.3g%% of forward; included in compute\n"
                                : "%s, %.0f%% of forward; included in compute\n",
                 flops_text(ledger->recompute_flops, again), percent);
    }
    if (ledger->step_seconds > 0) {
        add_label(out, "time");
        text_add(out, "about %s a step (estimate%s%s)\n", piece_seconds(ledger->step_seconds, step),
                 plan->rates == NULL ? "" : " ", plan->rates == NULL ? "" : plan->rates);
    }
    if (plan->n_ranks > 1) {
        add_label(out, "ranks");
        text_add(out, "%s; the bytes are those of the rank with the highest peak\n",
                 text_count(plan->n_ranks, count));
    }
    if (plan->usual_batch > 0) {
        add_label(out, "batch");
        text_add(out, "%s, not the default %s, so that the ranks get equal shares\n",
                 text_count(plan->batch, count), text_count(plan->usual_batch, step));
    }
    if (plan->n_stages > 1) {
        add_label(out, "pipeline");
        text_add(out, "%s stages, each idle for %.3g%% of a step (included in time)\n",
                 text_count(plan->n_stages, count), 100 * plan->bubble);
    }
    if (ledger->budget > 0)
        add_budget(out, plan, style);
}

static void add_remarks(struct text *out, const struct report_plan *plan)
{
    for (int i = 0; i < plan->n_remarks; i++) {
        struct text line = {0};
        add_label(&line, plan->remarks[i].about);
        text_add(&line, "%s", plan->remarks[i].words);
        piece_wrapped(out, text_part(out, &line), 2 + LABEL_WIDTH);
        text_free(&line);
    }
}

/* ", +16% time", or beyond a factor of two ", 3.1x the time" or ", 3.1x as fast". */
static void add_time_change(struct text *out, double now, double then)
{
    if (now <= 0 || then <= 0)
        return;
    double factor = then > now ? then / now : now / then, percent = 100 * (then / now - 1);
    if (factor > 999.5)
        text_add(out, ", >999x %s", then > now ? "the time" : "as fast");
    else if (factor > 2)
        text_add(out, ", %.*fx %s", factor < 9.95 ? 1 : 0, factor,
                 then > now ? "the time" : "as fast");
    else if (fabs(percent) >= 0.5)
        text_add(out, ", %+.0f%% time", percent);
}

static void add_alternative(struct text *out, const struct report_plan *plan,
                            const struct report_alternative *other)
{
    char size[TEXT_SIZE_MAX];
    text_add(out, "  %-30s  %*s  %s", other->flag, HUMAN_WIDTH, text_size(other->total_bytes, size),
             other->changes);
    add_time_change(out, plan->ledger.step_seconds, other->step_seconds);
    text_add(out, "\n");
}

static void add_advice(struct text *out, const struct report_plan *plan)
{
    struct kind kinds[N_KINDS];
    int n_smaller = 0;
    list_kinds(&plan->ledger, kinds);
    const struct kind *largest = largest_kind(kinds);
    if (largest->bytes == 0)
        return;
    for (int i = 0; i < plan->n_alternatives; i++)
        n_smaller += plan->alternatives[i].total_bytes < plan->ledger.total;
    text_add(out, "\n%s %.0f%% of the total.%s\n", largest->subject,
             100 * share_of(largest->bytes, plan->ledger.total),
             n_smaller > 0 ? " To reduce the total:" : "");
    for (int i = 0; i < plan->n_alternatives; i++)
        if (plan->alternatives[i].total_bytes < plan->ledger.total)
            add_alternative(out, plan, &plan->alternatives[i]);
}

char *report_plan_text(const struct report_plan *plan, int color)
{
    struct text out = {0};
    const struct style *style = style_of(color);
    piece_plan_title(&out, style, plan->model, plan->recipe);
    if (plan->longest_seq > 0) {
        text_add(&out, "  seq ");
        piece_default_seq(&out, plan->seq, plan->longest_seq);
    }
    text_add(&out, "\n");
    add_table(&out, &plan->ledger, style);
    text_add(&out, "\n");
    add_facts(&out, plan, style);
    add_remarks(&out, plan);
    add_advice(&out, plan);
    return text_take(&out);
}
