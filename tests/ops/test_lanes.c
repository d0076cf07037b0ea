/*
 * test_lanes.c -- the vector functions that run between tile instructions, against libm in double.
 *
 * In the op cases bf16 would hide errors of a percent.  Compiled with AVX-512, like the kernels, if
 * the compiler supports it (see the Makefile); skipped on a CPU without it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "cpu/amx/amx_lanes.h"

typedef struct lanes lanes_fn(struct lanes x);

/* The largest error of fn over [from, to], relative to |true value| + floor. */
static double largest_error(lanes_fn *fn, double (*truth)(double), double from, double to,
                            double floor)
{
    enum { STEPS = 20000 };
    double largest = 0;
    for (int i = 0; i < STEPS; i++) {
        float x[TILE_SIDE], y[TILE_SIDE];
        for (int lane = 0; lane < TILE_SIDE; lane++)
            x[lane] = (float)(from + (to - from) * (i + lane / (double)TILE_SIDE) / STEPS);
        lanes_store(y, fn(lanes_load(x)));
        for (int lane = 0; lane < TILE_SIDE; lane++) {
            double expected = truth((double)x[lane]);
            double error = fabs((double)y[lane] - expected) / (fabs(expected) + floor);
            largest = error > largest || isnan(error) ? error : largest;
        }
    }
    return largest;
}

static struct lanes power_of_2(struct lanes x)
{
    return lanes_exp2(x, lanes_all(1.0f), lanes_all(0.0f));
}

static double inverse(double x)
{
    return 1 / x;
}

static double tanh_of(double x)
{
    return tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh_of(x));
}

static double gelu_slope(double x)
{
    double t = tanh_of(x), inner = 0.7978845608028654 * (1 + 0.134145 * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
}

static void test_functions(void **state)
{
    (void)state;
    /* In plain C the exponent is rounded once more, which is 100 ln 2 / 2^24 = 4.1e-6 at the ends. */
    assert_true(largest_error(power_of_2, exp2, -30, 30, 0) < 4e-6);
    assert_true(largest_error(power_of_2, exp2, -100, 100, 0) < 6e-6);
    assert_true(largest_error(lanes_inverse, inverse, 1, 1e4, 0) < 2e-7);
    assert_true(largest_error(lanes_inverse, inverse, 1e30, 1e36, 0) < 2e-7);
    assert_true(largest_error(lanes_gelu, gelu, -6, 6, 1e-6) < 1e-5);
    assert_true(largest_error(lanes_gelu_slope, gelu_slope, -6, 6, 1e-2) < 2e-5);
    assert_true(largest_error(lanes_gelu, gelu, 6, 100, 0) < 1e-5);
    assert_true(largest_error(lanes_gelu, gelu, -100, -10, 1) < 1e-6);
    assert_true(largest_error(lanes_gelu_slope, gelu_slope, -100, -10, 1) < 1e-6);
}

/* Apart from main, which must not use what the CPU may not have before it has asked. */
static __attribute__((noinline)) int run(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_functions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
#if defined(__AVX512F__)
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl"))
        return puts("skip: compiled with AVX-512, which this CPU has not"), 77;
#endif
    return run();
}
