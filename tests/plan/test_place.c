/*
 * test_place.c -- the planner on programs that nobody would write, and the checker on plans that
 * nobody should accept.
 *
 * A thousand random programs are planned and checked.  Then the plans are damaged: blocks are
 * moved, swapped and shifted, the arena is cut, lifetimes are made an op too short.  plan_check
 * must refuse exactly the plans that an oracle refuses, which knows only reads and writes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "plan/plan.h"
#include "support/plan_oracle.h"
#include "support/random_program.h"

enum { N_PROGRAMS = 1000, ALIGNMENT = 64 };

static const struct device_rates rates = {.flops = 1e9, .bytes = 1e9};

static bool has_views(uint64_t seed)
{
    return seed % 2 == 0;
}

static void draw(struct program *prog, uint64_t seed)
{
    struct snug_error err = {0};
    struct dice dice = {.seed = seed + 1000000};
    int n_ops = 2 + dice_roll(&dice, 28);
    if (random_program(prog, seed, n_ops, has_views(seed), &err) != SNUG_OK)
        fail_msg("seed %d: %s", (int)seed, err.message);
    if (!has_views(seed) && program_verify(prog, &err) != SNUG_OK)
        fail_msg("seed %d: %s", (int)seed, err.message);
}

static void make(const struct program *prog, struct plan *plan, uint64_t seed)
{
    struct snug_error err = {0};
    if (plan_make(prog, ALIGNMENT, &rates, plan, &err) != SNUG_OK)
        fail_msg("seed %d: %s", (int)seed, err.message);
}

/* ---- good plans ----------------------------------------------------------------------------- */

/* The most bytes alive at once if every block is as long as its alignment makes it: what no
 * order of placing can get below. */
static int64_t most_padded(const struct plan *plan, int n_ops)
{
    int64_t most = 0;
    for (int at = 0; at < n_ops; at++) {
        int64_t alive = 0;
        for (int i = 0; i < plan->n_blocks; i++)
            if (plan->blocks[i].first <= at && at <= plan->blocks[i].last)
                alive += (plan->blocks[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        most = alive > most ? alive : most;
    }
    return most;
}

static void test_random_programs(void **state)
{
    (void)state;
    double sum = 0, worst = 0;
    int n_shared = 0, n_ops = 0;
    for (uint64_t seed = 0; seed < N_PROGRAMS; seed++) {
        struct snug_error err = {0};
        struct program prog;
        struct plan plan;
        draw(&prog, seed);
        make(&prog, &plan, seed);
        if (plan_check(&prog, plan.offset, plan.arena_bytes, ALIGNMENT, &err) != SNUG_OK)
            fail_msg("seed %d: %s", (int)seed, err.message);
        if (oracle_plan_is_wrong(&prog, plan.offset, plan.arena_bytes))
            fail_msg("seed %d: the plan is wrong and plan_check says it is right", (int)seed);
        for (int i = 0; i < prog.n_tensors; i++)
            if (prog.tensors[i].base == TENSOR_NONE && plan.offset[i] >= 0 &&
                plan.offset[i] % ALIGNMENT != 0)
                fail_msg("seed %d: \"%s\" is not aligned", (int)seed, prog.tensors[i].name);
        assert_int_equal(plan.fragmentation, plan.arena_bytes - plan.lower_bound);
        int64_t lost = plan.arena_bytes - most_padded(&plan, prog.n_ops);
        double part = lost < 0 ? 0 : (double)lost / (double)plan.arena_bytes;
        sum += part;
        worst = part > worst ? part : worst;
        n_ops += prog.n_ops;
        for (int i = 0; i < prog.n_tensors; i++)
            n_shared += plan.block_of[i] >= 0 && prog.tensors[i].base == TENSOR_NONE;
        n_shared -= plan.n_blocks;
        plan_free(&plan);
        program_free(&prog);
    }
    print_message("%d programs, %d ops, %d tensors in place; fragmentation beyond padding: "
                  "mean %.3f%%, worst %.2f%%\n",
                  N_PROGRAMS, n_ops, n_shared, 100 * sum / N_PROGRAMS, 100 * worst);
    assert_true(n_shared > N_PROGRAMS); /* the draw does reach the in-place rule */
}

static void test_lower_bound(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_PROGRAMS / 4; seed++) {
        struct program prog;
        struct plan plan;
        draw(&prog, seed);
        make(&prog, &plan, seed);
        int64_t alive = oracle_most_alive(&prog, plan.offset, plan.arena_bytes), at_peak = 0;
        for (int role = 0; role < ROLE_COUNT; role++)
            at_peak += plan.at_peak[role];
        if (alive != plan.lower_bound || at_peak != plan.lower_bound)
            fail_msg("seed %d: lower bound %lld, roles add up to %lld, counted %lld", (int)seed,
                     (long long)plan.lower_bound, (long long)at_peak, (long long)alive);
        plan_free(&plan);
        program_free(&prog);
    }
}

static void test_same_plan_twice(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct program prog;
        struct plan first, second;
        draw(&prog, seed);
        make(&prog, &first, seed);
        make(&prog, &second, seed);
        assert_int_equal(first.arena_bytes, second.arena_bytes);
        assert_memory_equal(first.offset, second.offset,
                            (size_t)prog.n_tensors * sizeof *first.offset);
        plan_free(&first);
        plan_free(&second);
        program_free(&prog);
    }
}

