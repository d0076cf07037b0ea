/*
 * test_copies.c -- the copy lane, the offload pool, and both under the executor.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/text.h"
#include "exec/copies.h"
#include "exec/exec.h"
#include "support/booked.h"
#include "support/training.h"

/* ---- the lane
 * -------------------------------------------------------------------------------------- */

enum { N_OPS = 1000, N_RING = 7 };

struct log {
    int ops[N_OPS], n_ops;
    int fails_at, n_helped;
    pthread_mutex_t gate; /* held by the test: nothing gets on */
};

static enum snug_status note(void *user, int op, struct snug_error *err)
{
    struct log *log = user;
    pthread_mutex_lock(&log->gate);
    log->ops[log->n_ops++] = op;
    pthread_mutex_unlock(&log->gate);
    return op == log->fails_at ? snug_fail(err, SNUG_IO_ERROR, "op %d broke", op) : SNUG_OK;
}

static void test_order(void **state)
{
    (void)state;
    struct log log = {.fails_at = -1, .gate = PTHREAD_MUTEX_INITIALIZER};
    struct copies *copies = NULL;
    struct snug_error err;
    must(copies_create(N_RING, note, NULL, &log, &copies, &err), &err);
    for (int op = 0; op < N_OPS; op++) {
        int64_t number = copies_issue(copies, 3 * op);
        if (op % N_RING == N_RING - 1) { /* no more than the ring holds */
            must(copies_wait(copies, number, &err), &err);
            assert_int_equal(log.n_ops, op + 1);
        }
    }
    must(copies_finish(copies, &err), &err);
    assert_int_equal(log.n_ops, N_OPS);
    for (int op = 0; op < N_OPS; op++)
        assert_int_equal(log.ops[op], 3 * op);
    copies_free(copies);
}

/* Issuing does not wait: the copies are held back until the test has issued them all. */
static void test_beside(void **state)
{
    (void)state;
    struct log log = {.fails_at = -1, .gate = PTHREAD_MUTEX_INITIALIZER};
    struct copies *copies = NULL;
    struct snug_error err;
    must(copies_create(N_RING, note, NULL, &log, &copies, &err), &err);
    pthread_mutex_lock(&log.gate);
    for (int op = 0; op < N_RING; op++)
        copies_issue(copies, op);
    assert_int_equal(log.n_ops, 0);
    pthread_mutex_unlock(&log.gate);
    must(copies_wait(copies, 2, &err), &err);
    assert_true(log.n_ops >= 3);
    copies_free(copies); /* with some under way */
    assert_int_equal(log.n_ops, N_RING);
}

/* With nothing to run, the lane helps to finish copies in flight; ops come first. */
static bool help(void *user)
{
    struct log *log = user;
    pthread_mutex_lock(&log->gate);
    bool more = log->n_helped < N_RING;
    log->n_helped += more;
    pthread_mutex_unlock(&log->gate);
    return more;
}

static void test_idle(void **state)
{
    (void)state;
    struct log log = {.fails_at = -1, .gate = PTHREAD_MUTEX_INITIALIZER};
    struct copies *copies = NULL;
    struct snug_error err;
    must(copies_create(N_RING, note, help, &log, &copies, &err), &err);
    int n_helped = 0;
    for (int i = 0; i < 1000 && n_helped < N_RING; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
        pthread_mutex_lock(&log.gate);
        n_helped = log.n_helped;
        pthread_mutex_unlock(&log.gate);
    }
    assert_int_equal(n_helped, N_RING);
    must(copies_wait(copies, copies_issue(copies, 5), &err), &err);
    assert_int_equal(log.ops[0], 5);
    copies_free(copies);
}

