/*
 * test_values.c -- forward ops against independently computed values, in f64.
 *
 * Finite differences show that a gradient matches its forward op.  This test shows that the forward
 * op is the right one: the scale and mask of attention, the constants of gelu, the mean of a loss.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/ref/ref.h"
#include "support/oprun.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

struct values {
    const char *tensor; /* NULL: no more */
    double value[18];
};

struct value_row {
    const char *what;
    const char *line[6];
    struct values given[4], expected[4];
};

static const struct value_row value_rows[] = {
    {"gelu is the tanh form",
     {"in x float 4", "y = act x act=gelu"},
     {{"x", {-2, -0.5, 1, 3}}},
     {{"y", {-0.04540230591222494, -0.15428599017485606, 0.8411919906082768, 2.996362607918227}}}},
    {"sigmoid",
     {"in x float 4", "y = act x act=sigmoid"},
     {{"x", {-2, -0.5, 1, 3}}},
     {{"y", {0.11920292202211755, 0.3775406687981454, 0.7310585786300049, 0.9525741268224334}}}},
    {"relu", {"in x float 3", "y = act x act=relu"}, {{"x", {-2, 0, 3}}}, {{"y", {0, 0, 3}}}},
    {"tanh",
     {"in x float 2", "y = act x act=tanh"},
     {{"x", {-1, 0.5}}},
     {{"y", {-0.7615941559557649, 0.46211715726000979}}}},
    {"linear: W is [O,I]; relu after the bias, the value before it beside it",
     {"in x float 2,2", "in w float 3,2", "in b float 3", "y pre = linear x w b act=relu"},
     {{"x", {1, 2, 3, 4}}, {"w", {1, 10, -1, 0, 0, 1}}, {"b", {100, 0.5, 0}}},
     {{"y", {121, 0, 2, 143, 0, 4}}, {"pre", {121, -0.5, 2, 143, -2.5, 4}}}},
    {"linear: W is [I,O]",
     {"in x float 2,2", "in w float 2,3", "y = linear x w layout=in_out"},
     {{"x", {1, 2, 3, 4}}, {"w", {1, -1, 0, 10, 0, 1}}},
     {{"y", {21, -1, 2, 43, -3, 4}}}},
    {"add",
     {"in a float 2", "in b float 2", "y = add a b"},
     {{"a", {1, 2}}, {"b", {10, -5}}},
     {{"y", {11, -3}}}},
    {"layernorm: biased variance, eps inside the root",
     {"in x float 1,3", "in g float 3", "in b float 3", "y mean rstd = layernorm x g b eps=0.5"},
     {{"x", {1, 2, 6}}, {"g", {1, 2, 3}}, {"b", {0, 1, -1}}},
     {{"y", {-0.8798826901281198, 0.12011730987188018, 2.9594721055765394}},
      {"mean", {3}},
      {"rstd", {0.4399413450640599}}}},
    {"add_layernorm",
     {"in a float 1,3", "in b float 1,3", "in g float 3", "in z float 3",
      "sum y mean rstd = add_layernorm a b g z eps=0.5"},
     {{"a", {0.5, 3, 2}}, {"b", {0.5, -1, 4}}, {"g", {1, 2, 3}}, {"z", {0, 1, -1}}},
     {{"sum", {1, 2, 6}},
      {"y", {-0.8798826901281198, 0.12011730987188018, 2.9594721055765394}},
      {"mean", {3}},
      {"rstd", {0.4399413450640599}}}},
    {"attention: causal, columns of two heads",
     {"in qkv float 1,3,6", "y lse = attention qkv heads=2"},
     {{"qkv", {1, 2, 1, 0.5, 1, 10, 0.5, -1, 2, -1, 2, 20, -1, 1, 0.5, 1, 4, 40}}},
     {{"y", {1, 10, 1.6224593312018545, 18.175744761936432, 2.761599814108268, 27.99986558051654}},
      {"lse",
       {1, 1.4740769841801067, 0.10413060533672819, 1, 1.2014132779827524, 1.5549569196419906}}}},
    {"attention: scores over the root of the depth",
     {"in qkv float 1,2,6", "y lse = attention qkv"},
     {{"qkv", {1, 2, 1, 1, 1, 0, 2, -1, 3, 1, 0, 1}}},
     {{"y", {1, 0, 0.05580721920716974, 0.9441927807928303}},
      {"lse", {2.1213203435596424, 3.5929588226772573}}}},
    {"cross-entropy: weight times the mean over rows",
     {"in x float 2,3", "in t i32 2 below=3", "loss lse = cross_entropy x t weight=0.5"},
     {{"x", {0, 1, 2, 3, 0, 0}}, {"t", {2, 1}}},
     {{"loss", {0.8756322302163353}}, {"lse", {2.40760596444438, 3.094922956420961}}}},
    {"the head: the same numbers from x W^T",
     {"in x float 2,2", "in w float 3,2", "in t i32 2 below=3",
      "loss lse = linear_cross_entropy x w t weight=0.5"},
     {{"x", {1, 0, 0, 1}}, {"w", {0, 3, 1, 0, 2, 0}}, {"t", {2, 1}}},
     {{"loss", {0.8756322302163353}}, {"lse", {2.40760596444438, 3.094922956420961}}}},
    {"label smoothing as PyTorch 2.15 has it",
     {"in x float 2,3", "in t i32 2 below=3",
      "loss lse = cross_entropy x t weight=0.5 smoothing=0.1"},
     {{"x", {0, 1, 4, 3, 0, 1}}, {"t", {2, 1}}},
     {{"loss", {0.8339324808284287}}, {"lse", {4.065883903757429, 3.1698460195562856}}}},
    {"its gradient",
     {"in x float 2,3", "in t i32 2 below=3", "in lse f32 2", "in s scalars loss_scale=1",
      "dx = cross_entropy_grad x t lse s weight=0.5 smoothing=0.1"},
     {{"x", {0, 1, 4, 3, 0, 1}}, {"t", {2, 1}}, {"lse", {4.065883903757429, 3.1698460195562856}}},
     {{"dx",
       {-0.004046376946953236, 0.0033198223111601394, 0.000726554635793103, 0.20261535028700156,
        -0.2228308167998168, 0.020215466512815285}}}},
    {"label smoothing in the head",
     {"in x float 2,2", "in w float 3,2", "in t i32 2 below=3",
      "loss lse = linear_cross_entropy x w t weight=0.5 smoothing=0.1"},
     {{"x", {1, 0, 0, 1}}, {"w", {0, 3, 1, 0, 4, 1}}, {"t", {2, 1}}},
     {{"loss", {0.8339324808284287}}, {"lse", {4.065883903757429, 3.1698460195562856}}}},
    {"large logits do not overflow",
     {"in x float 1,2", "in t i32 1 below=2", "loss lse = cross_entropy x t"},
     {{"x", {1000, 1000}}, {"t", {1}}},
     {{"loss", {0.69314718055994531}}, {"lse", {1000.6931471805599}}}},
    {"mse: weight times the mean over elements",
     {"in x float 2,2", "in t f32 2,2", "loss = mse x t weight=0.5"},
     {{"x", {1, 2, 3, 4}}, {"t", {1, 0, 0, 1}}},
     {{"loss", {2.75}}}},
    {"embedding: positions restart with every sequence",
     {"in ids i32 2,2 below=3", "in w float 3,2", "in p float 2,2", "y = embedding ids w p"},
     {{"ids", {2, 0, 1, 2}}, {"w", {1, 2, 3, 4, 5, 6}}, {"p", {10, 20, 30, 40}}},
     {{"y", {15, 26, 31, 42, 13, 24, 35, 46}}}},
    {"take_row",
     {"in x float 2,3,2", "in s scalars row=1", "y = take_row x s"},
     {{"x", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}},
     {{"y", {3, 4, 9, 10}}}},
    {"cast rounds to nearest even",
     {"in x float 3", "y:bf16 = cast x"},
     {{"x", {1.00390625, 1.01171875, -3}}},
     {{"y", {1, 1.015625, -3}}}},
    {"sum of squares",
     {"in g float 3", "part = sum_squares g"},
     {{"g", {1, -2, 3}}},
     {{"part", {14}}}},
};