/* ---- damaged plans -------------------------------------------------------------------------- */

struct tally {
    int n, harmful, caught;
};

static void move_block(const struct program *prog, const struct plan *plan, int64_t *offset,
                       int block, int64_t to)
{
    for (int i = 0; i < prog->n_tensors; i++)
        if (plan->block_of[i] == block)
            offset[i] += to - plan->blocks[block].offset;
}

static void damage(const struct program *prog, const struct plan *plan, int way, struct dice *dice,
                   int64_t *offset, int64_t *arena_bytes)
{
    int a = dice_roll(dice, plan->n_blocks), b = dice_roll(dice, plan->n_blocks);
    const struct block *first = &plan->blocks[a], *second = &plan->blocks[b];
    switch (way) {
    case 0: /* a block onto another */
        move_block(prog, plan, offset, a, second->offset);
        break;
    case 1:
        move_block(prog, plan, offset, a, second->offset);
        move_block(prog, plan, offset, b, first->offset);
        break;
    case 2: /* one alignment down or up */
        move_block(prog, plan, offset, a,
                   first->offset < ALIGNMENT || dice_roll(dice, 2) ? first->offset + ALIGNMENT
                                                                   : first->offset - ALIGNMENT);
        break;
    default:
        *arena_bytes -= 1 + dice_roll(dice, ALIGNMENT);
    }
}

static void judge(const struct program *prog, const int64_t *offset, int64_t arena_bytes,
                  struct tally *tally, uint64_t seed, const char *what)
{
    bool wrong = oracle_plan_is_wrong(prog, offset, arena_bytes);
    bool refused = plan_check(prog, offset, arena_bytes, ALIGNMENT, NULL) != SNUG_OK;
    tally->n++;
    tally->harmful += wrong;
    tally->caught += wrong && refused;
    if (wrong && !refused)
        fail_msg("seed %d, %s: a wrong plan is accepted", (int)seed, what);
    if (refused && !wrong)
        fail_msg("seed %d, %s: a right plan is refused", (int)seed, what);
}

