/*
 * test_checkpoint.c -- checkpointing in programs and plans: layers are found in all presets, no op
 * with an effect outside the program runs twice, the strategies are ordered by memory, a budget is
 * respected, and the promised figures hold.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/training.h"
#include "compile/compile.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static enum snug_status plan(const char *model_spec, const char *keys, struct compiled_step *s,
                             struct snug_error *err)
{
    snug_model *model = model_of(model_spec);
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    enum snug_status status = compile_step(&q, s, err);
    snug_model_free(model);
    snug_recipe_free(recipe);
    return status;
}

static void must_plan(const char *model, const char *keys, struct compiled_step *s)
{
    struct snug_error err = {0};
    if (plan(model, keys, s, &err) != SNUG_OK)
        fail_msg("%s, %s: %s", model, keys, err.message);
    if (program_verify(&s->prog, &err) != SNUG_OK ||
        plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err) !=
            SNUG_OK)
        fail_msg("%s, %s: %s", model, keys, err.message);
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void test_layers(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int n_layers;
    } rows[] = {{"gpt2", 12},     {"gpt-nano", 6}, {"mlp:9-8-7-6-5", 4},
                {"cnn", 4},       {"resnet18", 8}, {"resnet50", 16},
                {"vit-tiny", 12}, {"gpt2-xl", 48}, {"mlp:9-8,loss=mse", 1}};
    for (int i = 0; i < LENGTH(rows); i++) {
        struct compiled_step s;
        struct snug_error err = {0};
        char keys[100], told[100];
        snprintf(keys, sizeof keys, "threads=2 checkpoint=every:%d", rows[i].n_layers);
        must_plan(rows[i].model, keys, &s);
        if (s.plan.recompute_flops > 0) /* one segment, and it ends in the loss */
            fail_msg("%s, %s: something is recomputed", rows[i].model, keys);
        compiled_step_free(&s);
        snprintf(keys, sizeof keys, "threads=2 checkpoint=every:%d", rows[i].n_layers + 1);
        snprintf(told, sizeof told, "has %d layer", rows[i].n_layers);
        assert_int_equal(plan(rows[i].model, keys, &s, &err), SNUG_BAD_ARGUMENT);
        if (strstr(err.message, told) == NULL)
            fail_msg("%s: \"%s\" does not say that it %ss", rows[i].model, err.message, told);
    }
}

/* ---- programs -------------------------------------------------------------------------------- */

static int count_ops(const struct program *prog, enum op_kind kind)
{
    int n = 0;
    for (int i = 0; i < prog->n_ops; i++)
        n += prog->ops[i].kind == kind;
    return n;
}

static void test_effects_happen_once(void **state)
{
    (void)state;
    static const char *const ways[] = {"cheap", "every:1", "sqrt", "all"};
    struct compiled_step none, s;
    must_plan("resnet18:3x32x32,classes=10", "batch=2 micro-batch=1", &none);
    for (int i = 0; i < LENGTH(ways); i++) {
        char keys[100];
        snprintf(keys, sizeof keys, "threads=2 batch=2 micro-batch=1 checkpoint=%s", ways[i]);
        must_plan("resnet18:3x32x32,classes=10", keys, &s);
        assert_int_equal(count_ops(&s.prog, OP_batchnorm_update),
                         count_ops(&none.prog, OP_batchnorm_update));
        assert_true(count_ops(&s.prog, OP_batchnorm) > count_ops(&none.prog, OP_batchnorm));
        compiled_step_free(&s);
    }
    compiled_step_free(&none);
}

/* Fused ops stay fused, and the head is one op: its forward is not recomputed. */
static void test_ops_of_every_1(void **state)
{
    (void)state;
    struct compiled_step none, s;
    must_plan("gpt2", "batch=2", &none);
    must_plan("gpt2", "batch=2 checkpoint=every:1", &s);
    static const enum op_kind same[] = {OP_linear_grad_x,
                                        OP_linear_grad_w,
                                        OP_act_grad,
                                        OP_add,
                                        OP_act,
                                        OP_attention_grad,
                                        OP_linear_cross_entropy_train};
    for (int i = 0; i < LENGTH(same); i++)
        assert_int_equal(count_ops(&s.prog, same[i]), count_ops(&none.prog, same[i]));
    /* of 12 layers all but the last; of each, not the projection that ends it */
    assert_int_equal(count_ops(&s.prog, OP_attention), 12 + 11);
    assert_int_equal(count_ops(&s.prog, OP_linear), 4 * 12 + 3 * 11);
    compiled_step_free(&none);
    compiled_step_free(&s);
}

