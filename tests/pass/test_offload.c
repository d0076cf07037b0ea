/*
 * test_offload.c -- where the pass offload places its copies, in programs in text form and in a
 * model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "pass/pass.h"
#include "support/training.h"
#include "compile/compile.h"

/* ---- states: a row per behaviour
 * -------------------------------------------------------------------- */

static const char declarations[] =
    "tensor x input f32 [4]; tensor s temporary f64 [24] persistent; scalars s\n"
    "tensor v parameter f32 [4] persistent; tensor w parameter f32 [4] persistent\n"
    "tensor dv gradient f32 [4]; tensor dw gradient f32 [4]; tensor step gradient f32 [4]\n"
    "tensor mv optimizer f32 [4] persistent; tensor mw optimizer f32 [4] persistent\n"
    "tensor r optimizer f32 [4] persistent; tensor k optimizer f32 [4] persistent\n"
    "tensor o activation f32 [4] output; tensor p activation f32 [4] output\n"
    "tensor q activation f32 [4] output; tensor z activation f32 [4] output\n";

#define FORWARD  "dv = add x, x; dw = add x, x; "
#define UPDATE_V "v, _, mv = update dv, s, v, _, mv {rule=momentum}; "
#define UPDATE_W "w, _, mw = update dw, s, w, _, mw {rule=momentum}; "

static const struct row {
    const char *name, *text, *expected; /* kinds of ops, and of copies what is offloaded */
} rows[] = {
    {"nothing to offload", FORWARD, "add add"},
    {"one update", FORWARD UPDATE_V, "prefetch(mv) add add update evict(mv)"},
    {"the next is fetched before the update", FORWARD UPDATE_V UPDATE_W,
     "prefetch(mv) add add wait_copy prefetch(mw) update evict(mv) update evict(mw)"},
    {"ops that share a state are one visit",
     FORWARD "step, s, r = adafactor dv, s, k, r {lr_factor=1}; "
             "v, k = update step, s, v, k {rule=sgd}; " UPDATE_W,
     "prefetch(k) prefetch(r) add add wait_copy prefetch(mw) adafactor update evict(k) evict(r) "
     "update "
     "evict(mw)"},
    {"what is only read is not evicted", FORWARD "o = add dv, k; " UPDATE_W,
     "prefetch(k) add add wait_copy prefetch(mw) add update evict(mw)"},
    {"far apart: two visits, and the second sees what the first has evicted",
     FORWARD UPDATE_V "o = add x, x; p = add x, x; q = add x, x; z = add x, x; "
                      "v, _, mv = update dw, s, v, _, mv {rule=momentum}",
     "prefetch(mv) add add update evict(mv) prefetch(mv) add add add add update evict(mv)"},
};

static void describe(const struct program *prog, struct text *out)
{
    for (int i = 0; i < prog->n_ops; i++) {
        const struct op *op = &prog->ops[i];
        text_add(out, "%s%s", i == 0 ? "" : " ", op_infos[op->kind].name);
        if (op_has(op, TRAIT_copy))
            text_add(out, "(%s)",
                     prog->tensors[op->kind == OP_prefetch ? op->in[0] : op->out[0]].name);
    }
}

static void test_states(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct snug_error err = {0};
        struct arena scratch = {0};
        struct text text = {0}, found = {0};
        struct program prog;
        struct pass_env env = {.scratch = &scratch,
                               .err = &err,
                               .config.train = true,
                               .config.offload = OFFLOAD_states};
        text_add(&text, "%s%s", declarations, rows[i].text);
        must(program_parse(text.data, &prog, &err), &err);
        must(pass_offload(&prog, &env), &err);
        describe(&prog, &found);
        if (strcmp(found.data, rows[i].expected) != 0)
            fail_msg("%s: %s", rows[i].name, found.data);
        must(program_verify(&prog, &err), &err);
        program_free(&prog);
        text_free(&text);
        text_free(&found);
        arena_free(&scratch);
    }
}

/* ---- activations: what must hold in every program
 * ----------------------------------------------------- */

static int first_reader(const struct program *prog, tensor_id id)
{
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_in; k++)
            if (prog->ops[i].in[k] == id)
                return i;
    return -1;
}

static int last_use(const struct program *prog, tensor_id id)
{
    int last = -1;
    for (int i = 0; i < prog->n_ops; i++) {
        for (int k = 0; k < prog->ops[i].n_in; k++)
            last = prog->ops[i].in[k] == id ? i : last;
        for (int k = 0; k < prog->ops[i].n_out; k++)
            last = prog->ops[i].out[k] == id ? i : last;
    }
    return last;
}

static void test_activations(void **state)
{
    (void)state;
    enum { AHEAD = 8, FAR = 20, SMALL = 1 << 16 };
    struct snug_error err;
    struct compiled_step s;
    snug_model *model = model_of("gpt-nano");
    snug_recipe *recipe = recipe_of("batch=4 micro-batch=2 offload=activations threads=1");
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, &err), &err);
    must(program_verify(&s.prog, &err), &err);
    must(plan_check(&s.prog, s.plan.offset, s.plan.arena_bytes, s.backend->alignment, &err), &err);
    int n_evictions = 0, n_fetches = 0, n_under_way = 0;
    for (int i = 0; i < s.prog.n_ops; i++) {
        const struct op *op = &s.prog.ops[i];
        n_under_way -= op->kind == OP_wait_copy;
        if (op->kind == OP_evict) {
            n_evictions++;
            assert_true(++n_under_way <= 2);
            assert_int_equal(last_use(&s.prog, op->in[0]), i);
            assert_true(tensor_bytes(&s.prog, op->in[0]) >= SMALL);
            assert_true(last_use(&s.prog, op->out[0]) - i > FAR);
        } else if (op->kind == OP_prefetch) {
            n_fetches++;
            assert_true(first_reader(&s.prog, op->out[0]) - i > AHEAD);
        }
    }
    assert_int_equal(n_evictions, n_fetches);
    assert_true(n_evictions > 20); /* of six layers */
    compiled_step_free(&s);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_activations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
