/*
 * test_cuda_ranks.c -- collectives on a device with a single rank: through the host and with NCCL,
 * captured or not, compared with the same program on the CPU.  Runs emulated and on a GPU.
 *
 * tests/cuda/ranks.sh and tools/test-cuda-ranks.sh test several ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "cuda/cuda.h"
#include "exec/local.h"
#include "support/booked.h"
#include "support/training.h"

enum { ELEMS = 1000, N_STEPS = 4, ROUNDS = 3 };

/* Each exchange, over all ranks and with an owner; sums that are added to what is there.  %d: bytes of the
 * bucket. */
static const char program_text[] =
    "program ranks; body 10 x 3\n"
    "tensor x input f32 [1000]; tensor work temporary u8 [%d]\n"
    "tensor a activation f32 [1000]; tensor b activation f32 [7 11]; tensor h activation bf16 "
    "[1000]\n"
    "tensor big parameter f32 [7 11] persistent; tensor late activation f32 [1000] output\n"
    "tensor sum gradient f32 [1000] output; tensor sum_b gradient f32 [7 11] output\n"
    "tensor own gradient f32 [1000] output; tensor whole activation f32 [1000]\n"
    "tensor whole_h activation bf16 [1000]; tensor wide activation f32 [1000]\n"
    "tensor y activation f32 [1000] output\n"
    "a = scale x {options=[0.5]}; b = scale big {options=[2]}; h = cast x\n"
    "a = all_reduce a {options=[1 1 -1]} work=work\n"
    "sum, sum_b = reduce_scatter a, b {accumulate=after_first, options=[1 1 -1]} work=work\n"
    "own = reduce_scatter a {options=[1 1 0]} work=work\n"
    "whole = all_gather a {options=[1 1 -1]} work=work\n"
    "whole_h = all_gather h {options=[1 1 0]} work=work\n"
    "wide = cast whole_h; y = add whole, wide\n"
    "late = add sum, own\n";

struct results {
    float y[N_STEPS][ELEMS], sum[N_STEPS][ELEMS], sum_b[N_STEPS][77], late[N_STEPS][ELEMS];
};

struct running {
    struct program prog;
    struct exec *exec;
    int step;
};

static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    (void)err;
    struct running *r = user;
    float *x = exec_input(r->exec, program_find(&r->prog, "x"));
    for (int i = 0; i < ELEMS; i++) /* of few bits: sums and bf16 are exact */
        x[i] = (float)((i * 7 + micro * 31 + r->step * 5) % 100) / 4;
    return SNUG_OK;
}

static void take(struct running *r, const char *name, void *to, size_t n_bytes)
{
    struct snug_error err = {0};
    tensor_id id = program_find(&r->prog, name);
    must(exec_read(r->exec, id, 0, (int64_t)n_bytes, to, &err), &err);
}

/* An exec of the program, by a rank that is alone. */
static void open_alone(const struct backend *backend, int work_bytes, struct running *r,
                       struct plan *plan, struct device_facts *facts)
{
    struct snug_error err = {0};
    struct device_rates rates = {.flops = 1e9, .bytes = 1e9, .pool_bytes_per_s = 1e9};
    char text[sizeof program_text + 16];
    *facts = (struct device_facts){.threads = 1, .reference_only = true};
    snprintf(text, sizeof text, program_text, work_bytes);
    must(comm_open_self(&facts->comm, &err), &err);
    must(program_parse(text, &r->prog, &err), &err);
    must(program_verify(&r->prog, &err), &err);
    book_kernels(&r->prog, backend, facts);
    must(plan_make(&r->prog, backend->alignment, &rates, plan, &err), &err);
    must(exec_create(&r->prog, plan, backend, facts, NULL, &r->exec, &err), &err);
}

static void close_alone(struct running *r, struct plan *plan, struct device_facts *facts)
{
    exec_free(r->exec);
    comm_close(facts->comm, true);
    plan_free(plan);
    program_free(&r->prog);
}

static void run_on(const struct backend *backend, int work_bytes, const char *way,
                   struct results *results)
{
    struct snug_error err = {0};
    struct device_facts facts;
    struct running r = {0};
    struct plan plan;
    float big[77];
    open_alone(backend, work_bytes, &r, &plan, &facts);
    if (way != NULL)
        assert_ptr_equal(strstr(exec_transport(r.exec), way), exec_transport(r.exec));
    for (int i = 0; i < 77; i++)
        big[i] = (float)i;
    must(exec_write(r.exec, program_find(&r.prog, "big"), 0, sizeof big, big, &err), &err);
    for (r.step = 0; r.step < N_STEPS; r.step++) {
        must(exec_run(r.exec, feed, &r, &err), &err);
        take(&r, "y", results->y[r.step], sizeof results->y[0]);
        take(&r, "sum", results->sum[r.step], sizeof results->sum[0]);
        take(&r, "sum_b", results->sum_b[r.step], sizeof results->sum_b[0]);
        take(&r, "late", results->late[r.step], sizeof results->late[0]);
    }
    assert_int_equal(exec_allocated_bytes(r.exec), plan.arena_bytes);
    close_alone(&r, &plan, &facts);
}

/* Room for both halves of a bucket of everything, as a plan would book it. */
enum { WHOLE_BUCKET = 2 * 4 * (ELEMS + 77), SMALL_BUCKET = 1024 };

static int n_replays;

