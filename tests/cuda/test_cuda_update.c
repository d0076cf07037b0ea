/*
 * test_cuda_update.c -- what the op cases do not cover in update.cu: stochastic rounding bit for
 * bit, several tensors in one launch, unaligned tensors, adjacent updates in a program.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cpu/ref/ref.h"
#include "cuda/counted.h"
#include "cuda/cuda.h"
#include "cuda/text_run.h"
#include "cuda/optim/update.h"
#include "exec/exec.h"
#include "support/oprun.h"
#include "support/training.h"

enum { SEED = 11 };

static const struct backend *backend;
static struct device *device;

static int open_device(void **state)
{
    (void)state;
    backend = snug_cuda_backend();
    return backend->hooks->open(0, &device, NULL) == SNUG_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    backend->hooks->close(device);
    return 0;
}

/* ---- stochastic rounding ---------------------------------------------------------------------- */

/* Learning rate and clip are powers of two: fp32 and fp64 agree on the sum, and so must its roundings. */
static const struct case_text exact_text = {
    .name = "exact",
    .line = {"in g float 1,1009", "in s scalars lr=0.25 clip=1 seed=5 update_count=3",
             "in w float 1,1009", "w = update g s w rule=sgd stochastic=1"},
    .n_lines = 4,
    .use = {[CASE_sizes] = {""}},
};

static void expect_same_bits(enum dtype dtype)
{
    struct opcase c;
    struct snug_error err = {0};
    struct row_result right = {0}, got = {0};
    assert_int_equal(opcase_build(&exact_text, CASE_sizes, 0, dtype, SEED, &c, &err), SNUG_OK);
    struct row_run on_cpu = {.row = ref_kernel(OP_update), .facts = {.threads = 1}, .inplace = -1};
    struct row_run on_gpu = {
        .facts = {.threads = 1, .device = device}, .device_of = backend, .inplace = -1};
    on_gpu.row = backend_choose(backend, &c.prog, &c.prog.ops[0], &on_gpu.facts);
    assert_non_null(on_gpu.row);
    assert_int_equal(oprun(&c, 0, &on_cpu, &right, &err), SNUG_OK);
    assert_int_equal(oprun(&c, 0, &on_gpu, &got, &err), SNUG_OK);
    size_t bytes = (size_t)tensor_bytes(&c.prog, c.prog.ops[0].out[0]);
    assert_memory_equal(got.out[0], right.out[0], bytes);
    assert_memory_not_equal(got.out[0], c.data[c.prog.ops[0].in[UPDATE_WEIGHT]], bytes);
    row_result_free(&right);
    row_result_free(&got);
    opcase_free(&c);
}

static void test_stochastic_rounding_matches_reference(void **state)
{
    (void)state;
    expect_same_bits(DTYPE_bf16);
    expect_same_bits(DTYPE_f16);
}

/* ---- several tensors, anywhere --------------------------------------------------------------- */

enum { N_TENSORS = 4, MOST_ELEMS = 17000, GAP_ELEMS = 64, N_ARRAYS = 4 /* g, w, m, v */ };
static const int64_t sizes[N_TENSORS] = {1, 16384, 300, MOST_ELEMS};
enum { ARRAY_ELEMS = N_TENSORS * (MOST_ELEMS + GAP_ELEMS) };

/* AdamW of all tensors, `per_launch` at a time, each shifted by so many elements; what w, m, v became. */
static void step_all(int per_launch, int64_t shift, float *after)
{
    size_t bytes = N_ARRAYS * ARRAY_ELEMS * sizeof(float);
    float *host = malloc(bytes), *block = backend->alloc(bytes);
    double scalars[SCALAR_COUNT] = {
        [SCALAR_lr] = 0.1, [SCALAR_clip] = 1, [SCALAR_update_count] = 2};
    double *table = backend->alloc(sizeof scalars);
    struct update_job job = {.rule = RULE_adamw, .options = {0.9, 0.95, 1e-8}, .scalars = table};
    struct update_tensor tensors[N_TENSORS];
    assert_true(host != NULL && block != NULL && table != NULL);
    memset(tensors, 0, sizeof tensors);
    for (int i = 0; i < N_TENSORS; i++) {
        int64_t at[N_ARRAYS];
        for (int k = 0; k < N_ARRAYS; k++) {
            at[k] = k * ARRAY_ELEMS + i * (MOST_ELEMS + GAP_ELEMS) + shift;
            for (int64_t j = 0; j < sizes[i]; j++)
                host[at[k] + j] =
                    (float)rng_uniform(SEED, (uint64_t)(i * N_ARRAYS + k), (uint64_t)j);
        }
        tensors[i] =
            (struct update_tensor){.n = sizes[i],
                                   .g = block + at[0],
                                   .stepped.data = block + at[1],
                                   .state = {{.data = block + at[2]}, {.data = block + at[3]}},
                                   .lr_factor = 1 + i,
                                   .decay = 0.1 * i,
                                   .g_type = DTYPE_f32,
                                   .stepped_type = DTYPE_f32,
                                   .state_type = {DTYPE_f32, DTYPE_f32},
                                   .aligned = shift == 0};
    }
    assert_int_equal(backend->hooks->write(device, block, host, (int64_t)bytes, NULL), SNUG_OK);
    assert_int_equal(backend->hooks->write(device, table, scalars, sizeof scalars, NULL), SNUG_OK);
    for (int i = 0; i < N_TENSORS; i += per_launch)
        assert_int_equal(
            cuda_update(&job, per_launch, tensors + i, NULL, backend->hooks->stream(device)), 0);
    assert_int_equal(backend->hooks->read(device, block, host, (int64_t)bytes, NULL), SNUG_OK);
    for (int i = 0; i < N_TENSORS; i++)
        for (int k = 1; k < N_ARRAYS; k++)
            for (int64_t j = 0; j < sizes[i]; j++)
                *after++ = host[k * ARRAY_ELEMS + i * (MOST_ELEMS + GAP_ELEMS) + shift + j];
    backend->release(block, bytes);
    backend->release(table, sizeof scalars);
    free(host);
}

