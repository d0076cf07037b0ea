/*
 * test_cuda_exec.c -- the executor on a device: staging, streams, CUDA graphs, compared with the
 * same programs on the CPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/cuda.h"
#include "cuda/text_run.h"
#include "exec/local.h"
#include "support/booked.h"
#include "support/training.h"

enum { ELEMS = 1000, N_STEPS = 4 };

/* Three rounds, alike but for what accumulates and for what runs in the last one only; a section after
 * them; activations and a state that visit from the offload pool. */
static const char program_text[] =
    "program rounds; body 10 x 3\n"
    "tensor x input f32 [1000]; tensor start optimizer f32 [1000] persistent\n"
    "tensor seed activation f32 [1000]; tensor a activation f32 [1000]\n"
    "tensor kept activation f32 [1000] offloaded; tensor b activation f32 [1000]\n"
    "tensor c activation f32 [1000]; tensor back temporary f32 [1000]\n"
    "tensor y activation f32 [1000] output; tensor late activation f32 [1000] output\n"
    "tensor state optimizer f32 [1000] persistent offloaded; tensor staged temporary f32 [1000]\n"
    "tensor next temporary f32 [1000]; tensor scaled activation bf16 [1000] output\n"
    "tensor z activation f32 [1000]\n"
    "seed = scale start {options=[3]}\n"
    "a = add x, seed; kept = evict a; b = scale x {options=[0.5]}; _ = wait_copy kept; c = act b "
    "{act=gelu}\n"
    "back = prefetch kept; y = accumulate back {accumulate=after_first}\n"
    "y = accumulate c {accumulate=yes}\n"
    "late = add y, x last\n"
    "staged = prefetch state; next = add staged, y; state = evict next; z = scale next "
    "{options=[0.25]}\n"
    "scaled = cast z\n";

struct results {
    float y[N_STEPS][ELEMS], late[N_STEPS][ELEMS], state[N_STEPS][ELEMS];
    uint16_t scaled[N_STEPS][ELEMS];
};

struct running {
    struct program prog;
    struct exec *exec;
    int step, n_fed;
};

static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    (void)err;
    struct running *r = user;
    float *x = exec_input(r->exec, program_find(&r->prog, "x"));
    int step = r->step + micro / r->prog.n_repeat; /* ahead: of the next one */
    r->n_fed++;
    for (int i = 0; i < ELEMS; i++)
        x[i] = (float)((i * 7 + micro % r->prog.n_repeat * 31 + step * 5) % 100) / 32;
    return SNUG_OK;
}

static void take(struct running *r, const char *name, void *to, size_t n_bytes)
{
    struct snug_error err;
    tensor_id id = program_find(&r->prog, name);
    must(exec_read(r->exec, id, 0, (int64_t)n_bytes, to, &err), &err);
}

static void run_on(const struct backend *backend, bool ahead, struct results *results)
{
    struct snug_error err = {0};
    struct device_rates rates = {.flops = 1e9, .bytes = 1e9, .pool_bytes_per_s = 1e9};
    struct device_facts facts = {.threads = 1, .reference_only = true};
    struct running r = {0};
    struct plan plan;
    float start[ELEMS];
    must(program_parse(program_text, &r.prog, &err), &err);
    must(program_verify(&r.prog, &err), &err);
    book_kernels(&r.prog, backend, &facts);
    must(plan_make(&r.prog, backend->alignment, &rates, &plan, &err), &err);
    must(exec_create(&r.prog, &plan, backend, &facts, NULL, &r.exec, &err), &err);
    for (int i = 0; i < ELEMS; i++)
        start[i] = (float)i / 64;
    must(exec_write(r.exec, program_find(&r.prog, "start"), 0, sizeof start, start, &err), &err);
    int64_t used = 0;
    exec_feed_ahead(r.exec, ahead);
    for (r.step = 0; r.step < N_STEPS; r.step++) {
        must(exec_run(r.exec, feed, &r, &err), &err);
        used = r.step == 0 ? exec_device_runtime_bytes(r.exec) : used;
        take(&r, "y", results->y[r.step], sizeof results->y[0]);
        take(&r, "late", results->late[r.step], sizeof results->late[0]);
        take(&r, "state", results->state[r.step], sizeof results->state[0]);
        take(&r, "scaled", results->scaled[r.step], sizeof results->scaled[0]);
    }
    assert_int_equal(r.n_fed, N_STEPS * 3 + (ahead && backend->hooks != NULL ? 1 : 0));
    assert_int_equal(exec_device_runtime_bytes(r.exec),
                     used); /* nothing more after the first step */
    exec_free(r.exec);
    plan_free(&plan);
    program_free(&r.prog);
}

static int n_replays, n_refused;

