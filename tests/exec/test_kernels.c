/*
 * test_kernels.c -- the kernel of every op is chosen once, when a step is compiled; the executor
 * runs that kernel, and refuses an op whose kernel is of another kind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compile/compile.h"
#include "exec/local.h"
#include "exec/plugin.h"
#include "support/booked.h"
#include "support/training.h"

static void compile(const char *model_name, const char *keys, struct compiled_step *s)
{
    struct snug_error err = {0};
    snug_model *model = model_of(model_name);
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, s, &err), &err);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

/* The environment says another level when it runs; every CPU has this one. */
static void test_a_step_keeps_its_level(void **state)
{
    (void)state;
    struct compiled_step s;
    struct exec *exec = NULL;
    struct snug_error err = {0};
    int n_at_level = 0;
    setenv("SNUG_CPU_LEVEL", "base", 1);
    compile("mlp", "batch=8 threads=1", &s);
    unsetenv("SNUG_CPU_LEVEL");
    must(exec_create(&s.prog, &s.plan, s.backend, &s.facts, NULL, &exec, &err), &err);
    for (int i = 0; i < s.prog.n_ops; i++) {
        const char *name = exec->kernels[i]->name;
        if (strcmp(name, "v3") == 0 || strcmp(name, "v4") == 0)
            fail_msg("op %d (%s) runs at level %s", i, op_infos[s.prog.ops[i].kind].name, name);
        n_at_level += strcmp(name, "base") == 0;
    }
    assert_true(n_at_level > 0);
    exec_free(exec);
    compiled_step_free(&s);
}

static const struct {
    const char *model, *keys;
} steps[] = {
    {"gpt-nano", "batch=4 seq=64 precision=bf16 threads=2"},
    {"gpt-nano", "batch=4 seq=64 lora=8 lora-base=4 kernels=reference"},
    {"resnet18:3x32x32,classes=10", "batch=4 optimizer=muon threads=1"},
    {"gpt-nano", "batch=4 seq=64 precision=bf16 device=cuda"},
    {"vit-tiny", "batch=2 device=cuda order=any"},
};
enum { N_STEPS = sizeof steps / sizeof *steps };

/* Of each op of a compiled step: a kernel of its kind, the one that the backend would choose, and its workspace. */
static void test_every_op_has_its_kernel(void **state)
{
    (void)state;
    for (int n = 0; n < N_STEPS; n++) {
        struct compiled_step s;
        compile(steps[n].model, steps[n].keys, &s);
        assert_true(s.prog.n_ops > 20);
        for (int i = 0; i < s.prog.n_ops; i++) {
            const struct op *op = &s.prog.ops[i];
            const struct kernel *kernel = s.backend->kernel(op->kernel);
            struct kernel_choice choice = backend_choice(s.backend, &s.prog, op, &s.facts);
            int64_t booked = op->work == TENSOR_NONE ? 0 : tensor_bytes(&s.prog, op->work);
            if (kernel == NULL || kernel->kind != op->kind || choice.kernel != op->kernel)
                fail_msg("%s, op %d (%s) has kernel %d, not %d", steps[n].model, i,
                         op_infos[op->kind].name, op->kernel, choice.kernel);
            assert_int_equal(booked, choice.workspace_bytes);
            assert_int_equal(op->no_alias, choice.no_alias);
        }
        compiled_step_free(&s);
    }
}

static void test_an_op_without_its_kernel_is_refused(void **state)
{
    (void)state;
    struct compiled_step s;
    struct snug_error err = {0};
    compile("mlp", "batch=8 threads=1", &s);
    struct op *first = &s.prog.ops[0];
    int own = first->kernel, others = 0;
    for (int i = 1; i < s.prog.n_ops && others == 0; i++)
        others = s.prog.ops[i].kind != first->kind ? s.prog.ops[i].kernel : 0;
    const int wrong[] = {0, others, -1, 1000000};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct exec *exec = NULL;
        first->kernel = wrong[i];
        assert_int_equal(exec_create(&s.prog, &s.plan, s.backend, &s.facts, NULL, &exec, &err),
                         SNUG_MISMATCH);
        assert_null(exec);
        assert_non_null(strstr(err.message, "op 0 (linear): no kernel of the cpu backend"));
    }
    first->kernel = own;
    compiled_step_free(&s);
}

