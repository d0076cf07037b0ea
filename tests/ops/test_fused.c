/*
 * test_fused.c -- a fused op gives the bits of its parts, in every dtype and at every instruction
 * level.
 *
 * Checkpointing relies on it: it may save one result of a fused op and recompute another alone.
 *     linear with an activation                   linear, act
 *     add_layernorm, with dropout of one side     dropout, add, layernorm
 *     add_rmsnorm, with dropout of one side       dropout, add, rmsnorm
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "exec/exec.h"
#include "support/booked.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const struct device_rates rates = {.flops = 1e9, .bytes = 1e9};
static const char *const levels[] = {"base", "v3", "v4", "amx-emulated"};
static const char *const types[] = {"f32", "bf16", "f16"};
static const char *const acts[] = {"gelu", "relu", "tanh", "sigmoid"};
static const int widths[] = {1, 31, 64, 100};

struct machine {
    struct program prog;
    struct plan plan;
    struct device_facts facts;
    struct exec *exec;
};

/* Fills inputs with values large enough to reach the tails of activation functions. */
static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    struct machine *m = user;
    (void)micro, (void)err;
    for (int i = 0; i < m->prog.n_tensors; i++) {
        const struct tensor *t = &m->prog.tensors[i];
        if (t->role != ROLE_input || t->dtype == DTYPE_f64)
            continue;
        for (int64_t k = 0; k < tensor_elems(&m->prog, i); k++)
            dtype_store(t->dtype, exec_data(m->exec, i), k,
                        3 * rng_normal(7, (uint64_t)i, (uint64_t)k));
    }
    return SNUG_OK;
}

static void run(struct machine *m, const char *text, bool reference)
{
    struct snug_error err = {0};
    const struct backend *cpu = backend_cpu();
    *m = (struct machine){
        .facts = {.threads = 2, .isa = backend_cpu_isa(), .reference_only = reference}};
    if (program_parse(text, &m->prog, &err) != SNUG_OK || program_verify(&m->prog, &err) != SNUG_OK)
        fail_msg("%s: %s", text, err.message);
    book_kernels(&m->prog, cpu, &m->facts);
    if (plan_make(&m->prog, cpu->alignment, &rates, &m->plan, &err) != SNUG_OK ||
        exec_create(&m->prog, &m->plan, cpu, &m->facts, NULL, &m->exec, &err) != SNUG_OK)
        fail_msg("%s: %s", text, err.message);
    tensor_id scalars = program_find(&m->prog, "scalars");
    if (scalars != TENSOR_NONE)
        memset(exec_data(m->exec, scalars), 0, (size_t)tensor_bytes(&m->prog, scalars));
    if (exec_run(m->exec, feed, m, &err) != SNUG_OK)
        fail_msg("%s: %s", text, err.message);
}

static void forget(struct machine *m)
{
    exec_free(m->exec);
    plan_free(&m->plan);
    program_free(&m->prog);
}

static void expect_same(const struct machine *m, const char *a, const char *b, const char *what)
{
    tensor_id one = program_find(&m->prog, a), other = program_find(&m->prog, b);
    assert_true(one != TENSOR_NONE && other != TENSOR_NONE);
    if (memcmp(exec_data(m->exec, one), exec_data(m->exec, other),
               (size_t)tensor_bytes(&m->prog, one)) != 0)
        fail_msg("%s: %s and %s differ", what, a, b);
}

static void check_act(const char *type, const char *act, int width, bool reference,
                      const char *where)
{
    char text[1000], what[200];
    struct machine m;
    snprintf(what, sizeof what, "%s, %s, %s, %d wide", where, type, act, width);
    snprintf(text, sizeof text,
             "tensor x input %s [37 16]; tensor w input %s [%d 16]; tensor b input %s [%d]; "
             "tensor y activation %s [37 %d] output; tensor p activation %s [37 %d] output; "
             "tensor z activation %s [37 %d] output; tensor alone activation %s [37 %d] output; "
             "y, p = linear x, w, b {act=%s}; z = act p {act=%s}; alone = linear x, w, b {act=%s}",
             type, type, width, type, width, type, width, type, width, type, width, type, width,
             act, act, act);
    run(&m, text, reference);
    expect_same(&m, "y", "z", what);
    expect_same(&m, "y", "alone", what);
    forget(&m);
}

static void check_norm(const char *type, int width, bool reference, const char *where)
{
    char text[2000], what[200];
    struct machine m;
    snprintf(what, sizeof what, "%s, %s, norm, %d wide", where, type, width);
    int length =
        snprintf(text, sizeof text,
                 "scalars scalars; tensor scalars optimizer f64 [%d] persistent; "
                 "tensor a input %s [37 %d]; tensor b input %s [37 %d]; tensor g input %s [%d]; "
                 "tensor h input %s [%d]; ",
                 SCALAR_COUNT, type, width, type, width, type, width, type, width);
    const char *const results[] = {"s", "y", "d", "s.2", "y.2", "y.3", "rs", "ry", "ry.2"};
    for (int i = 0; i < LENGTH(results); i++)
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "tensor %s activation %s [37 %d] output; ", results[i], type, width);
    const char *const statistics[] = {"m", "r", "m.2", "r.2", "m.3", "r.3", "rr", "rr.2"};
    for (int i = 0; i < LENGTH(statistics); i++)
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "tensor %s activation f32 [37] output; ", statistics[i]);
    snprintf(text + length, sizeof text - (size_t)length,
             "s, y, m, r = add_layernorm a, b, g, h, scalars {dropout=0.3, site=2}; "
             "d = dropout b, scalars {dropout=0.3, site=2}; s.2 = add a, d; "
             "y.2, m.2, r.2 = layernorm s.2, g, h; y.3, m.3, r.3 = layernorm s, g, h; "
             "rs, ry, rr = add_rmsnorm a, b, g, scalars {dropout=0.3, site=2}; "
             "ry.2, rr.2 = rmsnorm s.2, g");
    run(&m, text, reference);
    expect_same(&m, "s", "s.2", what);
    expect_same(&m, "y", "y.2", what);
    expect_same(&m, "y", "y.3", what);
    expect_same(&m, "m", "m.2", what);
    expect_same(&m, "r", "r.2", what);
    expect_same(&m, "rs", "s.2", what);
    expect_same(&m, "ry", "ry.2", what);
    expect_same(&m, "rr", "rr.2", what);
    forget(&m);
}

static void check_all(bool reference, const char *where)
{
    for (int t = 0; t < LENGTH(types); t++)
        for (int w = 0; w < LENGTH(widths); w++) {
            for (int a = 0; a < LENGTH(acts); a++)
                check_act(types[t], acts[a], widths[w], reference, where);
            check_norm(types[t], widths[w], reference, where);
        }
}

static void test_levels(void **state)
{
    (void)state;
    for (int i = 0; i < LENGTH(levels); i++) {
        setenv("SNUG_CPU_LEVEL", levels[i], 1); /* what this CPU has not is a lower one */
        check_all(false, levels[i]);
    }
    unsetenv("SNUG_CPU_LEVEL");
    check_all(false, "highest level");
}

static void test_reference(void **state)
{
    (void)state;
    check_all(true, "reference");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels),
                                       cmocka_unit_test(test_reference)};
    return cmocka_run_group_tests_name("fused", tests, NULL, NULL);
}
