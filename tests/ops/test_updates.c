/*
 * test_updates.c -- ops that change weights and the scalar table, against arithmetic written a
 * second time: AdamW as in its paper (bias-corrected moments), SGD, and a table of the effects of
 * the gradient norm on clipping, skipping and the loss scale.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "cpu/ref/ref.h"
#include "support/oprun.h"

enum { SEED = 7, N = 5, N_STEPS = 3 };
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const struct case_text adamw_text = {
    .name = "adamw",
    .line =
        {"in g float 5", "in s scalars", "in w float 5", "in m f32 5", "in v f32 5 positive",
         "in master f32 5",
         "w _ m _ v = update g s w _ m _ v rule=adamw options=0.8,0.95,1e-3 decay=0.1",
         "w master m _ v = update g s w master m _ v rule=adamw options=0.8,0.95,1e-3 decay=0.1"},
    .n_lines = 8,
    .use = {[CASE_sizes] = {""}},
};
static const struct case_text sgd_text = {
    .name = "sgd",
    .line = {"in g float 5", "in s scalars", "in w float 5", "in master f32 5",
             "w = update g s w rule=sgd decay=0.1",
             "w master = update g s w master rule=sgd decay=0.1"},
    .n_lines = 6,
    .use = {[CASE_sizes] = {""}},
};

static void build(const struct case_text *text, enum dtype dtype, struct opcase *c)
{
    struct snug_error err = {0};
    if (opcase_build(text, CASE_sizes, 0, dtype, SEED, c, &err) != SNUG_OK)
        fail_msg("%s", err.message);
}

static void step(struct opcase *c, int op_index)
{
    struct snug_error err = {0};
    if (oprun_step(c, op_index, ref_kernel(c->prog.ops[op_index].kind), &err) != SNUG_OK)
        fail_msg("%s", err.message);
}

static void *data(const struct opcase *c, const char *name)
{
    tensor_id id = program_find(&c->prog, name);
    assert_true(id != TENSOR_NONE);
    return c->data[id];
}

static void assert_near(double got, double right)
{
    if (!(fabs(got - right) <= 1e-12 * fmax(1.0, fabs(right))))
        fail_msg("%.17g is not %.17g", got, right);
}

/* What grad_norm would have left before update t. */
static void set_scalars(double *scalars, int t, int skip)
{
    scalars[SCALAR_lr] = 0.01 * t;
    scalars[SCALAR_update_count] = t;
    scalars[SCALAR_clip] = 0.5 / t;
    scalars[SCALAR_skip] = skip;
}

static void test_adamw_makes_the_steps_of_the_paper(void **state)
{
    (void)state;
    struct opcase c;
    build(&adamw_text, DTYPE_f64, &c);
    double *g = data(&c, "g"), *s = data(&c, "s"), *w = data(&c, "w");
    double p[N], m[N] = {0}, v[N] = {0};
    memcpy(p, w, sizeof p);
    memset(data(&c, "m"), 0, sizeof m);
    memset(data(&c, "v"), 0, sizeof v);
    for (int t = 1; t <= N_STEPS; t++) {
        set_scalars(s, t, 0);
        for (int i = 0; i < N; i++) {
            g[i] = rng_normal(SEED, (uint64_t)t, (uint64_t)i);
            double grad = g[i] * 0.5 / t, lr = 0.01 * t;
            m[i] = 0.8 * m[i] + 0.2 * grad;
            v[i] = 0.95 * v[i] + 0.05 * grad * grad;
            double m_hat = m[i] / (1 - pow(0.8, t)), v_hat = v[i] / (1 - pow(0.95, t));
            p[i] = p[i] - lr * 0.1 * p[i] - lr * m_hat / (sqrt(v_hat) + 1e-3);
        }
        step(&c, 0);
        for (int i = 0; i < N; i++) {
            assert_near(w[i], p[i]);
            assert_near(((double *)data(&c, "m"))[i], m[i]);
            assert_near(((double *)data(&c, "v"))[i], v[i]);
        }
    }
    opcase_free(&c);
}

static void test_sgd_makes_its_steps(void **state)
{
    (void)state;
    struct opcase c;
    build(&sgd_text, DTYPE_f64, &c);
    double *g = data(&c, "g"), *s = data(&c, "s"), *w = data(&c, "w"), p[N];
    memcpy(p, w, sizeof p);
    for (int t = 1; t <= N_STEPS; t++) {
        set_scalars(s, t, 0);
        for (int i = 0; i < N; i++) {
            g[i] = rng_normal(SEED, (uint64_t)t, (uint64_t)i);
            p[i] -= 0.01 * t * (g[i] * 0.5 / t + 0.1 * p[i]);
        }
        step(&c, 0);
        for (int i = 0; i < N; i++)
            assert_near(w[i], p[i]);
    }
    opcase_free(&c);
}

