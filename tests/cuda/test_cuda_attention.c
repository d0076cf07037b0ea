/*
 * test_cuda_attention.c -- attention with cuDNN against plain sums in double: both formulations of the
 * gradient of grouped heads, windows, and workspaces so small that it runs in parts.
 *
 *   test_cuda_attention [-t]
 *
 * Here the library is emulated; `make test-cuda` builds the same test for a GPU.  -t instead runs the
 * shapes of well-known models, prints their formulation, time and workspace, and checks some rows of
 * them.
 */
#include "cuda/attention_bench.h"

static struct bench bench;

/* ---- running -------------------------------------------------------------------------------- */

static struct cuda_attention_call call_of(const struct bench *t)
{
    int64_t bytes = (int64_t)dtype_bytes(t->shape.type);
    char *in = t->on_device[IN], *grads = t->on_device[GRADS];
    return (struct cuda_attention_call){.q = in,
                                        .k = in + t->at[PART_k] * bytes,
                                        .v = in + t->at[PART_v] * bytes,
                                        .dy = t->on_device[DY],
                                        .y = t->on_device[Y],
                                        .lse = t->on_device[LSE],
                                        .dq = grads,
                                        .dk = grads + t->at[PART_k] * bytes,
                                        .dv = grads + t->at[PART_v] * bytes,
                                        .work = t->on_device[WORK],
                                        .stream = t->backend->hooks->stream(t->device)};
}

static struct cuda_attention *prepare(struct bench *t, bool is_grad, size_t work_bytes)
{
    struct snug_error err = {0};
    struct cuda_attention *attention = NULL;
    t->shape.is_grad = is_grad;
    t->is_quiet = false;
    if (cuda_attention_prepare(&t->shape, work_bytes, &attention, &err) != SNUG_OK)
        fail_or_print(t, "%s", err.message);
    else if (attention == NULL)
        fail_or_print(t, "refused in %zu bytes", work_bytes);
    return attention;
}

static bool run(struct bench *t, const struct cuda_attention *attention)
{
    struct snug_error err = {0};
    struct cuda_attention_call call = call_of(t);
    if (cuda_attention_run(attention, &call, &err) != SNUG_OK ||
        t->backend->hooks->synchronize(t->device, &err) != SNUG_OK)
        return fail_or_print(t, "%s", err.message), false;
    return true;
}

static bool run_forward(struct bench *t, size_t work_bytes)
{
    struct cuda_attention *attention = prepare(t, false, work_bytes);
    bool ran = attention != NULL && run(t, attention);
    if (ran) {
        read_back(t, Y);
        read_back(t, LSE);
        check_all(t, false);
    }
    cuda_attention_release(attention);
    return ran;
}

/* Returns the number of parts; 0 if it did not run. */
static int64_t run_grad(struct bench *t, size_t work_bytes)
{
    struct cuda_attention *attention = prepare(t, true, work_bytes);
    if (attention == NULL)
        return 0;
    int64_t n_parts = cuda_attention_n_parts(attention);
    void *first = malloc(bytes_of(t, GRADS));
    assert_non_null(first);
    if (t->shape.own_sums)
        assert_int_equal(cuda_attention_sums_heads(attention), group_of(t) > 1);
    for (int i = 0; i < 2; i++) {
        memset(t->raw[GRADS], 0xff, bytes_of(t, GRADS));
        write_raw(t, GRADS);
        if (!run(t, attention)) {
            n_parts = 0;
            break;
        }
        read_back(t, GRADS);
        if (i > 0 && !t->shape.nondeterministic &&
            memcmp(first, t->raw[GRADS], bytes_of(t, GRADS)) != 0)
            fail_or_print(t, "other bits in run %d", i);
        memcpy(first, t->raw[GRADS], bytes_of(t, GRADS));
    }
    if (n_parts > 0)
        check_all(t, true);
    free(first);
    cuda_attention_release(attention);
    return n_parts;
}

static void check_guard(struct bench *t)
{
    read_back(t, WORK);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(((unsigned char *)t->raw[WORK])[(size_t)t->n[WORK] + i], GUARD);
}

static size_t booked_bytes(struct bench *t)
{
    t->shape.is_grad = true;
    return cuda_attention_work_bytes(&t->shape);
}