static void test_damage(void **state)
{
    (void)state;
    static const char *const ways[] = {"moved", "swapped", "shifted", "cut"};
    struct tally tallies[4] = {{0}};
    for (uint64_t seed = 0; seed < N_PROGRAMS; seed++) {
        struct program prog;
        struct plan plan;
        struct dice dice = {.seed = seed + 5000};
        draw(&prog, seed);
        make(&prog, &plan, seed);
        size_t bytes = (size_t)prog.n_tensors * sizeof *plan.offset;
        int64_t *offset = malloc(bytes);
        assert_non_null(offset);
        for (int way = 0; way < 4; way++) {
            int64_t arena_bytes = plan.arena_bytes;
            memcpy(offset, plan.offset, bytes);
            damage(&prog, &plan, way, &dice, offset, &arena_bytes);
            judge(&prog, offset, arena_bytes, &tallies[way], seed, ways[way]);
        }
        free(offset);
        plan_free(&plan);
        program_free(&prog);
    }
    for (int way = 0; way < 4; way++) {
        print_message("%-8s %4d plans, %4d wrong, all caught\n", ways[way], tallies[way].n,
                      tallies[way].harmful);
        assert_true(tallies[way].harmful > N_PROGRAMS / 10);
        assert_int_equal(tallies[way].caught, tallies[way].harmful);
    }
}

/* Lifetimes that end an op too early, all of them or one: the bug of a planner with a wrong `last`. */
static void shorten(struct block *blocks, int n_blocks, bool all, struct dice *dice)
{
    int only = dice_roll(dice, n_blocks);
    for (int i = 0; i < n_blocks; i++)
        if (!blocks[i].persistent && blocks[i].last > blocks[i].first && (all || i == only))
            blocks[i].last--;
}

static void test_short_lives(void **state)
{
    (void)state;
    struct tally tallies[2] = {{0}};
    for (uint64_t seed = 0; seed < N_PROGRAMS; seed++)
        for (int all = 0; all < 2; all++) {
            struct program prog;
            struct plan plan = {0};
            struct snug_error err = {0};
            struct dice dice = {.seed = seed + 9000};
            draw(&prog, seed);
            assert_int_equal(plan_lifetimes(&prog, &plan, &err), SNUG_OK);
            shorten(plan.blocks, plan.n_blocks, all, &dice);
            assert_int_equal(plan_place(plan.blocks, plan.n_blocks, prog.n_ops, ALIGNMENT, 0,
                                        &plan.persistent_bytes, &plan.arena_bytes, &err),
                             SNUG_OK);
            int64_t *offset = malloc((size_t)prog.n_tensors * sizeof *offset);
            assert_non_null(offset);
            for (int i = 0; i < prog.n_tensors; i++)
                offset[i] = plan.block_of[i] < 0
                                ? -1
                                : plan.blocks[plan.block_of[i]].offset +
                                      prog.tensors[i].offset_elems *
                                          (int64_t)dtype_bytes(prog.tensors[i].dtype);
            judge(&prog, offset, plan.arena_bytes, &tallies[all], seed, "short life");
            free(offset);
            plan_free(&plan);
            program_free(&prog);
        }
    print_message("one life too short: %d of %d plans are wrong, all lives: %d; all caught\n",
                  tallies[0].harmful, tallies[0].n, tallies[1].harmful);
    assert_true(tallies[1].harmful > tallies[1].n * 8 / 10);
}

/* ---- named cases: what once went or could go wrong ------------------------------------------- */

#define HEAD    "tensor p parameter f32 [4] persistent; tensor x input f32 [4]; "
#define T(name) "tensor " name " activation f32 [4]; "

static const struct {
    const char *name, *text, *no_alias[2]; /* these two must not share bytes */
} named_kernels[] = {
    {"a sum over micro-batches is not overwritten by the last op of the body",
     HEAD T("g") T("y") "body 2 x 2; g = accumulate x {accumulate=after_first}; y = act g",
     {"g", "y"}},
    {"a part that is an output keeps its base",
     HEAD T("b") "tensor v activation f32 [2] view=b+2 output; " T("y")
         T("z") "b = act x; y = act p; z = act y",
     {"b", "y"}},
    {"an input read through a part too is not taken over in place",
     HEAD T("a") "tensor v activation f32 [4] view=a+0; " T(
         "y") "tensor gm parameter f32 [4] persistent; tensor s parameter f32 [1] "
              "persistent; " T("dg") T("db") "a = act x; y, dg, db = layernorm_grad a, v, gm, s, s",
     {"a", "y"}},
};