static enum snug_status count_replay(struct device *device, struct recording *recording,
                                     struct snug_error *err)
{
    n_replays++;
    return snug_cuda_backend()->hooks->replay(device, recording, err);
}

static void test_through_the_host(void **state)
{
    (void)state;
    static struct results right, found;
    setenv("SNUG_NCCL", "off", 1);
    run_on(backend_cpu(), WHOLE_BUCKET, NULL, &right);
    assert_true(right.sum_b[0][76] == 2 * 76 * ROUNDS);
    run_on(snug_cuda_backend(), WHOLE_BUCKET, "MPI through host memory: SNUG_NCCL is off", &found);
    assert_memory_equal(&found, &right, sizeof right);
}

static void test_by_nccl(void **state)
{
    (void)state;
    static struct results right, found;
    char text[DEVICE_TEXT_MAX];
    struct backend backend = *snug_cuda_backend();
    struct device_hooks hooks = *backend.hooks;
    if (!hooks.direct->find(text)) {
        print_message("without NCCL, %s\n", text);
        skip();
    }
    backend.hooks = &hooks;
    hooks.replay = count_replay;
    setenv("SNUG_NCCL", "force", 1);
    run_on(backend_cpu(), WHOLE_BUCKET, NULL, &right);
    run_on(&backend, WHOLE_BUCKET, "NCCL ", &found);
    assert_memory_equal(&found, &right, sizeof right);
    assert_int_equal(n_replays, (N_STEPS - 1) * (ROUNDS + 1)); /* with the collectives */
    memset(&found, 0, sizeof found);
    run_on(&backend, SMALL_BUCKET, "NCCL ", &found);
    assert_memory_equal(&found, &right, sizeof right);
    print_message("%s\n", text);
}

/* A message to itself: what it sends is what it receives; after an abort nothing goes. */
static void test_messages(void **state)
{
    (void)state;
    const struct backend *backend = snug_cuda_backend();
    const struct device_hooks *hooks = backend->hooks;
    struct snug_error err = {0};
    struct device *device;
    struct direct *direct;
    unsigned char id[DIRECT_ID_BYTES], out[300], in[300] = {0};
    char text[DEVICE_TEXT_MAX];
    if (!hooks->direct->find(text))
        skip();
    must(hooks->open(0, &device, &err), &err);
    must(hooks->direct->make_id(id, &err), &err);
    must(hooks->direct->open(device, id, 0, 1, &direct, &err), &err);
    unsigned char *block = backend->alloc(2 * sizeof out);
    assert_non_null(block);
    for (int i = 0; i < 300; i++)
        out[i] = (unsigned char)(i * 7);
    must(hooks->write(device, block, out, sizeof out, &err), &err);
    must(hooks->direct->pass(direct, 0, block, sizeof out, 0, block + sizeof out, sizeof in,
                             hooks->stream(device), &err),
         &err);
    must(hooks->synchronize(device, &err), &err);
    must(hooks->direct->check(direct, &err), &err);
    must(hooks->read(device, block + sizeof out, in, sizeof in, &err), &err);
    assert_memory_equal(in, out, sizeof out);
    hooks->direct->abort(direct);
    assert_int_equal(hooks->direct->check(direct, &err), SNUG_IO_ERROR);
    assert_int_equal(hooks->direct->pass(direct, 0, block, 4, 0, block, 4, NULL, &err),
                     SNUG_IO_ERROR);
    hooks->direct->close(direct);
    backend->release(block, 2 * sizeof out);
    hooks->close(device);
}

/* ---- another rank is gone ------------------------------------------------------------------- */

static int n_asked, n_aborted;

static enum snug_status never_done(struct device *device, bool *done, struct snug_error *err)
{
    (void)device;
    (void)err;
    *done = false; /* as when the other rank's half of a collective never comes */
    return SNUG_OK;
}

static enum snug_status fail_later(struct direct *direct, struct snug_error *err)
{
    enum { TURNS = 1100 }; /* more than the host asks without a pause */
    (void)direct;
    return n_asked++ < TURNS ? SNUG_OK : snug_fail(err, SNUG_IO_ERROR, "NCCL: a peer is gone");
}

static void count_abort(struct direct *direct)
{
    n_aborted++;
    snug_cuda_backend()->hooks->direct->abort(direct);
}

static void test_a_lost_rank_ends_the_wait(void **state)
{
    (void)state;
    struct backend backend = *snug_cuda_backend();
    struct device_hooks hooks = *backend.hooks;
    struct direct_hooks direct = *hooks.direct;
    struct device_facts facts;
    struct running r = {0};
    struct plan plan;
    struct snug_error err = {0};
    char text[DEVICE_TEXT_MAX];
    if (!direct.find(text))
        skip();
    backend.hooks = &hooks;
    hooks.direct = &direct;
    hooks.is_done = never_done;
    direct.check = fail_later;
    direct.abort = count_abort;
    setenv("SNUG_NCCL", "force", 1);
    open_alone(&backend, WHOLE_BUCKET, &r, &plan, &facts);
    assert_int_equal(exec_run(r.exec, feed, &r, &err), SNUG_IO_ERROR);
    assert_string_equal(err.message, "NCCL: a peer is gone");
    assert_true(n_asked > 1000 && n_aborted > 0);
    assert_int_equal(exec_run(r.exec, feed, &r, &err), SNUG_IO_ERROR); /* and it stays so */
    close_alone(&r, &plan, &facts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_through_the_host),
        cmocka_unit_test(test_by_nccl),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_a_lost_rank_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