/* The master moves by steps too small for the weight, and the weight is its rounding. */
static void test_a_weight_is_its_master_rounded(void **state)
{
    (void)state;
    static const struct case_text *const texts[] = {&adamw_text, &sgd_text};
    for (int k = 0; k < COUNT(texts); k++) {
        struct opcase c;
        build(texts[k], DTYPE_bf16, &c);
        float *master = data(&c, "master"), before[N];
        uint16_t *w = data(&c, "w");
        double *s = data(&c, "s");
        set_scalars(s, 3, 0);
        s[SCALAR_lr] = 1e-5;
        memcpy(before, master, sizeof before);
        step(&c, 1);
        for (int i = 0; i < N; i++) {
            assert_true(master[i] < before[i] || master[i] > before[i]);
            assert_true(fabs((double)(master[i] - before[i])) < 1e-3);
            assert_int_equal(w[i], bf16_from_f32(master[i]));
        }
        opcase_free(&c);
    }
}

/* Steps of a tenth of what bf16 can tell apart: each weight makes them in the mean, because every
 * update and every tensor has chances of its own. */
static void test_small_steps_count_in_the_mean(void **state)
{
    (void)state;
    enum { N_WEIGHTS = 300, N_TIMES = 400 };
    static const struct case_text text = {
        .name = "chance",
        .line = {"in g float 300", "in s scalars clip=1 lr=1", "in w float 300", "in w2 float 300",
                 "w = update g s w rule=sgd stochastic=1",
                 "w2 = update g s w2 rule=sgd stochastic=1"},
        .n_lines = 6,
        .use = {[CASE_sizes] = {""}},
    };
    struct opcase c;
    build(&text, DTYPE_bf16, &c);
    uint16_t *w[2] = {data(&c, "w"), data(&c, "w2")}, *g = data(&c, "g");
    double *s = data(&c, "s");
    for (int i = 0; i < N_WEIGHTS; i++) {
        w[0][i] = w[1][i] = bf16_from_f32(1.0f);
        g[i] = bf16_from_f32(-0x1p-7f / 10); /* 2^-7: the spacing above 1 */
    }
    for (int t = 1; t <= N_TIMES; t++) {
        s[SCALAR_update_count] = t;
        s[SCALAR_seed] = SEED;
        if (t > 1 && t % 8 == 0)
            assert_memory_not_equal(w[0], w[1], N_WEIGHTS * sizeof *w[0]);
        step(&c, 0);
        step(&c, 1);
    }
    double tenth = (double)bf16_to_f32(bf16_from_f32(0x1p-7f / 10)) * 0x1p7;
    double expected = N_TIMES * tenth, deviation = sqrt(N_TIMES * tenth * (1 - tenth)), mean = 0;
    for (int i = 0; i < N_WEIGHTS; i++) {
        double steps = ((double)bf16_to_f32(w[0][i]) - 1) * 0x1p7;
        if (!(fabs(steps - expected) < 5 * deviation))
            fail_msg("weight %d made %g steps, not about %g", i, steps, expected);
        mean += steps / N_WEIGHTS;
    }
    if (!(fabs(mean - expected) < 5 * deviation / sqrt(N_WEIGHTS)))
        fail_msg("in the mean %g steps, not %g", mean, expected);
    opcase_free(&c);
}

static void test_a_rule_without_its_states_is_refused(void **state)
{
    (void)state;
    static const struct case_text text = {
        .name = "stateless",
        .line = {"in g float 5", "in s scalars", "in w float 5", "in m f32 5",
                 "w = update g s w rule=momentum", "w _ m = update g s w _ m rule=adamw"},
        .n_lines = 6,
        .use = {[CASE_sizes] = {""}},
    };
    struct opcase c;
    build(&text, DTYPE_f32, &c);
    for (int i = 0; i < c.prog.n_ops; i++) {
        struct device_facts facts = {.threads = 1, .isa = backend_cpu_isa()};
        const struct kernel *rows[] = {
            ref_kernel(OP_update), backend_choose(backend_cpu(), &c.prog, &c.prog.ops[i], &facts)};
        for (int r = 0; r < COUNT(rows); r++) {
            struct snug_error err = {0};
            assert_int_equal(oprun_step(&c, i, rows[r], &err), SNUG_BAD_PROGRAM);
            assert_non_null(strstr(err.message, "update of \"w\": the rule has"));
        }
    }
    opcase_free(&c);
}