static void test_named_kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof named_kernels / sizeof *named_kernels; i++) {
        struct snug_error err = {0};
        struct program prog;
        struct plan plan;
        if (program_parse(named_kernels[i].text, &prog, &err) != SNUG_OK ||
            plan_make(&prog, ALIGNMENT, &rates, &plan, &err) != SNUG_OK ||
            plan_check(&prog, plan.offset, plan.arena_bytes, ALIGNMENT, &err) != SNUG_OK)
            fail_msg("%s: %s", named_kernels[i].name, err.message);
        tensor_id a = program_find(&prog, named_kernels[i].no_alias[0]);
        tensor_id b = program_find(&prog, named_kernels[i].no_alias[1]);
        assert_int_not_equal(plan.offset[a], plan.offset[b]);
        plan_free(&plan);
        program_free(&prog);
    }
}

/* ---- alignment ------------------------------------------------------------------------------ */

static void test_alignment_is_checked(void **state)
{
    (void)state;
    struct snug_error err = {0};
    struct program prog;
    struct plan plan;
    assert_int_equal(program_parse(HEAD T("y") "y = act x", &prog, &err), SNUG_OK);
    make(&prog, &plan, 0);
    tensor_id y = program_find(&prog, "y");
    plan.offset[y] += 4;
    plan.arena_bytes += ALIGNMENT;
    assert_int_equal(plan_check(&prog, plan.offset, plan.arena_bytes, 4, &err), SNUG_OK);
    assert_int_equal(plan_check(&prog, plan.offset, plan.arena_bytes, ALIGNMENT, &err),
                     SNUG_BAD_PROGRAM);
    assert_non_null(strstr(err.message, "\"y\" begins at byte"));
    plan_free(&plan);
    program_free(&prog);
}

/* ---- one program on the arena of another ------------------------------------------------------ */

#define HOST_TEXT                                                                     \
    "program host; tensor p parameter f32 [40] persistent; tensor x input f32 [40]; " \
    "tensor a activation f32 [40]; tensor q optimizer f32 [40] persistent; "          \
    "tensor b activation f32 [40] output; a = add x, p; b = add a, q"
#define GUEST_TEXT                                                                     \
    "program guest; tensor p parameter f32 [40] persistent; tensor x input f32 [40]; " \
    "tensor c activation f32 [40]; tensor q optimizer f32 [40] persistent; "           \
    "tensor d activation f32 [40] output; c = add x, p; d = add c, q"

static const struct {
    const char *name, *moved, *onto,
        *words; /* a tensor of the guest onto one of the host, or beyond both */
} over_rows[] = {
    {"the plan as it is made", NULL, NULL, NULL},
    {"on what dies with the host's run", "d", "a", NULL},
    {"on a weight that it reads", "d", "q", "\"d\" was last written there"},
    {"on a state of the host that it does not read", "d", "m",
     "\"d\" of guest overlaps \"m\" of host"},
    {"a weight elsewhere", "p", NULL, "\"p\" is not at the offset that host gives it"},
    {"a weight on another", "p", "m", "\"p\" of guest overlaps \"m\" of host"},
};

