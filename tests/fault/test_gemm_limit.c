/*
 * test_gemm_limit.c -- matmuls under a memory limit: they succeed with the same bits or return
 * an error status, wherever memory runs out.  A library that does not handle that must not kill the
 * process.
 *
 * Each attempt is a child process that may allocate only so much more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cpu/cpu_isa.h"
#include "cpu/gemm/gemm.h"
#include "support/signals.h"

enum { M = 40, N = 96, K = 600, STEP_BYTES = 256 << 10, N_STEPS = 100 };

static float a[M * K], b[K * N], c[M * N], wanted[M * N];
static _Alignas(64) unsigned char work[8 << 20];

static const struct gemm_shape shape = {
    .m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldc = N, .may_add = true};

static int64_t size_now(void)
{
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lld", &pages), 1);
    fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* The status of the first that failed. */
static enum snug_status multiply(struct snug_error *err)
{
    struct gemm *gemm;
    enum snug_status status = gemm_prepare(&shape, 1, cpu_isa_find()->loops, &gemm, err);
    if (status == SNUG_OK)
        status = gemm_run(gemm, a, b, c, false, work, err);
    if (status == SNUG_OK)
        status = gemm_run(gemm, a, b, c, true, work, err);
    gemm_release(gemm);
    return status;
}

/* In a child with `more` bytes; 0: done with the same bits, 1: no memory, else: wrong. */
static int try_with(int64_t more)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct snug_error err = {0};
        struct rlimit limit = {(rlim_t)(size_now() + more), (rlim_t)(size_now() + more)};
        signals_leave_alone();
        (void)freopen("/dev/null", "w", stderr); /* for the words of whoever aborts */
        if (setrlimit(RLIMIT_AS, &limit) != 0)
            _exit(99);
        enum snug_status status = multiply(&err);
        if (status == SNUG_OK)
            _exit(memcmp(c, wanted, sizeof c) == 0 ? 0 : 2);
        _exit(status == SNUG_NO_MEMORY ? 1 : 3);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_limits(void **state)
{
    (void)state;
    int n_made = 0, n_refused = 0;
    struct snug_error err = {0};
    assert_true(gemm_work_bytes(&shape, 1) <= sizeof work);
    for (int i = 0; i < M * K; i++)
        a[i] = (float)(i * 7 % 23) / 11 - 1;
    for (int i = 0; i < K * N; i++)
        b[i] = (float)(i * 5 % 19) / 7 - 1;
#ifdef __SANITIZE_ADDRESS__
    (void)n_made, (void)n_refused, (void)err;
    print_message("skip: asan needs more addresses than a limit leaves\n");
    skip();
#endif
    /* what the children compare with is made in one of them: this process stays as it was */
    float *shared =
        mmap(NULL, sizeof wanted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        enum snug_status status = multiply(&err);
        memcpy(shared, c, sizeof c);
        _exit(status != SNUG_OK);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    memcpy(wanted, shared, sizeof wanted);
    for (int i = 0; i < N_STEPS; i++) {
        int got = try_with((int64_t)i * STEP_BYTES);
        n_made += got == 0;
        n_refused += got == 1;
        if (got > 1)
            print_message("with %d KiB more: %s %d\n", i * (STEP_BYTES >> 10),
                          got > 1000 ? "signal" : "exit", got > 1000 ? got - 1000 : got);
    }
    print_message("%d made, %d refused, %d wrong\n", n_made, n_refused,
                  N_STEPS - n_made - n_refused);
    assert_int_equal(n_made + n_refused, N_STEPS);
    assert_true(n_made > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