static const struct attention_case cases[] = {
    {2, 3, 3, 37, 16, 0, DTYPE_bf16, true, false},  {2, 3, 3, 64, 16, 5, DTYPE_f16, true, true},
    {2, 6, 2, 64, 16, 0, DTYPE_bf16, true, false},  {2, 6, 2, 64, 16, 0, DTYPE_bf16, true, true},
    {1, 4, 1, 33, 32, 7, DTYPE_f16, true, false},   {1, 4, 2, 130, 16, 64, DTYPE_bf16, true, true},
    {1, 4, 2, 130, 16, 1, DTYPE_bf16, true, false}, {2, 6, 3, 40, 48, 0, DTYPE_f16, false, false},
    {1, 7, 1, 129, 128, 40, DTYPE_f16, true, true}, {3, 2, 1, 2, 16, 0, DTYPE_bf16, true, true},
};

static void test_formulations(void **state)
{
    struct bench *t = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_shape(t, &cases[i]);
        size_t booked = booked_bytes(t);
        make_operands(t, booked);
        run_forward(t, booked);
        for (int mode = 0; mode < 4; mode++) {
            t->shape.own_sums = mode % 2 == 1;
            t->shape.nondeterministic = mode >= 2;
            run_grad(t, booked);
        }
        check_guard(t);
        free_operands(t);
    }
}

/* dS of a head of 64 positions: cuDNN rounds the rows up to 128, the emulation does not. */
enum { MOST_HEAD_BYTES = 16 << 10, LEAST_HEAD_BYTES = 8 << 10 };

/* From all but a little of what everything needs, to one head. */
static size_t budget_of(const struct bench *t, int number)
{
    const struct cuda_attention_shape *s = &t->shape;
    size_t n_heads = (size_t)(s->n_batch * s->n_heads), slack = 4 << 10;
    size_t unsummed = (size_t)(4 * s->n_heads * s->n_time * s->depth); /* dk, dv of a sequence */
    size_t tenths[] = {9, 5, 3};
    if (number < 3)
        return n_heads * LEAST_HEAD_BYTES * tenths[number] / 10 + unsummed;
    return unsummed + (size_t)(MOST_HEAD_BYTES * (number == 3 ? 3 : 1)) + slack;
}

static void test_parts(void **state)
{
    struct bench *t = *state;
    static const struct attention_case splits[] = {
        {5, 6, 2, 64, 16, 0, DTYPE_bf16, true, false},
        {3, 10, 5, 64, 16, 20, DTYPE_f16, true, true},
        {5, 4, 4, 64, 16, 0, DTYPE_bf16, true, true},
        {2, 8, 2, 64, 16, 0, DTYPE_bf16, true, false},
    };
    int64_t most = 0;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
        for (int k = 0; k < 5; k++) {
            set_shape(t, &splits[i]);
            size_t budget = budget_of(t, k);
            make_operands(t, budget);
            run_forward(t, budget);
            for (int own_sums = 0; own_sums < 2; own_sums++) {
                t->shape.own_sums = own_sums == 1;
                int64_t n_parts = run_grad(t, budget);
                int64_t n_needed = splits[i].n_batch * splits[i].n_heads * LEAST_HEAD_BYTES;
                assert_true(n_parts * (int64_t)budget >= n_needed);
                most = n_parts > most ? n_parts : most;
            }
            check_guard(t);
            free_operands(t);
        }
    assert_true(most >= 30); /* some take one head at a time */
}

/* Not even one head fits. */
static void test_too_small_a_workspace(void **state)
{
    struct bench *t = *state;
    static const struct attention_case test = {2, 6, 2, 64, 16, 0, DTYPE_bf16, true, false};
    struct snug_error err = {0};
    struct cuda_attention *attention = NULL;
    set_shape(t, &test);
    t->shape.is_grad = true;
    assert_int_equal(cuda_attention_prepare(&t->shape, 7 << 10, &attention, &err), SNUG_OK);
    assert_null(attention);
}