static void test_failure(void **state)
{
    (void)state;
    struct log log = {.fails_at = 2, .gate = PTHREAD_MUTEX_INITIALIZER};
    struct copies *copies = NULL;
    struct snug_error err = {0};
    must(copies_create(N_RING, note, NULL, &log, &copies, &err), &err);
    for (int op = 0; op < 5; op++)
        copies_issue(copies, op);
    assert_int_equal(copies_wait(copies, 4, &err), SNUG_IO_ERROR);
    assert_string_equal(err.message, "op 2 broke");
    assert_int_equal(log.n_ops, 3); /* none after it */
    assert_int_equal(copies_finish(copies, &err), SNUG_IO_ERROR);
    copies_issue(copies, 7);
    must(copies_finish(copies, &err), &err); /* forgotten */
    assert_int_equal(log.ops[3], 7);
    copies_free(copies);
}

/* ---- the offload pool
 * ------------------------------------------------------------------------------------- */

static void test_pool(void **state)
{
    (void)state;
    enum { BYTES = 300000 };
    static unsigned char wrote[BYTES], read[BYTES];
    struct device_facts facts = {.threads = 1};
    struct offload_pool *pool = NULL;
    struct snug_error err = {0};
    must(backend_cpu()->open_pool(&facts, BYTES, &pool, &err), &err);
    must(pool->read(pool, 0, read, BYTES, &err), &err);
    assert_memory_equal(read, wrote, BYTES); /* zeros */
    for (int i = 0; i < BYTES; i++)
        wrote[i] = (unsigned char)(i * 7 + i / 256);
    must(pool->write(pool, 64, wrote + 64, BYTES - 64, &err), &err);
    must(pool->write(pool, 0, wrote, 64, &err), &err);
    must(pool->read(pool, 1, read, BYTES - 1, &err), &err);
    assert_memory_equal(read, wrote + 1, BYTES - 1);
    assert_int_equal(pool->read(pool, BYTES - 1, read, 2, &err), SNUG_IO_ERROR);
    assert_non_null(strstr(err.message, "the offload file in /"));
    assert_non_null(strstr(err.message, "set --out or TMPDIR to another disk"));
    pool->close(pool);
    assert_int_equal(backend_cpu()->open_pool(&facts, INT64_C(1) << 60, &pool, &err),
                     SNUG_OVER_BUDGET); /* no disk has that */
    assert_non_null(strstr(err.message, "1152921504606846976 bytes"));
}

/* ---- the executor
 * ---------------------------------------------------------------------------------- */

/* Two rounds of a body that evictions and prefetches, then a state that visits: what was evicted comes
 * back, though its bytes were used for others in between. */
static const char program_text[] =
    "program copies; body 8 x 2\n"
    "tensor x input f32 [4096]\n"
    "tensor a activation f32 [4096]; tensor b activation f32 [4096]\n"
    "tensor c activation f32 [4096]; tensor back temporary f32 [4096]\n"
    "tensor kept activation f32 [4096] offloaded\n"
    "tensor y activation f32 [4096] output\n"
    "tensor state optimizer f32 [4096] persistent offloaded; tensor staged temporary f32 [4096]\n"
    "tensor next temporary f32 [4096]\n"
    "a = add x, x; kept = evict a; b = add x, x; _ = wait_copy kept; c = add b, b\n"
    "back = prefetch kept; y = accumulate back {accumulate=after_first}\n"
    "y = accumulate c {accumulate=yes}\n"
    "staged = prefetch state; next = add staged, y; state = evict next\n";

static struct {
    struct program prog;
    struct plan plan;
    struct device_facts facts;
    struct exec *exec;
} run;

static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    (void)user, (void)err;
    float *x = exec_data(run.exec, program_find(&run.prog, "x"));
    for (int i = 0; i < 4096; i++)
        x[i] = (float)(i + micro);
    return SNUG_OK;
}

static void make_run_of(const char *text)
{
    struct snug_error err;
    struct device_rates rates = {.flops = 1e9, .bytes = 1e9, .pool_bytes_per_s = 1e9};
    memset(&run, 0, sizeof run);
    run.facts.threads = 1;
    run.facts.isa = backend_cpu_isa();
    must(program_parse(text, &run.prog, &err), &err);
    must(program_verify(&run.prog, &err), &err);
    book_kernels(&run.prog, backend_cpu(), &run.facts);
    must(plan_make(&run.prog, 64, &rates, &run.plan, &err), &err);
    must(plan_check(&run.prog, run.plan.offset, run.plan.arena_bytes, 64, &err), &err);
}

