/*
 * test_cuda_ops.c -- every op case that the CUDA backend has a row for, against the reference.
 *
 *   test_cuda_ops [-v] [-c NAME]      as test_ops
 *
 * Here the kernels run emulated; `make test-cuda` builds the same test for a GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda.h"
#include "cuda/rows.h"
#include "cuda/table.h"
#include "support/opcompare.h"

static void compare(struct opcompare *ctx, const struct backend *backend)
{
    struct snug_error err = {0};
    ctx->device_of = backend;
    ctx->n_failures = ctx->n_triples = 0;
    if (backend->hooks->open(0, &ctx->device, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    opcompare_cases(ctx);
    backend->hooks->close(ctx->device);
    assert_int_equal(ctx->n_failures, 0);
    assert_true(ctx->only != NULL || ctx->n_triples > 0);
}

static void test_rows_agree_with_the_reference(void **state)
{
    compare(*state, snug_cuda_backend());
}

/* Where one of NVIDIA's libraries takes an op the own row is the second choice, and no case above
 * meets it. */
static const struct kernel *choose_own(const struct program *prog, const struct op *op,
                                       const struct device_facts *facts)
{
    const struct kernel *(*const families[])(int *) = {cuda_rows_attention, cuda_rows_conv};
    const struct kernel *first = cuda_choose(prog, op, facts);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        int n_rows = 0;
        const struct kernel *rows = families[f](&n_rows);
        for (int i = 0; i < n_rows; i++)
            if (rows[i].kind == op->kind && &rows[i] != first && rows[i].supports(prog, op))
                return &rows[i];
    }
    return NULL;
}

static void test_own_rows_behind_a_library_agree_too(void **state)
{
    struct backend own = *snug_cuda_backend();
    own.choose = choose_own;
    compare(*state, &own);
}

int main(int argc, char **argv)
{
    static struct opcompare ctx;
    struct snug_error err = {0};
    const char *folder = getenv("SNUG_CASES");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            ctx.verbose = true;
        else if (strcmp(argv[i], "-c") == 0 && i + 1 < argc)
            ctx.only = argv[++i];
        else
            return fprintf(stderr, "usage: %s [-v] [-c NAME]\n", argv[0]), 2;
    }
    if (case_list_read(folder == NULL ? "tests/ops" : folder, &ctx.cases, &err) != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_rows_agree_with_the_reference, &ctx),
        cmocka_unit_test_prestate(test_own_rows_behind_a_library_agree_too, &ctx),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    case_list_free(&ctx.cases);
    return n_failed;
}