static void test_a_skipped_step_changes_nothing(void **state)
{
    (void)state;
    static const struct case_text *const texts[] = {&adamw_text, &sgd_text};
    for (int k = 0; k < COUNT(texts); k++) {
        struct opcase c, untouched;
        build(texts[k], DTYPE_bf16, &c);
        build(texts[k], DTYPE_bf16, &untouched);
        set_scalars(data(&c, "s"), 1, 1);
        set_scalars(data(&untouched, "s"), 1, 1);
        for (int i = 0; i < c.prog.n_ops; i++)
            step(&c, i);
        for (int id = 0; id < c.n_tensors; id++)
            assert_memory_equal(c.data[id], untouched.data[id], (size_t)tensor_bytes(&c.prog, id));
        opcase_free(&c);
        opcase_free(&untouched);
    }
}

/* ---- the gradient norm ---------------------------------------------------------------------- */

struct norm_state {
    double loss_scale, update_count, good_steps;
};

struct norm_row {
    const char *behaviour, *op;
    double part[2];
    struct norm_state before;
    double norm, clip, skip; /* UNTOUCHED: the op leaves it as it was */
    struct norm_state after;
};
#define UNTOUCHED (-1.0)

static const struct norm_row norm_rows[] = {
    {"no limit, no clipping", "s = grad_norm parts s", {9, 16}, {1, 4, 0}, 5, 1, 0, {1, 5, 0}},
    {"under the limit", "s = grad_norm parts s max_norm=6", {9, 16}, {1, 0, 0}, 5, 1, 0, {1, 1, 0}},
    {"over the limit",
     "s = grad_norm parts s max_norm=2",
     {9, 16},
     {1, 0, 0},
     5,
     2 / 5.000001,
     0,
     {1, 1, 0}},
    {"at the limit: PyTorch's 1e-6 shows",
     "s = grad_norm parts s max_norm=5",
     {9, 16},
     {1, 0, 0},
     5,
     5 / 5.000001,
     0,
     {1, 1, 0}},
    {"the norm is that of unscaled gradients",
     "s = grad_norm parts s max_norm=1",
     {36, 64},
     {2, 7, 3},
     5,
     1 / 5.000001 / 2,
     0,
     {2, 8, 3}},
    {"all zero", "s = grad_norm parts s max_norm=1", {0, 0}, {4, 0, 0}, 0, 0.25, 0, {4, 1, 0}},
    {"not a number: skipped",
     "s = grad_norm parts s max_norm=1",
     {NAN, 1},
     {8, 4, 9},
     NAN,
     0,
     1,
     {8, 4, 9}},
    {"infinite: skipped",
     "s = grad_norm parts s",
     {1, INFINITY},
     {8, 4, 9},
     INFINITY,
     0,
     1,
     {8, 4, 9}},
    {"dynamic: a skip halves the scale",
     "s = grad_norm parts s dynamic_scale=1",
     {1, INFINITY},
     {8, 4, 1999},
     INFINITY,
     0,
     1,
     {4, 4, 0}},
    {"dynamic: never below 1",
     "s = grad_norm parts s dynamic_scale=1",
     {NAN, 0},
     {1, 4, 9},
     NAN,
     0,
     1,
     {1, 4, 0}},
    {"dynamic: a good step counts",
     "s = grad_norm parts s dynamic_scale=1",
     {64, 0},
     {8, 4, 9},
     1,
     0.125,
     0,
     {8, 5, 10}},
    {"dynamic: the 2000th doubles, clip still has the old scale",
     "s = grad_norm parts s dynamic_scale=1",
     {64, 0},
     {8, 4, 1999},
     1,
     0.125,
     0,
     {16, 5, 0}},
    {"dynamic: never above 2^24",
     "s = grad_norm parts s dynamic_scale=1",
     {0x1p48, 0},
     {0x1p24, 4, 1999},
     1,
     0x1p-24,
     0,
     {0x1p24, 5, 0}},
    {"opened: counted, not clipped",
     "s = open_updates s",
     {9, 16},
     {4, 7, 3},
     UNTOUCHED,
     0.25,
     0,
     {4, 8, 3}},
    {"checked: finite",
     "s = check_gradient parts s",
     {9, NAN},
     {4, 7, 3},
     UNTOUCHED,
     UNTOUCHED,
     0,
     {4, 7, 3}},
    {"checked: not a number",
     "s = check_gradient parts s",
     {NAN, 9},
     {4, 7, 3},
     UNTOUCHED,
     UNTOUCHED,
     1,
     {4, 7, 3}},
    {"closed: the norm, and no count",
     "s = close_updates parts s",
     {36, 64},
     {2, 7, 3},
     5,
     UNTOUCHED,
     0,
     {2, 7, 3}},
    {"closed: infinite",
     "s = close_updates parts s",
     {36, INFINITY},
     {2, 7, 3},
     INFINITY,
     UNTOUCHED,
     1,
     {2, 7, 3}},
    {"the next scale after a skip",
     "s = next_loss_scale s",
     {0, 0},
     {8, 4, 1999},
     UNTOUCHED,
     UNTOUCHED,
     1,
     {4, 4, 0}},
    {"the next scale after 2000 steps",
     "s = next_loss_scale s",
     {0, 0},
     {8, 4, 1999},
     UNTOUCHED,
     UNTOUCHED,
     0,
     {16, 4, 0}},
};