static void make_run(void)
{
    make_run_of(program_text);
}

static void end_run(void)
{
    exec_free(run.exec);
    plan_free(&run.plan);
    program_free(&run.prog);
}

/* The CPU's offload pool, but slow: an op that does not wait for a copy is sure to be too early. */
static struct {
    enum snug_status (*read)(struct offload_pool *, int64_t, void *, int64_t, struct snug_error *);
    enum snug_status (*write)(struct offload_pool *, int64_t, const void *, int64_t,
                              struct snug_error *);
} fast;

static long dawdle_ns = 5000000;

static void dawdle(void)
{
    nanosleep(&(struct timespec){.tv_nsec = dawdle_ns}, NULL);
}

static enum snug_status slow_read(struct offload_pool *pool, int64_t at, void *to, int64_t n,
                                  struct snug_error *err)
{
    dawdle();
    return fast.read(pool, at, to, n, err);
}

static enum snug_status slow_write(struct offload_pool *pool, int64_t at, const void *from,
                                   int64_t n, struct snug_error *err)
{
    dawdle();
    return fast.write(pool, at, from, n, err);
}

static enum snug_status open_slow(const struct device_facts *facts, int64_t n_bytes,
                                  struct offload_pool **pool, struct snug_error *err)
{
    TRY(backend_cpu()->open_pool(facts, n_bytes, pool, err));
    fast.read = (*pool)->read;
    fast.write = (*pool)->write;
    (*pool)->read = slow_read;
    (*pool)->write = slow_write;
    return SNUG_OK;
}

static void test_run(void **state)
{
    (void)state;
    struct snug_error err;
    float found[4096];
    struct backend backend = *backend_cpu();
    backend.open_pool = open_slow;
    make_run();
    assert_int_equal(run.plan.pool_bytes, 2 * 4096 * 4);
    must(exec_create(&run.prog, &run.plan, &backend, &run.facts, NULL, &run.exec, &err), &err);
    assert_null(exec_data(run.exec, program_find(&run.prog, "state")));
    tensor_id id = program_find(&run.prog, "state");
    for (int step = 1; step <= 3; step++) {
        must(exec_run(run.exec, feed, NULL, &err), &err);
        must(exec_read(run.exec, id, 0, sizeof found, found, &err), &err);
        for (int i = 0; i < 4096; i++) /* (2 + 4) (i + i + 1) a step */
            if (found[i] != (float)(step * 6 * (2 * i + 1)))
                fail_msg("step %d: element %d is %g", step, i, (double)found[i]);
    }
    found[5] = -1;
    must(exec_write(run.exec, id, 20, 4, &found[5], &err), &err);
    must(exec_read(run.exec, id, 20, 4, found, &err), &err);
    assert_true(found[0] == -1.0f);
    end_run();
}

/* The last op of a round waits for the copies of that round: before the last one, not for a copy that comes then. */
static void test_rounds(void **state)
{
    (void)state;
    struct snug_error err;
    static float numbers[4096], found[4096];
    struct backend backend = *backend_cpu();
    backend.open_pool = open_slow;
    make_run_of(
        "program rounds; body 3 x 2\n"
        "tensor m optimizer f32 [4096] persistent offloaded; tensor a temporary f32 [4096]\n"
        "tensor v optimizer f32 [4096] persistent offloaded; tensor b temporary f32 [4096]\n"
        "tensor y activation f32 [4096] output\n"
        "a = prefetch m; b = prefetch v last; y = accumulate a {accumulate=after_first}\n");
    must(exec_create(&run.prog, &run.plan, &backend, &run.facts, NULL, &run.exec, &err), &err);
    for (int i = 0; i < 4096; i++)
        numbers[i] = (float)(i + 1);
    tensor_id m = program_find(&run.prog, "m");
    must(exec_write(run.exec, m, 0, sizeof numbers, numbers, &err), &err);
    must(exec_run(run.exec, NULL, NULL, &err), &err);
    must(exec_read(run.exec, program_find(&run.prog, "y"), 0, sizeof found, found, &err), &err);
    for (int i = 0; i < 4096; i++)
        if (found[i] != 2 * numbers[i])
            fail_msg("element %d is %g, not %g", i, (double)found[i], 2 * (double)numbers[i]);
    end_run();
}

