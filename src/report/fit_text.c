/*
 * fit_text.c -- the result of snug fit: a command to paste, the frontier, and why the others lost.
 */
#include "report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/pieces.h"

enum { NEAR = 3, BAR = 8, BEFORE_RECIPE = 2 + 10 + 2 + BAR + 10 + 8 + 2 };

static double percent_over(double seconds, double than)
{
    return than > 0 ? 100 * (seconds / than - 1) : 0;
}

static void add_answer(struct text *out, const struct report_fit *f, const struct style *style)
{
    char size[TEXT_SIZE_MAX], runtime[TEXT_SIZE_MAX], spare[TEXT_SIZE_MAX], step[PIECE_TIME_MAX];
    char count[TEXT_SIZE_MAX + 8];
    const struct snug_fit_point *p = &f->points[f->chosen];
    double rate = f->tokens / p->step_seconds;
    struct text command = {0};
    text_add(&command, "  %s", f->command);
    text_add(out, "%s", style->bold);
    piece_command(out, text_part(out, &command), 6);
    text_add(out, "%s\n", style->off);
    text_free(&command);
    text_add(out, "  memory  %s plan + %s runtime; %s free\n", text_size(p->total, size),
             text_size(f->runtime_bytes, runtime),
             text_size(f->budget - p->total - f->runtime_bytes, spare));
    text_add(out, "  time    about %s a step, ", piece_seconds(p->step_seconds, step));
    if (rate < 100 || rate > 9e15)
        text_add(out, "%.3g %s/s\n", rate, f->unit);
    else
        text_add(out, "%s %s/s\n", text_count(llround(rate), count), f->unit);
}

/* May a line break here?  Only before a flag or after a comma. */
static bool may_break(const char *at)
{
    return *at == ' ' && (at[-1] == ',' || strncmp(at, " --", 3) == 0);
}

static void add_broken(struct text *out, const char *recipe)
{
    size_t width = PAGE_WIDTH - BEFORE_RECIPE;
    while (strlen(recipe) > width) {
        size_t cut = width;
        while (cut > 0 && !may_break(recipe + cut))
            cut--;
        if (cut == 0)
            break;
        text_add(out, "%.*s\n%*s", (int)cut, recipe, BEFORE_RECIPE, "");
        recipe += cut + 1;
    }
    text_add(out, "%s", recipe);
}

/* The difference from the choice, or the whole recipe if nothing fits. */
static void add_recipe(struct text *out, const struct report_fit *f, int i)
{
    const struct snug_fit_point *p = &f->points[i];
    if (p->is_chosen)
        text_add(out, "the choice");
    else if (f->chosen >= 0)
        add_broken(out, f->differences[i]);
    else
        add_broken(out, p->flags[0] == '\0' ? "(no extra flags)" : p->flags);
}

/* The bar is relative to the largest memory in the list. */
static void add_point(struct text *out, const struct report_fit *f, int i, int64_t most,
                      const struct style *style)
{
    char size[TEXT_SIZE_MAX], step[PIECE_TIME_MAX], over[16] = "";
    const struct snug_fit_point *p = &f->points[i];
    const char *tone = p->is_chosen ? style->bold : p->fits ? "" : style->faint;
    int than = f->chosen >= 0 ? f->chosen : 0;
    double percent = percent_over(p->step_seconds, f->points[than].step_seconds);
    if (fabs(percent) >= 0.05)
        snprintf(over, sizeof over, "%+.*f%%", fabs(percent) < 99.95 ? 1 : 0, percent);
    text_add(out, "%s%s%10s%s  %s", tone,
             p->is_chosen ? "▸ "
             : p->fits    ? "  "
                          : "× ",
             text_size(p->total, size), style->off, p->fits ? style->bar : style->faint);
    size_t before = out->length;
    piece_bar(out, (double)p->total / (double)most, BAR);
    int cells = (int)((out->length - before) / strlen("█"));
    text_add(out, "%s%*s%s%10s%8s  ", style->off, BAR - cells, "", tone,
             piece_seconds(p->step_seconds, step), over);
    add_recipe(out, f, i);
    text_add(out, "%s\n", style->off);
}

static void add_frontier(struct text *out, const struct report_fit *f, int whole,
                         const struct style *style)
{
    int first = 0, last = f->n_points - 1;
    if (!whole && f->chosen >= 0) {
        first = f->chosen - NEAR > 0 ? f->chosen - NEAR : 0;
        last = f->chosen + NEAR < last ? f->chosen + NEAR : last;
    }
    text_add(out, "\n  %10s  %*s%10s%8s  %s\n", "memory", BAR, "", "step", "",
             f->chosen >= 0 ? "difference" : "recipe");
    for (int i = last; i >= first; i--)
        add_point(out, f, i, f->points[first].total, style);
    int hidden = f->n_points - (last - first + 1);
    if (hidden > 0 || !f->is_whole)
        text_add(out, "  %smore with --frontier%s\n", style->faint, style->off);
}