static enum snug_status count_replay(struct device *device, struct recording *recording,
                                     struct snug_error *err)
{
    n_replays++;
    return snug_cuda_backend()->hooks->replay(device, recording, err);
}

static enum snug_status refuse_to_record(struct device *device, struct snug_error *err)
{
    (void)device;
    n_refused++;
    return snug_fail(err, SNUG_UNSUPPORTED, "no recordings here");
}

static void expect_near(const float *found, const float *right, const char *what)
{
    for (int i = 0; i < N_STEPS * ELEMS; i++)
        if (!(found[i] - right[i] <= 1e-5f * (1 + right[i]) &&
              right[i] - found[i] <= 1e-5f * (1 + right[i])))
            fail_msg("%s, step %d: element %d is %g, not %g", what, i / ELEMS, i % ELEMS,
                     (double)found[i], (double)right[i]);
}

static void test_runs_as_on_the_cpu(void **state)
{
    (void)state;
    static struct results right, found, without;
    struct backend backend = *snug_cuda_backend();
    struct device_hooks hooks = *backend.hooks;
    backend.hooks = &hooks;
    run_on(backend_cpu(), true, &right);
    hooks.replay = count_replay;
    run_on(&backend, false, &found);
    assert_int_equal(n_replays, (N_STEPS - 1) * 4); /* three rounds, after them */
    expect_near(found.y[0], right.y[0], "y");
    expect_near(found.late[0], right.late[0], "late");
    expect_near(found.state[0], right.state[0], "state");
    hooks.record_begin = refuse_to_record;
    run_on(&backend, true, &without);
    assert_int_equal(n_refused, 4);                      /* each section is tried */
    assert_memory_equal(&found, &without, sizeof found); /* the bits of y, late, state, scaled */
}

/* ---- which copies wait for which -------------------------------------------------------------- */

enum { MOST_WAITS = 64 };

static struct {
    void *stream[MOST_WAITS], *event[MOST_WAITS];
    int n;
} waits;

static enum snug_status note_wait(void *stream, void *event, struct snug_error *err)
{
    assert_true(waits.n < MOST_WAITS);
    waits.stream[waits.n] = stream;
    waits.event[waits.n++] = event;
    return snug_cuda_backend()->hooks->event_wait(stream, event, err);
}

/* Does the stream of an evict wait for that copy? */
static bool waits_for(const struct exec *exec, int evict, int copy)
{
    for (int i = 0; i < waits.n; i++)
        if (waits.stream[i] == exec->calls[evict].stream && waits.event[i] == exec->copied[copy])
            return true;
    return false;
}

static enum snug_status forget_and_record(struct device *device, struct snug_error *err)
{
    waits.n = 0;
    return snug_cuda_backend()->hooks->record_begin(device, err);
}

/* After the first run, whose relevant section is captured last: which copy waits for which. */
static void run_and_record(struct text_run *run, const char *text, enum part part)
{
    static struct backend backend;
    static struct device_hooks hooks;
    struct snug_error err = {0};
    backend = *snug_cuda_backend();
    hooks = *backend.hooks;
    hooks.event_wait = note_wait;
    hooks.record_begin = forget_and_record;
    backend.hooks = &hooks;
    waits.n = 0;
    text_run_open(run, text, &backend);
    must(exec_run(run->exec, NULL, NULL, &err), &err);
    assert_non_null(run->exec->recordings[part]);
}

/* The first state is evicted while the second is prefetched: an evict waits for the prefetch of its own
 * bytes, and for no later one. */
static void test_an_eviction_waits_for_its_own_prefetch_alone(void **state)
{
    (void)state;
    static const char text[] =
        "program p; tensor y activation f32 [8] output\n"
        "tensor m optimizer f32 [8] persistent offloaded; tensor v optimizer f32 [8] persistent "
        "offloaded\n"
        "tensor here temporary f32 [8]; tensor there temporary f32 [8]\n"
        "here = prefetch m; there = prefetch v; m = evict here; y = add here, there\n";
    enum { FETCH_M, FETCH_V, EVICT_M };
    struct text_run run;
    run_and_record(&run, text, PART_first);
    assert_true(waits_for(run.exec, EVICT_M, FETCH_M));
    assert_false(waits_for(run.exec, EVICT_M, FETCH_V));
    text_run_close(&run);
}

/* A prefetch of the previous section has finished and is not part of this capture. */
static void test_an_eviction_waits_for_no_other_section(void **state)
{
    (void)state;
    static const char text[] =
        "program p; body 2 x 1; tensor y activation f32 [8] output\n"
        "tensor m optimizer f32 [8] persistent offloaded; tensor here temporary f32 [8]\n"
        "tensor a activation f32 [8]\n"
        "here = prefetch m; a = add here, here\n"
        "m = evict here; _ = wait_copy m; y = add a, here\n";
    enum { FETCH_M, EVICT_M = 2 };
    struct text_run run;
    run_and_record(&run, text, PART_epilogue);
    assert_false(waits_for(run.exec, EVICT_M, FETCH_M));
    text_run_close(&run);
}

