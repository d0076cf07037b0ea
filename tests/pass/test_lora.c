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
    "tensor l activation f32 [1] output; loss l; scalars s\n"
    "tensor m.0.q_proj.weight parameter f32 [4 4] persistent decays\n"
    "tensor m.0.q_norm parameter f32 [2] persistent; tensor m.0.v_proj.weight parameter f32 [2 4] "
    "persistent\n"
    "tensor m.0.k_proj.weight parameter f32 [2 4] persistent\n"
    "tensor m.0.gate_proj.weight parameter f32 [8 4] persistent\n"
    "tensor m.0.up_proj.weight parameter f32 [8 4] persistent\n"
    "tensor q1 activation f32 [2 3 4]; tensor q2 activation f32 [2 3 4]; tensor q3 activation f32 "
    "[2 3 4]; tensor r activation f32 [12]\n"
    "tensor k1 activation f32 [2 3 2]; tensor k2 activation f32 [2 3 2]; tensor v1 activation f32 "
    "[2 3 2]\n";
/* clang-format off */
#define QKV  "q = linear x, qkv.weight, qkv.bias {layout=in_out}; a, lse = attention q {heads=2}; "
#define PROJ "p = linear a, proj.weight; "
#define MLP  "f = linear p, fc; g = act f {act=gelu}; o = linear g, out.weight; "
#define LAST "z = linear o, last.weight; l = mse z, y"

/* A block of Qwen3. */
#define LINEAR_Q  "q1 = linear x, m.0.q_proj.weight; "
#define LINEAR_K  "k1 = linear x, m.0.k_proj.weight; "
#define LINEAR_V  "v1 = linear x, m.0.v_proj.weight; "
#define ROTATED_Q "q2, r = rmsnorm q1, m.0.q_norm; q3 = rope q2 {heads=2}; "
#define ROTATED_K "k2 = rope k1; "
#define APART     "a, lse = attention q3, k2, v1 {heads=2, kv_heads=1}; "
#define GATE      "f = linear p, m.0.gate_proj.weight; "
#define UP        "d = linear p, m.0.up_proj.weight; "
#define SWIGLU    "g = swiglu f, d; "
#define DOWN      "o = linear g, out.weight; "
#define ADAPTED_Q ADAPTED("q1", "x", "m.0.q_proj") "q1 = linear x, m.0.q_proj.weight, _, q1.up; "
#define ADAPTED_V ADAPTED("v1", "x", "m.0.v_proj") "v1 = linear x, m.0.v_proj.weight, _, v1.up; "
#define ADAPTED_P ADAPTED("p", "a", "proj") "p = linear a, proj.weight, _, p.up; "
#define ADAPTED_GATE \
    ADAPTED("f", "p", "m.0.gate_proj") "f = linear p, m.0.gate_proj.weight, _, f.up; "
#define ADAPTED_UP ADAPTED("d", "p", "m.0.up_proj") "d = linear p, m.0.up_proj.weight, _, d.up; "
#define ADAPTED_DOWN ADAPTED("o", "g", "out") "o = linear g, out.weight, _, o.up; "
#define LLAMA(q, v, p, gate, up, down) \
    q ROTATED_Q LINEAR_K ROTATED_K v APART p gate up SWIGLU down "l = mse o, y"
