/*
 * test_cuda_gemm.c -- matmuls on the device against plain sums in double: every epilogue, transposes,
 * rows with gaps, batches, and results that alias an operand.
 *
 * Epilogues that the library refuses are listed and not a failure: the kernels work without them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "cuda/cuda.h"
#include "cuda/lib/cuda_gemm.h"

static const char *const end_names[] = {"plain",  "bias",   "gelu",      "dgelu",
                                        "sums_a", "sums_b", "dgelu_sums"};

/* The operands of a matmul; those of `type` first. */
enum operand_name { A, B, BIAS, R, BEFORE, C, SUMS, WORK, N_OPERANDS };

struct bench {
    const struct backend *backend;
    struct device *device;
    struct cuda_gemm_shape shape; /* unpacked */
    struct gemm_case {
        const char *what;
        struct cuda_gemm_shape shape;
        float alpha, beta;
        bool r_is_c;
    } test;
    int64_t n[N_OPERANDS];
    void *host[N_OPERANDS], *on_device[N_OPERANDS];
};

static enum dtype type_of(const struct bench *t, int k)
{
    return k == WORK ? DTYPE_u8 : k == A || k == B ? t->shape.type : t->shape.c_type;
}

static double value(const struct bench *t, int k, int64_t at)
{
    return dtype_load(type_of(t, k), t->host[k], at);
}

static void make_operands(struct bench *t)
{
    const struct cuda_gemm_shape *s = &t->shape;
    struct snug_error err = {0};
    unsigned state = 7;
    t->n[A] = (s->n_batch - 1) * s->batch_a + (s->a_transposed ? s->k : s->m) * s->lda;
    t->n[B] = (s->n_batch - 1) * s->batch_b + (s->b_transposed ? s->n : s->k) * s->ldb;
    t->n[C] = t->n[R] = (s->n_batch - 1) * s->batch_c + s->m * s->ldc;
    t->n[BIAS] = s->n;
    t->n[BEFORE] = s->m * s->n;
    t->n[SUMS] = s->m > s->n ? s->m : s->n;
    t->n[WORK] = (int64_t)cuda_gemm_work_bytes(s);
    for (int k = 0; k < N_OPERANDS; k++) {
        enum dtype type = type_of(t, k);
        size_t bytes = (size_t)t->n[k] * dtype_bytes(type);
        t->host[k] = calloc(1, bytes);
        t->on_device[k] = t->backend->alloc(bytes);
        assert_non_null(t->host[k]);
        assert_non_null(t->on_device[k]);
        for (int64_t i = 0; i < t->n[k] && k < C; i++) {
            state = state * 1664525u + 1013904223u;
            dtype_store(type, t->host[k], i, (double)(state >> 8) / (1 << 23) - 1.0);
        }
        if (k == C && t->test.r_is_c)
            memcpy(t->host[C], t->host[R], bytes);
        assert_int_equal(
            t->backend->hooks->write(t->device, t->on_device[k], t->host[k], (int64_t)bytes, &err),
            SNUG_OK);
    }
}

static void free_operands(struct bench *t)
{
    for (int k = 0; k < N_OPERANDS; k++) {
        free(t->host[k]);
        t->backend->release(t->on_device[k], (size_t)t->n[k] * dtype_bytes(type_of(t, k)));
    }
}

static double gelu_u(double x)
{
    return tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
}

static double a_at(const struct bench *t, int64_t b, int64_t i, int64_t k)
{
    const struct cuda_gemm_shape *s = &t->shape;
    return value(t, A, b * s->batch_a + (s->a_transposed ? k * s->lda + i : i * s->lda + k));
}

static double b_at(const struct bench *t, int64_t b, int64_t k, int64_t j)
{
    const struct cuda_gemm_shape *s = &t->shape;
    return value(t, B, b * s->batch_b + (s->b_transposed ? j * s->ldb + k : k * s->ldb + j));
}

/* The expected C at i, j of matmul b; *before: the input of GELU. */
static double wanted(const struct bench *t, int64_t b, int64_t i, int64_t j, double *before)
{
    const struct cuda_gemm_shape *s = &t->shape;
    double sum = 0.0;
    for (int64_t k = 0; k < s->k; k++)
        sum += a_at(t, b, i, k) * b_at(t, b, k, j);
    sum *= (double)t->test.alpha;
    if (t->test.beta != 0.0f)
        sum += (double)t->test.beta * value(t, R, b * s->batch_c + i * s->ldc + j);
    if (s->epilogue == GEMM_bias || s->epilogue == GEMM_gelu)
        sum += value(t, BIAS, j);
    *before = sum;
    if (s->epilogue == GEMM_gelu)
        return 0.5 * sum * (1.0 + gelu_u(sum));
    if (s->epilogue == GEMM_dgelu || s->epilogue == GEMM_dgelu_sums) {
        double x = value(t, BEFORE, i * s->n + j), u = gelu_u(x);
        double slope = 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * x * x);
        return sum * (0.5 * (1.0 + u) + 0.5 * x * (1.0 - u * u) * slope);
    }
    return sum;
}

