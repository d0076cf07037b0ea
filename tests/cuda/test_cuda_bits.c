/*
 * test_cuda_bits.c -- the bits of a kernel's results do not depend on where its operands are: on
 * each other, or off the 16-byte boundaries that fast accesses need.  rmsnorm has the bits of
 * add_rmsnorm, though other kernels run it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cuda/cuda.h"
#include "cuda/kernels/norm.h"
#include "cuda/kernels/rope.h"
#include "cuda/kernels/swiglu.h"
#include "cuda/device_block.h"
#include "support/training.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { MAX_IN = 5, MAX_OUT = 3, PLACE_BYTES = 1 << 19, N_PLACES = MAX_IN + MAX_OUT + 1 };
enum { HEADS = 3, PAIRS = 32 };

/* A run of a kernel on operands in the device's memory. */
struct run {
    const struct subject *of;
    enum dtype dtype;
    void *in[MAX_IN], *out[MAX_OUT], *work, *stream;
};

/* Operands are given by letters: x [n_rows, width], g [width], s f32 [n_rows], d f32 [width]. */
struct subject {
    const char *name, *in, *out;
    int64_t n_rows;
    int width;
    unsigned inplace; /* inputs that output 0 may be */
    int (*launch)(const struct run *run);
};

static struct cuda_array array(const struct run *run, void *data)
{
    return (struct cuda_array){run->dtype, data};
}

static int launch_swiglu(const struct run *run)
{
    return cuda_swiglu(run->of->n_rows * run->of->width, array(run, run->in[0]),
                       array(run, run->in[1]), array(run, run->out[0]), run->stream);
}

static int launch_swiglu_grad(const struct run *run)
{
    return cuda_swiglu_grad(run->of->n_rows * run->of->width, array(run, run->in[0]),
                            array(run, run->in[1]), array(run, run->in[2]), array(run, run->out[0]),
                            array(run, run->out[1]), array(run, run->out[2]), run->stream);
}

static int launch_rope(const struct run *run)
{
    struct cuda_rope rope = {.n_rows = run->of->n_rows,
                             .n_time = run->of->n_rows / 2,
                             .heads = HEADS,
                             .n_pairs = PAIRS,
                             .x = array(run, run->in[0]),
                             .y = array(run, run->out[0])};
    for (int i = 0; i < PAIRS; i++)
        rope.turns[i] = 0.15 / (1 + i);
    return cuda_rope(&rope, run->stream);
}

static struct cuda_norm norm_of(const struct run *run)
{
    return (struct cuda_norm){.n_rows = run->of->n_rows,
                              .width = run->of->width,
                              .dtype = run->dtype,
                              .eps = 1e-6f,
                              .a = run->in[0],
                              .gamma = run->in[1],
                              .y = run->out[0],
                              .rstd = run->out[1]};
}

static int launch_rmsnorm(const struct run *run)
{
    struct cuda_norm norm = norm_of(run);
    return cuda_norm(&norm, run->stream);
}

/* What is added is the workspace: zeros, which the sum overwrites. */
static int launch_add_rmsnorm(const struct run *run)
{
    struct cuda_norm norm = norm_of(run);
    norm.b = norm.sum = run->work;
    return cuda_norm(&norm, run->stream);
}

static int launch_rmsnorm_grad(const struct run *run)
{
    struct cuda_norm_grad grad = {.n_rows = run->of->n_rows,
                                  .width = run->of->width,
                                  .dtype = run->dtype,
                                  .dy = run->in[0],
                                  .x = run->in[1],
                                  .gamma = run->in[2],
                                  .rstd = run->in[3],
                                  .r = run->in[4],
                                  .dx = run->out[0],
                                  .dgamma = {DTYPE_f32, run->out[1]},
                                  .parts = run->work};
    return cuda_norm_grad(&grad, run->stream);
}

static const struct subject subjects[] = {
    {"swiglu", "xx", "x", 70, 96, 3, launch_swiglu},
    {"swiglu_grad", "xxx", "xxx", 70, 96, 3, launch_swiglu_grad},
    {"rope", "x", "x", 70, 2 * PAIRS *HEADS, 1, launch_rope},
    {"rmsnorm, 64 wide", "xg", "xs", 70, 64, 0, launch_rmsnorm},
    {"rmsnorm, 896 wide", "xg", "xs", 7, 896, 0, launch_rmsnorm},
    {"rmsnorm, 8704 wide", "xg", "xs", 3, 8704, 0, launch_rmsnorm},
    {"rmsnorm_grad, 64 wide", "xxgsx", "xd", 70, 64, 1 | 1 << 4, launch_rmsnorm_grad},
    {"rmsnorm_grad, 1536 wide", "xxgsx", "xd", 7, 1536, 1 | 1 << 4, launch_rmsnorm_grad},
    {"rmsnorm_grad, 8704 wide", "xxgsx", "xd", 3, 8704, 1 | 1 << 4, launch_rmsnorm_grad},
};
static const struct subject added[] = {
    {"add_rmsnorm, 64 wide", "xg", "xs", 70, 64, 0, launch_add_rmsnorm},
    {"add_rmsnorm, 120 wide", "xg", "xs", 70, 120, 0, launch_add_rmsnorm},
    {"add_rmsnorm, 256 wide", "xg", "xs", 70, 256, 0, launch_add_rmsnorm},
    {"add_rmsnorm, 896 wide", "xg", "xs", 7, 896, 0, launch_add_rmsnorm},
};

