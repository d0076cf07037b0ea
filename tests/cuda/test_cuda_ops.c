/*
 * test_cuda_ops.c -- every op case that has a CUDA kernel, against the reference.
 *
 *   test_cuda_ops [-v] [-c NAME] [-p I/N] [-o] [-r MOST] [-n]    -v, -c: as test_ops
 *
 * Here the kernels run emulated; `make test-cuda` builds the same test for a GPU.  The other
 * options are for running under compute-sanitizer (tools/sanitize-cuda.sh):
 *   -p  runs the I-th of N parts of the cases; a part may be empty
 *   -o  runs each kernel once, also ours where a library supports the op; the library's kernels,
 *       which are not ours to check, run only at the small sizes
 *   -r  skips sizes with more rows than MOST: thousands of identical blocks take longest and show
 *       no new races within a block
 *   -n  only requires that an op runs; its results are not checked
 *
 * parts: 1 (small), 4 (full)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda.h"
#include "cuda/dispatch/dispatch.h"
#include "cuda/dispatch/kernel_table.h"
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
    assert_true(ctx->only != NULL || ctx->n_parts > 0 || ctx->n_triples > 0);
}

static void test_kernels_agree_with_the_reference(void **state)
{
    compare(*state, snug_cuda_backend());
}

/* If one of NVIDIA's libraries supports an op, our kernel is the second choice, and no case above runs
 * it. */
static bool is_in(kernels_fn *family, const struct kernel *kernel)
{
    int n_rows = 0;
    const struct kernel *rows = family(&n_rows);
    for (int i = 0; i < n_rows; i++)
        if (&rows[i] == kernel)
            return true;
    return false;
}

static int choose_own(const struct program *prog, const struct op *op,
                      const struct device_facts *facts)
{
    const struct kernel *kernel;
    int first = cuda_choose(prog, op, facts);
    for (int number = 1; (kernel = cuda_kernel(number)) != NULL; number++)
        if (kernel->kind == op->kind && number != first &&
            (is_in(cuda_kernels_attention, kernel) || is_in(cuda_kernels_conv, kernel)) &&
            kernel->supports(prog, op))
            return number;
    return 0;
}

static void test_fallback_kernels_agree_too(void **state)
{
    struct backend own = *snug_cuda_backend();
    own.choose = choose_own;
    compare(*state, &own);
}

/* ---- under a tool --------------------------------------------------------------------------- */

static int choose_own_first(const struct program *prog, const struct op *op,
                            const struct device_facts *facts)
{
    int own = choose_own(prog, op, facts);
    return own != 0 ? own : cuda_choose(prog, op, facts);
}

static void test_own_kernels_agree_where_there_are_any(void **state)
{
    struct backend own = *snug_cuda_backend();
    own.choose = choose_own_first;
    compare(*state, &own);
}

static int choose_library(const struct program *prog, const struct op *op,
                          const struct device_facts *facts)
{
    return choose_own(prog, op, facts) != 0 ? cuda_choose(prog, op, facts) : 0;
}

static void test_library_kernels_agree_at_small_sizes(void **state)
{
    struct opcompare *ctx = *state;
    struct backend library = *snug_cuda_backend();
    library.choose = choose_library;
    ctx->small_only = true;
    compare(ctx, &library);
}

/* "2/5" is the second of five. */
static bool read_part(const char *text, struct opcompare *ctx)
{
    char end;
    if (sscanf(text, "%d/%d%c", &ctx->part, &ctx->n_parts, &end) != 2 || ctx->part < 1 ||
        ctx->part > ctx->n_parts)
        return false;
    ctx->part--;
    return true;
}

static bool read_options(int argc, char **argv, struct opcompare *ctx)
{
    for (int i = 1; i < argc; i++) {
        bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "-v") == 0)
            ctx->verbose = true;
        else if (strcmp(argv[i], "-o") == 0)
            ctx->once = true;
        else if (strcmp(argv[i], "-n") == 0)
            ctx->ignores_results = true;
        else if (strcmp(argv[i], "-c") == 0 && has_value)
            ctx->only = argv[++i];
        else if (strcmp(argv[i], "-r") == 0 && has_value)
            ctx->most_rows = atoi(argv[++i]);
        else if (strcmp(argv[i], "-p") != 0 || !has_value || !read_part(argv[++i], ctx))
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static struct opcompare ctx;
    struct snug_error err = {0};
    const char *folder = getenv("SNUG_CASES");
    const char *part = getenv("SNUG_TEST_PART");
    if ((part != NULL && !read_part(part, &ctx)) || !read_options(argc, argv, &ctx))
        return fprintf(stderr, "usage: %s [-v] [-c NAME] [-p I/N] [-o] [-r MOST] [-n]\n", argv[0]),
               2;
    if (case_list_read(folder == NULL ? "tests/ops" : folder, &ctx.cases, &err) != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    const struct CMUnitTest all[] = {
        cmocka_unit_test_prestate(test_kernels_agree_with_the_reference, &ctx),
        cmocka_unit_test_prestate(test_fallback_kernels_agree_too, &ctx),
    };
    const struct CMUnitTest watched[] = {
        cmocka_unit_test_prestate(test_own_kernels_agree_where_there_are_any, &ctx),
        cmocka_unit_test_prestate(test_library_kernels_agree_at_small_sizes, &ctx),
    };
    int n_failed = ctx.once ? cmocka_run_group_tests(watched, NULL, NULL)
                            : cmocka_run_group_tests(all, NULL, NULL);
    case_list_free(&ctx.cases);
    return n_failed;
}
