/*
 * test_verify.c -- invalid programs and the message that refuses each.
 *
 * Most are in text form; those that it cannot express, because only a broken pass could create them
 * (ids and counts out of range), are built in code.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ir/program.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

#define DECLARE                                                                         \
    "program p; tensor x input f32 [2 4]; tensor t input i32 [2]; "                     \
    "tensor w parameter f32 [4 4] persistent; tensor gm parameter f32 [4] persistent; " \
    "tensor s temporary f64 [8] persistent; tensor a activation f32 [2 4]; "            \
    "tensor b activation f32 [2 4]; tensor c activation f32 [2 4]; "                    \
    "tensor l activation f32 [1]; tensor lse activation f32 [2]; tensor g gradient f32 [4 4]; "

#define UPDATE                                                                                   \
    DECLARE "tensor m optimizer f32 [4 4] persistent; tensor c8 optimizer u8 [4 4] persistent; " \
            "tensor k8 optimizer f32 [1] persistent; "

#define STORED                                                                                     \
    DECLARE                                                                                        \
    "tensor k activation f32 [2 4] offloaded; tensor m optimizer f32 [2 4] persistent offloaded; " \
    "tensor h activation bf16 [2 4]; "

#define ATTENTION                                                                                 \
    "program p; tensor q input f32 [1 2 8]; tensor k input f32 [1 2 4]; tensor v input f32 [1 2 " \
    "4]; "                                                                                        \
    "tensor packed input f32 [1 2 16]; tensor y activation f32 [1 2 8]; "                         \
    "tensor lse activation f32 [1 2 2]; tensor few activation f32 [1]; tensor dots input f32 "    \
    "[1]; "                                                                                       \
    "tensor thin input f32 [1 2 3]; tensor dq activation f32 [1 2 8]; "                           \
    "tensor dk activation f32 [1 2 4]; tensor dv activation f32 [1 2 4]; "                        \
    "y, lse = attention q, k, v {heads=2, kv_heads=1}; "

static const struct {
    const char *name, *text, *words; /* words NULL: a good program */
} rows[] = {
    {"nothing at all", "", NULL},
    {"a gradient of attention",
     ATTENTION "dq, dk, dv = attention_grad q, y, lse, q, k, v {heads=2, kv_heads=1}", NULL},
    {"a gradient of attention, dy too thin",
     ATTENTION "dq, dk, dv = attention_grad thin, y, lse, q, k, v {heads=2, kv_heads=1}",
     "\"thin\" should be [batch, queries, heads x width of a head]"},
    {"a gradient of attention, too few sums",
     ATTENTION "few = act dots; dq, dk, dv = attention_grad q, y, few, q, k, v {heads=2, "
               "kv_heads=1}",
     "\"few\" should be [batch, heads, queries]"},
    {"values without keys", ATTENTION "dq, few = attention packed, _, v {heads=2, kv_heads=1}",
     "\"v\" should be left out, as k is"},
    {"a gradient of rmsnorm",
     DECLARE "tensor dgm gradient f32 [4]; a, lse = rmsnorm x, gm; "
             "b, dgm = rmsnorm_grad x, x, gm, lse",
     NULL},
    {"a gradient of rmsnorm with one sum for two rows",
     DECLARE "tensor dgm gradient f32 [4]; tensor one input f32 [1]; "
             "b, dgm = rmsnorm_grad x, x, gm, one",
     "\"one\" should be an element for each row that gamma covers"},
    {"a gradient of rmsnorm whose gamma does not fit",
     DECLARE "tensor g3 parameter f32 [3] persistent; tensor dgm gradient f32 [3]; "
             "tensor two input f32 [2]; b, dgm = rmsnorm_grad x, x, g3, two",
     "\"g3\" should be a vector whose width divides that of dy"},
    {"a chain", DECLARE "a = act x; b = add a, x", NULL},
    {"what lives from step to step is there", DECLARE "a = linear x, w", NULL},
    {"an update in place", DECLARE "g = linear_grad_w x, x; w = update g, s, w {rule=sgd}", NULL},
    {"adding to what was written", DECLARE "a = act x; a = accumulate x {accumulate=yes}", NULL},
    {"adding after the first micro-batch",
     DECLARE "a = accumulate x {accumulate=after_first}; body 1 x 3", NULL},
    {"parts, then the whole",
     DECLARE "tensor q activation f32 [8]; tensor q1 activation f32 [2 4] view=q+0; "
             "tensor r activation f32 [8]; q1 = act x; r = act q",
     NULL},
    {"left-out results", DECLARE "a, _, _ = layernorm x, gm, gm", NULL},
    {"in the last micro-batch, read there and after all",
     DECLARE "a = act x last; b = act a last; c = act b; body 2 x 3", NULL},
    {"an update in the last micro-batch of what every one reads",
     DECLARE "g = linear_grad_w x, x {accumulate=after_first}; "
             "w = update g, s, w {rule=sgd} last; a = linear x, w; body 3 x 3",
     NULL},
    {"in the last micro-batch, but after all", DECLARE "a = act x; b = act a last; body 1 x 3",
     "op 1 (act) is marked `last` but is not in the body"},
    {"made in the last micro-batch, read in every one",
     DECLARE "a = act x last; b = act a; body 2 x 3",
     "op 1 (act): tensor \"a\" is written in the last micro-batch only, but read in every one"},
    {"a sum over micro-batches in the last of them",
     DECLARE "a = accumulate x {accumulate=after_first} last; body 1 x 3",
     "\"a\" is added to in the last micro-batch, but no earlier micro-batch writes it"},

    {"read before written", DECLARE "b = act a",
     "op 0 (act): tensor \"a\" is read before it is written"},
    {"read before written, later", DECLARE "b = act x; c = add b, a; a = act x",
     "op 1 (add): tensor \"a\" is read before it is written"},
    {"written twice", DECLARE "a = act x; a = act x", "op 1 (act): tensor \"a\" is written twice"},
    {"written again by a later sum", DECLARE "a = accumulate x; a = accumulate x",
     "tensor \"a\" is written twice"},
    {"added to before written", DECLARE "a = accumulate x {accumulate=yes}",
     "tensor \"a\" is added to before it is written"},
    {"wrong shape", DECLARE "l = act x", "\"l\" does not have the shape that the op produces"},
    {"operands that do not fit", DECLARE "a = act x; b = add a, l", "read before it is written"},
    {"operands of two shapes", DECLARE "a = add x, w", "operand \"w\" should be of the same shape"},
    {"a matrix too narrow", DECLARE "a = linear x, gm", "operand \"gm\" should be a matrix"},
    {"targets of a wrong type", DECLARE "a = act x; l, lse = cross_entropy a, x",
     "operand \"x\" should be one i32 class per row"},
    {"a needed operand is left out", DECLARE "a = add x, _", "input 1 is required"},
    {"a narrow statistic", DECLARE "tensor n activation bf16 [1]; n, lse = cross_entropy x, t",
     "\"n\" must stay fp32"},
    {"input written", DECLARE "x = act x",
     "\"x\" is an input of the program and cannot be written"},
    {"in place without effect", DECLARE "a = act x; a = act a", "op 1 (act): tensor \"a\""},
    {"a weight as input and output of a plain op", DECLARE "w = act w",
     "\"w\" is input and output of an op that does not update in place"},
    {"an update with a state and a quantized one",
     UPDATE "g = linear_grad_w x, x; w, _, m, _, c8, k8 = update g, s, w, _, m, _, c8, k8 "
            "{rule=adamw, state_bits=8}",
     NULL},
    {"an update without a rule", DECLARE "g = linear_grad_w x, x; w = update g, s, w",
     "update: needs a gradient, a weight and a rule"},
    {"an update of another size", DECLARE "gm = update x, s, gm {rule=sgd}",
     "operand \"x\" should be as large as the weight"},
    {"a state of another size", UPDATE "w, _, gm = update w, s, w, _, gm {rule=momentum}",
     "operand \"gm\" should be of a float type and as large as the weight"},
    {"quantized without a scale", UPDATE "w, _, c8 = update w, s, w, _, c8 {rule=momentum}",
     "operand \"c8\" should be of a float type"},
    {"quantized to no number of bits",
     UPDATE "w, _, c8, k8 = update w, s, w, _, c8, k8 {rule=momentum}",
     "operand \"k8\" should be left out, unless state_bits is 8 or 4"},
    {"quantized to other bits",
     UPDATE "w, _, c8, k8 = update w, s, w, _, c8, k8 {rule=momentum, state_bits=4}",
     "operand \"c8\" should be u8 quantized elements"},
    {"too few scales",
     UPDATE "w, _, c8, l = update w, s, w, _, c8, gm {rule=momentum, state_bits=8}",
     "operand \"gm\" should be f32, one scale per block"},
    {"an update that makes another state", UPDATE "w, _, c = update w, s, w, _, m {rule=momentum}",
     "\"c\" must be the input that this output updates"},
    {"to the offload pool and back",
     STORED "a = act x; k = evict a; _ = wait_copy k; b = prefetch k; c = act b", NULL},
    {"a state is evicted again", STORED "a = prefetch m; m = evict a; b = prefetch m; m = evict b",
     NULL},
    {"settling what was fetched", STORED "a = prefetch m; _ = wait_copy a; b = act a", NULL},
    {"a part of what lives on", DECLARE "tensor w1 temporary f32 [2 4] view=w+8; a = act w1", NULL},
    {"what is offloaded is no operand", STORED "a = act m",
     "tensor \"m\" is offloaded: only prefetch may read it"},
    {"nor a result", STORED "k = act x", "tensor \"k\" is offloaded: only evict may write it"},
    {"fetched from the arena", STORED "a = act x; b = prefetch a",
     "\"a\" must be offloaded to be prefetched"},
    {"evicted in the arena", STORED "a = act x; b = evict a",
     "\"b\" must be offloaded: evict writes to the offload pool"},
    {"fetched before it is evicted", STORED "a = prefetch k", "\"k\" is read before it is written"},
    {"an activation is evicted again", STORED "a = act x; k = evict a; b = act x; k = evict b",
     "\"k\" is written twice"},
    {"fetched as another type", STORED "h = prefetch m",
     "does not have the dtype of the tensor that is copied to it"},
    {"fetched to nowhere", STORED "_ = prefetch m",
     "does not have the dtype of the tensor that is copied to it"},
    {"a part that is not where the whole is", STORED "tensor m1 temporary f32 [4] view=m+0",
     "tensor \"m1\" and its base must both be offloaded or both not"},
    {"a view beyond its base", DECLARE "tensor v activation f32 [4] view=a+5",
     "tensor \"v\" extends beyond its base"},
    {"a wider view beyond its base", DECLARE "tensor v activation f64 [5] view=a+0",
     "tensor \"v\" extends beyond its base"},
    {"a view of a view",
     DECLARE "tensor v activation f32 [4] view=a+0; tensor u activation f32 [2] view=v+0",
     "tensor \"u\" is a view of a view"},
    {"a view of itself", DECLARE "tensor v activation f32 [4] view=v+0", "has an invalid base"},
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct snug_error err = {0};
        struct program prog;
        if (program_parse(rows[i].text, &prog, &err) != SNUG_OK)
            fail_msg("%s: %s", rows[i].name, err.message);
        enum snug_status status = program_verify(&prog, &err);
        if (rows[i].words == NULL && status != SNUG_OK)
            fail_msg("%s: %s", rows[i].name, err.message);
        if (rows[i].words != NULL &&
            (status != SNUG_BAD_PROGRAM || strstr(err.message, rows[i].words) == NULL))
            fail_msg("%s: status %d, \"%s\" and not \"%s\"", rows[i].name, (int)status, err.message,
                     rows[i].words);
        assert_int_equal(program_verify(&prog, NULL), status);
        program_free(&prog);
    }
}