static void read_back(struct bench *t, int k, void *to)
{
    struct snug_error err = {0};
    size_t bytes = (size_t)t->n[k] * dtype_bytes(type_of(t, k));
    assert_int_equal(t->backend->hooks->read(t->device, t->on_device[k], to, (int64_t)bytes, &err),
                     SNUG_OK);
}

static void check_near(const struct bench *t, const char *of, int64_t i, int64_t j, double got,
                       double want)
{
    double allowed = t->shape.c_type == DTYPE_f32 ? 1e-4 : 0.04;
    if (!(fabs(got - want) <= allowed * (1.0 + fabs(want))))
        fail_msg("%s, %s, %s [%lld,%lld]: %g, not %g", t->test.what, end_names[t->shape.epilogue],
                 of, (long long)i, (long long)j, got, want);
}

/* Column sums of C, which is read back. */
static void check_sums_of_c(struct bench *t)
{
    const struct cuda_gemm_shape *s = &t->shape;
    for (int64_t j = 0; j < s->n; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < s->m; i++)
            sum += value(t, C, i * s->ldc + j);
        check_near(t, "sum", j, 0, value(t, SUMS, j), sum);
    }
}

static void check_sums(struct bench *t)
{
    const struct cuda_gemm_shape *s = &t->shape;
    bool of_a = s->epilogue == GEMM_sums_a;
    read_back(t, SUMS, t->host[SUMS]);
    if (s->epilogue == GEMM_dgelu_sums) {
        check_sums_of_c(t);
        return;
    }
    for (int64_t i = 0; i < (of_a ? s->m : s->n); i++) {
        double sum = 0.0;
        for (int64_t k = 0; k < s->k; k++)
            sum += of_a ? a_at(t, 0, i, k) : b_at(t, 0, k, i);
        check_near(t, "sum", i, 0, value(t, SUMS, i), sum);
    }
}

static void check_results(struct bench *t)
{
    const struct cuda_gemm_shape *s = &t->shape;
    bool keeps = s->epilogue == GEMM_gelu && s->saves_pre_act;
    void *before = calloc((size_t)t->n[BEFORE], dtype_bytes(s->c_type));
    assert_non_null(before);
    read_back(t, C, t->host[C]);
    if (keeps)
        read_back(t, BEFORE, before);
    for (int64_t b = 0; b < s->n_batch; b++)
        for (int64_t i = 0; i < s->m; i++)
            for (int64_t j = 0; j < s->n; j++) {
                double seen = 0.0, want = wanted(t, b, i, j, &seen);
                check_near(t, "C", i, j, value(t, C, b * s->batch_c + i * s->ldc + j), want);
                if (keeps)
                    check_near(t, "before", i, j, dtype_load(s->c_type, before, i * s->n + j),
                               seen);
            }
    if (s->epilogue >= GEMM_sums_a)
        check_sums(t);
    free(before);
}

/* Returns false if the library refuses it. */
static bool run_one(struct bench *t)
{
    struct snug_error err = {0};
    struct cuda_gemm *gemm = NULL;
    if (cuda_gemm_prepare(&t->test.shape, &gemm, &err) != SNUG_OK)
        fail_msg("%s: %s", t->test.what, err.message);
    if (gemm == NULL)
        return false;
    t->shape = cuda_gemm_unpacked(&t->test.shape);
    make_operands(t);
    struct cuda_gemm_call call = {.a = t->on_device[A],
                                  .b = t->on_device[B],
                                  .c = t->on_device[C],
                                  .r = t->on_device[t->test.r_is_c ? C : R],
                                  .alpha = t->test.alpha,
                                  .beta = t->test.beta,
                                  .bias = t->on_device[BIAS],
                                  .pre_act = t->on_device[BEFORE],
                                  .sums = t->on_device[SUMS],
                                  .work = t->on_device[WORK],
                                  .stream = t->backend->hooks->stream(t->device)};
    if (cuda_gemm_run(gemm, &call, &err) != SNUG_OK ||
        t->backend->hooks->synchronize(t->device, &err) != SNUG_OK)
        fail_msg("%s: %s", t->test.what, err.message);
    check_results(t);
    cuda_gemm_release(gemm);
    free_operands(t);
    return true;
}

