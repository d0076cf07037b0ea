/*
 * test_defaults.c -- the table "Defaults" of RULES.md matches the optimizers' descriptions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "optim/optim.h"
#include "support/files.h"
#include "support/training.h"

enum { CELLS = 4, CELL_MAX = 200, ROWS_MAX = 100 };
struct row {
    char cell[CELLS][CELL_MAX]; /* name, lr, weight decay, options */
};

/* "| a | b |": the cells without the blanks around them; returns how many. */
static int read_cells(const char *line, struct row *row)
{
    int n = 0;
    for (const char *at = line; *at == '|' && n < CELLS;) {
        size_t length = strcspn(++at, "|\n");
        const char *end = at + length;
        const char *first = at + strspn(at, " "), *last = end;
        while (last > first && last[-1] == ' ')
            last--;
        if (*end != '|')
            break;
        snprintf(row->cell[n++], CELL_MAX, "%.*s", last > first ? (int)(last - first) : 0, first);
        at = end;
    }
    return n;
}

/* The rows below the heading and the two lines of the table's head. */
static int read_table(struct row rows[ROWS_MAX])
{
    size_t n_bytes;
    char *text = files_read("tests/optim/RULES.md", &n_bytes);
    const char *at = strstr(text, "\n## Defaults\n");
    assert_non_null(at);
    at = strstr(at, "\n|---");
    assert_non_null(at);
    int n = 0;
    for (at = strchr(at + 1, '\n') + 1; *at == '|'; at = strchr(at, '\n') + 1) {
        assert_in_range(n, 0, ROWS_MAX - 1);
        assert_int_equal(read_cells(at, &rows[n++]), CELLS);
    }
    free(text);
    return n;
}

/* "–": none, or made by the optimizer itself. */
static double number(const char *cell)
{
    double x = 0;
    if (strcmp(cell, "–") != 0 && !text_parse_real(cell, &x))
        fail_msg("\"%s\" is no number", cell);
    return x;
}

static void expect_options(const struct optimizer *optimizer, const char *cell)
{
    double values[MAX_OPTIONS], said[MAX_OPTIONS] = {0};
    char list[CELL_MAX] = "", *to = list;
    struct text ours = {0}, theirs = {0};
    struct snug_error err;
    for (const char *c = strcmp(cell, "–") == 0 ? "" : cell; *c != '\0'; c++)
        if (*c != ' ')
            *to++ = *c;
    *to = '\0';
    optimizer_default_options(optimizer, values);
    must(optimizer_read_options(optimizer, list, said, &err), &err);
    optimizer_write_options(optimizer, values, &ours);
    optimizer_write_options(optimizer, said, &theirs);
    int n_said = list[0] == '\0' ? 0 : 1, n_there = ours.length == 0 ? 0 : 1;
    for (const char *c = list; *c != '\0'; c++)
        n_said += *c == ',';
    for (size_t i = 0; i < ours.length; i++)
        n_there += ours.data[i] == ',';
    if (n_said != n_there || (n_there > 0 && strcmp(ours.data, theirs.data) != 0))
        fail_msg("%s has %s, RULES.md says %s", optimizer->name,
                 ours.data == NULL ? "no options" : ours.data, cell);
    text_free(&ours);
    text_free(&theirs);
}

static void test_the_table_has_the_program_s_defaults(void **state)
{
    (void)state;
    static struct row rows[ROWS_MAX];
    int n = read_table(rows), n_optimizers = 0;
    while (optimizer_at(n_optimizers) != NULL)
        n_optimizers++;
    for (int i = 0; i < n; i++) {
        const struct optimizer *optimizer = optimizer_find(rows[i].cell[0]);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(rows[k].cell[0], rows[i].cell[0]);
        if (optimizer == NULL)
            fail_msg("there is no optimizer \"%s\"", rows[i].cell[0]);
        if (number(rows[i].cell[1]) != optimizer->default_lr)
            fail_msg("%s: lr %g, RULES.md says %s", optimizer->name, optimizer->default_lr,
                     rows[i].cell[1]);
        if (number(rows[i].cell[2]) != optimizer->default_decay)
            fail_msg("%s: weight decay %g, RULES.md says %s", optimizer->name,
                     optimizer->default_decay, rows[i].cell[2]);
        expect_options(optimizer, rows[i].cell[3]);
        if (optimizer->options != NULL && strchr(optimizer->options, '_') != NULL)
            fail_msg("%s: options have dashes on the command line: set .options", optimizer->name);
    }
    assert_int_equal(n, n_optimizers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_table_has_the_program_s_defaults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
