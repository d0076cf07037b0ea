/*
 * test_modes.c -- a run leaves the caller's thread as it was: denormals, thread counts.
 *
 * Kernels run with denormals flushed to zero and with the declared number of threads.  Neither may
 * affect the program that calls the library, nor the threads that OpenMP keeps for it.  With -t,
 * measures what setting the modes costs a run.
 */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#if defined(SNUG_OPENMP)
#include <omp.h>
#endif

#include <cmocka.h>

#include "exec/exec.h"
#include "support/booked.h"

static const struct device_rates rates = {.flops = 1e9, .bytes = 1e9};

static int max_threads(void)
{
#if defined(SNUG_OPENMP)
    return omp_get_max_threads();
#else
    return 1;
#endif
}

static bool keeps_denormals(void)
{
    volatile float small = FLT_MIN, half = 0.5f;
    return small * half != 0.0f;
}

/* How many of the threads that OpenMP gives this one flush denormals to zero. */
static int count_flushing(int threads)
{
    int n_flushing = 0;
    (void)threads; /* without OpenMP */
#pragma omp parallel num_threads(threads) reduction(+ : n_flushing)
    n_flushing += !keeps_denormals();
    return n_flushing;
}

struct machine {
    struct program prog;
    struct plan plan;
    struct device_facts facts;
    struct exec *exec;
    int n_fed, n_fed_flushing;
};

/* The feed runs between the kernels, in their modes. */
static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    struct machine *m = user;
    (void)micro;
    m->n_fed++;
    m->n_fed_flushing += !keeps_denormals() && max_threads() == m->facts.threads;
    for (int i = 0; i < m->prog.n_tensors; i++)
        if (m->prog.tensors[i].role == ROLE_input)
            memset(exec_data(m->exec, i), 0, (size_t)tensor_bytes(&m->prog, i));
    return m->n_fed == 3 ? snug_fail(err, SNUG_BAD_FILE, "no more data") : SNUG_OK;
}

static void build(struct machine *m, int threads)
{
    struct snug_error err = {0};
    *m = (struct machine){.facts = {.threads = threads, .isa = backend_cpu_isa()}};
    if (program_parse("tensor x input f32 [64 300]; tensor w parameter f32 [300 300] persistent; "
                      "tensor y activation f32 [64 300]; tensor z activation f32 [64 300] output; "
                      "y = linear x, w; z = act y {act=gelu}",
                      &m->prog, &err) != SNUG_OK ||
        program_verify(&m->prog, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    const struct backend *cpu = backend_cpu();
    book_kernels(&m->prog, cpu, &m->facts);
    if (plan_make(&m->prog, cpu->alignment, &rates, &m->plan, &err) != SNUG_OK ||
        exec_create(&m->prog, &m->plan, cpu, &m->facts, NULL, &m->exec, &err) != SNUG_OK)
        fail_msg("%s", err.message);
}

static void forget(struct machine *m)
{
    exec_free(m->exec);
    plan_free(&m->plan);
    program_free(&m->prog);
}

static void expect_untouched(const char *after, int threads_before)
{
    if (!keeps_denormals() || count_flushing(3) != 0)
        fail_msg("after %s the caller's denormals are flushed to zero", after);
    if (max_threads() != threads_before)
        fail_msg("after %s the caller has %d threads and not %d", after, max_threads(),
                 threads_before);
}

static void test_modes_come_back(void **state)
{
    (void)state;
    int before = max_threads();
    for (int threads = 1; threads <= 3; threads++) {
        struct machine m;
        struct snug_error err = {0};
        const char *name = NULL;
        build(&m, threads);
        expect_untouched("exec_create", before);
        assert_int_equal(exec_run(m.exec, feed, &m, &err), SNUG_OK);
        expect_untouched("exec_run", before);
        assert_int_equal(exec_find_nonfinite(m.exec, feed, &m, &name, &err), SNUG_OK);
        expect_untouched("exec_find_nonfinite", before);
        assert_int_equal(exec_run(m.exec, feed, &m, &err), SNUG_BAD_FILE);
        expect_untouched("a run that failed", before);
        assert_int_equal(m.n_fed, 3);
#if defined(__SSE__) && defined(SNUG_OPENMP)
        assert_int_equal(m.n_fed_flushing, 3); /* the modes were on, in the runs */
#endif
        forget(&m);
        expect_untouched("exec_free", before);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void time_modes(void)
{
    enum { N_RUNS = 2000 };
    const struct backend *cpu = backend_cpu();
    for (int threads = 1; threads <= 2; threads++) {
        const struct device_facts facts = {.threads = threads};
        double best = 1, sum = 0;
        for (int i = 0; i < N_RUNS; i++) {
            double start = seconds();
            struct run_modes modes = cpu->run_begin(&facts);
            cpu->run_end(&facts, &modes);
            double spent = seconds() - start;
            sum += spent;
            best = spent < best ? spent : best;
        }
        printf("%d thread(s): modes set and given back in %.2f us, at best %.2f us\n", threads,
               1e6 * sum / N_RUNS, 1e6 * best);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "-t") == 0)
        return time_modes(), 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_modes_come_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
