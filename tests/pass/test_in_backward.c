/*
 * test_in_backward.c -- where updates go: a table of small steps and the ops that result.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "optim/optim.h"
#include "pass/pass.h"
#include "support/ops_text.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static const char declarations[] =
    "program p; tensor x input f32 [2 4]; tensor y input f32 [2 4]; tensor t input i32 [2]\n"
    "tensor s temporary f64 [24] persistent; scalars s; loss l\n"
    "tensor w parameter f32 [4 4] persistent; tensor v parameter f32 [4 4] persistent\n"
    "tensor a activation f32 [2 4]; tensor b activation f32 [2 4]; tensor l activation f32 [1] "
    "output\n"
    "tensor lse activation f32 [2]; tensor da activation f32 [2 4]; tensor db activation f32 [2 "
    "4]\n"
    "tensor dw gradient f32 [4 4]; tensor dv gradient f32 [4 4]\n"
    "tensor parts temporary f64 [2]; tensor p0 temporary f64 [1] view=parts+0\n"
    "tensor p1 temporary f64 [1] view=parts+1; tensor one temporary f64 [1]\n"
    "tensor rw optimizer f32 [4] persistent; tensor cw optimizer f32 [4] persistent\n"
    "tensor u temporary f32 [4 4]; tensor ema optimizer f32 [4 4] persistent\n"
    "tensor zs optimizer f32 [4 4] persistent; tensor x0 optimizer f32 [4 4] persistent\n"
    "tensor sums temporary f64 [1 2]; tensor sum temporary f64 [2] view=sums+0\n";

/* Two linear layers; the gradient of v is there before the data's, which still reads v. */
#define FORWARD  "a = linear x, w; b = linear a, v; l = mse b, y; "
#define GRAD_B   "db = mse_grad b, y, s; "
#define GRAD_V   "dv = linear_grad_w a, db; "
#define GRAD_A   "da = linear_grad_x db, v; "
#define GRAD_W   "dw = linear_grad_w x, da"
#define BODY     FORWARD GRAD_B GRAD_V GRAD_A GRAD_W "; "
#define NORMS    "p0 = sum_squares dv; p1 = sum_squares dw; "
#define CHECK_V  "p0 = sum_squares dv; s = check_gradient p0, s; "
#define CHECK_W  "p1 = sum_squares dw; s = check_gradient p1, s; "
#define UPDATE_V "v = update dv, s, v {rule=sgd}"
#define UPDATE_W "w = update dw, s, w {rule=sgd}"

