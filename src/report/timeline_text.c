/*
 * timeline_text.c -- a chart of the live bytes over the ops of a step, for a terminal.
 *
 *                                         ▼ 5.31 GiB at op 86, linear_cross_entropy_train loss
 *     5.31 GiB ┤                          T
 *              │                      AAAAAAAA
 *     2.66 GiB ┤               AAAAAAAAAAAAAAAAAAAA
 *              │  OOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOOO
 *          0 B ┴──────── forward ────────┴──────── backward ─────────┴─ update ─
 *
 * A column shows the op with the most bytes among its ops, so that no peak is lost.  With color, a
 * cell has two halves, each in the color of its kind.  Without color, a cell is the letter of its
 * kind.
 */
#include "report/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "report/pieces.h"

enum { LABEL = 10, WIDTH = PAGE_WIDTH - LABEL - 2, HEIGHT = 16, N_LIVE = 5 };

static const struct {
    const char *name;
    char letter;
    int color; /* ANSI foreground color; + 10 is the background color */
} live[N_LIVE] = {{"parameters", 'P', 34},
                  {"optimizer", 'O', 35},
                  {"gradients", 'G', 33},
                  {"activations", 'A', 36},
                  {"temporary", 'T', 31}};

static void bytes_of(const struct snug_timeline_point *m, int64_t bytes[N_LIVE])
{
    bytes[0] = m->parameters;
    bytes[1] = m->optimizer;
    bytes[2] = m->gradients;
    bytes[3] = m->activations;
    bytes[4] = m->temporary;
}

/* The kind at this height of the stack, or -1 above it. */
static int kind_at(const struct snug_timeline_point *m, double height)
{
    int64_t bytes[N_LIVE];
    double top = 0;
    bytes_of(m, bytes);
    for (int i = 0; i < N_LIVE; i++) {
        top += (double)bytes[i];
        if (height < top)
            return i;
    }
    return -1;
}

static int column_of(const struct report_timeline *t, int64_t op)
{
    return (int)(op * WIDTH / (t->n_points > 0 ? t->n_points : 1));
}

/* The timeline point with the most bytes in a column.  With fewer ops than columns, the op that
 * covers the column. */
static const struct snug_timeline_point *point_of(const struct report_timeline *t, int column)
{
    int64_t first = t->n_points * column / WIDTH, end = t->n_points * (column + 1) / WIDTH;
    const struct snug_timeline_point *largest = &t->points[first];
    for (int64_t i = first + 1; i < end; i++)
        if (t->points[i].total > largest->total)
            largest = &t->points[i];
    return largest;
}

static void add_cell(struct text *out, const struct snug_timeline_point *m, double low, double high,
                     int color)
{
    int middle = kind_at(m, (low + high) / 2);
    int lower = kind_at(m, low + (high - low) / 4), upper = kind_at(m, low + (high - low) * 3 / 4);
    if (!color)
        text_add(out, "%c", middle < 0 ? ' ' : live[middle].letter);
    else if (lower < 0)
        text_add(out, "\033[0m ");
    else if (upper < 0)
        text_add(out, "\033[0;%dm▄", live[lower].color);
    else if (upper == lower)
        text_add(out, "\033[0;%dm█", live[lower].color);
    else
        text_add(out, "\033[%d;%dm▄", live[lower].color, live[upper].color + 10);
}

/* One row of the chart.  The top and middle rows are labeled; add_axis labels the bottom. */
static void add_row(struct text *out, const struct report_timeline *t, int row, int color)
{
    char size[TEXT_SIZE_MAX] = "";
    int64_t peak = t->points[t->peak_op].total;
    double low = (double)peak * row / HEIGHT, high = (double)peak * (row + 1) / HEIGHT;
    if (row == HEIGHT - 1 || row == HEIGHT / 2 - 1)
        text_size(row == HEIGHT - 1 ? peak : peak / 2, size);
    text_add(out, "%*s %s", LABEL, size, size[0] == '\0' ? "│" : "┤");
    size_t begin = out->length;
    for (int column = 0; column < WIDTH; column++)
        add_cell(out, point_of(t, column), low, high, color);
    if (color)
        text_add(out, "\033[0m");
    else
        while (out->length > begin && !out->failed && out->data[out->length - 1] == ' ')
            out->data[--out->length] = '\0';
    text_add(out, "\n");
}

