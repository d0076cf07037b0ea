/*
 * test_op.c -- the lines of ops.def are consistent, and attributes belong to families.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "ir/program.h"
#include "ir/text_form.h"

/* Bits of operands from n on. */
static unsigned above(unsigned bits, int n)
{
    return bits >> n;
}

static void test_rows_name_operands_that_there_are(void **state)
{
    (void)state;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        const struct op_info *info = &op_infos[kind];
        bool ok = info->min_in >= 0 && info->min_in <= info->max_in && info->max_in <= MAX_INPUTS &&
                  info->min_out >= 1 && info->min_out <= info->max_out &&
                  info->max_out <= MAX_OUTPUTS;
        ok = ok && above(info->inplace, info->max_in) == 0;
        ok = ok && above(info->accumulates | info->keeps_f32 | info->makes_u8, info->max_out) == 0;
        ok = ok && above(info->reads_pool | info->unread, info->max_in) == 0;
        ok = ok && above(info->writes_pool, info->max_out) == 0;
        ok = ok && info->column_sums >= 0 && info->column_sums < info->max_out;
        ok = ok && (info->keeps_f32 & info->makes_u8) == 0;
        ok = ok && (info->ids.dimension == IDS_none ||
                    (info->ids.in < info->min_in && info->ids.of < info->min_in));
        if (!ok)
            fail_msg("%s: a column names an operand that the op has not", info->name);
    }
}

static void test_columns_agree(void **state)
{
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        enum op_kind kind = (enum op_kind)i;
        const char *name = op_infos[kind].name;
        if ((op_infos[kind].accumulates != 0) != kind_reads(kind, accumulate))
            fail_msg("%s: .accumulates and A(accumulate) go together", name);
        if (op_infos[kind].column_sums > 0 &&
            (op_infos[kind].accumulates >> op_infos[kind].column_sums & 1) == 0)
            fail_msg("%s: column sums accumulate", name);
        if ((op_infos[kind].layer != LAYER_none) !=
            (kind_has(kind, TRAIT_linear) || kind_has(kind, TRAIT_conv)))
            fail_msg("%s: .layer is for linear layers and convolutions", name);
        if ((op_infos[kind].layer > LAYER_forward) && !kind_has(kind, TRAIT_grad))
            fail_msg("%s: a gradient without TRAIT_grad", name);
        if (kind_reads(kind, dropout) != kind_reads(kind, site))
            fail_msg("%s: A(dropout) and A(site) go together", name);
        if ((kind_has(kind, TRAIT_leaves) || kind_has(kind, TRAIT_collective) ||
             kind_has(kind, TRAIT_p2p)) &&
            !kind_has(kind, TRAIT_copy))
            fail_msg("%s: with other ranks or the pool, but not on the lane of copies", name);
        if (kind_has(kind, TRAIT_collective) !=
            (kind_has(kind, TRAIT_reduces) || kind_has(kind, TRAIT_gathers)))
            fail_msg("%s: a collective reduces, gathers, or does both", name);
        if ((op_infos[kind].reads_pool | op_infos[kind].writes_pool) != 0 &&
            !kind_has(kind, TRAIT_copy))
            fail_msg("%s: only copies name tensors of the offload pool", name);
        if ((kind_has(kind, TRAIT_blocks) || kind_has(kind, TRAIT_lapack)) &&
            !kind_has(kind, TRAIT_matrix))
            fail_msg("%s: blocks and lapack are of directions that need whole matrices", name);
        if ((kind_has(kind, TRAIT_linear) || kind_has(kind, TRAIT_conv) ||
             kind_has(kind, TRAIT_attention) || kind_has(kind, TRAIT_lm_head)) &&
            !kind_has(kind, TRAIT_gemm))
            fail_msg("%s: a layer of matmuls without TRAIT_gemm", name);
    }
}

/* What is not named in ATTRS has its default, and so has all of an op that is added without attributes. */
static void test_attributes_by_default(void **state)
{
    (void)state;
    struct attrs attrs = ATTRS(attention, .heads = 12);
    assert_int_equal(attrs.attention.heads, 12);
    assert_true(attrs.attention.causal);
    assert_int_equal(ATTRS(image, .pad = 1).image.stride, 1);
    for (int kind = 0; kind < OP_COUNT; kind++) {
        enum attr_family family = op_infos[kind].family;
        attrs = attrs_default(family);
        for (int i = 0; i < ATTR_COUNT; i++)
            if (op_infos[kind].attrs >> i & 1)
                assert_memory_equal((const char *)&attrs + attr_offset(family, i),
                                    (const char *)&attr_defaults + attr_specs[i].default_offset,
                                    attr_form_bytes(attr_specs[i].form));
    }
}

static void test_dropout_of_any_family(void **state)
{
    (void)state;
    struct op op = {.kind = OP_attention, .attrs = ATTRS(attention, .dropout = 0.5, .site = 3)};
    assert_true(op_dropout(&op).dropout == 0.5 && op_dropout(&op).site == 3);
    op = (struct op){.kind = OP_add_layernorm, .attrs = ATTRS(norm, .dropout = 0.25, .site = 4)};
    assert_true(op_dropout(&op).dropout == 0.25 && op_dropout(&op).site == 4);
    op = (struct op){.kind = OP_conv2d, .attrs = ATTRS(image, .stride = 7)};
    assert_true(op_dropout(&op).dropout == 0.0);
}

/* In debug builds; others do not look. */
static void test_another_family_cannot_be_read(void **state)
{
    (void)state;
#ifndef SNUG_DEBUG
    skip();
#else
    struct op op = {.kind = OP_linear, .attrs = ATTRS(linear)};
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        _exit(attrs_of(&op, image)->stride == 1 ? 1 : 0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_name_operands_that_there_are),
        cmocka_unit_test(test_columns_agree),
        cmocka_unit_test(test_attributes_by_default),
        cmocka_unit_test(test_dropout_of_any_family),
        cmocka_unit_test(test_another_family_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