/* ---- what the text form cannot say ----------------------------------------------------------- */

static void too_many_dims(struct program *p)
{
    p->tensors[0].shape.n_dims = MAX_DIMS + 1;
}
static void no_dims(struct program *p)
{
    p->tensors[0].shape.n_dims = 0;
}
static void empty_dim(struct program *p)
{
    p->tensors[0].shape.dim[1] = 0;
}
static void huge_dim(struct program *p)
{
    p->tensors[0].shape.dim[0] = p->tensors[0].shape.dim[1] = INT64_C(1) << 40;
}
static void base_out_of_range(struct program *p)
{
    p->tensors[0].base = p->n_tensors;
}
static void negative_offset(struct program *p)
{
    p->tensors[p->ops[0].out[0]].base = 0;
    p->tensors[p->ops[0].out[0]].offset_elems = -1;
}
static void link_out_of_range(struct program *p)
{
    p->tensors[0].link = LINK_gradient, p->tensors[0].of = p->n_tensors;
}
static void link_of_nothing(struct program *p)
{
    p->tensors[0].link = LINK_master;
}
static void input_out_of_range(struct program *p)
{
    p->ops[0].in[0] = p->n_tensors;
}
static void input_below_range(struct program *p)
{
    p->ops[0].in[0] = -2;
}
static void output_out_of_range(struct program *p)
{
    p->ops[0].out[0] = 9999;
}
static void work_out_of_range(struct program *p)
{
    p->ops[0].work = p->n_tensors;
}
static void too_few_inputs(struct program *p)
{
    p->ops[0].n_in = 0;
}
static void too_many_inputs(struct program *p)
{
    p->ops[0].n_in = 2;
}
static void too_many_outputs(struct program *p)
{
    p->ops[0].n_out = 2;
}
static void no_outputs(struct program *p)
{
    p->ops[0].n_out = 0;
}
static void body_too_long(struct program *p)
{
    p->body_end = 2;
}
static void body_without_ops(struct program *p)
{
    p->body_end = 1, p->n_ops = 0;
}
static void body_negative(struct program *p)
{
    p->body_end = -1;
}
static void body_never(struct program *p)
{
    p->n_repeat = 0;
}