static void add_peak(struct text *out, const struct report_timeline *t, const struct style *style)
{
    char words[400], size[TEXT_SIZE_MAX];
    const struct snug_timeline_point *m = &t->points[t->peak_op];
    int column = column_of(t, t->peak_op);
    snprintf(words, sizeof words, "%s at op %" PRId64 ", %s%s%s", text_size(m->total, size),
             t->peak_op, m->op, m->tensor[0] != '\0' ? " " : "", m->tensor);
    int length = (int)strlen(snug_printable(words));
    bool fits_right = column + 2 + length <= WIDTH, fits_left = length + 1 <= column;
    int indent = LABEL + 2 + (fits_right || !fits_left ? column : column - length - 1);
    if (!fits_right && !fits_left) { /* on the line above */
        int left = PAGE_WIDTH - length < 2 ? 2 : PAGE_WIDTH - length;
        text_add(out, "%*s%s%.*s%s\n", left, "", style->bold, PAGE_WIDTH - left, words, style->off);
        text_add(out, "%*s▼\n", indent, "");
    } else if (fits_right) {
        text_add(out, "%*s▼ %s%s%s\n", indent, "", style->bold, words, style->off);
    } else {
        text_add(out, "%*s%s%s%s ▼\n", indent, "", style->bold, words, style->off);
    }
}

/* A part of the axis, with its name in the middle if it fits. */
static void add_part(struct text *out, int width, const char *name)
{
    int length = (int)strlen(name), rest = width - length - 2;
    bool is_named = rest >= 2;
    for (int i = 0; i < (is_named ? rest / 2 : width); i++)
        text_add(out, "─");
    if (!is_named)
        return;
    text_add(out, " %s ", name);
    for (int i = 0; i < rest - rest / 2; i++)
        text_add(out, "─");
}

static void add_axis(struct text *out, const struct report_timeline *t)
{
    char backward[64] = "backward";
    int loss = column_of(t, t->loss_op), update = column_of(t, t->update_op);
    if (t->n_repeat > 1)
        snprintf(backward, sizeof backward, "backward, %lld times", (long long)t->n_repeat);
    text_add(out, "%*s ┴", LABEL, "0 B");
    if (loss > 0 && update > loss && update <= WIDTH) {
        add_part(out, loss, "forward");
        text_add(out, "┴");
        add_part(out, update - loss - 1, backward);
        if (update < WIDTH) {
            text_add(out, "┴");
            add_part(out, WIDTH - update - 1, "update");
        }
    } else {
        add_part(out, WIDTH, "ops");
    }
    char count[TEXT_SIZE_MAX + 8];
    text_add(out, "\n%*s%s op%s in program order; the axis is not time\n", LABEL + 2, "",
             text_count(t->n_points, count), t->n_points == 1 ? "" : "s");
}

static void add_legend(struct text *out, const struct report_timeline *t, int color)
{
    int64_t bytes[N_LIVE];
    char size[TEXT_SIZE_MAX];
    bytes_of(&t->points[t->peak_op], bytes);
    text_add(out, "\n  at the peak\n");
    for (int i = N_LIVE - 1; i >= 0; i--) {
        if (color)
            text_add(out, "  \033[%dm█\033[0m ", live[i].color);
        else
            text_add(out, "  %c ", live[i].letter);
        text_add(out, "%-12s %9s\n", live[i].name, text_size(bytes[i], size));
    }
}

char *report_timeline_text(const struct report_timeline *t, int color)
{
    struct text out = {0};
    const struct style *style = style_of(color);
    piece_plan_title(&out, style, t->model, t->recipe);
    text_add(&out, "\n");
    add_peak(&out, t, style);
    for (int row = HEIGHT - 1; row >= 0; row--)
        add_row(&out, t, row, color);
    add_axis(&out, t);
    add_legend(&out, t, color);
    return text_take(&out);
}

void report_timeline_json(const struct report_timeline *t, struct text *out)
{
    text_add(out, "[");
    for (int64_t i = 0; i < t->n_points; i++) {
        const struct snug_timeline_point *m = &t->points[i];
        text_add(out, "%s{\"op\": ", i == 0 ? "" : ", ");
        report_json_string(out, m->op);
        text_add(out, ", \"name\": ");
        report_json_string(out, m->tensor);
        text_add(out,
                 ", \"parameters\": %" PRId64 ", \"gradients\": %" PRId64
                 ", \"optimizer\": %" PRId64 ", \"activations\": %" PRId64
                 ", \"temporary\": %" PRId64 ", \"total\": %" PRId64 "}",
                 m->parameters, m->gradients, m->optimizer, m->activations, m->temporary, m->total);
    }
    text_add(out, "]");
}