#define PLAIN_LLAMA LLAMA(LINEAR_Q, LINEAR_V, PROJ, GATE, UP, DOWN)

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
    const char *on;
    int rank;
    enum snug_status status;
} rows[] = {
    {"attention: what it reads", QKV PROJ MLP LAST, ADAPTED_QKV PROJ MLP LAST,
     "attention", 2, SNUG_OK},
    {"mlp: before and after the activation", QKV PROJ MLP LAST, QKV PROJ ADAPTED_MLP("p") LAST,
     "mlp", 2, SNUG_OK},
    {"all: both, and the projection", QKV PROJ MLP LAST,
     ADAPTED_QKV ADAPTED("p", "a", "proj") "p = linear a, proj.weight, _, p.up; "
     ADAPTED_MLP("p") LAST,
     "all", 2, SNUG_OK},
    {"an activation that is dropped is one",
     "f = linear x, fc; g = act f {act=gelu}; d = dropout g, s {dropout=0.5}; "
     "o = linear d, out.weight; l = mse o, y",
     ADAPTED("f", "x", "fc") "f = linear x, fc, _, f.up; g = act f {act=gelu}; "
     "d = dropout g, s {dropout=0.5}; "
     ADAPTED("o", "d", "out") "o = linear d, out.weight, _, o.up; l = mse o, y",
     "all", 4, SNUG_OK},
    {"the largest rank", QKV "l = mse a, y", ADAPTED_QKV "l = mse a, y",
     "attention", 4, SNUG_OK},
    {"a larger one", QKV "l = mse a, y",
     "\"qkv.weight\" is 4 x 12: choose a rank from 1 to 4",
     "attention", 5, SNUG_BAD_ARGUMENT},
    {"no attention", MLP LAST, "has no linear layer that feeds attention; --lora-on all",
     "attention", 2, SNUG_UNSUPPORTED},
    {"no mlp", QKV "l = mse a, y", "(next to an activation); --lora-on all adapts",
     "mlp", 2, SNUG_UNSUPPORTED},
    {"neither", "z = linear x, last.weight; l = mse z, y", "convolutions and embeddings do not",
     "all", 2, SNUG_UNSUPPORTED},
    {"q and v, through the norm of each head and the rotation", PLAIN_LLAMA,
     LLAMA(ADAPTED_Q, ADAPTED_V, PROJ, GATE, UP, DOWN), "q,v", 2, SNUG_OK},
    {"the same by PEFT's names", PLAIN_LLAMA, LLAMA(ADAPTED_Q, ADAPTED_V, PROJ, GATE, UP, DOWN),
     "v_proj,q_proj", 2, SNUG_OK},
    {"a layer named twice has one adapter", PLAIN_LLAMA,
     LLAMA(ADAPTED_Q, LINEAR_V, PROJ, GATE, UP, DOWN), "q,m.0.q_proj", 2, SNUG_OK},
    {"both inputs of swiglu", PLAIN_LLAMA,
     LLAMA(LINEAR_Q, LINEAR_V, PROJ, ADAPTED_GATE, ADAPTED_UP, DOWN), "gate,up", 2, SNUG_OK},
    {"the mlp of a gated block", PLAIN_LLAMA,
     LLAMA(LINEAR_Q, LINEAR_V, PROJ, ADAPTED_GATE, ADAPTED_UP, ADAPTED_DOWN), "mlp", 2, SNUG_OK},
    {"a name and a group", PLAIN_LLAMA,
     LLAMA(LINEAR_Q, LINEAR_V, ADAPTED_P, ADAPTED_GATE, ADAPTED_UP, ADAPTED_DOWN), "o,mlp", 2,
     SNUG_OK},
    {"packed q, k and v, and the down-projection", QKV PROJ MLP LAST,
     ADAPTED_QKV PROJ "f = linear p, fc; g = act f {act=gelu}; " ADAPTED_DOWN LAST, "qkv,down", 2,
     SNUG_OK},
    {"a part of packed q, k and v", QKV PROJ MLP LAST,
     "--lora-on v: p has no layer of that name; did you mean qkv? It has qkv, o, up, down "
     "(or attention, mlp, all)", "v", 2, SNUG_BAD_ARGUMENT},
    {"a mistyped name", PLAIN_LLAMA, "did you mean gate? It has q, k, v, o, gate, up, down",
     "o,gat", 2, SNUG_BAD_ARGUMENT},
    {"a name that is only the end of a word", PLAIN_LLAMA, "has no layer of that name", "proj.weight",
     2, SNUG_BAD_ARGUMENT},
    {"a layer outside the blocks", QKV PROJ MLP LAST, "--lora-on last: p has no layer", "last", 2,
     SNUG_BAD_ARGUMENT},
    {"one matrix twice",
     "f = linear x, fc; g = act f; o = linear g, out.weight; f = linear o, fc; g = act f; "
     "l = mse o, y",
     "\"fc.lora_A.weight\" already exists", "mlp", 2, SNUG_BAD_PROGRAM},
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
static void run_passes(const char *ops, const char *on, int bits, struct program *prog)
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
    run_passes(QKV PROJ MLP LAST, "mlp", 0, &prog);
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
    assert_int_equal(n_frozen, 12);
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
        run_passes(QKV PROJ MLP LAST, "all", quantized[i].bits, &prog);
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