static void check_scalar(const struct norm_row *row, const char *name, double got, double right)
{
    bool same =
        (isnan(got) && isnan(right)) || got == right || fabs(got - right) <= 1e-12 * fabs(right);
    if (!same)
        fail_msg("%s: %s is %.17g, not %.17g", row->behaviour, name, got, right);
}

static void test_grad_norm_clips_skips_and_scales(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(norm_rows); i++) {
        const struct norm_row *row = &norm_rows[i];
        struct case_text text = {.name = "grad_norm",
                                 .line = {"in parts f64 2", "in s scalars lr=0.25", row->op},
                                 .n_lines = 3,
                                 .use = {[CASE_sizes] = {""}}};
        struct opcase c;
        build(&text, DTYPE_f32, &c);
        double *s = data(&c, "s");
        memcpy(data(&c, "parts"), row->part, sizeof row->part);
        s[SCALAR_loss_scale] = row->before.loss_scale;
        s[SCALAR_update_count] = row->before.update_count;
        s[SCALAR_good_steps] = row->before.good_steps;
        bool reads_skip = strstr(row->op, "next_loss_scale") != NULL;
        s[SCALAR_skip] = reads_skip ? row->skip : 1 - row->skip;
        s[SCALAR_grad_norm] = s[SCALAR_clip] = UNTOUCHED;
        step(&c, 0);
        check_scalar(row, "grad_norm", s[SCALAR_grad_norm], row->norm);
        check_scalar(row, "clip", s[SCALAR_clip], row->clip);
        check_scalar(row, "skip", s[SCALAR_skip], row->skip);
        check_scalar(row, "loss_scale", s[SCALAR_loss_scale], row->after.loss_scale);
        check_scalar(row, "update_count", s[SCALAR_update_count], row->after.update_count);
        check_scalar(row, "good_steps", s[SCALAR_good_steps], row->after.good_steps);
        check_scalar(row, "lr", s[SCALAR_lr], 0.25);
        opcase_free(&c);
    }
}

static void test_take_row_refuses_a_row_that_is_not_there(void **state)
{
    (void)state;
    static const double bad_rows[] = {-1, 3, NAN, 1e300};
    static const struct case_text text = {
        .name = "take_row",
        .line = {"in x float 2,3,4", "in s scalars", "y = take_row x s"},
        .n_lines = 3,
        .use = {[CASE_sizes] = {""}}};
    struct opcase c;
    build(&text, DTYPE_f32, &c);
    for (int i = 0; i < COUNT(bad_rows); i++) {
        struct snug_error err = {0};
        ((double *)data(&c, "s"))[SCALAR_row] = bad_rows[i];
        assert_int_equal(oprun_step(&c, 0, ref_kernel(OP_take_row), &err), SNUG_BAD_ARGUMENT);
        assert_non_null(strstr(err.message, "rows 0..2"));
    }
    opcase_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_makes_the_steps_of_the_paper),
        cmocka_unit_test(test_sgd_makes_its_steps),
        cmocka_unit_test(test_a_weight_is_its_master_rounded),
        cmocka_unit_test(test_small_steps_count_in_the_mean),
        cmocka_unit_test(test_a_rule_without_its_states_is_refused),
        cmocka_unit_test(test_a_skipped_step_changes_nothing),
        cmocka_unit_test(test_grad_norm_clips_skips_and_scales),
        cmocka_unit_test(test_take_row_refuses_a_row_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
