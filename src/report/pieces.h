/*
 * pieces.h -- helpers shared by the reports: colors, bars, times, line wrapping.
 */
#ifndef SNUG_REPORT_PIECES_H
#define SNUG_REPORT_PIECES_H

#include "base/text.h"

enum { PAGE_WIDTH = 80 };

struct style { /* empty strings without color */
    const char *bold, *bar, *warning, *faint, *off;
};
const struct style *style_of(int color);

/* Adds the name of a model in bold. */
void piece_title(struct text *out, const struct style *style, const char *name);

/* Adds a title: the name in bold, then `rest`, wrapped as in piece_wrapped. */
void piece_heading(struct text *out, const struct style *style, const char *name, const char *rest);

/* Adds "gpt2: batch 8 x 1024, fp32, adamw".  No recipe: only the model. */
void piece_plan_title(struct text *out, const struct style *style, const char *model,
                      const char *recipe);
/* Adds "2,048 (the model allows 131,072: --seq)", where the default is shorter than the model's. */
void piece_default_seq(struct text *out, int64_t seq, int64_t longest);

/* Adds a bar of `share` times `width` cells, in eighths of a cell.  A nonzero share gets at least
 * one eighth, so that it is visible. */
void piece_bar(struct text *out, double share, int width);

enum { PIECE_TIME_MAX = 32 };
const char *piece_seconds(double seconds, char out[PIECE_TIME_MAX]); /* "40.1 ms", "1 h 24 min" */

/* Adds text wrapped at blanks to the page width; lines after the first are indented. */
void piece_wrapped(struct text *out, const char *sentence, int indent);
/* The same for a shell command: continued lines end in a backslash; quoted words stay whole. */
void piece_command(struct text *out, const char *command, int indent);

#endif