static void test_cheap_has_no_matmuls(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt-nano", "cnn",          "resnet18",  "vit-tiny",
                                         "mlp",      "smollm2-135m", "qwen3-0.6b"};
    for (int m = 0; m < LENGTH(models); m++) {
        struct compiled_step s;
        must_plan(models[m], "batch=2 checkpoint=cheap", &s);
        assert_true(s.plan.recompute_flops > 0);
        for (int i = 0; i < s.prog.n_ops; i++)
            if (s.prog.ops[i].n_out > 0 && s.prog.ops[i].out[0] != TENSOR_NONE &&
                s.prog.tensors[s.prog.ops[i].out[0]].recomputed &&
                op_has(&s.prog.ops[i], TRAIT_gemm))
                fail_msg("%s: a %s is recomputed", models[m], op_infos[s.prog.ops[i].kind].name);
        compiled_step_free(&s);
    }
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Op of the loss: what it and the ops before it write and later ops read is saved. */
static int loss_op(const struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        if (op_has(&prog->ops[i], TRAIT_lm_head))
            return i;
    fail_msg("%s has no LM head", prog->name);
    return -1;
}

/* Of a layer of a decoder `cheap` saves what matmuls and attention wrote and both residuals, and of
 * q and k only what comes before the norm of each head and RoPE.  Without recomputation the norms,
 * their statistics and the output of SwiGLU are saved too, but never what RoPE read. */
static void test_saved_of_decoders(void **state)
{
    (void)state;
    static const struct {
        const char *model, *keys;
        int n_saved; /* tensors of a layer */
        const char *ends[16];
    } rows[] = {
        {"qwen3-0.6b",
         "checkpoint=cheap",
         9,
         {"q_proj", "k_proj", "v_proj", "self_attn", "self_attn.1", "self_attn.residual",
          "gate_proj", "up_proj", "mlp.residual"}},
        {"qwen2.5-0.5b",
         "checkpoint=cheap",
         9,
         {"self_attn.q", "self_attn.k", "v_proj", "self_attn", "self_attn.1", "self_attn.residual",
          "gate_proj", "up_proj", "mlp.residual"}},
        {"llama-3.2-1b",
         "",
         14,
         {"input_layernorm", "input_layernorm.1", "self_attn.q", "self_attn.k", "v_proj",
          "self_attn", "self_attn.1", "self_attn.residual", "post_attention_layernorm",
          "post_attention_layernorm.1", "gate_proj", "up_proj", "swiglu", "mlp.residual"}},
    };
    for (int m = 0; m < LENGTH(rows); m++) {
        struct compiled_step s;
        char keys[100];
        snprintf(keys, sizeof keys, "batch=2 seq=64 precision=bf16 threads=1 %s", rows[m].keys);
        must_plan(rows[m].model, keys, &s);
        int border = loss_op(&s.prog), n_saved = 0;
        for (int id = 0; id < s.prog.n_tensors; id++) {
            const struct tensor *t = &s.prog.tensors[id];
            bool is_saved = t->role == ROLE_activation && s.plan.alive_from[id] >= 0 &&
                            s.plan.alive_from[id] < border && s.plan.alive_to[id] > border;
            if (!is_saved || strstr(t->name, "layers.3.") == NULL)
                continue;
            bool is_listed = false;
            for (int i = 0; i < rows[m].n_saved; i++)
                is_listed |= ends_in(t->name, rows[m].ends[i]);
            if (!is_listed)
                fail_msg("%s %s: \"%s\" is saved", rows[m].model, rows[m].keys, t->name);
            n_saved++;
        }
        assert_int_equal(n_saved, rows[m].n_saved);
        compiled_step_free(&s);
    }
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void test_order(void **state)
{
    (void)state;
    static const char *const ways[] = {"none", "cheap", "sqrt", "every:1", "all"};
    static const char *const models[] = {"gpt2", "gpt2-medium"};
    for (int m = 0; m < LENGTH(models); m++) {
        int64_t before = INT64_MAX;
        for (int i = 0; i < LENGTH(ways); i++) {
            struct compiled_step s;
            char keys[100];
            snprintf(keys, sizeof keys, "threads=2 batch=16 precision=bf16 checkpoint=%s", ways[i]);
            must_plan(models[m], keys, &s);
            if (s.plan.arena_bytes > before)
                fail_msg("%s: %s takes %lld bytes, more than the way before it", models[m], ways[i],
                         (long long)s.plan.arena_bytes);
            if (s.plan.fragmentation * 100 > s.plan.lower_bound)
                fail_msg("%s, %s: more than 1%% of fragmentation", models[m], ways[i]);
            before = s.plan.arena_bytes;
            compiled_step_free(&s);
        }
    }
}

/* auto fits whatever is between all and none, with less work the more there is. */
static void test_auto(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2", "resnet18:3x32x32,classes=10",
                                         "mlp:784-512-512-10"};
    static const char *const batches[] = {"batch=8 precision=bf16", "batch=64",
                                          "batch=4096 micro-batch=1024"};
    for (int m = 0; m < LENGTH(models); m++) {
        struct compiled_step none, all, s;
        char keys[200];
        must_plan(models[m], batches[m], &none);
        snprintf(keys, sizeof keys, "threads=2 %s checkpoint=all", batches[m]);
        must_plan(models[m], keys, &all);
        int64_t beside = compiled_step_runtime_bytes(&all);
        int64_t least = all.plan.arena_bytes, most = none.plan.arena_bytes;
        double before = all.plan.recompute_flops;
        for (int i = 0; i <= 4; i++) {
            int64_t memory = least + (most - least) * i / 4 + beside;
            snprintf(keys, sizeof keys, "threads=2 %s checkpoint=auto memory=%lld", batches[m],
                     (long long)memory);
            must_plan(models[m], keys, &s);
            int64_t own_beside = compiled_step_runtime_bytes(&s);
            if (s.plan.arena_bytes + own_beside > memory)
                fail_msg("%s: %lld bytes and %lld beside are over %lld", models[m],
                         (long long)s.plan.arena_bytes, (long long)own_beside, (long long)memory);
            if (s.plan.recompute_flops > before)
                fail_msg("%s: more memory, but more work: %g and not %g", models[m],
                         s.plan.recompute_flops, before);
            before = s.plan.recompute_flops;
            compiled_step_free(&s);
        }
        assert_true(before == 0);              /* all fits */
        for (int less = 0; less < 2; less++) { /* to the byte */
            snprintf(keys, sizeof keys, "threads=2 %s checkpoint=auto memory=%lld", batches[m],
                     (long long)(most + compiled_step_runtime_bytes(&none) - less));
            must_plan(models[m], keys, &s);
            assert_int_equal(s.plan.recompute_flops > 0, less);
            compiled_step_free(&s);
        }
        compiled_step_free(&none);
        compiled_step_free(&all);
    }
    struct compiled_step s;
    struct snug_error err = {0};
    assert_int_equal(plan("gpt2", "checkpoint=auto", &s, &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "--memory"));
}