static const struct {
    const char *name;
    void (*damage)(struct program *prog);
    const char *words;
} damages[] = {
    {"too many dimensions", too_many_dims, "has no dimensions or more than 6"},
    {"no dimensions", no_dims, "has no dimensions or more than 6"},
    {"an empty dimension", empty_dim, "has a dimension below 1"},
    {"too many elements", huge_dim, "has more than 1e17 elements"},
    {"base out of range", base_out_of_range, "has an invalid base"},
    {"a link out of range", link_out_of_range, "has an invalid link"},
    {"a link of no tensor", link_of_nothing, "has an invalid link"},
    {"view before its base", negative_offset, "extends beyond its base"},
    {"input out of range", input_out_of_range, "input id out of range"},
    {"input below range", input_below_range, "input id out of range"},
    {"output out of range", output_out_of_range, "output id out of range"},
    {"workspace out of range", work_out_of_range, "workspace id out of range"},
    {"too few inputs", too_few_inputs, "0 inputs, expected 1 to 1"},
    {"too many inputs", too_many_inputs, "2 inputs, expected 1 to 1"},
    {"too many outputs", too_many_outputs, "2 outputs, expected 1 to 1"},
    {"no outputs", no_outputs, "0 outputs, expected 1 to 1"},
    {"body beyond the ops", body_too_long, "body 0..2 x 1 does not fit 1 ops"},
    {"body of a program without ops", body_without_ops, "does not fit 0 ops"},
    {"body that ends before the program", body_negative, "does not fit"},
    {"body that never runs", body_never, "body 0..1 x 0 does not fit"},
};