static enum snug_status broken_write(struct offload_pool *pool, int64_t at, const void *from,
                                     int64_t n, struct snug_error *err)
{
    (void)pool, (void)at, (void)from, (void)n;
    return snug_fail(err, SNUG_IO_ERROR, "the disk broke");
}

static enum snug_status open_broken(const struct device_facts *facts, int64_t n_bytes,
                                    struct offload_pool **pool, struct snug_error *err)
{
    TRY(backend_cpu()->open_pool(facts, n_bytes, pool, err));
    (*pool)->write = broken_write;
    return SNUG_OK;
}

/* A copy that fails ends the run with its own message, also the next one. */
static void test_broken_disk(void **state)
{
    (void)state;
    struct snug_error err;
    struct backend backend = *backend_cpu();
    backend.open_pool = open_broken;
    make_run();
    must(exec_create(&run.prog, &run.plan, &backend, &run.facts, NULL, &run.exec, &err), &err);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(exec_run(run.exec, feed, NULL, &err), SNUG_IO_ERROR);
        assert_string_equal(err.message, "the disk broke");
    }
    end_run();
}

/* ---- the planner
 * ------------------------------------------------------------------------------------ */

static int alive_to(const char *name)
{
    return run.plan.alive_to[program_find(&run.prog, name)];
}

static void test_lives(void **state)
{
    (void)state;
    struct snug_error err;
    make_run();
    assert_int_equal(alive_to("a"), 3);     /* its copy is done when wait_copy begins */
    assert_int_equal(alive_to("next"), 10); /* and that one at the end */
    assert_int_equal(run.plan.block_of[program_find(&run.prog, "kept")], -1);

    /* b is written while a may still be read: they must not share bytes, and c may have them */
    int64_t *offset = run.plan.offset;
    tensor_id a = program_find(&run.prog, "a"), b = program_find(&run.prog, "b");
    int64_t was = offset[b];
    offset[b] = offset[a];
    assert_int_equal(plan_check(&run.prog, offset, run.plan.arena_bytes, 64, &err),
                     SNUG_BAD_PROGRAM);
    assert_non_null(strstr(err.message, "\"a\" and \"b\" share bytes"));
    offset[b] = was;

    int64_t *pool_offset = run.plan.pool_offset;
    must(plan_check_pool(&run.prog, pool_offset, run.plan.pool_bytes, &err), &err);
    pool_offset[program_find(&run.prog, "kept")] = 64;
    assert_int_equal(plan_check_pool(&run.prog, pool_offset, run.plan.pool_bytes, &err),
                     SNUG_BAD_PROGRAM);
    end_run();
}

/* ---- all together
 * ------------------------------------------------------------------------------------ */

enum { N_PROGRAMS = 150, RANDOM_OPS = 40, ELEMS = 64, VALUES_MOST = RANDOM_OPS + 1 };

struct simulated { /* what every tensor holds, each at a place of its own */
    double number[VALUES_MOST][ELEMS];
    bool offloaded[VALUES_MOST];
    bool in_last[VALUES_MOST]; /* made in the last round only */
    int n, n_ops;
};

static int roll(uint64_t *dice, int n)
{
    *dice = *dice * 6364136223846793005u + 1442695040888963407u;
    return (int)((*dice >> 33) % (uint64_t)n);
}

/* One of those so far that is offloaded, or is not; 0, the input, if there is none.  An op that runs in
 * every round reads nothing that is not made in every one. */
