/*
 * test_p2p_buffers.c -- host buffers of sends and receives: two that are in flight at once share
 * no byte, the buffer is no larger than necessary, and a tensor that is sent again is not copied
 * again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/collective.h"
#include "support/training.h"

static const struct row {
    const char *name, *ops;
    int64_t n_bytes; /* of the room: places are multiples of 64 bytes */
} rows[] = {
    {"no messages", "b = scale a {options=[2]}", 0},
    {"settled at once", "_ = send a; _ = sent a; _ = send b; _ = sent b", 128},
    {"two at once", "_ = send a; _ = send b; _ = sent a; _ = sent b", 192},
    {"in the gap", "_ = send a; _ = send b; _ = sent a; c = recv; _ = sent b", 192},
    {"beyond it", "_ = send a; _ = send b; _ = sent a; big = recv; _ = sent b", 1024 + 192},
    {"sent twice", "_ = send b; _ = send b; _ = sent b; c = recv", 128},
    {"received beside what leaves", "_ = send a; c = recv; _ = sent a", 128},
    {"in turns", "_ = send a; c = recv; _ = send c; _ = sent a; _ = send b; _ = sent c; _ = sent b",
     256},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const char tensors[] = "program letters\n"
                              "tensor a input f32 [16]; tensor b input f32 [17]\n"
                              "tensor c activation f32 [3]; tensor big activation f32 [256]\n";

static void *give(size_t n_bytes)
{
    return malloc(n_bytes);
}

static void *give_nothing(size_t n_bytes)
{
    (void)n_bytes;
    return NULL;
}

static void parse(const struct row *row, struct program *prog)
{
    struct snug_error err = {0};
    char text[1024];
    snprintf(text, sizeof text, "%s%s\n", tensors, row->ops);
    must(program_parse(text, prog, &err), &err);
}

/* A buffer is in use from `send` to the next `sent` of its tensor, or while it is received. */
static int end_of(const struct program *prog, int i)
{
    int end = i;
    while (prog->ops[i].kind == OP_send &&
           (prog->ops[end].kind != OP_sent || prog->ops[end].in[0] != prog->ops[i].in[0]))
        end++;
    return end;
}

static tensor_id tensor_of(const struct op *op)
{
    return op->kind == OP_recv ? op->out[0] : op->in[0];
}

static bool is_placed(const struct op *op)
{
    return op->kind == OP_send || op->kind == OP_recv;
}

static void check_pair(const struct program *prog, const struct p2p_buffers *room, int a, int b)
{
    tensor_id x = tensor_of(&prog->ops[a]), y = tensor_of(&prog->ops[b]);
    int64_t from_x = room->buffers[a].at, from_y = room->buffers[b].at;
    bool shares =
        from_x < from_y + tensor_bytes(prog, y) && from_y < from_x + tensor_bytes(prog, x);
    if (x == y) {
        assert_int_equal(from_x, from_y);
        assert_true(room->buffers[b].is_filled);
    } else if (shares) {
        fail_msg("\"%s\" and \"%s\" share bytes", prog->tensors[x].name, prog->tensors[y].name);
    }
}

static void test_places(void **state)
{
    (void)state;
    const struct device_hooks hooks = {.alloc_host = give, .release_host = free};
    for (int r = 0; r < N_ROWS; r++) {
        struct snug_error err = {0};
        struct program prog = {0};
        struct p2p_buffers room;
        print_message("%s\n", rows[r].name);
        parse(&rows[r], &prog);
        must(p2p_buffers_open(&room, &prog, &hooks, &err), &err);
        assert_int_equal(room.n_bytes, rows[r].n_bytes);
        assert_true((room.block != NULL) == (rows[r].n_bytes > 0));
        for (int a = 0; a < prog.n_ops; a++)
            for (int b = a + 1; is_placed(&prog.ops[a]) && b <= end_of(&prog, a); b++)
                if (is_placed(&prog.ops[b]))
                    check_pair(&prog, &room, a, b);
        for (int a = 0; a < prog.n_ops; a++)
            if (prog.ops[a].kind == OP_send)
                assert_int_equal(room.buffers[end_of(&prog, a)].at, room.buffers[a].at);
        p2p_buffers_close(&room, &hooks);
        program_free(&prog);
    }
}

static void test_no_room(void **state)
{
    (void)state;
    const struct device_hooks hooks = {.alloc_host = give_nothing, .release_host = free};
    struct snug_error err = {0};
    struct program prog = {0};
    struct p2p_buffers room;
    parse(&rows[1], &prog);
    assert_int_equal(p2p_buffers_open(&room, &prog, &hooks, &err), SNUG_NO_MEMORY);
    assert_non_null(strstr(err.message, "128 bytes of pinned host memory"));
    p2p_buffers_close(&room, &hooks);
    program_free(&prog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
