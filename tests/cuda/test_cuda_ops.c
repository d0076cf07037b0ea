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
#include "support/opcompare.h"

static void test_rows_agree_with_the_reference(void **state)
{
    struct opcompare *ctx = *state;
    struct snug_error err = {0};
    ctx->device_of = snug_cuda_backend();
    if (ctx->device_of->hooks->open(&ctx->device, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    opcompare_cases(ctx);
    ctx->device_of->hooks->close(ctx->device);
    assert_int_equal(ctx->n_failures, 0);
    assert_true(ctx->only != NULL || ctx->n_triples > 0);
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
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    case_list_free(&ctx.cases);
    return n_failed;
}