static void test_over_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof over_rows / sizeof *over_rows; i++) {
        struct snug_error err = {0};
        struct program host, guest;
        struct plan host_plan, plan;
        assert_int_equal(
            program_parse(HOST_TEXT "; tensor m optimizer f32 [40] persistent", &host, &err),
            SNUG_OK);
        assert_int_equal(program_parse(GUEST_TEXT, &guest, &err), SNUG_OK);
        make(&host, &host_plan, i);
        if (plan_make_over(&guest, &host, &host_plan, ALIGNMENT, &plan, &err) != SNUG_OK)
            fail_msg("%s: %s", over_rows[i].name, err.message);
        int64_t arena_bytes = plan.arena_bytes;
        int64_t beyond = (arena_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (over_rows[i].moved != NULL)
            plan.offset[program_find(&guest, over_rows[i].moved)] =
                over_rows[i].onto == NULL
                    ? beyond
                    : host_plan.offset[program_find(&host, over_rows[i].onto)];
        arena_bytes = beyond + 40 * (int64_t)sizeof(float);
        enum snug_status status = plan_check_over(&guest, plan.offset, arena_bytes, ALIGNMENT,
                                                  &host, host_plan.offset, &err);
        if (over_rows[i].words == NULL
                ? status != SNUG_OK
                : status != SNUG_BAD_PROGRAM || strstr(err.message, over_rows[i].words) == NULL)
            fail_msg("%s: status %d, %s", over_rows[i].name, (int)status, err.message);
        plan_free(&plan);
        plan_free(&host_plan);
        program_free(&guest);
        program_free(&host);
    }
}

/* What has the name of a weight and is none, or is of another type, gets no place. */
static void test_over_refuses_strangers(void **state)
{
    (void)state;
    static const char *const hosts[] = {
        "tensor x input f32 [40]; tensor p activation f32 [40]; p = act x",
        "tensor x input f32 [40]; tensor p parameter i32 [40] persistent",
        "tensor x input f32 [40]; tensor p parameter f32 [39] persistent",
    };
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        struct snug_error err = {0};
        struct program host, guest;
        struct plan host_plan, plan;
        assert_int_equal(program_parse(hosts[i], &host, &err), SNUG_OK);
        assert_int_equal(program_parse("tensor x input f32 [40]; "
                                       "tensor p parameter f32 [40] persistent; "
                                       "tensor c activation f32 [40]; c = add x, p",
                                       &guest, &err),
                         SNUG_OK);
        make(&host, &host_plan, i);
        assert_int_equal(plan_make_over(&guest, &host, &host_plan, ALIGNMENT, &plan, &err),
                         SNUG_BAD_PROGRAM);
        assert_non_null(
            strstr(err.message, "\"p\" has no matching persistent tensor in the host program"));
        plan_free(&host_plan);
        program_free(&guest);
        program_free(&host);
    }
}

/* ---- sizes that no machine has ---------------------------------------------------------------- */

static void test_too_large_is_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t bytes, floor;
        int n_blocks;
        enum snug_status status;
    } rows[] = {
        {INT64_C(1) << 60, 0, 1, SNUG_OK},
        {INT64_C(1) << 60, 0, 3, SNUG_OK},
        {INT64_C(1) << 60, 0, 4, SNUG_BAD_ARGUMENT},
        {INT64_C(1) << 60, INT64_C(7) << 60, 1, SNUG_BAD_ARGUMENT},
        {INT64_MAX, 0, 1, SNUG_BAD_ARGUMENT},
        {INT64_MAX, 0, 4, SNUG_BAD_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct snug_error err = {0};
        struct block blocks[4] = {{0}};
        int64_t persistent_end = 0, arena_bytes = 0;
        for (int k = 0; k < rows[i].n_blocks; k++)
            blocks[k].bytes = rows[i].bytes;
        assert_int_equal(plan_place(blocks, rows[i].n_blocks, 1, ALIGNMENT, rows[i].floor,
                                    &persistent_end, &arena_bytes, &err),
                         rows[i].status);
        if (rows[i].status == SNUG_OK)
            assert_int_equal(arena_bytes, rows[i].n_blocks * rows[i].bytes);
        else
            assert_non_null(strstr(err.message, "choose a smaller --batch"));
    }
    struct snug_error err = {0};
    struct program prog;
    struct plan plan;
    assert_int_equal(program_parse("tensor x input f32 [4000000000]; "
                                   "tensor y activation f32 [4000000000]; y = act x",
                                   &prog, &err),
                     SNUG_OK);
    prog.tensors[1].shape = (struct shape){3, {4000000000, 4000000000, 4000000000}};
    assert_int_equal(plan_make(&prog, ALIGNMENT, &rates, &plan, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "tensor \"y\" would have 6.4e+28 elements"));
    assert_int_equal(plan_make_over(&prog, &prog, &plan, ALIGNMENT, &plan, &err),
                     SNUG_BAD_ARGUMENT);
    program_free(&prog);
}