/* An exec shares memory, device and scalar table with the one whose arena it uses. */
static void test_scalars_are_shared(void **state)
{
    (void)state;
    static const char text[] = "program p; tensor scalars optimizer f64 [24] persistent\n"
                               "tensor x input f32 [8]; tensor y activation f32 [8] output\n"
                               "y = add x, x\n";
    struct snug_error err = {0};
    struct device_rates rates = {.flops = 1e9, .bytes = 1e9, .pool_bytes_per_s = 1e9};
    struct device_facts facts = {.threads = 1};
    struct program prog;
    struct plan plan, over;
    struct exec *first, *second;
    const struct backend *backend = snug_cuda_backend();
    must(program_parse(text, &prog, &err), &err);
    prog.scalars = program_find(&prog, "scalars");
    book_kernels(&prog, backend, &facts);
    must(plan_make(&prog, backend->alignment, &rates, &plan, &err), &err);
    must(plan_make_over(&prog, &prog, &plan, backend->alignment, &over, &err), &err);
    plan.arena_bytes = over.arena_bytes > plan.arena_bytes ? over.arena_bytes : plan.arena_bytes;
    must(exec_create(&prog, &plan, backend, &facts, NULL, &first, &err), &err);
    must(exec_create(&prog, &over, backend, &facts, first, &second, &err), &err);
    exec_scalars(first)[SCALAR_lr] = 0.5;
    must(exec_run(first, NULL, NULL, &err), &err);
    must(exec_run(second, NULL, NULL, &err), &err);
    double table[24];
    must(exec_read(second, prog.scalars, 0, sizeof table, table, &err), &err);
    assert_true(table[SCALAR_lr] == 0.5);
    assert_ptr_equal(exec_scalars(first), exec_scalars(second));
    exec_free(second);
    exec_free(first);
    plan_free(&plan);
    plan_free(&over);
    program_free(&prog);
}

static void test_ids_are_checked_on_the_host(void **state)
{
    (void)state;
    static const char text[] =
        "program p; tensor ids input i32 [2 3]; tensor labels input i32 [2 3]\n"
        "tensor table parameter f32 [10 4] persistent; tensor x activation f32 [2 3 4]\n"
        "tensor loss activation f32 [1] output; tensor lse activation f32 [6]\n"
        "x = embedding ids, table; loss, lse = cross_entropy x, labels\n";
    struct program prog;
    struct snug_error err = {0};
    int32_t ids[6] = {0, 3, 9, 1, 2, 3};
    must(program_parse(text, &prog, &err), &err);
    tensor_id id = program_find(&prog, "ids"), labels = program_find(&prog, "labels");
    assert_int_equal(ids_limit(&prog, id), 10);
    assert_int_equal(ids_limit(&prog, labels), 4);
    assert_true(ids_limit(&prog, program_find(&prog, "x")) == INT64_MAX);
    must(ids_check(&prog.tensors[id], 10, ids, &err), &err);
    assert_int_equal(ids_check(&prog.tensors[labels], 4, ids, &err), SNUG_BAD_ARGUMENT);
    assert_string_equal(err.message, "labels[2] is 9, not in 0..3");
    program_free(&prog);
}

static void test_times_of_ops(void **state)
{
    (void)state;
    static const char text[] =
        "program p; tensor x input f32 [5000]; tensor a activation f32 [5000]\n"
        "tensor y activation f32 [5000] output\n"
        "a = act x {act=gelu}; y = add a, x\n";
    struct snug_error err = {0};
    struct text_run run;
    double seconds[2] = {0};
    text_run_open(&run, text, snug_cuda_backend());
    exec_time_ops(run.exec, seconds);
    must(exec_run(run.exec, NULL, NULL, &err), &err);
    assert_true(seconds[0] > 0 && seconds[1] > 0 && seconds[0] + seconds[1] < 60);
    text_run_close(&run);
}

/* ---- pieces that the host makes ------------------------------------------------------------- */

enum { MOST_LATE = 16, MADE_BYTES = 7 * EXEC_FILL_BYTES + 4 };

static struct {
    struct device *device;
    void *to[MOST_LATE];
    const void *from[MOST_LATE];
    int64_t n_bytes[MOST_LATE];
    int n;
} late; /* copies that a GPU has not got round to */

