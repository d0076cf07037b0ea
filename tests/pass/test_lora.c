/*
 * test_lora.c -- adapters in small programs in text form: which layers get them, which tensors then
 * have gradients, what is quantized, what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "pass/pass.h"
#include "support/ops_text.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static const char declarations[] =
    "program p\n"
    "tensor x input f32 [2 3 4]; tensor y input f32 [2 3 4]; tensor s temporary f64 [32] "
    "persistent\n"
    "tensor qkv.weight parameter f32 [4 12] persistent decays\n"
    "tensor qkv.bias parameter f32 [12] persistent\n"
    "tensor proj.weight parameter f32 [4 4] persistent\n"
    "tensor fc parameter f32 [8 4] persistent; tensor out.weight parameter f32 [4 8] persistent\n"
    "tensor last.weight parameter f32 [4 4] persistent\n"
    "tensor q activation f32 [2 3 12]; tensor a activation f32 [2 3 4]; tensor lse activation f32 "
    "[2 2 3]\n"
    "tensor p activation f32 [2 3 4]; tensor f activation f32 [2 3 8]; tensor g activation f32 "
    "[2 3 8]\n"
    "tensor d activation f32 [2 3 8]; tensor o activation f32 [2 3 4]; tensor z activation f32 "
    "[2 3 4]\n"
    "tensor l activation f32 [1] output; loss l; scalars s\n";
/* clang-format off */
#define QKV  "q = linear x, qkv.weight, qkv.bias {layout=in_out}; a, lse = attention q {heads=2}; "
#define PROJ "p = linear a, proj.weight; "
#define MLP  "f = linear p, fc; g = act f {act=gelu}; o = linear g, out.weight; "
#define LAST "z = linear o, last.weight; l = mse z, y"

#define ADAPTED(y, x, layer) \
    y ".down = linear " x ", " layer ".lora_A.weight; " \
    y ".scaled = scale " y ".down {options=[0.5]}; " \
    y ".up = linear " y ".scaled, " layer ".lora_B.weight; "
#define ADAPTED_QKV \
    ADAPTED("q", "x", "qkv") "q = linear x, qkv.weight, qkv.bias, q.up {layout=in_out}; " \
    "a, lse = attention q {heads=2}; "
#define ADAPTED_MLP(x) \
    ADAPTED("f", x, "fc") "f = linear " x ", fc, _, f.up; g = act f {act=gelu}; " \
    ADAPTED("o", "g", "out") "o = linear g, out.weight, _, o.up; "

static const struct row {
    const char *name, *ops, *expected; /* all ops, or words of the message */
    enum lora_on on;
    int rank;
    enum snug_status status;
} rows[] = {
    {"attention: what it reads", QKV PROJ MLP LAST, ADAPTED_QKV PROJ MLP LAST,
     LORA_ON_attention, 2, SNUG_OK},
    {"mlp: before and after the activation", QKV PROJ MLP LAST, QKV PROJ ADAPTED_MLP("p") LAST,
     LORA_ON_mlp, 2, SNUG_OK},
    {"all: both, and the projection", QKV PROJ MLP LAST,
     ADAPTED_QKV ADAPTED("p", "a", "proj") "p = linear a, proj.weight, _, p.up; "
     ADAPTED_MLP("p") LAST,
     LORA_ON_all, 2, SNUG_OK},
    {"an activation that is dropped is one",
     "f = linear x, fc; g = act f {act=gelu}; d = dropout g, s {dropout=0.5}; "
     "o = linear d, out.weight; l = mse o, y",
     ADAPTED("f", "x", "fc") "f = linear x, fc, _, f.up; g = act f {act=gelu}; "
     "d = dropout g, s {dropout=0.5}; "
     ADAPTED("o", "d", "out") "o = linear d, out.weight, _, o.up; l = mse o, y",
     LORA_ON_all, 4, SNUG_OK},
    {"the largest rank", QKV "l = mse a, y", ADAPTED_QKV "l = mse a, y",
     LORA_ON_attention, 4, SNUG_OK},
    {"a larger one", QKV "l = mse a, y",
     "\"qkv.weight\" is 4 x 12: choose a rank from 1 to 4",
     LORA_ON_attention, 5, SNUG_BAD_ARGUMENT},
    {"no attention", MLP LAST, "has no linear layer that feeds attention; --lora-on all",
     LORA_ON_attention, 2, SNUG_UNSUPPORTED},
    {"no mlp", QKV "l = mse a, y", "(next to an activation); --lora-on all adapts",
     LORA_ON_mlp, 2, SNUG_UNSUPPORTED},
    {"neither", "z = linear x, last.weight; l = mse z, y", "convolutions and embeddings do not",
     LORA_ON_all, 2, SNUG_UNSUPPORTED},
    {"one matrix twice",
     "f = linear x, fc; g = act f; o = linear g, out.weight; f = linear o, fc; g = act f; "
     "l = mse o, y",
     "\"fc.lora_A.weight\" already exists", LORA_ON_mlp, 2, SNUG_BAD_PROGRAM},
};
/* clang-format on */

