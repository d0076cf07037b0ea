/*
 * test_simd_gemm.c -- our own fp32 matmul: every instruction level of this CPU, and tiles as wide
 * as AVX-512's on any CPU.
 *
 * Operands are integers, so results are exact in any order.  A workspace of exactly the booked size
 * lies between guards and starts as NaN.  So do the gaps between the rows of C, which must not
 * change.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

/* A copy of the source for registers that the compiler makes up. */
#define SNUG_LEVEL          emulated
#define SNUG_EMULATED_LANES 16
#include "cpu/simd/simd_gemm.c"
#include "cpu/cpu_isa.h"

enum { GUARD_FLOATS = 64 };

typedef void gemm_fn(int threads, const struct gemm_shape *shape, const float *a, const float *b,
                     float *c, bool add, float *work);

struct matrix {
    float *data;
    int64_t n, step_row, step_col; /* floats in all, between rows and between columns */
};

/* rows x cols, or stored the other way round, with `gap` floats between what is stored side by side. */
static struct matrix matrix_make(int64_t rows, int64_t cols, bool transposed, int64_t gap,
                                 uint64_t stream)
{
    int64_t lines = transposed ? cols : rows, line = (transposed ? rows : cols) + gap;
    struct matrix m = {malloc((size_t)(lines * line) * sizeof(float)), lines * line,
                       transposed ? 1 : line, transposed ? line : 1};
    assert_non_null(m.data);
    for (int64_t i = 0; i < m.n; i++)
        m.data[i] = (float)((int)(17 * rng_uniform(1, stream, (uint64_t)i)) - 8);
    for (int64_t i = 0; gap > 0 && i < m.n; i++)
        if (i % line >= line - gap)
            m.data[i] = NAN;
    return m;
}

static float at(const struct matrix *m, int64_t row, int64_t col)
{
    return m->data[row * m->step_row + col * m->step_col];
}

static void expect(const struct gemm_shape *s, const struct matrix *a, const struct matrix *b,
                   bool add, struct matrix *c)
{
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double sum = add ? (double)at(c, i, j) : 0;
            for (int64_t k = 0; k < s->k; k++)
                sum += (double)at(a, i, k) * (double)at(b, k, j);
            c->data[i * c->step_row + j] = (float)sum;
        }
}

static void run_guarded(gemm_fn *gemm, int threads, const struct gemm_shape *s,
                        const struct matrix *a, const struct matrix *b, bool add, float *c)
{
    int64_t n_work = (int64_t)(gemm_plain_work_bytes(s, threads) / sizeof(float));
    size_t bytes = (size_t)padded_floats(n_work + 2 * GUARD_FLOATS) * sizeof(float);
    float *room = aligned_alloc(WORK_ALIGN, bytes);
    assert_non_null(room);
    memset(room, 0xff, bytes);
    gemm(threads, s, a->data, b->data, c, add, room + GUARD_FLOATS);
    for (int64_t i = 0; i < GUARD_FLOATS; i++) {
        assert_true(float_bits(room[i]) == UINT32_MAX);
        assert_true(float_bits(room[GUARD_FLOATS + n_work + i]) == UINT32_MAX);
    }
    free(room);
}

static void check(gemm_fn *gemm, const char *what, int64_t m, int64_t n, int64_t k, unsigned how)
{
    bool a_transposed = how & 1u, b_transposed = how >> 1 & 1u, add = how >> 2 & 1u;
    int64_t gap = how >> 3 & 1u ? 5 : 0;
    struct matrix a = matrix_make(m, k, a_transposed, gap, 1);
    struct matrix b = matrix_make(k, n, b_transposed, gap, 2);
    struct matrix c = matrix_make(m, n, false, gap, 3);
    struct gemm_shape s = {.m = m,
                           .n = n,
                           .k = k,
                           .a_transposed = a_transposed,
                           .b_transposed = b_transposed,
                           .lda = a_transposed ? a.step_col : a.step_row,
                           .ldb = b_transposed ? b.step_col : b.step_row,
                           .ldc = c.step_row,
                           .may_add = add};
    size_t bytes = (size_t)c.n * sizeof(float);
    float *begin = malloc(bytes), *got = malloc(bytes);
    assert_non_null(begin);
    assert_non_null(got);
    memcpy(begin, c.data, bytes);
    expect(&s, &a, &b, add, &c);
    for (int threads = 1; threads <= 3; threads += 2) {
        memcpy(got, begin, bytes);
        run_guarded(gemm, threads, &s, &a, &b, add, got);
        if (memcmp(got, c.data, bytes) != 0)
            fail_msg("%s: %lld x %lld x %lld, way %u, %d threads: wrong", what, (long long)m,
                     (long long)n, (long long)k, how, threads);
    }
    free(begin);
    free(got);
    free(a.data);
    free(b.data);
    free(c.data);
}

/* Below, at and above a strip, an item, a square, a panel's width and its depth. */
static void check_shapes(gemm_fn *gemm, const char *what)
{
    static const int64_t ms[] = {1, 3, 7, 8, 23, 24, 25, 61};
    static const int64_t ns[] = {1, 7, 8, 47, 48, 49, 97, 719, 767, 768, 769, 800, 1601};
    static const int64_t ks[] = {1, 3, 15, 16, 17, 31, 383, 384, 385, 769};
    enum { N_MS = sizeof ms / 8, N_NS = sizeof ns / 8, N_KS = sizeof ks / 8, N_RUNS = 400 };
    for (unsigned i = 0; i < N_RUNS; i++) /* each of its own; all pairs of sizes come */
        check(gemm, what, ms[i % N_MS], ns[i / N_MS % N_NS], ks[i % N_KS], i * 7 / 3 % 16);
}

static void test_levels(void **state)
{
    static const char *const levels[] = {"base", "v3", "v4"};
    (void)state;
    const struct cpu_loops *before = NULL;
    for (int i = 0; i < 3; i++) {
        setenv("SNUG_CPU_LEVEL", levels[i],
               1); /* what this CPU has not is the highest that it has */
        const struct cpu_loops *loops = cpu_isa_find()->loops;
        if (loops != before)
            check_shapes(loops->gemm, levels[i]);
        before = loops;
    }
    unsetenv("SNUG_CPU_LEVEL");
}

static void test_wide_tiles(void **state)
{
    (void)state;
    check_shapes(simd_gemm_emulated, "16 lanes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels),
                                       cmocka_unit_test(test_wide_tiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