static void test_damage(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(damages); i++) {
        struct snug_error err = {0};
        struct program prog;
        assert_int_equal(program_parse("program p; tensor x input f32 [2 4]; "
                                       "tensor a activation f32 [2 4]; a = act x",
                                       &prog, &err),
                         SNUG_OK);
        assert_int_equal(program_verify(&prog, &err), SNUG_OK);
        damages[i].damage(&prog);
        enum snug_status status = program_verify(&prog, &err);
        if (status != SNUG_BAD_PROGRAM || strstr(err.message, damages[i].words) == NULL)
            fail_msg("%s: status %d, \"%s\" and not \"%s\"", damages[i].name, (int)status,
                     err.message, damages[i].words);
        program_free(&prog);
    }
}

/* ---- sizes ----------------------------------------------------------------------------------- */

#define SIZED                                                                                \
    "program p; tensor x input f32 [2 1024 768]; tensor gm parameter f32 [768] persistent; " \
    "tensor y activation f32 [2 1024 768]; tensor mean activation f32 [2048]; "              \
    "tensor rstd activation f32 [2048]; y, mean, rstd = layernorm x, gm, gm"

static const struct {
    int64_t batch;
    const char *words; /* NULL: not too large */
} sizes[] = {
    {1, NULL},
    {1000000000, NULL},
    {100000000000, NULL},
    {1000000000000,
     "p: tensor \"x\" would have 7.9e+17 elements: choose a smaller --batch or --seq"},
    {INT64_C(1000000000000000), "tensor \"x\" would have 7.9e+20 elements"},
    {INT64_C(1) << 44, "tensor \"x\" would have"}, /* 2^63.6 elements */
    {INT64_C(1) << 54, "tensor \"x\" would have"}, /* rows are 2^64: they would wrap to 0 */
    {INT64_MAX, "tensor \"x\" would have 7.3e+24 elements"},
};

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(sizes); i++) {
        struct snug_error err = {0};
        struct program prog;
        assert_int_equal(program_parse(SIZED, &prog, &err), SNUG_OK);
        enum snug_status status = program_set_batch(&prog, sizes[i].batch, &err);
        assert_int_equal(program_check_sizes(&prog, NULL), status);
        if (sizes[i].words == NULL
                ? status != SNUG_OK
                : status != SNUG_BAD_ARGUMENT || strstr(err.message, sizes[i].words) == NULL)
            fail_msg("batch %lld: status %d, \"%s\"", (long long)sizes[i].batch, (int)status,
                     err.message);
        program_free(&prog);
    }
}

