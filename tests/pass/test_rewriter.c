/*
 * test_rewriter.c -- the sections of a rewritten list: whatever a pass adds, drops or moves, the
 * end of the body stays where it belongs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "pass/rewriter.h"

static const char header[] = "tensor w parameter f32 [4] persistent\n"
                             "tensor x input f32 [4]\n"
                             "tensor a activation f32 [4]\n"
                             "tensor b activation f32 [4]\n"
                             "tensor c activation f32 [4]\n";
static const char ops[] = "a = accumulate w\n"
                          "b = act x\n"
                          "c = act b\n"
                          "w = accumulate c {accumulate=yes}\n";

/* Per letter: a digit copies that op of the list, + adds a clear, < reaches the op whose digit follows, |
 * ends the body. */
static const struct {
    const char *what, *body, *script, *then;
} rows[] = {
    {"nothing changes", "body 3 x 2", "0123", "body 3 x 2"},
    {"all is the body, and stays so", "", "01+23", ""},
    {"repeats without an end", "body 0 x 2", "0+123+", "body 0 x 2"},
    {"between two ops of the body", "body 3 x 2", "0<1+123", "body 4 x 2"},
    {"after the last op of the body", "body 3 x 2", "012+3", "body 4 x 2"},
    {"before the first op after it", "body 3 x 2", "012<3+3", "body 3 x 2"},
    {"an op of the end moves into the body", "body 3 x 1", "01+2|3", "body 4 x 1"},
    {"a list that had no end gets one", "", "012|3", "body 3 x 1"},
    {"the first op goes", "body 3 x 2", "123", "body 2 x 2"},
    {"the end goes", "body 3 x 2", "012", "body 3 x 2"},
    {"ops of the body come again at the end", "body 3 x 1", "012|123", "body 3 x 1"},
    {"nothing is left to repeat", "body 2 x 3", "23", "body 0 x 1"},
};

static void parse(const char *body, struct program *prog)
{
    struct snug_error err;
    char text[1000] = "";
    strcat(strcat(strcat(strcat(text, body), "\n"), header), ops);
    if (program_parse(text, prog, &err) != SNUG_OK)
        fail_msg("%s", err.message);
}

static void play(struct rewriter *rw, const char *script)
{
    tensor_id added = program_find(rw->prog, "a");
    struct op clear = op_make(OP_clear, ATTRS(), 0, NULL, 1, &added);
    for (const char *at = script; *at != '\0'; at++)
        if (*at == '+')
            assert_int_equal(rewriter_add(rw, &clear), SNUG_OK);
        else if (*at == '<')
            rewriter_reach(rw, *++at - '0');
        else if (*at == '|')
            rewriter_end_body(rw);
        else
            assert_int_equal(rewriter_copy(rw, *at - '0'), SNUG_OK);
}

static void expect_body(const struct program *prog, const char *what, const char *body)
{
    int end = 0, repeats = 1;
    if (*body != '\0')
        assert_int_equal(sscanf(body, "body %d x %d", &end, &repeats), 2);
    if (prog->body_end != end || prog->n_repeat != repeats)
        fail_msg("%s: body %d x %d, not %s", what, prog->body_end, prog->n_repeat, body);
}

static void test_sections(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct program prog;
        struct snug_error err;
        parse(rows[i].body, &prog);
        struct rewriter rw = rewriter_begin(&prog, "test", &err);
        play(&rw, rows[i].script);
        int n_ops = rw.n_ops;
        assert_int_equal(prog.n_ops, 4); /* the old list stays until the end */
        assert_int_equal(rewriter_finish(&rw, SNUG_OK), SNUG_OK);
        assert_int_equal(prog.n_ops, n_ops);
        expect_body(&prog, rows[i].what, rows[i].then);
        program_free(&prog);
    }
}

static void test_a_failure_leaves_the_program(void **state)
{
    (void)state;
    struct program prog;
    struct snug_error err;
    parse("body 3 x 2", &prog);
    struct rewriter rw = rewriter_begin(&prog, "test", &err);
    play(&rw, "3+");
    assert_int_equal(rewriter_finish(&rw, SNUG_BAD_PROGRAM), SNUG_BAD_PROGRAM);
    assert_null(rw.ops);
    assert_int_equal(prog.n_ops, 4);
    expect_body(&prog, "failed", "body 3 x 2");
    program_free(&prog);
}

static void test_dropped_ops(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        bool gone[4];
        const char *then;
    } drops[] = {
        {"body 3 x 2", {true, false, false, false}, "body 2 x 2"},
        {"body 3 x 2", {false, true, false, true}, "body 2 x 2"},
        {"", {false, true, true, false}, ""},
        {"body 2 x 3", {true, true, false, false}, "body 0 x 1"},
    };
    for (size_t i = 0; i < sizeof drops / sizeof *drops; i++) {
        struct program prog;
        parse(drops[i].body, &prog);
        rewriter_drop(&prog, drops[i].gone);
        expect_body(&prog, "dropped", drops[i].then);
        program_free(&prog);
    }
}

/* A new op and the tensor that it writes: its shape and type come from the rule of the op. */
static void test_emitted_op(void **state)
{
    (void)state;
    struct program prog;
    struct snug_error err;
    tensor_id made;
    parse("body 3 x 2", &prog);
    struct rewriter rw = rewriter_begin(&prog, "test", &err);
    play(&rw, "01");
    assert_int_equal(rewriter_emit(&rw, OP_act, &ATTRS(common, .act = ACT_relu), 1,
                                   &prog.ops[1].out[0], "b.relu", 1, &made),
                     SNUG_OK);
    play(&rw, "23");
    assert_int_equal(rewriter_finish(&rw, SNUG_OK), SNUG_OK);
    assert_int_equal(program_find(&prog, "b.relu"), made);
    assert_int_equal(prog.tensors[made].shape.dim[0], 4);
    assert_int_equal(prog.ops[2].out[0], made);
    assert_int_equal(prog.ops[2].attrs.act, ACT_relu);
    assert_int_equal(prog.ops[2].in[1], TENSOR_NONE); /* places that are left */
    expect_body(&prog, "emitted", "body 4 x 2");
    program_free(&prog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_a_failure_leaves_the_program),
        cmocka_unit_test(test_dropped_ops),
        cmocka_unit_test(test_emitted_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
