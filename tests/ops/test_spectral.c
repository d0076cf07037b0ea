/*
 * test_spectral.c -- eigenvectors and orthonormal rows, ours and LAPACK's, checked by their
 * definition: A q = value q, Q Q^T = I, and Z = R Q with zeros above the diagonal of R.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "optim/eigen.h"

enum { SIDE_MOST = 70 };
static const int64_t sides[] = {1, 2, 3, 17, SIDE_MOST};
enum { N_SIDES = sizeof sides / sizeof *sides };

/* Symmetric, and of rank n / 2 + 1: half of the values are 0, as in the statistics of a tall matrix. */
static void fill(int64_t n, double *a, uint64_t seed)
{
    for (int64_t i = 0; i < n * n; i++)
        a[i] = 0;
    for (int64_t k = 0; k < n / 2 + 1; k++)
        for (int64_t i = 0; i < n * n; i++) {
            double x = (double)rng_u64(seed, (uint64_t)k, (uint64_t)(i / n)) * 0x1p-64 - 0.5;
            double y = (double)rng_u64(seed, (uint64_t)k, (uint64_t)(i % n)) * 0x1p-64 - 0.5;
            a[i] += x * y;
        }
}

static double dot(int64_t n, const double *a, const double *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void expect_orthonormal(int64_t n, const double *q, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            assert_true(fabs(dot(n, q + i * n, q + j * n) - (i == j)) < tolerance);
}

static void expect_vectors(int64_t n, const double *a, const double *q, const double *values,
                           double tolerance)
{
    expect_orthonormal(n, q, tolerance);
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < n; i++)
            assert_true(fabs(dot(n, a + i * n, q + k * n) - values[k] * q[k * n + i]) <
                        tolerance * (double)n);
}

static void check_eigen(int64_t n, void *work, bool quick)
{
    static double a[SIDE_MOST * SIDE_MOST], q[SIDE_MOST * SIDE_MOST], values[SIDE_MOST];
    static float narrow[SIDE_MOST * SIDE_MOST], narrow_values[SIDE_MOST];
    fill(n, a, 3);
    for (int64_t i = 0; i < n * n; i++)
        q[i] = narrow[i] = (float)a[i];
    assert_true(eigen_f64(n, q, values, work));
    expect_vectors(n, a, q, values, 1e-6); /* of an `a` that was rounded */
    assert_true(eigen_f32(n, narrow, narrow_values, quick, true, work));
    for (int64_t i = 0; i < n * n; i++)
        q[i] = (double)narrow[i];
    for (int64_t i = 0; i < n; i++)
        values[i] = (double)narrow_values[i];
    expect_vectors(n, a, q, values, 1e-5);
}

static void check_orthonormal(int64_t n, void *work)
{
    static double z[SIDE_MOST * SIDE_MOST], q[SIDE_MOST * SIDE_MOST];
    static float narrow[SIDE_MOST * SIDE_MOST];
    fill(n, z, 5);
    for (int64_t i = 0; i < n * n; i++)
        q[i] = narrow[i] = (float)z[i];
    assert_true(orthonormal_f64(n, q, work));
    expect_orthonormal(n, q, 1e-12);
    assert_true(orthonormal_f32(n, narrow, work));
    for (int64_t i = 0; i < n * n; i++)
        q[i] = (double)narrow[i];
    expect_orthonormal(n, q, 1e-5);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++)
            assert_true(fabs(dot(n, z + i * n, q + j * n)) < 1e-5);
}

static void test_what_defines_them(void **state)
{
    (void)state;
    void *work = malloc(spectral_work_bytes(SIDE_MOST));
    assert_non_null(work);
    for (int i = 0; i < N_SIDES; i++) {
        check_eigen(sides[i], work, true);
        check_eigen(sides[i], work, false);
        check_orthonormal(sides[i], work);
    }
    free(work);
}

static void test_numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    float a[4] = {1, NAN, NAN, 1}, z[4] = {1, INFINITY, 0, 1}, values[2];
    double wide[4] = {1, NAN, NAN, 1}, wide_z[4] = {1, INFINITY, 0, 1}, wide_values[2];
    void *work = malloc(spectral_work_bytes(2));
    assert_non_null(work);
    assert_false(eigen_f32(2, a, values, true, true, work));
    assert_false(eigen_f64(2, wide, wide_values, work));
    assert_false(orthonormal_f32(2, z, work));
    assert_false(orthonormal_f64(2, wide_z, work));
    free(work);
}

static void test_them_with_lapack(void **state)
{
    spectral_load(); /* without it our own loops serve, and are tested a second time */
    test_what_defines_them(state);
    test_numbers_that_are_not_finite_are_refused(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_defines_them),
        cmocka_unit_test(test_numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(test_them_with_lapack),
    };
    return cmocka_run_group_tests_name("spectral", tests, NULL, NULL);
}