static void parse(const char *ops, struct program *prog)
{
    struct snug_error err = {0};
    struct text whole = {0};
    text_add(&whole, "%s%s", declarations, ops);
    if (program_parse(whole.data, prog, &err) != SNUG_OK)
        fail_msg("%s: %s", ops, err.message);
    text_free(&whole);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        struct arena scratch = {0};
        struct snug_error err = {0};
        struct program prog;
        struct pass_env env = {.scratch = &scratch,
                               .err = &err,
                               .config.train = true,
                               .config.lora_rank = rows[i].rank,
                               .config.lora_on = rows[i].on,
                               .config.lora_scale = 0.5};
        parse(rows[i].ops, &prog);
        enum snug_status status = pass_lora(&prog, &env);
        char *ops = status == SNUG_OK ? ops_of(&prog) : strdup(err.message);
        if (status != rows[i].status || (status == SNUG_OK ? strcmp(ops, rows[i].expected) != 0
                                                           : strstr(ops, rows[i].expected) == NULL))
            fail_msg("%s:\n  gives  %s\n  not    %s", rows[i].name, ops, rows[i].expected);
        if (status == SNUG_OK && program_verify(&prog, &err) != SNUG_OK)
            fail_msg("%s: %s", rows[i].name, err.message);
        free(ops);
        program_free(&prog);
        arena_free(&scratch);
    }
}

/* lora, autodiff and, with bits, decode; the program is the caller's. */
static void run_passes(const char *ops, enum lora_on on, int bits, struct program *prog)
{
    struct arena scratch = {0};
    struct snug_error err = {0};
    struct pass_env env = {.scratch = &scratch,
                           .err = &err,
                           .config.train = true,
                           .config.compute = DTYPE_f32,
                           .config.lora_rank = 2,
                           .config.lora_on = on,
                           .config.lora_scale = 0.5,
                           .config.base_bits = bits};
    parse(ops, prog);
    if (pass_lora(prog, &env) != SNUG_OK || pass_autodiff(prog, &env) != SNUG_OK ||
        (bits != 0 && pass_dequantize(prog, &env) != SNUG_OK) ||
        program_verify(prog, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    arena_free(&scratch);
}

/* Nothing but A and B has a gradient, and nothing is computed for what stands before the first of them. */
static void test_frozen_has_no_gradient(void **state)
{
    (void)state;
    struct program prog;
    run_passes(QKV PROJ MLP LAST, LORA_ON_mlp, 0, &prog);
    int n_gradients = 0, n_frozen = 0;
    for (int i = 0; i < prog.n_tensors; i++) {
        const struct tensor *t = &prog.tensors[i];
        bool is_part = strstr(t->name, ".lora_") != NULL;
        n_gradients += t->role == ROLE_gradient;
        n_frozen += t->frozen;
        if (t->role == ROLE_parameter)
            assert_int_equal(t->frozen, !is_part);
        if (t->role == ROLE_gradient)
            assert_true(is_part);
    }
    assert_int_equal(n_gradients, 4);
    assert_int_equal(n_frozen, 6);
    assert_int_equal(program_find(&prog, "d.p"), TENSOR_NONE);
    assert_int_equal(program_find(&prog, "d.q"), TENSOR_NONE);
    assert_true(program_find(&prog, "d.g") != TENSOR_NONE);
    program_free(&prog);
}

static const struct tensor *tensor_of(const struct program *prog, const char *name)
{
    tensor_id id = program_find(prog, name);
    if (id == TENSOR_NONE)
        fail_msg("there is no tensor \"%s\"", name);
    return &prog->tensors[id];
}

/* Each reader of a coded matrix has an op right before it that makes the matrix for it alone. */
static void test_quantized_base(void **state)
{
    (void)state;
    static const struct {
        int bits;
        enum dtype dtype;
        int64_t n;
        const char *forward;
    } quantized[] = {
        {8, DTYPE_u8, 32,
         "fc.dequantized = dequantize fc, fc.scales {height=8, width=4, state_bits=8}"},
        {4, DTYPE_u8, 16,
         "fc.dequantized = dequantize fc, fc.scales {height=8, width=4, state_bits=4}"},
        {16, DTYPE_bf16, 32, "fc.dequantized = cast fc"}};
    for (size_t i = 0; i < LENGTH(quantized); i++) {
        struct program prog;
        run_passes(QKV PROJ MLP LAST, LORA_ON_all, quantized[i].bits, &prog);
        char *ops = ops_of(&prog);
        char reads[200];
        snprintf(reads, sizeof reads, "%s; f = linear p, fc.dequantized, _, f.up; ",
                 quantized[i].forward);
        if (strstr(ops, reads) == NULL)
            fail_msg("%d bits: %s\nhas no %s", quantized[i].bits, ops, reads);
        assert_non_null(strstr(ops, "; d.p = linear_grad_x d.f, fc.dequantized.2; "));
        assert_int_equal(tensor_of(&prog, "fc")->dtype, quantized[i].dtype);
        assert_int_equal(shape_elems(&tensor_of(&prog, "fc")->shape), quantized[i].n);
        assert_int_equal(tensor_of(&prog, "fc.dequantized")->role, ROLE_temporary);
        assert_int_equal(tensor_of(&prog, "qkv.bias")->dtype, DTYPE_f32);
        assert_int_equal(tensor_of(&prog, "fc.lora_A.weight")->dtype, DTYPE_f32);
        free(ops);
        program_free(&prog);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_frozen_has_no_gradient),
        cmocka_unit_test(test_quantized_base),
    };
    return cmocka_run_group_tests_name("lora", tests, NULL, NULL);
}