/* Numbers go through all kernels of a backend without a gap, each kind has one, and the text form has them. */
static void test_numbers(void **state)
{
    (void)state;
    const struct backend *backends[] = {backend_cpu(), backend_cuda_table()};
    for (int b = 0; b < 2; b++) {
        int n = 0;
        assert_null(backends[b]->kernel(0));
        while (backends[b]->kernel(n + 1) != NULL)
            n++;
        assert_true(n > OP_COUNT / 2);
        for (int i = 2; i <= n; i++)
            assert_ptr_not_equal(backends[b]->kernel(i), backends[b]->kernel(i - 1));
    }
}

/* As many kernels, two of which have changed places. */
static const struct kernel *kernels_swapped(int number)
{
    return backend_cuda_table()->kernel(number == 1 ? 2 : number == 2 ? 1 : number);
}

static const struct kernel *some_kernels(int number)
{
    return number < 40 ? backend_cuda_table()->kernel(number) : NULL;
}

/* A plugin that was built from another list of kernels. */
static void test_a_plugin_has_the_same_numbers(void **state)
{
    (void)state;
    struct backend other = *backend_cuda_table();
    assert_true(plugin_has_kernels_of(backend_cuda_table(), &other));
    other.kernel = kernels_swapped;
    assert_false(plugin_has_kernels_of(backend_cuda_table(), &other));
    other.kernel = some_kernels;
    assert_false(plugin_has_kernels_of(backend_cuda_table(), &other));
    assert_false(plugin_has_kernels_of(&other, backend_cuda_table()));
}

/* `plan --dump kernels`: a title and a line for each op, with the words and bytes of the compiled step. */
static void check_table(const char *text, const struct compiled_step *s)
{
    int i = -1;
    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1, i++) {
        int index = -1;
        long long bytes = -1;
        char op[40] = "", kernel[40] = "", result[80] = "";
        if (i < 0) {
            assert_non_null(strstr(line, "#  op "));
            continue;
        }
        assert_int_equal(sscanf(line, "%d %39s %39s %lld %79s", &index, op, kernel, &bytes, result),
                         5);
        /* 80 columns, unless the name of the result is longer than those of GPT-2's gradients */
        size_t more = strlen(result) > 24 ? strlen(result) - 24 : 0;
        assert_true((size_t)(strchr(line, '\n') - line) <= 80 + more);
        const struct op *o = &s->prog.ops[i];
        assert_int_equal(index, i);
        assert_string_equal(op, op_infos[o->kind].name);
        assert_string_equal(kernel, s->backend->kernel(o->kernel)->name);
        assert_int_equal(bytes, o->work == TENSOR_NONE ? 0 : tensor_bytes(&s->prog, o->work));
        if (o->n_out > 0 && o->out[0] != TENSOR_NONE)
            assert_string_equal(result, s->prog.tensors[o->out[0]].name);
    }
    assert_int_equal(i, s->prog.n_ops);
}

static void test_the_table_of_kernels(void **state)
{
    (void)state;
    for (int n = 0; n < N_STEPS; n++) {
        struct compiled_step s;
        struct snug_error err = {0};
        char *text = NULL;
        snug_model *model = model_of(steps[n].model);
        snug_recipe *recipe = recipe_of(steps[n].keys);
        compile(steps[n].model, steps[n].keys, &s);
        must(snug_dump(model, recipe, "kernels", &text, &err), &err);
        check_table(text, &s);
        snug_free(text);
        snug_recipe_free(recipe);
        snug_model_free(model);
        compiled_step_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_keeps_its_level),
        cmocka_unit_test(test_every_op_has_its_kernel),
        cmocka_unit_test(test_an_op_without_its_kernel_is_refused),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_the_table_of_kernels),
        cmocka_unit_test(test_a_plugin_has_the_same_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