/* clang-format off */
static const struct row {
    const char *name, *text, *expected; /* ops, or words of the message */
    enum update_place place;
    int body_end;
} rows[] = {
    {"after the gradient and the last reader of the weight",
     "body 7 x 1; " BODY NORMS "s = grad_norm parts, s; " UPDATE_W "; " UPDATE_V,
     FORWARD GRAD_B GRAD_V GRAD_A "s = open_updates s; " CHECK_V UPDATE_V "; "
     GRAD_W "; " CHECK_W UPDATE_W "; s = close_updates parts, s",
     UPDATES_IN_BACKWARD, 14},
    {"a weight that is read and written at both ends waits for the last",
     "body 6 x 1; a = linear x, w; b = linear a, w; l = mse b, y; " GRAD_B
     "dw = linear_grad_w a, db; dw = linear_grad_w x, db {accumulate=yes}; "
     "one = sum_squares dw; s = grad_norm one, s; " UPDATE_W,
     "a = linear x, w; b = linear a, w; l = mse b, y; " GRAD_B
     "dw = linear_grad_w a, db; dw = linear_grad_w x, db {accumulate=yes}; s = open_updates s; "
     "one = sum_squares dw; s = check_gradient one, s; " UPDATE_W "; s = close_updates one, s",
     UPDATES_IN_BACKWARD, 10},
    {"all ops of a weight go together, the clock of the step before the first",
     "body 7 x 1; " BODY NORMS "s = grad_norm parts, s; s = average_clock s {average=ema}; "
     "u, s, rw, cw = adafactor dw, s, w, rw, cw; w = update u, s, w {rule=sgd, direction=scaled}; "
     "ema = average_keep s, w, ema {average=ema}; " UPDATE_V,
     FORWARD GRAD_B GRAD_V GRAD_A "s = open_updates s; s = average_clock s {average=ema}; "
     CHECK_V UPDATE_V "; " GRAD_W "; " CHECK_W
     "u, s, rw, cw = adafactor dw, s, w, rw, cw; w = update u, s, w {rule=sgd, direction=scaled}; "
     "ema = average_keep s, w, ema {average=ema}; s = close_updates parts, s",
     UPDATES_IN_BACKWARD, 17},
    {"in the last micro-batch",
     "body 4 x 3; a = linear x, w; l = mse a, y {accumulate=after_first}; db = mse_grad a, y, s; "
     "dw = linear_grad_w x, db {accumulate=after_first}; "
     "one = sum_squares dw; s = grad_norm one, s; " UPDATE_W,
     "a = linear x, w; l = mse a, y {accumulate=after_first}; db = mse_grad a, y, s; "
     "dw = linear_grad_w x, db {accumulate=after_first}; s = open_updates s last; "
     "one = sum_squares dw last; s = check_gradient one, s last; " UPDATE_W " last; "
     "s = close_updates one, s",
     UPDATES_IN_LAST, 8},
    {"clipping: backward again, on tensors of its own",
     "body 7 x 1; " BODY NORMS "s = grad_norm parts, s {max_norm=1}; " UPDATE_W "; " UPDATE_V,
     FORWARD GRAD_B GRAD_V "p0 = sum_squares dv; " GRAD_A GRAD_W "; p1 = sum_squares dw; "
     "s = grad_norm parts, s {max_norm=1}; db.again = mse_grad b, y, s; "
     "dv.again = linear_grad_w a, db.again; da.again = linear_grad_x db.again, v; "
     "v = update dv.again, s, v {rule=sgd}; dw.again = linear_grad_w x, da.again; "
     "w = update dw.again, s, w {rule=sgd}",
     UPDATES_IN_SECOND, 9},
    {"the loss scale moves after the second half",
     "body 4 x 1; a = linear x, w; l = mse a, y; db = mse_grad a, y, s; "
     "dw = linear_grad_w x, db; one = sum_squares dw; s = grad_norm one, s {dynamic_scale=1}; "
     UPDATE_W,
     "a = linear x, w; l = mse a, y; db = mse_grad a, y, s; dw = linear_grad_w x, db; "
     "one = sum_squares dw; s = grad_norm one, s; db.again = mse_grad a, y, s; "
     "dw.again = linear_grad_w x, db.again; w = update dw.again, s, w {rule=sgd}; "
     "s = next_loss_scale s",
     UPDATES_IN_SECOND, 5},
    {"a loss that makes a gradient too runs twice; the loss is that of the first",
     "body 2 x 1; a = linear x, v; l, lse, da, dw = linear_cross_entropy_train a, w, t, s; "
     "one = sum_squares dw; s = grad_norm one, s {max_norm=1}; " UPDATE_W,
     "a = linear x, v; l, lse, da, dw = linear_cross_entropy_train a, w, t, s; "
     "one = sum_squares dw; s = grad_norm one, s {max_norm=1}; "
     "l.again, lse.again, da.again, dw.again = linear_cross_entropy_train a, w, t, s; "
     "w = update dw.again, s, w {rule=sgd}",
     UPDATES_IN_SECOND, 3},
    {"sums that wait for their norm stay at the end",
     "body 3 x 3; l = mse x, y {accumulate=after_first}; db = mse_grad x, y, s; "
     "dw = linear_grad_w x, db {accumulate=after_first}; "
     "one = sum_squares dw; s = grad_norm one, s {max_norm=1}; " UPDATE_W,
     "l = mse x, y {accumulate=after_first}; db = mse_grad x, y, s; "
     "dw = linear_grad_w x, db {accumulate=after_first}; "
     "one = sum_squares dw; s = grad_norm one, s {max_norm=1}; " UPDATE_W,
     UPDATES_WAIT, 3},
    {"sums over all gradients before the first update",
     "body 3 x 1; l = mse x, y; db = mse_grad x, y, s; dw = linear_grad_w x, db; "
     "one = sum_squares dw; s = grad_norm one, s; sum, zs = prodigy_sums dw, s, w, x0, zs; "
     "s = prodigy_size sums, s; " UPDATE_W,
     "--update in-backward: --optimizer schedule-free-prodigy needs sums over all gradients",
     UPDATES_AT_END, 0},
};
/* clang-format on */

static void check_row(const struct row *row)
{
    struct snug_error err = {0};
    struct arena scratch = {0};
    struct program prog;
    struct text whole = {0};
    text_add(&whole, "%s%s", declarations, row->text);
    struct pass_env env = {.scratch = &scratch,
                           .err = &err,
                           .config.train = true,
                           .config.in_backward = true,
                           .config.optimizer = &optimizer_schedule_free_prodigy};
    if (program_parse(whole.data, &prog, &err) != SNUG_OK || program_verify(&prog, &err) != SNUG_OK)
        fail_msg("%s: %s", row->name, err.message);
    enum snug_status status = pass_in_backward(&prog, &env);
    bool refused = row->place == UPDATES_AT_END;
    assert_int_equal(status, refused ? SNUG_BAD_ARGUMENT : SNUG_OK);
    char *got = refused ? strdup(err.message) : ops_of(&prog);
    if (refused ? strstr(got, row->expected) == NULL : strcmp(got, row->expected) != 0)
        fail_msg("%s:\n  gives  %s\n  not    %s", row->name, got, row->expected);
    if (!refused) {
        if (program_verify(&prog, &err) != SNUG_OK)
            fail_msg("%s: %s", row->name, err.message);
        assert_int_equal(env.results.update_place, row->place);
        assert_int_equal(prog.body_end, row->body_end);
        assert_true((env.results.repeated_flops > 0) == (row->place == UPDATES_IN_SECOND));
    }
    free(got);
    text_free(&whole);
    program_free(&prog);
    arena_free(&scratch);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++)
        check_row(&rows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
