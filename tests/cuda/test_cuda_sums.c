/*
 * test_cuda_sums.c -- adjacent sum_squares ops share launches, and each result has the same bits as
 * alone.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cuda/counted.h"
#include "cuda/cuda.h"
#include "cuda/kernels/sums.h"
#include "cuda/text_run.h"
#include "exec/exec.h"
#include "support/training.h"

/* The large one has as many parts as there are: eight of them fill a list. */
enum { N_SMALL = CUDA_SQUARE_TENSORS + 2, N_LARGE = 9, N_SUMS = N_SMALL + N_LARGE };
enum { LARGE = CUDA_SQUARE_ELEMS * CUDA_SQUARE_PARTS + 5 };

static void write_program(char *text, size_t size)
{
    static const int sizes[] = {1, 300, 20001}; /* the last in several parts */
    int n = snprintf(text, size,
                     "program p; tensor x input f32 [1]; tensor y activation f32 [1] output\n"
                     "tensor all temporary f64 [%d] output\n"
                     "tensor g0 gradient f32 [%d] persistent; tensor g1 gradient bf16 [%d] "
                     "persistent; tensor g2 gradient f32 [%d] persistent\n"
                     "tensor g3 gradient bf16 [%d] persistent\n",
                     N_SUMS, sizes[0], sizes[1], sizes[2], LARGE);
    for (int i = 0; i < N_SUMS; i++)
        n += snprintf(text + n, size - (size_t)n, "tensor sum%d temporary f64 [1] view=all+%d\n", i,
                      i);
    n += snprintf(text + n, size - (size_t)n, "y = cast x\n");
    for (int i = 0; i < N_SUMS; i++)
        n += snprintf(text + n, size - (size_t)n, "sum%d = sum_squares g%d\n", i,
                      i < N_SMALL ? i % 3 : 3);
    assert_true((size_t)n < size);
}

static void write_gradient(struct exec *exec, const struct program *prog, tensor_id id)
{
    enum { PIECE = 4096 };
    enum dtype dtype = prog->tensors[id].dtype;
    struct snug_error err = {0};
    int64_t n = tensor_elems(prog, id), size = (int64_t)dtype_bytes(dtype);
    for (int64_t at = 0; at < n; at += PIECE) {
        double piece[PIECE]; /* room for the widest type */
        int64_t count = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < count; i++)
            dtype_store(dtype, piece, i, rng_uniform(7, (uint64_t)id, (uint64_t)(at + i)) - 0.5);
        must(exec_write(exec, id, at * size, count * size, piece, &err), &err);
    }
}

static void run_sums(const struct backend *on, double sums[N_SUMS])
{
    static char text[16384];
    struct snug_error err = {0};
    struct text_run run;
    write_program(text, sizeof text);
    text_run_open(&run, text, on);
    for (int id = 0; id < run.prog.n_tensors; id++)
        if (run.prog.tensors[id].role == ROLE_gradient)
            write_gradient(run.exec, &run.prog, id);
    must(exec_run(run.exec, NULL, NULL, &err), &err);
    tensor_id all = program_find(&run.prog, "all");
    must(exec_read(run.exec, all, 0, N_SUMS * sizeof *sums, sums, &err), &err);
    text_run_close(&run);
}

static void test_sums_side_by_side_are_one_launch(void **state)
{
    (void)state;
    static const int wanted[] = {CUDA_SQUARE_TENSORS, 2 + 7,
                                 2}; /* tensors, then parts are too many */
    double right[N_SUMS], together[N_SUMS], alone[N_SUMS];
    struct backend backend = *snug_cuda_backend();
    backend.kernel = kernel_counted;
    counted.kind = OP_sum_squares;
    run_sums(backend_cpu(), right);
    run_sums(&backend, together);
    assert_int_equal(counted.n, 2 * 3); /* a run, and its recording */
    assert_memory_equal(counted.launches, wanted, sizeof wanted);
    counted.is_alone = true;
    run_sums(&backend, alone);
    assert_memory_equal(together, alone, sizeof alone);
    for (int i = 0; i < N_SUMS; i++)
        if (!(fabs(together[i] - right[i]) <= 1e-12 * right[i]))
            fail_msg("sum %d is %.17g, not %.17g", i, together[i], right[i]);
}

/* A place in the workspace of the first is free for the result of the second, as a planner sees it. */
static void test_a_sum_may_lie_in_the_workspace_of_another(void **state)
{
    (void)state;
    enum { N = 3 };
    const struct backend *backend = snug_cuda_backend();
    struct snug_error err = {0};
    struct device *device = NULL;
    struct tensor x = {.dtype = DTYPE_f32, .shape = {1, {N}}}, sum = {.dtype = DTYPE_f64};
    struct kernel_call calls[2] = {0};
    const float numbers[N] = {1, 2, 3};
    double sums[2] = {0};
    int n_run = 0;
    must(backend->hooks->open(0, &device, &err), &err);
    size_t work_bytes = CUDA_SQUARE_LIST_PARTS * sizeof(double);
    char *block = backend->alloc(work_bytes + 256);
    assert_non_null(block);
    must(backend->hooks->write(device, block + work_bytes, numbers, sizeof numbers, &err), &err);
    for (int i = 0; i < 2; i++) {
        calls[i].in[0] = (struct operand){.data = block + work_bytes, .tensor = &x};
        calls[i].out[0] = (struct operand){.tensor = &sum};
        calls[i].work = block;
        calls[i].stream = backend->hooks->stream(device);
    }
    calls[0].out[0].data = block + work_bytes + 128;
    calls[1].out[0].data = block + work_bytes - sizeof(double);
    must(counted.row->run_several(calls, 2, &n_run, &err), &err);
    assert_int_equal(n_run, 1);
    calls[1].out[0].data = block + work_bytes + 136;
    must(counted.row->run_several(calls, 2, &n_run, &err), &err);
    assert_int_equal(n_run, 2);
    must(backend->hooks->read(device, block + work_bytes + 128, sums, sizeof sums, &err), &err);
    assert_true(sums[0] == 14 && sums[1] == 14);
    backend->release(block, work_bytes + 256);
    backend->hooks->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_side_by_side_are_one_launch),
        cmocka_unit_test(test_a_sum_may_lie_in_the_workspace_of_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
