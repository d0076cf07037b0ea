/*
 * pieces.h -- what the tables of this folder share: colours, bars, times, long lines.
 */
#ifndef SNUG_REPORT_PIECES_H
#define SNUG_REPORT_PIECES_H

#include "base/text.h"

enum { PAGE_WIDTH = 80 };

struct style { /* empty strings without colour */
    const char *bold, *bar, *warning, *faint, *off;
};
const struct style *style_of(int color);

/* The name of a model, in bold. */
void piece_title(struct text *out, const struct style *style, const char *name);

/* A title, the name in bold, and what follows it; broken as piece_wrapped does. */
void piece_heading(struct text *out, const struct style *style, const char *name, const char *rest);

/* "gpt2: batch 8 x 1024, fp32, adamw" and an empty line; recipe NULL or "": the model alone. */
void piece_plan_title(struct text *out, const struct style *style, const char *model,
                      const char *recipe);

/* A share of `width` cells, in eighths.  At least a sliver for anything that is not zero: a kind that
 * exists is seen to exist. */
void piece_bar(struct text *out, double share, int width);

enum { PIECE_TIME_MAX = 32 };
const char *piece_seconds(double seconds, char out[PIECE_TIME_MAX]); /* "12.3 s", "40.1 ms" */

/* Breaks at blanks so that no line is longer than the page; lines after the first are indented. */
void piece_wrapped(struct text *out, const char *sentence, int indent);
/* The same for a shell command: a line that goes on ends in a backslash, and quoted words stay whole. */
void piece_command(struct text *out, const char *command, int indent);

#endif