static void set_values(struct opcase *c, const struct values *given)
{
    tensor_id id = program_find(&c->prog, given->tensor);
    assert_true(id != TENSOR_NONE);
    for (int64_t i = 0; i < tensor_elems(&c->prog, id); i++)
        dtype_store(c->prog.tensors[id].dtype, c->data[id], i, given->value[i]);
}

static void check_values(const struct value_row *row, const struct opcase *c,
                         const struct values *expected)
{
    tensor_id id = program_find(&c->prog, expected->tensor);
    assert_true(id != TENSOR_NONE);
    for (int64_t i = 0; i < tensor_elems(&c->prog, id); i++) {
        double got = dtype_load(c->prog.tensors[id].dtype, c->data[id], i);
        double right = expected->value[i];
        if (!(fabs(got - right) <= 1e-12 * fmax(1.0, fabs(right))))
            fail_msg("%s: %s[%d] is %.17g, not %.17g", row->what, expected->tensor, (int)i, got,
                     right);
    }
}

static void test_forward_values(void **state)
{
    (void)state;
    for (int r = 0; r < COUNT(value_rows); r++) {
        const struct value_row *row = &value_rows[r];
        struct case_text text = {.name = row->what, .use = {[CASE_sizes] = {""}}};
        struct snug_error err = {0};
        struct opcase c;
        while (text.n_lines < COUNT(row->line) && row->line[text.n_lines] != NULL) {
            text.line[text.n_lines] = row->line[text.n_lines];
            text.n_lines++;
        }
        if (opcase_build(&text, CASE_sizes, 0, DTYPE_f64, 1, &c, &err) != SNUG_OK)
            fail_msg("%s", err.message);
        for (int i = 0; i < COUNT(row->given) && row->given[i].tensor != NULL; i++)
            set_values(&c, &row->given[i]);
        if (oprun_step(&c, 0, ref_kernel(c.prog.ops[0].kind), &err) != SNUG_OK)
            fail_msg("%s: %s", row->what, err.message);
        for (int i = 0; i < COUNT(row->expected) && row->expected[i].tensor != NULL; i++)
            check_values(row, &c, &row->expected[i]);
        opcase_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
