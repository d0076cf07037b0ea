/*
 * test_threads.c -- the same bits on one, two and three threads.
 *
 * Runs every op of every case, in every dtype and at every instruction level, at the sizes of the
 * cases and at sizes that are worth splitting: above and below the limit for one thread, ragged,
 * and longer than a chunk of rows.  Compares the results with those of one thread.
 *
 * The small size skips the large cases, and two threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/ref/ref.h"
#include "support/opcompare.h"
#include "support/size.h"

enum { SEED = 20240301, MAX_PRINTED = 20, MOST_THREADS = 3 };

static const enum dtype types[] = {DTYPE_f32, DTYPE_bf16, DTYPE_f16};
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Sizes for the cases of this name, besides their own, as they stand after the word `sizes`. */
static const struct {
    const char *name, *sizes;
} larger[] = {
    {"linear", " B=2 T=259 I=96 O=40"},
    {"linear", " B=1 T=1031 I=33 O=65"},
    {"linear", " B=1 T=100 I=140 O=140"},
    {"linear", " B=1 T=101 I=141 O=143"},
    {"linear", " B=1 T=7 I=768 O=770"},
    {"linear", " B=1 T=2051 I=70 O=3"},
    {"linear_in_out", " B=1 T=1031 I=65 O=33"},
    {"linear_in_out", " B=1 T=300 I=768 O=96"},
    {"linear_act", " N=517 I=96 O=127 F=gelu"},
    {"layernorm", " B=1 T=1031 C=96"},
    {"add_layernorm", " B=1 T=517 C=768"},
    {"rmsnorm", " B=1 T=1031 C=97"},
    {"rmsnorm_heads", " B=1 T=259 H=3 D=83"},
    {"add_rmsnorm", " B=1 T=517 C=771"},
    {"add_rmsnorm_dropout", " B=1 T=517 C=771"},
    {"swiglu", " N=517 C=131"},
    {"rope", " B=3 T=131 H=3 D=66"},
    {"rope_positions", " B=3 T=131 H=3 D=66"},
    {"cross_entropy", " N=127 T=1 K=1009"},
    {"linear_cross_entropy", " N=1 T=301 C=96 V=1031"},
    {"linear_cross_entropy", " N=1 T=31 C=768 V=257"},
    {"attention", " B=2 T=130 H=3 D=32"},
    {"attention", " B=1 T=200 H=1 D=64"},
    {"attention_dropout", " B=2 T=130 H=3 D=32"},
    {"attention_all", " B=2 T=130 H=3 D=32"},
    {"attention_all_dropout", " B=1 T=200 H=1 D=32"},
    {"orthogonalize", " N=131 C=300 S=0"},
    {"orthogonalize", " N=300 C=131 S=0"},
    {"shampoo", " N=131 C=150 B=140 L=34322 R=19700 S=0"},
    {"caspr", " N=131 C=150 B=140 L=34322 R=19700 S=0"},
    {"soap_both", " N=131 C=150 S=0"},
};

struct tally {
    int n_runs, n_different;
};

/* One op at one level: what 2 and 3 threads leave against what one leaves. */
static void check_op(const struct opcase *c, int op_index, const char *level, bool add,
                     struct tally *tally)
{
    const struct op *op = &c->prog.ops[op_index];
    const struct backend *cpu = backend_cpu();
    struct row_result one = {0};
    for (int threads = 1; threads <= MOST_THREADS; threads += sized(MOST_THREADS - 1, 1)) {
        struct snug_error err = {0};
        struct row_result got = {0};
        struct row_run run = {
            .facts = {.threads = threads, .isa = backend_cpu_isa()}, .add = add, .inplace = -1};
        run.row = backend_choose(cpu, &c->prog, op, &run.facts);
        if (run.row == ref_kernel(op->kind))
            break;
        struct run_modes modes = cpu->run_begin(&run.facts);
        if (oprun(c, op_index, &run, threads == 1 ? &one : &got, &err) != SNUG_OK)
            fail_msg("%s: %s: %s", c->label, op_infos[op->kind].name, err.message);
        cpu->run_end(&run.facts, &modes);
        for (int k = 0; threads > 1 && k < op->n_out; k++) {
            if (op->out[k] == TENSOR_NONE ||
                memcmp(one.out[k], got.out[k], (size_t)tensor_bytes(&c->prog, op->out[k])) == 0)
                continue;
            if (tally->n_different++ < MAX_PRINTED)
                print_error("%s: %s (%s, %s%s): output %d has other bits on %d threads\n", c->label,
                            op_infos[op->kind].name, run.row->name, level, add ? ", +=" : "", k,
                            threads);
        }
        row_result_free(&got);
        tally->n_runs++;
    }
    row_result_free(&one);
}

static void check_case(const struct case_text *text, enum case_use use, int index, enum dtype dtype,
                       bool is_own, struct tally *tally)
{
    struct opcase c;
    struct snug_error err = {0};
    if (opcase_build(text, use, index, dtype, SEED, &c, &err) != SNUG_OK)
        fail_msg("%s: %s", text->name, err.message);
    bool is_left_out = is_own && opcompare_is_too_large(&c, false);
    for (int i = 0; i < c.prog.n_ops && !is_left_out; i++) {
        const struct op *op = &c.prog.ops[i];
        for (int level = 0; level < N_OPRUN_LEVELS; level++) {
            if (!oprun_set_level(oprun_levels[level]))
                continue;
            for (int add = 0; add < (op_infos[op->kind].accumulates != 0 ? 2 : 1); add++)
                check_op(&c, i, oprun_levels[level], add != 0, tally);
        }
        oprun_set_level(NULL);
        const struct device_facts one_thread = {.threads = 1, .isa = backend_cpu_isa()};
        const struct kernel *row = backend_choose(backend_cpu(), &c.prog, op, &one_thread);
        if (oprun_step(&c, i, row, &err) != SNUG_OK)
            fail_msg("%s: %s: %s", c.label, op_infos[op->kind].name, err.message);
    }
    opcase_free(&c);
}

static void test_bits_do_not_depend_on_threads(void **state)
{
    struct case_list *list = *state;
    struct tally tally = {0};
    for (int i = 0; i < list->n_cases; i++) {
        struct case_text *text = &list->cases[i];
        int n_own = text->n_uses[CASE_sizes];
        for (int k = 0; k < COUNT(larger); k++)
            if (strcmp(larger[k].name, text->name) == 0) {
                assert_true(text->n_uses[CASE_sizes] < MAX_CASE_LINES);
                text->use[CASE_sizes][text->n_uses[CASE_sizes]++] = larger[k].sizes;
            }
        for (int t = 0; t < COUNT(types); t++)
            for (int k = 0; k < text->n_uses[CASE_sizes]; k++)
                if (opcase_is_for(text, CASE_sizes, k, types[t]))
                    check_case(text, CASE_sizes, k, types[t], k < n_own, &tally);
    }
    print_message("%d runs, %d outputs with other bits\n", tally.n_runs, tally.n_different);
    assert_true(tally.n_runs > 1000);
    assert_int_equal(tally.n_different, 0);
}

int main(void)
{
    static struct case_list list;
    struct snug_error err = {0};
    const char *folder = getenv("SNUG_CASES");
    if (case_list_read(folder == NULL ? "tests/ops" : folder, &list, &err) != SNUG_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_bits_do_not_depend_on_threads, &list),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    case_list_free(&list);
    return n_failed;
}