/* ---- running them --------------------------------------------------------------------------- */

static enum dtype type_of(char letter, enum dtype dtype)
{
    return letter == 's' || letter == 'd' ? DTYPE_f32 : dtype;
}

static int64_t elems_of(const struct subject *s, char letter)
{
    return letter == 'x' ? s->n_rows * s->width : letter == 's' ? s->n_rows : s->width;
}

static void write_input(const struct device_block *on, const struct subject *s, enum dtype dtype,
                        int k, void *to)
{
    static char host[PLACE_BYTES];
    struct snug_error err = {0};
    enum dtype type = type_of(s->in[k], dtype);
    int64_t n = elems_of(s, s->in[k]);
    for (int64_t i = 0; i < n; i++)
        dtype_store(type, host, i, 2 * rng_normal(7, (uint64_t)k, (uint64_t)i));
    must(on->backend->hooks->write(on->device, to, host, n * (int64_t)dtype_bytes(type), &err),
         &err);
}

/* Runs with operands `shift` elements after an aligned address, and output 0 on input `inplace` (-1:
 * on none); the results go to result[k]. */
static void run_once(const struct device_block *on, const struct subject *s, enum dtype dtype,
                     int shift, int inplace, char result[MAX_OUT][PLACE_BYTES])
{
    const struct device_hooks *hooks = on->backend->hooks;
    struct snug_error err = {0};
    struct run run = {.of = s, .dtype = dtype, .stream = hooks->stream(on->device)};
    char *place = on->bytes;
    must(hooks->clear(on->device, place, (int64_t)N_PLACES * PLACE_BYTES, &err), &err);
    must(hooks->synchronize(on->device, &err), &err);
    run.work = place;
    for (int k = 0; s->in[k] != 0; k++) {
        place += PLACE_BYTES;
        run.in[k] = place + (size_t)shift * dtype_bytes(type_of(s->in[k], dtype));
        write_input(on, s, dtype, k, run.in[k]);
    }
    for (int k = 0; s->out[k] != 0; k++) {
        place += PLACE_BYTES;
        run.out[k] = k == 0 && inplace >= 0
                         ? run.in[inplace]
                         : place + (size_t)shift * dtype_bytes(type_of(s->out[k], dtype));
    }
    assert_int_equal(s->launch(&run), 0);
    must(hooks->synchronize(on->device, &err), &err);
    for (int k = 0; s->out[k] != 0; k++)
        must(hooks->read(on->device, run.out[k], result[k],
                         elems_of(s, s->out[k]) * (int64_t)dtype_bytes(type_of(s->out[k], dtype)),
                         &err),
             &err);
}

static void expect_same(const struct subject *s, enum dtype dtype, const char *where,
                        char a[MAX_OUT][PLACE_BYTES], char b[MAX_OUT][PLACE_BYTES])
{
    for (int k = 0; s->out[k] != 0; k++)
        if (memcmp(a[k], b[k],
                   (size_t)elems_of(s, s->out[k]) * dtype_bytes(type_of(s->out[k], dtype))) != 0)
            fail_msg("%s in %s: output %d has other bits %s", s->name, dtype_name(dtype), k, where);
}

static const enum dtype types[] = {DTYPE_f32, DTYPE_bf16, DTYPE_f16};
static char right[MAX_OUT][PLACE_BYTES], got[MAX_OUT][PLACE_BYTES];

static void test_bits_do_not_depend_on_places(void **state)
{
    const struct device_block *on = *state;
    for (int i = 0; i < LENGTH(subjects) * LENGTH(types); i++) {
        const struct subject *s = &subjects[i / LENGTH(types)];
        enum dtype dtype = types[i % LENGTH(types)];
        run_once(on, s, dtype, 0, -1, right);
        run_once(on, s, dtype, 1, -1, got);
        expect_same(s, dtype, "off the boundaries", right, got);
        for (int k = 0; s->in[k] != 0; k++)
            if (s->inplace >> k & 1) {
                run_once(on, s, dtype, 0, k, got);
                expect_same(s, dtype, "on an input", right, got);
            }
    }
}

static void test_rmsnorm_has_the_bits_of_add_rmsnorm(void **state)
{
    const struct device_block *on = *state;
    for (int i = 0; i < LENGTH(added) * LENGTH(types); i++) {
        struct subject alone = added[i / LENGTH(types)];
        enum dtype dtype = types[i % LENGTH(types)];
        run_once(on, &alone, dtype, 0, -1, right);
        alone.launch = launch_rmsnorm;
        run_once(on, &alone, dtype, 0, -1, got);
        expect_same(&alone, dtype, "in a rmsnorm", right, got);
    }
}

int main(void)
{
    struct device_block block;
    if (!device_block_open(&block, snug_cuda_backend(), (size_t)N_PLACES * PLACE_BYTES))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_bits_do_not_depend_on_places, &block),
        cmocka_unit_test_prestate(test_rmsnorm_has_the_bits_of_add_rmsnorm, &block),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_block_close(&block);
    return n_failed;
}