#define SIZES .m = 48, .n = 32, .k = 24
static const struct gemm_case cases[] = {
    {"as it lies", {SIZES}, 1.0f, 0.0f, false},
    {"A transposed", {SIZES, .a_transposed = true}, 1.0f, 0.0f, false},
    {"B transposed", {SIZES, .b_transposed = true}, 1.0f, 0.0f, false},
    {"both transposed", {SIZES, .a_transposed = true, .b_transposed = true}, 1.0f, 0.0f, false},
    {"a factor, and R apart", {SIZES}, 0.5f, 2.0f, false},
    {"added to C", {SIZES}, 1.0f, 1.0f, true},
    {"rows that are not packed", {SIZES, .lda = 40, .ldb = 64, .ldc = 48}, 1.0f, 1.0f, true},
    {"odd sizes", {.m = 7, .n = 5, .k = 3}, 1.0f, 0.0f, false},
};

static struct bench bench;

static const enum dtype types[][2] = {{DTYPE_f32, DTYPE_f32},
                                      {DTYPE_bf16, DTYPE_bf16},
                                      {DTYPE_bf16, DTYPE_f32},
                                      {DTYPE_f16, DTYPE_f16}};
enum { N_TYPES = sizeof types / sizeof *types, N_CASES = sizeof cases / sizeof *cases };

static void run_types(const struct gemm_case *test, int *n_run, int *n_refused)
{
    for (int i = 0; i < N_TYPES; i++) {
        bench.test = *test;
        bench.test.shape.type = types[i][0];
        bench.test.shape.c_type = types[i][1];
        bool ran = run_one(&bench);
        (*n_run)++;
        *n_refused += !ran;
        if (!ran)
            print_message("  refused: %s, end %s, %s to %s\n", test->what,
                          end_names[test->shape.epilogue], dtype_name(types[i][0]),
                          dtype_name(types[i][1]));
    }
}

static void test_plain(void **state)
{
    (void)state;
    int n_run = 0, n_refused = 0;
    for (int i = 0; i < N_CASES; i++)
        run_types(&cases[i], &n_run, &n_refused);
    struct gemm_case batch = {
        "a batch",
        {SIZES, .n_batch = 3, .batch_a = 48 * 24, .batch_b = 24 * 32, .batch_c = 48 * 32},
        1.0f,
        1.0f,
        true};
    run_types(&batch, &n_run, &n_refused);
    batch.what = "a batch that shares B";
    batch.shape.batch_b = 0;
    run_types(&batch, &n_run, &n_refused);
    assert_int_equal(n_refused, 0);
    assert_int_equal(n_run, (N_CASES + 2) * N_TYPES);
}

static void test_ends(void **state)
{
    (void)state;
    int n_run = 0, n_refused = 0;
    for (int end = GEMM_bias; end <= GEMM_dgelu_sums; end++)
        for (int t = 0; t < 4; t++) {
            struct gemm_case test = {cases[t].what, cases[t].shape, 1.0f, 0.0f, false};
            test.shape.epilogue = (enum cuda_gemm_epilogue)end;
            test.shape.has_bias = test.shape.saves_pre_act = end == GEMM_gelu;
            run_types(&test, &n_run, &n_refused);
        }
    print_message("  %d of %d ends refused\n", n_refused, n_run);
    assert_true(n_refused < n_run);
}

static void test_what_does_not_fit(void **state)
{
    (void)state;
    struct cuda_gemm_shape odd = {.m = 8, .n = 5, .k = 8, .epilogue = GEMM_dgelu};
    struct cuda_gemm_shape batch = {SIZES, .n_batch = 2, .epilogue = GEMM_bias};
    struct cuda_gemm_shape large = {.m = 65536, .n = 3072, .k = 768};
    struct cuda_gemm_shape small = {.m = 1, .n = 1, .k = 1};
    assert_false(cuda_gemm_epilogue_fits(&odd));
    assert_false(cuda_gemm_epilogue_fits(&batch));
    assert_true(cuda_gemm_work_bytes(&large) == (size_t)32 << 20);
    assert_true(cuda_gemm_work_bytes(&small) == (size_t)64 << 10);
}

int main(void)
{
    struct snug_error err = {0};
    bench.backend = snug_cuda_backend();
    if (bench.backend->hooks->open(0, &bench.device, &err) != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_what_does_not_fit),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench.backend->hooks->close(bench.device);
    return n_failed;
}