/* Each tensor is within bounds, their sum is not; views add nothing to it. */
static void test_sum_of_sizes(void **state)
{
    (void)state;
    struct snug_error err = {0};
    struct program prog;
    struct tensor t = {TENSOR_INIT, .name = "t", .dtype = DTYPE_f64, .role = ROLE_activation,
                       .shape = {1, {TENSOR_ELEMS_MAX}}};
    struct tensor view = {.base = 0,
                          .name = "v",
                          .dtype = DTYPE_f64,
                          .role = ROLE_activation,
                          .shape = {1, {TENSOR_ELEMS_MAX}}};
    tensor_id id;
    assert_int_equal(program_init(&prog, "p", &err), SNUG_OK);
    for (int i = 0; i < 5; i++)
        assert_int_equal(program_add_tensor(&prog, &t, &id, &err), SNUG_OK);
    assert_int_equal(program_add_tensor(&prog, &view, &id, &err), SNUG_OK);
    assert_int_equal(program_check_sizes(&prog, &err), SNUG_OK);
    assert_int_equal(program_add_tensor(&prog, &t, &id, &err), SNUG_OK);
    assert_int_equal(program_check_sizes(&prog, &err), SNUG_BAD_ARGUMENT);
    assert_string_equal(err.message, "p: all tensors together would have 4.8e+18 bytes: choose a "
                                     "smaller --batch or --seq");
    prog.tensors[0].shape.dim[0]++;
    prog.tensors[0].persistent = true;
    assert_int_equal(program_check_sizes(&prog, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "choose a smaller model"));
    program_free(&prog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_sum_of_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
