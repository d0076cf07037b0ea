/*
 * test_dropout.c -- the dropout mask: how many elements it drops, what it depends on, and that the
 * reference, every instruction level, every number of threads and the fused op use the same one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/counter_random.h"
#include "cpu/dropout_mask.h"
#include "cpu/ref/ref.h"
#include "support/oprun.h"

enum { SEED = 11, N = 40000 };

static const struct case_text text = {
    .name = "dropout",
    .line = {"in x float 40,1000 shift=5", "in zero float 40,1000 scale=0",
             "in gamma float 1000 shift=1", "in beta float 1000", "in s scalars seed=7 step=3",
             "y = dropout x s dropout=0.3 site=5",
             "sum norm mean rstd = add_layernorm zero x gamma beta s dropout=0.3 site=5"},
    .n_lines = 7,
    .use = {[CASE_sizes] = {""}},
};

static void build(enum dtype dtype, struct opcase *c)
{
    struct snug_error err = {0};
    if (opcase_build(&text, CASE_sizes, 0, dtype, SEED, c, &err) != SNUG_OK)
        fail_msg("%s", err.message);
}

static float *data(const struct opcase *c, const char *name)
{
    tensor_id id = program_find(&c->prog, name);
    assert_true(id != TENSOR_NONE);
    return c->data[id];
}

/* What the op gives at the level (NULL: the reference) on some threads.  The caller's. */
static void *dropped(struct opcase *c, int op_index, const char *level, int threads)
{
    struct snug_error err = {0};
    struct row_result result;
    struct row_run run = {.facts = {.threads = threads, .isa = backend_cpu_isa()}, .inplace = -1};
    const struct op *op = &c->prog.ops[op_index];
    oprun_set_level(level);
    run.row = level == NULL ? ref_kernel(op->kind)
                            : backend_choose(backend_cpu(), &c->prog, op, &run.facts);
    if (oprun(c, op_index, &run, &result, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    oprun_set_level(NULL);
    void *first = result.out[0];
    result.out[0] = NULL;
    row_result_free(&result);
    return first;
}

static void test_mean_and_variance(void **state)
{
    (void)state;
    struct opcase c;
    build(DTYPE_f32, &c);
    const float *x = data(&c, "x");
    float *y = dropped(&c, 0, NULL, 1);
    int n_dropped = 0, n_pairs = 0;
    for (int i = 0; i < N; i++) {
        assert_true(y[i] == 0.0f || y[i] == x[i] * (float)(1 / (1 - 0.3)));
        n_dropped += y[i] == 0.0f;
        n_pairs += i > 0 && y[i] == 0.0f && y[i - 1] == 0.0f;
    }
    /* binomial: 4 deviations */
    double deviation = sqrt(0.3 * 0.7 / N), pair_deviation = sqrt(0.09 * 0.91 / N) * 1.5;
    assert_true(fabs((double)n_dropped / N - 0.3) < 4 * deviation);
    assert_true(fabs((double)n_pairs / N - 0.09) < 4 * pair_deviation);
    free(y);
    opcase_free(&c);
}

static void test_everybody_makes_the_same_mask(void **state)
{
    (void)state;
    static const char *const levels[] = {"base", "v3", "v4", "amx-emulated"};
    for (enum dtype dtype = DTYPE_f32; dtype <= DTYPE_f16; dtype++) {
        struct opcase c;
        build(dtype, &c);
        size_t bytes = N * dtype_bytes(dtype);
        void *right = dropped(&c, 0, NULL, 1);
        for (size_t k = 0; k < sizeof levels / sizeof *levels; k++)
            for (int threads = 1; threads <= 3; threads++)
                for (int op = 0; op < 2; op++) { /* alone, and added to zeros by the fused op */
                    if (!oprun_set_level(levels[k]))
                        continue;
                    void *got = dropped(&c, op, levels[k], threads);
                    if (memcmp(got, right, bytes) != 0)
                        fail_msg("op %d in %s at %s on %d threads", op, dtype_name(dtype),
                                 levels[k], threads);
                    free(got);
                }
        free(right);
        opcase_free(&c);
    }
}

/* How many of the elements are treated alike by two masks. */
static int count_alike(const float *a, const float *b)
{
    int n = 0;
    for (int i = 0; i < N; i++)
        n += (a[i] == 0.0f) == (b[i] == 0.0f);
    return n;
}

static void test_seed_step_and_site_key_the_mask(void **state)
{
    (void)state;
    struct opcase c;
    build(DTYPE_f32, &c);
    double *scalars = (double *)(void *)data(&c, "s");
    float *first = dropped(&c, 0, NULL, 1);
    for (int change = 0; change < 3; change++) {
        double *place = &scalars[change == 0 ? SCALAR_seed : SCALAR_step];
        struct dropout_attrs *attrs = attrs_of(&c.prog.ops[0], dropout);
        attrs->site += change == 2;
        *place += change < 2;
        float *other = dropped(&c, 0, NULL, 1);
        attrs->site -= change == 2;
        *place -= change < 2;
        /* independent masks agree at 0.3^2 + 0.7^2 of the places */
        double share = (double)count_alike(first, other) / N;
        assert_true(fabs(share - 0.58) < 4 * sqrt(0.58 * 0.42 / N));
        free(other);
    }
    float *again = dropped(&c, 0, NULL, 1);
    assert_int_equal(count_alike(first, again), N);
    free(first);
    free(again);
    opcase_free(&c);
}

/* The numbers of splitmix64 as its authors' C program prints them for seed 1234567. */
static void test_the_generator(void **state)
{
    (void)state;
    static const uint64_t right[] = {6457827717110365317u, 3203168211198807973u,
                                     9817491932198370423u, 4593380528125082431u};
    for (uint64_t i = 0; i < 4; i++)
        assert_true(counter_hash(1234567, i) == right[i]);
}

/* Many at once are made from half of the index; where the other half changes, it must be noticed. */
static void test_many_factors_are_those_of_each(void **state)
{
    (void)state;
    static const uint64_t firsts[] = {0, 12345, 0x1p32 - 20, 0x1p32 - 64, 0x3p32 + 5};
    static const uint64_t steps[] = {1, 1000};
    const struct dropout dropout = {.key = 0x123456789abcdefu, .below = 1u << 31, .scale = 2.0f};
    float factors[64];
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++)
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
            dropout_factors(&dropout, firsts[i], steps[k], 64, factors);
            for (uint64_t n = 0; n < 64; n++)
                assert_true(factors[n] == dropout_factor(&dropout, firsts[i] + n * steps[k]));
        }
}

static void test_what_is_dropped_is_zero(void **state)
{
    (void)state;
    struct opcase c;
    build(DTYPE_f32, &c);
    float *x = data(&c, "x");
    for (int i = 0; i < N; i++)
        x[i] = INFINITY;
    for (int fast = 0; fast < 2; fast++) {
        float *y = dropped(&c, 0, fast ? "v4" : NULL, 1);
        for (int i = 0; i < N; i++)
            assert_true(y[i] == 0.0f || y[i] == INFINITY);
        free(y);
    }
    opcase_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mean_and_variance),
        cmocka_unit_test(test_everybody_makes_the_same_mask),
        cmocka_unit_test(test_seed_step_and_site_key_the_mask),
        cmocka_unit_test(test_the_generator),
        cmocka_unit_test(test_many_factors_are_those_of_each),
        cmocka_unit_test(test_what_is_dropped_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