/* For a recipe that fits and is no slower than the choice. */
static void add_other_training(struct text *out, double slower)
{
    if (slower <= -0.05)
        text_add(out, "%.*f%% faster, but changes the training result\n", slower > -10 ? 1 : 0,
                 -slower);
    else
        text_add(out, "not needed, and changes the training result\n");
}

static void add_losers(struct text *out, const struct report_fit *f)
{
    char size[TEXT_SIZE_MAX];
    const struct snug_fit_point *chosen = &f->points[f->chosen];
    if (f->n_losers > 0)
        text_add(out, "\nWhy not\n");
    for (int i = 0; i < f->n_losers; i++) {
        const struct report_loser *l = &f->losers[i];
        char what[64];
        double slower = percent_over(l->seconds, chosen->step_seconds);
        snprintf(what, sizeof what, "%s %s", l->key, l->value);
        text_add(out, "  %-26s  ", what);
        if (l->needed_bytes > f->budget)
            text_add(out, "needs %s\n", text_size(l->needed_bytes, size));
        else if (slower >= 0.05)
            text_add(out, "%.*f%% slower\n", slower < 10 ? 1 : 0, slower);
        else if (l->changes_training)
            add_other_training(out, slower);
        else
            text_add(out, "no faster, needs %s\n", text_size(l->needed_bytes, size));
    }
}

char *report_fit_text(const struct report_fit *f, int whole_frontier, int color)
{
    struct text out = {0};
    char budget[TEXT_SIZE_MAX];
    const struct style *style = style_of(color);
    struct text rest = {0};
    text_add(&rest, " in %s%s%s", text_size(f->budget, budget), f->recipe[0] != '\0' ? ": " : "",
             f->recipe);
    piece_heading(&out, style, f->model, text_part(&out, &rest));
    text_add(&out, "\n");
    text_free(&rest);
    if (f->chosen >= 0)
        add_answer(&out, f, style);
    if (f->chosen >= 0 || whole_frontier)
        add_frontier(&out, f, whole_frontier, style);
    if (f->chosen >= 0)
        add_losers(&out, f);
    text_add(&out, "\nTimes are estimates %s.\n", f->rates);
    return text_take(&out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Numbers become JSON numbers, everything else a string. */
static void add_value(struct text *out, const char *value)
{
    double number;
    if (text_parse_real(value, &number) &&
        (value[0] == '-' || (value[0] >= '0' && value[0] <= '9')))
        text_add(out, "%.17g", number);
    else
        report_json_string(out, value);
}

static void add_keys(struct text *out, const char *lines)
{
    char *copy = strdup(lines), *place = NULL;
    if (copy == NULL)
        out->failed = true;
    for (char *line = copy == NULL ? NULL : strtok_r(copy, "\n", &place); line != NULL;
         line = strtok_r(NULL, "\n", &place)) {
        char *equals = strstr(line, " = ");
        if (equals == NULL)
            continue;
        *equals = '\0';
        report_json_string(out, line);
        text_add(out, ": ");
        add_value(out, equals + 3);
        text_add(out, ", ");
    }
    free(copy);
}

char *report_fit_json(const struct report_fit *f)
{
    struct text out = {0};
    text_add(&out, "{\"model\": ");
    report_json_string(&out, f->model);
    text_add(&out, ", \"budget\": %" PRId64 ", \"runtime\": %" PRId64 ", \"chosen\": ", f->budget,
             f->runtime_bytes);
    if (f->chosen < 0) {
        text_add(&out, "null");
    } else {
        text_add(&out, "{");
        add_keys(&out, f->keys);
        text_add(&out, "\"command\": ");
        report_json_string(&out, f->command);
        text_add(&out, ", \"total\": %" PRId64 ", \"step_seconds\": %.9g}",
                 f->points[f->chosen].total, f->points[f->chosen].step_seconds);
    }
    text_add(&out, ", \"frontier\": [");
    for (int i = f->n_points - 1; i >= 0; i--) {
        text_add(&out, "{\"recipe\": ");
        report_json_string(&out, f->points[i].flags);
        text_add(&out, ", \"total\": %" PRId64 ", \"step_seconds\": %.9g, \"fits\": %s}%s",
                 f->points[i].total, f->points[i].step_seconds,
                 f->points[i].fits ? "true" : "false", i > 0 ? ", " : "");
    }
    text_add(&out, "]}\n");
    return text_take(&out);
}
