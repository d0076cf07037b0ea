/*
 * pieces.c -- the small parts that several reports are made of.
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

const char *piece_seconds(double seconds, char out[PIECE_TIME_MAX])
{
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

void piece_wrapped(struct text *out, const char *sentence, int indent)
{
    size_t length = strlen(sentence), room = PAGE_WIDTH;
    while (length > room) {
        size_t cut = room;
        while (cut > 0 && sentence[cut] != ' ')
            cut--;
        if (cut == 0)
            break;
        text_add(out, "%.*s\n%*s", (int)cut, sentence, indent, "");
        sentence += cut + 1;
        length -= cut + 1;
        room = PAGE_WIDTH - (size_t)indent;
    }
    text_add(out, "%s\n", sentence);
}