/* ---- timing --------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds, the median of 10. */
static double time_of(struct bench *t, const struct cuda_attention *attention)
{
    enum { N_TIMES = 10 };
    const struct device_hooks *hooks = t->backend->hooks;
    struct snug_error err = {0};
    struct cuda_attention_call call = call_of(t);
    double times[N_TIMES];
    void *begin = NULL, *end = NULL;
    assert_int_equal(hooks->event_make(&begin, &err), SNUG_OK);
    assert_int_equal(hooks->event_make(&end, &err), SNUG_OK);
    for (int i = -3; i < N_TIMES; i++) {
        assert_int_equal(hooks->event_record(begin, call.stream, &err), SNUG_OK);
        assert_int_equal(cuda_attention_run(attention, &call, &err), SNUG_OK);
        assert_int_equal(hooks->event_record(end, call.stream, &err), SNUG_OK);
        assert_int_equal(hooks->event_finish(end, &err), SNUG_OK);
        if (i >= 0)
            times[i] = 1e3 * hooks->event_seconds(begin, end);
    }
    hooks->event_free(begin);
    hooks->event_free(end);
    qsort(times, N_TIMES, sizeof *times, ascending);
    return times[N_TIMES / 2];
}

static void print_time(struct bench *t, bool is_grad, size_t work_bytes)
{
    struct cuda_attention *attention = prepare(t, is_grad, work_bytes);
    if (attention == NULL)
        return;
    print_message("%-52s %-8s %-16s %2lld runs %8.3f ms, %6.1f MiB booked\n", text_of(t),
                  is_grad ? "gradient" : "forward",
                  !is_grad || t->shape.n_heads == t->shape.n_kv_heads ? ""
                  : cuda_attention_sums_heads(attention)              ? "our sums"
                                                                      : "cuDNN's sums",
                  (long long)cuda_attention_n_parts(attention), time_of(t, attention),
                  (double)cuda_attention_work_bytes(&t->shape) / (1 << 20));
    cuda_attention_release(attention);
}

static void test_times(void **state)
{
    struct bench *t = *state;
    static const struct attention_case models[] = {
        {16, 14, 2, 1024, 64, 0, DTYPE_bf16, true, false},
        {8, 12, 2, 1024, 128, 0, DTYPE_bf16, true, false},
        {16, 12, 2, 1024, 128, 0, DTYPE_bf16, true, false},
        {4, 28, 4, 1024, 128, 0, DTYPE_bf16, true, false},
        {1, 32, 8, 2048, 128, 0, DTYPE_bf16, true, false},
        {1, 32, 8, 2048, 128, 256, DTYPE_bf16, true, false},
        {2, 9, 3, 512, 64, 0, DTYPE_bf16, true, false},
        {2, 9, 3, 512, 64, 256, DTYPE_bf16, true, false},
        {16, 14, 2, 1024, 64, 256, DTYPE_bf16, true, false},
        {16, 14, 2, 1000, 64, 0, DTYPE_bf16, true, false},
        {16, 14, 2, 1000, 64, 256, DTYPE_bf16, true, false},
        {16, 14, 2, 1024, 64, 0, DTYPE_bf16, true, true},
        {16, 12, 12, 1024, 64, 0, DTYPE_bf16, true, true}, /* GPT-2 124M */
        {16, 12, 12, 1024, 64, 0, DTYPE_bf16, true, false},
    };
    t->samples = true;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        set_shape(t, &models[i]);
        size_t booked = booked_bytes(t);
        make_operands(t, booked);
        if (run_forward(t, booked))
            print_time(t, false, booked);
        for (int mode = 0; mode < 4; mode++) {
            t->shape.own_sums = mode % 2 == 1;
            t->shape.nondeterministic = mode >= 2;
            if (t->shape.own_sums && models[i].n_heads == models[i].n_kv_heads)
                continue;
            if (run_grad(t, booked) > 0)
                print_time(t, true, booked);
        }
        check_guard(t);
        free_operands(t);
    }
    assert_int_equal(t->n_failed, 0);
}

int main(int argc, char **argv)
{
    struct snug_error err = {0};
    bool times = argc == 2 && strcmp(argv[1], "-t") == 0;
    if (argc > 1 && !times)
        return fprintf(stderr, "usage: %s [-t]\n", argv[0]), 2;
    bench.backend = snug_cuda_backend();
    if (bench.backend->hooks->open(0, &bench.device, &err) != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_formulations, &bench),
        cmocka_unit_test_prestate(test_parts, &bench),
        cmocka_unit_test_prestate(test_too_small_a_workspace, &bench),
    };
    const struct CMUnitTest timed[] = {cmocka_unit_test_prestate(test_times, &bench)};
    int n_failed = times ? cmocka_run_group_tests(timed, NULL, NULL)
                         : cmocka_run_group_tests(tests, NULL, NULL);
    bench.backend->hooks->close(bench.device);
    return n_failed;
}
