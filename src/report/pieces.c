/*
 * pieces.c -- helpers shared by the reports.
 */
#include "report/pieces.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct style *style_of(int color)
{
    static const struct style plain = {"", "", "", "", ""};
    static const struct style colored = {"\033[1m", "\033[36m", "\033[31m", "\033[2m", "\033[0m"};
    return color ? &colored : &plain;
}

void piece_title(struct text *out, const struct style *style, const char *name)
{
    text_add(out, "%s", style->bold);
    text_add_shown(out, name);
    text_add(out, "%s", style->off);
}

void piece_bar(struct text *out, double share, int width)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    long n_eighths = lround(share * width * 8);
    if (n_eighths == 0 && share > 0)
        n_eighths = 1;
    for (long i = 0; i < n_eighths / 8; i++)
        text_add(out, "█");
    text_add(out, "%s", eighths[n_eighths % 8]);
}

/* "9.08 min", "1 h 24 min", "30.9 h", "3 d 4 h": at most ten characters up to a century. */
static const char *long_time(double seconds, char out[PIECE_TIME_MAX])
{
    double minutes = round(seconds / 60), hours = round(seconds / 3600);
    char days[TEXT_SIZE_MAX + 8];
    if (seconds < 3597) /* 59.95 minutes */
        snprintf(out, PIECE_TIME_MAX, "%.*f min", seconds < 599.7 ? 2 : 1, seconds / 60);
    else if (minutes < 10 * 60)
        snprintf(out, PIECE_TIME_MAX, "%d h %d min", (int)minutes / 60, (int)minutes % 60);
    else if (hours < 48)
        snprintf(out, PIECE_TIME_MAX, "%.1f h", seconds / 3600);
    else if (hours < 100 * 24)
        snprintf(out, PIECE_TIME_MAX, "%d d %d h", (int)hours / 24, (int)hours % 24);
    else if (hours < 1e15)
        snprintf(out, PIECE_TIME_MAX, "%s d", text_count((int64_t)round(hours / 24), days));
    else
        snprintf(out, PIECE_TIME_MAX, "%.3g d", hours / 24);
    return out;
}

const char *piece_seconds(double seconds, char out[PIECE_TIME_MAX])
{
    if (seconds >= 120)
        return long_time(seconds, out);
    if (seconds >= 99.95)
        snprintf(out, PIECE_TIME_MAX, "%.0f s", seconds);
    else if (seconds >= 0.9995)
        snprintf(out, PIECE_TIME_MAX, "%.1f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(out, PIECE_TIME_MAX, "%.3g ms", seconds * 1e3);
    else
        snprintf(out, PIECE_TIME_MAX, "%.3g us", seconds * 1e6);
    return out;
}

/* Where to break the line: the last blank in the first `width` + 1 bytes, else the first one after
 * them, or 0 if there is none.  In a command, only an unquoted blank before a flag counts. */
static size_t find_cut(const char *text, size_t width, bool is_command)
{
    bool quoted = false;
    size_t cut = 0;
    for (size_t i = 0; text[i] != '\0' && (i <= width || cut == 0); i++) {
        bool escaped = is_command && !quoted && i > 0 && text[i - 1] == '\\';
        if (is_command && text[i] == '\'' && !escaped)
            quoted = !quoted;
        bool may_break = text[i] == ' ' && !quoted && (!is_command || text[i + 1] == '-');
        if (may_break && i > strspn(text, " "))
            cut = i;
    }
    return cut;
}

/* The last break at or before `cut` that follows a comma, else `cut`: "2 threads" stays
 * together. */
static size_t after_comma(const char *text, size_t cut)
{
    for (size_t i = cut; i > 1; i--)
        if (text[i] == ' ' && text[i - 1] == ',')
            return i;
    return cut;
}

enum wrapping { WRAP_sentence, WRAP_command, WRAP_list };

static void wrap(struct text *out, const char *text, int indent, enum wrapping how)
{
    const char *continuation = how == WRAP_command ? " \\" : "";
    size_t width = PAGE_WIDTH - strlen(continuation), whole = PAGE_WIDTH;
    while (strlen(text) > whole) {
        size_t cut = find_cut(text, width, how == WRAP_command);
        if (cut == 0)
            break;
        if (how == WRAP_list)
            cut = after_comma(text, cut);
        text_add(out, "%.*s%s\n%*s", (int)cut, text, continuation, indent, "");
        text += cut + 1;
        whole = PAGE_WIDTH - (size_t)indent;
        width = whole - strlen(continuation);
    }
    text_add(out, "%s\n", text);
}

void piece_wrapped(struct text *out, const char *sentence, int indent)
{
    wrap(out, sentence, indent, WRAP_sentence);
}

void piece_command(struct text *out, const char *command, int indent)
{
    wrap(out, command, indent, WRAP_command);
}

void piece_heading(struct text *out, const struct style *style, const char *name, const char *rest)
{
    enum { INDENT = 4 };
    struct text shown = {0}, whole = {0}, lines = {0};
    text_add_shown(&shown, name);
    size_t length = strlen(text_part(out, &shown));
    text_add(&whole, "%s%s", text_part(out, &shown), rest);
    wrap(&lines, text_part(out, &whole), INDENT, WRAP_list);
    const char *words = text_part(out, &lines);
    if (strncmp(words, text_part(out, &shown), length) != 0)
        length = 0; /* the name itself was wrapped */
    text_add(out, "%s%.*s%s%s", style->bold, (int)length, words, style->off, words + length);
    text_free(&shown);
    text_free(&whole);
    text_free(&lines);
}

void piece_plan_title(struct text *out, const struct style *style, const char *model,
                      const char *recipe)
{
    struct text rest = {0};
    if (recipe != NULL && recipe[0] != '\0')
        text_add(&rest, ": %s", recipe);
    piece_heading(out, style, model, text_part(out, &rest));
    text_free(&rest);
}

void piece_default_seq(struct text *out, int64_t seq, int64_t longest)
{
    char own[TEXT_SIZE_MAX + 8], most[TEXT_SIZE_MAX + 8];
    text_add(out, "%s (the model allows %s: --seq)\n", text_count(seq, own),
             text_count(longest, most));
}
