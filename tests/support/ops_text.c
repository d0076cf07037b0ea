/*
 * ops_text.c -- the ops of a program as one line; see ops_text.h.
 */
#include "support/ops_text.h"

#include <string.h>

#include "base/text.h"

char *ops_of(const struct program *prog)
{
    struct text all = {0}, ops = {0};
    char *rest;
    program_dump(prog, &all);
    for (char *line = strtok_r(all.data, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        if (strstr(line, " = ") != NULL && strncmp(line, "tensor ", 7) != 0)
            text_add(&ops, "%s%s", ops.length == 0 ? "" : "; ", line);
    text_free(&all);
    return text_take(&ops);
}