/* In the bytes that cheap takes, and a little more for its coarser units, auto recomputes no matmuls
 * of a decoder either. */
static void test_auto_is_cheap_first(void **state)
{
    (void)state;
    static const char *const models[] = {"qwen2.5-0.5b", "smollm2-135m", "qwen3-0.6b"};
    for (int m = 0; m < LENGTH(models); m++) {
        struct compiled_step cheap, s;
        char keys[200];
        must_plan(models[m], "threads=2 batch=8 seq=1024 precision=bf16 checkpoint=cheap", &cheap);
        snprintf(
            keys, sizeof keys,
            "threads=2 batch=8 seq=1024 precision=bf16 checkpoint=auto memory=%lld",
            (long long)(cheap.plan.arena_bytes / 100 * 102 + compiled_step_runtime_bytes(&cheap)));
        must_plan(models[m], keys, &s);
        if (s.plan.recompute_flops > 2 * cheap.plan.recompute_flops)
            fail_msg("%s: auto recomputes %g flops, cheap %g", models[m], s.plan.recompute_flops,
                     cheap.plan.recompute_flops);
        compiled_step_free(&cheap);
        compiled_step_free(&s);
    }
}

/* GPT-2 XL, 32 sequences of 1024, bf16, adamw, all parameters trained. */
static void test_figures(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        double total, rest; /* bytes; rest: activations and temporaries; 0: any */
    } rows[] = {{"checkpoint=none", 108e9, 0},
                {"checkpoint=cheap", 80e9, 0},
                {"checkpoint=every:1", 0, 8.5e9},
                {"checkpoint=every:1 micro-batch=4", 0, 1.5e9},
                {"checkpoint=auto memory=32G", 0x1p30 * 32, 0},
                {"checkpoint=auto memory=24G micro-batch=8", 0x1p30 * 24, 0},
                {"checkpoint=auto memory=24G", 0x1p30 * 24, 0},
                {"offload=states+activations micro-batch=16", 0x1p30 * 8, 0}};
    for (int i = 0; i < LENGTH(rows); i++) {
        struct compiled_step s;
        char keys[200];
        snprintf(keys, sizeof keys, "batch=32 seq=1024 precision=bf16 threads=8 %s", rows[i].keys);
        must_plan("gpt2-xl", keys, &s);
        double rest = (double)(s.plan.at_peak[ROLE_activation] + s.plan.at_peak[ROLE_input] +
                               s.plan.at_peak[ROLE_temporary]);
        if ((rows[i].total > 0 && (double)s.plan.arena_bytes > rows[i].total) ||
            (rows[i].rest > 0 && rest > rows[i].rest))
            fail_msg("%s: %.4g bytes, of which activations and temporaries %.4g", rows[i].keys,
                     (double)s.plan.arena_bytes, rest);
        compiled_step_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_effects_happen_once),
        cmocka_unit_test(test_ops_of_every_1),
        cmocka_unit_test(test_cheap_has_no_matmuls),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_auto),
        cmocka_unit_test(test_auto_is_cheap_first),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_saved_of_decoders),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