static enum snug_status push_late(struct device *device, void *to, const void *from,
                                  int64_t n_bytes, struct snug_error *err)
{
    (void)err;
    assert_true(late.n < MOST_LATE);
    late.device = device;
    late.to[late.n] = to;
    late.from[late.n] = from;
    late.n_bytes[late.n++] = n_bytes;
    return SNUG_OK;
}

/* To the end: the events were recorded before. */
static void push_now(void)
{
    const struct device_hooks *hooks = snug_cuda_backend()->hooks;
    struct snug_error err = {0};
    for (int i = 0; i < late.n; i++)
        must(hooks->push(late.device, late.to[i], late.from[i], late.n_bytes[i], &err), &err);
    if (late.n > 0)
        must(hooks->synchronize(late.device, &err), &err);
    late.n = 0;
}

static enum snug_status finish_late(void *event, struct snug_error *err)
{
    push_now();
    return snug_cuda_backend()->hooks->event_finish(event, err);
}

static enum snug_status synchronize_late(struct device *device, struct snug_error *err)
{
    push_now();
    return snug_cuda_backend()->hooks->synchronize(device, err);
}

static unsigned char made_byte(int64_t i)
{
    return (unsigned char)(i / EXEC_FILL_BYTES * 31 + i / 4096 * 7 + i); /* no two pieces alike */
}

static void expect_bytes(const struct exec *exec, tensor_id id, bool is_clear)
{
    static unsigned char found[MADE_BYTES];
    struct snug_error err = {0};
    must(exec_read(exec, id, 0, MADE_BYTES, found, &err), &err);
    for (int64_t i = 0; i < MADE_BYTES; i++)
        if (found[i] != (is_clear ? 0 : made_byte(i)))
            fail_msg("tensor %d, byte %lld is %d", (int)id, (long long)i, found[i]);
}

static void make_bytes(struct exec *exec, tensor_id id)
{
    struct snug_error err = {0};
    for (int64_t at = 0; at < MADE_BYTES; at += EXEC_FILL_BYTES) {
        struct exec_fill fill;
        int64_t n = MADE_BYTES - at < EXEC_FILL_BYTES ? MADE_BYTES - at : EXEC_FILL_BYTES;
        must(exec_fill_begin(exec, id, at, n, &fill, &err), &err);
        for (int64_t i = 0; i < n; i++)
            fill.to[i] = made_byte(at + i);
        must(exec_fill_end(exec, &fill, &err), &err);
    }
}

/* More pieces than rooms, in the arena and in the offload pool; copies are done when somebody waits for them. */
static void fill_on(const struct backend *backend)
{
    static const char text[] = "program p; tensor x input f32 [8]\n"
                               "tensor here optimizer u8 [29360132] persistent\n"
                               "tensor away optimizer u8 [29360132] persistent offloaded\n"
                               "tensor y activation f32 [8] output\n"
                               "y = add x, x\n";
    struct snug_error err = {0};
    struct text_run run;
    text_run_open(&run, text, backend);
    tensor_id ids[] = {program_find(&run.prog, "here"), program_find(&run.prog, "away")};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(tensor_bytes(&run.prog, ids[k]), MADE_BYTES);
        make_bytes(run.exec, ids[k]);
    }
    must(exec_fill_finish(run.exec, &err), &err);
    for (int k = 0; k < 2; k++) {
        expect_bytes(run.exec, ids[k], false);
        must(exec_clear(run.exec, ids[k], &err), &err);
        must(exec_fill_finish(run.exec, &err), &err);
        expect_bytes(run.exec, ids[k], true);
    }
    text_run_close(&run);
}

static void test_pieces_arrive(void **state)
{
    (void)state;
    struct backend backend = *snug_cuda_backend();
    struct device_hooks hooks = *backend.hooks;
    backend.hooks = &hooks;
    hooks.push = push_late;
    hooks.event_finish = finish_late;
    hooks.synchronize = synchronize_late;
    fill_on(&backend);
    fill_on(backend_cpu());
}

static void test_limits_are_measured(void **state)
{
    (void)state;
    struct device_limits limits = {0};
    struct device_facts facts = {.threads = 1};
    assert_true(snug_cuda_backend()->measure(&facts, &limits));
    assert_true(limits.f32_flops > 0 && limits.read_bytes > 0 && limits.copy_bytes > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_as_on_the_cpu),
        cmocka_unit_test(test_an_eviction_waits_for_its_own_prefetch_alone),
        cmocka_unit_test(test_an_eviction_waits_for_no_other_section),
        cmocka_unit_test(test_scalars_are_shared),
        cmocka_unit_test(test_ids_are_checked_on_the_host),
        cmocka_unit_test(test_times_of_ops),
        cmocka_unit_test(test_pieces_arrive),
        cmocka_unit_test(test_limits_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