/* ---- a long program -------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Forward and backward of a very deep network, sizes drawn: every backward op reads what the
 * forward op at the same depth left, except for a sixteenth that die young and leave holes. */
static void make_long(struct program *prog, int n_ops)
{
    struct dice dice = {.seed = 7};
    int depth = n_ops / 2;
    tensor_id *saved = malloc((size_t)depth * sizeof *saved);
    assert_non_null(saved);
    assert_int_equal(program_init(prog, "long", NULL), SNUG_OK);
    struct tensor input = {TENSOR_INIT, .name = "x", .dtype = DTYPE_f32, .role = ROLE_input,
                           .shape = {1, {64}}};
    tensor_id at;
    assert_int_equal(program_add_tensor(prog, &input, &at, NULL), SNUG_OK);
    for (int i = 0; i < 2 * depth; i++) {
        static const int64_t sizes[] = {64, 192, 200, 256, 1000, 1024, 4096, 5000};
        char name[24];
        bool forward = i < depth;
        snprintf(name, sizeof name, "t%d", i);
        struct tensor t = {TENSOR_INIT,
                           .name = name,
                           .dtype = DTYPE_f32,
                           .role = ROLE_activation,
                           .shape = {1, {sizes[dice_roll(&dice, 8)]}},
                           .is_output = i == 2 * depth - 1};
        tensor_id out, in[2] = {at, at};
        if (!forward)
            in[1] = saved[2 * depth - 1 - i];
        else if (i > 16 && dice_roll(&dice, 16) == 0)
            in[1] = saved[i - dice_roll(&dice, 16) - 1];
        assert_int_equal(program_add_tensor(prog, &t, &out, NULL), SNUG_OK);
        assert_int_equal(program_add_op(prog, OP_add, NULL, 2, in, 1, &out, NULL), SNUG_OK);
        if (forward)
            saved[i] = dice_roll(&dice, 16) == 0 ? at : out; /* out dies here, at lives longer */
        at = out;
    }
    free(saved);
}

static void test_long_program(void **state)
{
    (void)state;
    struct program prog;
    struct plan plan;
    make_long(&prog, 250000);
    double start = seconds();
    make(&prog, &plan, 0);
    double planned = seconds();
    assert_int_equal(plan_check(&prog, plan.offset, plan.arena_bytes, ALIGNMENT, NULL), SNUG_OK);
    print_message("%d ops: planned in %.2f s, checked in %.2f s, fragmentation %.3f%%\n",
                  prog.n_ops, planned - start, seconds() - planned,
                  100 * (double)plan.fragmentation / (double)plan.arena_bytes);
    assert_true(plan.fragmentation * 10 <= plan.arena_bytes);
    plan_free(&plan);
    program_free(&prog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named_kernels),
        cmocka_unit_test(test_random_programs),
        cmocka_unit_test(test_lower_bound),
        cmocka_unit_test(test_same_plan_twice),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_short_lives),
        cmocka_unit_test(test_long_program),
        cmocka_unit_test(test_alignment_is_checked),
        cmocka_unit_test(test_over_rows),
        cmocka_unit_test(test_over_refuses_strangers),
        cmocka_unit_test(test_too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
