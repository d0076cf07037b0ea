/*
 * test_waits.c -- when an op waits for a copy: one entry for each case of the rule in
 * ir/program_waits.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ir/program_waits.h"

static const char tensors[] =
    "tensor m optimizer f32 [8] persistent offloaded; tensor v optimizer f32 [8] persistent "
    "offloaded\n"
    "tensor x input f32 [8]; tensor a activation f32 [8]; tensor b activation f32 [8]\n"
    "tensor half activation f32 [4] view=a+4\n"
    "tensor y activation f32 [8]; tensor z activation f32 [8]\n";

static const struct {
    const char *name, *ops;
    const char *last,
        *early; /* what each op waits for, in the last round and in others; NULL: as in the last */
} rows[] = {
    {"no copies", "y = act x; z = act y; y = act z", "-1 -1 -1", NULL},
    {"who reads it", "a = prefetch m; y = act x; z = act a; y = act z; z = act y", "-1 -1 0 -1 0",
     NULL},
    {"the newest of two", "a = prefetch m; b = prefetch v; z = add a, b; y = act x; y = act x",
     "-1 -1 1 -1 1", NULL},
    {"a part of it", "a = prefetch m; b = prefetch v; y = act half; y = act x", "-1 -1 0 1", NULL},
    {"what it wrote before", "a = prefetch m; a = prefetch v; z = act a; y = act x", "-1 -1 1 1",
     NULL},
    {"eviction of what was fetched",
     "a = prefetch m; b = prefetch v; m = evict a; v = evict x; y = act x", "-1 -1 0 -1 3", NULL},
    {"wait_copy", "m = evict x; v = evict y; _ = wait_copy m; y = act x; z = act y", "-1 -1 0 -1 1",
     NULL},
    {"a fetch waits for nothing", "m = evict x; a = prefetch m; y = act x", "-1 -1 1", NULL},
    {"sent waits for its send",
     "_ = send x; _ = send y; z = act x; _ = sent x; _ = sent y; z = act x", "-1 -1 -1 0 1 4",
     NULL},
    {"send of what was received", "a = recv; _ = send a; b = recv; _ = sent a; y = act x",
     "-1 0 -1 1 3", NULL},
    {"sections end what they began", "body 2 x 3; a = prefetch m; y = act x; z = act a; y = act z",
     "-1 0 -1 -1", NULL},
    {"a copy of the last round",
     "body 4 x 2; a = prefetch m; b = prefetch v last; y = act b; z = act y", "-1 -1 1 1",
     "-1 -1 -1 0"},
    {"an op of the last round", "body 4 x 2; a = prefetch m; y = act a last; z = act x; y = act z",
     "-1 0 -1 0", "-1 -1 -1 0"},
    {"a copy ends the section", "a = prefetch m; y = act x; m = evict a", "-1 -1 0", NULL},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static void check(const struct program *prog, bool is_last_round, const char *wanted,
                  const char *name)
{
    int *waits_for = malloc(((size_t)prog->n_ops + 1) * sizeof *waits_for);
    int *scratch = malloc(2 * (size_t)prog->n_tensors * sizeof *scratch);
    char found[200] = "";
    assert_true(waits_for != NULL && scratch != NULL);
    program_find_waits(prog, is_last_round, waits_for, scratch);
    for (int i = 0; i < prog->n_ops; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), i > 0 ? " %d" : "%d",
                 waits_for[i]);
    if (strcmp(found, wanted) != 0)
        fail_msg("%s, %s round: %s, not %s", name, is_last_round ? "last" : "early", found, wanted);
    free(waits_for);
    free(scratch);
}

static void test_rows(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROWS; i++) {
        struct snug_error err = {0};
        struct program prog;
        char text[1024];
        snprintf(text, sizeof text, "program p\n%s%s\n", tensors, rows[i].ops);
        if (program_parse(text, &prog, &err) != SNUG_OK)
            fail_msg("%s: %s", rows[i].name, err.message);
        check(&prog, true, rows[i].last, rows[i].name);
        check(&prog, false, rows[i].early != NULL ? rows[i].early : rows[i].last, rows[i].name);
        program_free(&prog);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
