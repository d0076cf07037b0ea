/*
 * ops_table.c -- the table of ops and their kernels.  A dash marks what is missing.
 */
#include "report/report.h"

#include <string.h>

#include "base/text.h"

enum { N_COLUMNS = 5 };

static const char *cell(const struct report_op *row, int column)
{
    const char *const cells[N_COLUMNS] = {row->name, row->reference, row->cpu, row->cuda,
                                          row->gradient};
    const char *text = cells[column];
    return text == NULL || text[0] == '\0' ? "-" : text;
}

static void add_row(struct text *out, const struct report_op *row, const int widths[N_COLUMNS])
{
    for (int i = 0; i < N_COLUMNS - 1; i++)
        text_add(out, "%-*s  ", widths[i], cell(row, i));
    text_add(out, "%s\n", cell(row, N_COLUMNS - 1));
}

char *report_ops_table(const struct report_op *rows, int n_rows)
{
    static const struct report_op header = {"op", "reference", "cpu", "cuda", "gradient"};
    struct text out = {0};
    int widths[N_COLUMNS];
    for (int i = 0; i < N_COLUMNS; i++) {
        widths[i] = (int)strlen(cell(&header, i));
        for (int k = 0; k < n_rows; k++)
            if ((int)strlen(cell(&rows[k], i)) > widths[i])
                widths[i] = (int)strlen(cell(&rows[k], i));
    }
    add_row(&out, &header, widths);
    for (int k = 0; k < n_rows; k++)
        add_row(&out, &rows[k], widths);
    return text_take(&out);
}
