/*
 * compare_text.c -- compares plans side by side: one column per recipe, one row per kind of bytes.
 *
 * A list above the table numbers the recipes, so that columns stay narrow.  Four columns fit on a
 * page; more follow below.  The smallest total and the shortest step are bold.
 */
#include "report/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/pieces.h"

enum { COLUMNS = 4, ROW_NAME = 16, COLUMN = 15 };

static int64_t field(const struct snug_ledger *l, int row)
{
    const int64_t fields[] = {l->parameters,  l->gradients, l->optimizer,
                              l->activations, l->temporary, l->fragmentation};
    return fields[row];
}

static const char *const row_names[] = {"parameters",  "gradients", "optimizer",
                                        "activations", "temporary", "fragmentation"};
enum { N_ROWS = sizeof row_names / sizeof *row_names };

static void add_cell(struct text *out, const char *words, bool is_bold, const struct style *style)
{
    int blank = COLUMN - (int)strlen(words);
    text_add(out, "%*s%s%s%s", blank < 1 ? 1 : blank, "", is_bold ? style->bold : "", words,
             is_bold ? style->off : "");
}

/* "-43%" compared with the first recipe; nothing for the first itself. */
static void add_change(struct text *out, double value, double first, bool is_first,
                       const struct style *style)
{
    char words[32] = "";
    double percent = first > 0 ? 100 * (value / first - 1) : 0;
    if (!is_first && fabs(percent) < 0.5)
        snprintf(words, sizeof words, "same");
    else if (!is_first)
        snprintf(words, sizeof words, "%+.0f%%", percent);
    add_cell(out, words, false, style);
}

struct page {
    const struct report_plan *plans;
    int begin, end;
    int smallest, fastest; /* of all plans */
    bool has_pipeline;     /* some plan has several stages */
    const struct style *style;
};

/* The fraction of the step time above that a stage is idle. */
static void add_idle(struct text *out, const struct page *p)
{
    char words[32];
    text_add(out, "  %-*s", ROW_NAME - 2, "stages idle");
    for (int i = p->begin; i < p->end; i++) {
        snprintf(words, sizeof words, "%.3g%%", 100 * p->plans[i].bubble);
        add_cell(out, p->plans[i].n_stages > 1 ? words : "-", false, p->style);
    }
    text_add(out, "\n");
}

static void add_totals(struct text *out, const struct page *p)
{
    char words[PIECE_TIME_MAX];
    text_add(out, "  %-*s", ROW_NAME - 2, "total");
    for (int i = p->begin; i < p->end; i++)
        add_cell(out, text_size(p->plans[i].ledger.total, words), i == p->smallest, p->style);
    text_add(out, "\n  %-*s", ROW_NAME - 2, "");
    for (int i = p->begin; i < p->end; i++)
        add_change(out, (double)p->plans[i].ledger.total, (double)p->plans[0].ledger.total, i == 0,
                   p->style);
    text_add(out, "\n  %-*s", ROW_NAME - 2, "step time");
    for (int i = p->begin; i < p->end; i++)
        add_cell(out, piece_seconds(p->plans[i].ledger.step_seconds, words), i == p->fastest,
                 p->style);
    text_add(out, "\n  %-*s", ROW_NAME - 2, "");
    for (int i = p->begin; i < p->end; i++)
        add_change(out, p->plans[i].ledger.step_seconds, p->plans[0].ledger.step_seconds, i == 0,
                   p->style);
    text_add(out, "\n");
    if (p->has_pipeline)
        add_idle(out, p);
}

static void add_page(struct text *out, const struct page *p)
{
    char words[TEXT_SIZE_MAX];
    text_add(out, "\n%*s", ROW_NAME, "");
    for (int i = p->begin; i < p->end; i++) {
        snprintf(words, sizeof words, "%d", i + 1);
        add_cell(out, words, true, p->style);
    }
    text_add(out, "\n");
    for (int row = 0; row < N_ROWS; row++) {
        text_add(out, "  %-*s", ROW_NAME - 2, row_names[row]);
        for (int i = p->begin; i < p->end; i++)
            add_cell(out, text_size(field(&p->plans[i].ledger, row), words), false, p->style);
        text_add(out, "\n");
    }
    add_totals(out, p);
}

char *report_compare_text(const struct report_plan *plans, int n_plans, int color)
{
    struct text out = {0};
    struct page page = {.plans = plans, .style = style_of(color)};
    piece_title(&out, page.style, plans[0].model);
    text_add(&out, ", %d recipes\n\n", n_plans);
    for (int i = 0; i < n_plans; i++) {
        struct text name = {0};
        text_add(&name, "%4d  ", i + 1);
        text_add_shown(&name,
                       plans[i].compared[0] == '\0' ? "(no extra flags)" : plans[i].compared);
        piece_wrapped(&out, text_part(&out, &name), 6);
        text_free(&name);
        page.has_pipeline |= plans[i].n_stages > 1;
        if (plans[i].ledger.total < plans[page.smallest].ledger.total)
            page.smallest = i;
        if (plans[i].ledger.step_seconds < plans[page.fastest].ledger.step_seconds)
            page.fastest = i;
    }
    for (page.begin = 0; page.begin < n_plans; page.begin += COLUMNS) {
        page.end = page.begin + COLUMNS < n_plans ? page.begin + COLUMNS : n_plans;
        add_page(&out, &page);
    }
    if (plans[0].rates != NULL)
        text_add(&out, "\nTimes are estimates %s.\n", plans[0].rates);
    return text_take(&out);
}

char *report_compare_json(const struct report_plan *plans, int n_plans)
{
    struct text out = {0};
    text_add(&out, "{\"model\": ");
    report_json_string(&out, plans[0].model);
    text_add(&out, ", \"compare\": [");
    for (int i = 0; i < n_plans; i++) {
        text_add(&out, "%s", i == 0 ? "" : ", ");
        report_plan_object(&plans[i], &out);
    }
    text_add(&out, "]}\n");
    return text_take(&out);
}