static void test_tensors_of_one_launch_are_as_alone(void **state)
{
    (void)state;
    static float alone[N_ARRAYS * ARRAY_ELEMS], together[N_ARRAYS * ARRAY_ELEMS];
    static float shifted[N_ARRAYS * ARRAY_ELEMS];
    step_all(1, 0, alone);
    step_all(N_TENSORS, 0, together);
    step_all(2, 1, shifted);
    assert_memory_equal(together, alone, sizeof alone);
    assert_memory_equal(shifted, alone, sizeof alone);
}

/* ---- updates that stand side by side in a program --------------------------------------------- */

enum { N_UPDATES = 20, UPDATE_ELEMS = 300, N_STEPS = 3 };

/* All of one rule but for the last but one. */
static void write_program(char *text, size_t size)
{
    int n = snprintf(text, size,
                     "program p; tensor s temporary f64 [%d] persistent; scalars s\n"
                     "tensor x input f32 [1]; tensor y activation f32 [1] output; y = cast x\n",
                     SCALAR_COUNT);
    for (int i = 0; i < N_UPDATES; i++)
        n += snprintf(text + n, size - (size_t)n,
                      "tensor w%d parameter f32 [%d] persistent; tensor g%d gradient f32 [%d] "
                      "persistent; tensor m%d optimizer f32 [%d] persistent\n",
                      i, UPDATE_ELEMS, i, UPDATE_ELEMS, i, UPDATE_ELEMS);
    for (int i = 0; i < N_UPDATES; i++)
        n += snprintf(text + n, size - (size_t)n,
                      i == N_UPDATES - 2
                          ? "w%d = update g%d, s, w%d {rule=sgd}\n"
                          : "w%d, _, m%d = update g%d, s, w%d, _, m%d {rule=momentum, "
                            "options=[0.9], lr_factor=%g}\n",
                      i, i, i, i, i, 1 + 0.1 * i);
    assert_true((size_t)n < size);
}

static void run_updates(const struct backend *on, float after[N_UPDATES][UPDATE_ELEMS])
{
    static char text[16384];
    struct snug_error err = {0};
    struct text_run run;
    write_program(text, sizeof text);
    text_run_open(&run, text, on);
    for (int id = 0; id < run.prog.n_tensors; id++) {
        float start[UPDATE_ELEMS];
        for (int i = 0; i < UPDATE_ELEMS; i++)
            start[i] = (float)rng_uniform(SEED, (uint64_t)id, (uint64_t)i);
        if (tensor_bytes(&run.prog, id) == sizeof start)
            must(exec_write(run.exec, id, 0, sizeof start, start, &err), &err);
    }
    exec_scalars(run.exec)[SCALAR_lr] = 0.1;
    exec_scalars(run.exec)[SCALAR_clip] = 1;
    for (int step = 0; step < N_STEPS; step++)
        must(exec_run(run.exec, NULL, NULL, &err), &err);
    for (int i = 0; i < N_UPDATES; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        must(exec_read(run.exec, program_find(&run.prog, name), 0, sizeof after[i], after[i], &err),
             &err);
    }
    text_run_close(&run);
}

static void test_updates_side_by_side_are_one_launch(void **state)
{
    (void)state;
    static float right[N_UPDATES][UPDATE_ELEMS], found[N_UPDATES][UPDATE_ELEMS];
    static const int wanted[] = {UPDATE_TENSORS_MOST, N_UPDATES - 2 - UPDATE_TENSORS_MOST, 1, 1};
    struct backend counting = *snug_cuda_backend();
    counting.kernel = kernel_counted;
    counted.kind = OP_update;
    run_updates(backend_cpu(), right);
    run_updates(&counting, found);
    assert_true(counted.n >= 4);
    assert_memory_equal(counted.launches, wanted, sizeof wanted);
    for (int i = 0; i < N_UPDATES; i++)
        for (int k = 0; k < UPDATE_ELEMS; k++)
            if (!(fabsf(found[i][k] - right[i][k]) <= 1e-6f))
                fail_msg("w%d[%d] is %g, not %g", i, k, (double)found[i][k], (double)right[i][k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stochastic_rounding_matches_reference),
        cmocka_unit_test(test_tensors_of_one_launch_are_as_alone),
        cmocka_unit_test(test_updates_side_by_side_are_one_launch),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