static int pick(uint64_t *dice, const struct simulated *s, bool offloaded, bool in_last)
{
    for (int tries = 0; tries < 20; tries++) {
        int t = roll(dice, s->n);
        if (s->offloaded[t] == offloaded && (in_last || !s->in_last[t]))
            return t;
    }
    return 0;
}

/* Adds an op and what it makes. */
static void add_random(uint64_t *dice, struct simulated *s, struct text *tensors, struct text *ops)
{
    bool in_last = roll(dice, 4) == 0;
    int kind = roll(dice, 8), made = s->n;
    int a = pick(dice, s, kind < 3, in_last), b = pick(dice, s, false, in_last);
    bool fetches = kind < 3 && s->offloaded[a], evictions = kind >= 3 && kind < 5;
    const char *when = in_last ? " last\n" : "\n";
    s->n_ops++;
    if (kind == 5) {
        text_add(ops, "_ = wait_copy t%d%s", roll(dice, 2) ? a : pick(dice, s, true, in_last),
                 when);
        return;
    }
    const char *name = fetches ? "prefetch" : evictions ? "evict" : "add";
    text_add(tensors, "tensor t%d activation f32 [%d]%s\n", made, ELEMS,
             evictions            ? " offloaded"
             : roll(dice, 6) == 0 ? " output"
                                  : "");
    text_add(ops, "t%d = %s t%d", made, name, a);
    if (!fetches && !evictions)
        text_add(ops, ", t%d", b);
    text_add(ops, "%s", when);
    for (int i = 0; i < ELEMS; i++)
        s->number[made][i] = s->number[a][i] + (fetches || evictions ? 0 : s->number[b][i]);
    s->offloaded[made] = evictions;
    s->in_last[made] = in_last;
    s->n++;
}

static enum snug_status feed_random(void *user, int micro, struct snug_error *err)
{
    (void)user, (void)micro, (void)err;
    float *x = exec_data(run.exec, program_find(&run.prog, "t0"));
    for (int i = 0; i < ELEMS; i++)
        x[i] = (float)i;
    return SNUG_OK;
}

/* Programs of sums and copies, in three rounds of which the last has ops of its own: every output is as if
 * each op had run alone. */
static void test_random_programs(void **state)
{
    (void)state;
    int n_outputs = 0;
    struct backend backend = *backend_cpu();
    backend.open_pool = open_slow;
    dawdle_ns = 20000;
    for (uint64_t seed = 1; seed <= N_PROGRAMS; seed++) {
        static struct simulated s;
        struct text tensors = {0}, ops = {0}, all = {0};
        struct snug_error err;
        uint64_t dice = seed;
        s = (struct simulated){.n = 1};
        for (int i = 0; i < ELEMS; i++)
            s.number[0][i] = i;
        for (int i = 0; i < RANDOM_OPS; i++)
            add_random(&dice, &s, &tensors, &ops);
        text_add(&all, "program random; body %d x 3; tensor t0 input f32 [%d]\n%s%s", s.n_ops,
                 ELEMS, tensors.data, ops.data);
        make_run_of(all.data);
        must(exec_create(&run.prog, &run.plan, &backend, &run.facts, NULL, &run.exec, &err), &err);
        must(exec_run(run.exec, feed_random, NULL, &err), &err);
        for (int id = 0; id < run.prog.n_tensors; id++) {
            const float *found = exec_data(run.exec, id);
            for (int i = 0; run.prog.tensors[id].is_output && i < ELEMS; i++)
                if (found[i] != (float)s.number[id][i])
                    fail_msg("seed %d: t%d[%d] is %g, not %g\n%s", (int)seed, id, i,
                             (double)found[i], s.number[id][i], all.data);
            n_outputs += run.prog.tensors[id].is_output;
        }
        end_run();
        text_free(&tensors);
        text_free(&ops);
        text_free(&all);
    }
    assert_true(n_outputs > 2 * N_PROGRAMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),       cmocka_unit_test(test_beside),
        cmocka_unit_test(test_idle),        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_pool),        cmocka_unit_test(test_lives),
        cmocka_unit_test(test_run),         cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_broken_disk), cmocka_unit_test(test_random_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
