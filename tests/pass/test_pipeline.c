/*
 * test_pipeline.c -- all passes on whole models: the program after each pass, for every preset, is
 * valid and survives the text form; and passes that must not change results do not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/text.h"
#include "pass/pass.h"
#include "compile/compile.h"
#include "exec/exec.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static const char *const presets[] = {"gpt-nano", "mlp",         "mlp:5-4-3,loss=mse",
                                      "gpt2",     "gpt2-medium", "gpt2-large",
                                      "gpt2-xl",  "gpt3-175b",   "psi:1e6"};
static const char *const precisions[] = {"fp32", "bf16", "fp16"};
enum { N_WITH_TEXT = 3 }; /* the first presets go through the text form too */

static void check_text(const struct program *prog, const char *what)
{
    struct text first = {0}, second = {0};
    struct program read;
    struct snug_error err = {0};
    program_dump(prog, &first);
    if (program_parse(first.data, &read, &err) != SNUG_OK)
        fail_msg("%s: %s", what, err.message);
    program_dump(&read, &second);
    if (strcmp(first.data, second.data) != 0 || read.n_ops != prog->n_ops)
        fail_msg("%s: the text form does not come back as it was", what);
    if (program_verify(&read, &err) != SNUG_OK)
        fail_msg("%s, read back: %s", what, err.message);
    text_free(&first);
    text_free(&second);
    program_free(&read);
}

static void check_stages(const char *preset, const char *precision, bool train, bool with_text)
{
    struct snug_model model = {0};
    struct snug_error err = {0};
    snug_recipe *recipe = snug_recipe_new();
    char names[200], *rest;
    assert_non_null(recipe);
    assert_int_equal(model_from_name(preset, &model, &err), SNUG_OK);
    assert_int_equal(snug_recipe_set(recipe, "precision", precision, &err), SNUG_OK);
    if (strstr(preset, "mse") == NULL && strcmp(precision, "bf16") == 0) {
        assert_int_equal(snug_recipe_set(recipe, "dropout", "0.1", &err), SNUG_OK);
        assert_int_equal(snug_recipe_set(recipe, "label-smoothing", "0.1", &err), SNUG_OK);
    }
    if (strcmp(precision, "fp16") == 0) /* whose backend wants more of the passes */
        assert_int_equal(snug_recipe_set(recipe, "device", "cuda", &err), SNUG_OK);
    if (strcmp(precision, "fp32") == 0) {
        assert_int_equal(snug_recipe_set(recipe, "update", "in-backward", &err), SNUG_OK);
        assert_int_equal(snug_recipe_set(recipe, "clip", "0", &err), SNUG_OK);
    }
    snprintf(names, sizeof names, "%s", pass_names());
    for (char *pass = strtok_r(names, " ", &rest); pass != NULL;
         pass = strtok_r(NULL, " ", &rest)) {
        char what[200];
        struct compiled_step compiled;
        struct compile_request request = {.model = &model,
                                          .recipe = recipe,
                                          .train = train,
                                          .batch = 8,
                                          .micro_batch = 2,
                                          .last_pass = pass};
        snprintf(what, sizeof what, "%s %s%s after %s", preset, precision, train ? "" : " eval",
                 pass);
        if (compile_step(&request, &compiled, &err) != SNUG_OK ||
            program_verify(&compiled.prog, &err) != SNUG_OK)
            fail_msg("%s: %s", what, err.message);
        if (with_text)
            check_text(&compiled.prog, what);
        compiled_step_free(&compiled);
    }
    snug_recipe_free(recipe);
}

static void test_every_stage(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(presets); i++)
        for (size_t p = 0; p < LENGTH(precisions); p++) {
            check_stages(presets[i], precisions[p], true, i < N_WITH_TEXT);
            if (strncmp(presets[i], "psi", 3) != 0)
                check_stages(presets[i], precisions[p], false, i < N_WITH_TEXT);
        }
}

static void test_unknown_pass(void **state)
{
    (void)state;
    struct program prog;
    struct snug_error err = {0};
    struct arena scratch = {0};
    struct pass_env env = {.scratch = &scratch, .err = &err, .config.n_micro = 1};
    assert_int_equal(program_parse("tensor x input f32 [1]; tensor o activation f32 [1] output; "
                                   "o = act x",
                                   &prog, &err),
                     SNUG_OK);
    assert_int_equal(pass_run(&prog, &env, "fusion"), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "no pass \"fusion\""));
    program_free(&prog);
    arena_free(&scratch);
}

/* ---- the same numbers ------------------------------------------------------------------------ */

enum { SAMPLES = 4, SEQ = 5, VOCABULARY = 11, WIDTH = 8 };

struct run {
    struct program prog;
    struct plan plan;
    struct exec *exec;
    struct arena scratch;
    struct device_facts facts;
};

static struct kernel_choice choose_kernel(const void *facts, const struct program *prog,
                                          const struct op *op)
{
    return backend_choice(backend_cpu(), prog, op, facts);
}

/* Sample n of an input is the same whatever the micro-batch is. */
static enum snug_status feed(void *user, int micro, struct snug_error *err)
{
    struct run *r = user;
    (void)err;
    for (int i = 0; i < r->prog.n_tensors; i++) {
        const struct tensor *t = &r->prog.tensors[i];
        void *data = exec_data(r->exec, i);
        if (t->role != ROLE_input || data == NULL)
            continue;
        int64_t n = shape_elems(&t->shape), first = n * micro;
        uint64_t stream = rng_hash_string(t->name);
        for (int64_t k = 0; k < n; k++)
            dtype_store(t->dtype, data, k,
                        t->dtype == DTYPE_i32
                            ? (double)(rng_u64(3, stream, (uint64_t)(first + k)) % VOCABULARY)
                            : rng_normal(3, stream, (uint64_t)(first + k)));
    }
    return SNUG_OK;
}

static void fill_parameters(struct run *r)
{
    for (int i = 0; i < r->prog.n_tensors; i++) {
        const struct tensor *t = &r->prog.tensors[i];
        if (t->role != ROLE_parameter)
            continue;
        for (int64_t k = 0; k < shape_elems(&t->shape); k++)
            dtype_store(t->dtype, exec_data(r->exec, i), k,
                        0.3 * rng_normal(4, rng_hash_string(t->name), (uint64_t)k));
    }
    exec_scalars(r->exec)[SCALAR_loss_scale] = 1;
}

/* Either a model or a forward program in the text form. */
struct subject {
    const char *name, *text;
    struct snug_model model;
    bool to_the_bit; /* fused ops round as often as those that they replace */
};

static enum snug_status forward_of(const struct subject *s, int64_t batch, struct program *prog,
                                   struct snug_error *err)
{
    if (s->text == NULL)
        return model_forward(&s->model, MODEL_FOR_LOSS, batch,
                             s->model.family == MODEL_decoder ? SEQ : 0, prog, err);
    enum snug_status status = program_parse(s->text, prog, err);
    return status != SNUG_OK ? status : program_set_batch(prog, batch, err);
}

static bool sums_columns(const void *device, const struct program *prog, const struct op *op)
{
    (void)device, (void)prog, (void)op;
    return true;
}

enum how { NO_ALIAS, FUSED, WITH_SUMS /* fused, and biases are summed up where dy is made */ };

/* Forward and backward, gradients kept as outputs, with the reference kernels. */
static void run_model(struct run *r, const struct subject *subject, int n_micro, enum how how)
{
    struct snug_error err = {0};
    memset(r, 0, sizeof *r);
    r->facts = (struct device_facts){.threads = 1, .reference_only = true};
    struct pass_env env = {.scratch = &r->scratch,
                           .err = &err,
                           .config.train = true,
                           .config.compute = DTYPE_f32,
                           .config.n_micro = n_micro,
                           .device.choose_kernel = choose_kernel,
                           .device.sums_columns = how == WITH_SUMS ? sums_columns : NULL,
                           .device.handle = &r->facts};
    enum snug_status status = forward_of(subject, SAMPLES / n_micro, &r->prog, &err);
    if (status == SNUG_OK)
        status = pass_autodiff(&r->prog, &env);
    if (status == SNUG_OK)
        status = pass_accumulate(&r->prog, &env);
    for (int i = 0; i < r->prog.n_tensors; i++)
        r->prog.tensors[i].is_output |= r->prog.tensors[i].role == ROLE_gradient;
    if (status == SNUG_OK && how != NO_ALIAS)
        status = pass_fuse(&r->prog, &env);
    if (status == SNUG_OK)
        status = pass_drop_dead(&r->prog, &env);
    if (status == SNUG_OK)
        status = pass_bias_sums(&r->prog, &env);
    if (status == SNUG_OK)
        status = pass_book(&r->prog, &env);
    if (status == SNUG_OK)
        status = program_verify(&r->prog, &err);
    if (status == SNUG_OK)
        status = plan_make(&r->prog, backend_cpu()->alignment,
                           &(struct device_rates){.flops = 1, .bytes = 1}, &r->plan, &err);
    if (status == SNUG_OK)
        status = exec_create(&r->prog, &r->plan, backend_cpu(), &r->facts, NULL, &r->exec, &err);
    if (status == SNUG_OK) {
        fill_parameters(r);
        status = exec_run(r->exec, feed, r, &err);
    }
    if (status != SNUG_OK)
        fail_msg("%s: %s", subject->name, err.message);
}

static void end_run(struct run *r)
{
    exec_free(r->exec);
    plan_free(&r->plan);
    program_free(&r->prog);
    arena_free(&r->scratch);
}

/* The worst difference of loss and gradients, each measured by its largest element. */
static double worst_difference(const struct run *a, const struct run *b, bool *same_bits)
{
    double worst = 0;
    int n_compared = 0;
    *same_bits = true;
    for (int i = 0; i < a->prog.n_tensors; i++) {
        if (!a->prog.tensors[i].is_output)
            continue;
        tensor_id twin = program_find(&b->prog, a->prog.tensors[i].name);
        assert_int_not_equal(twin, TENSOR_NONE);
        const float *x = exec_data(a->exec, i), *y = exec_data(b->exec, twin);
        double largest = 1e-30, difference = 0;
        for (int64_t k = 0; k < tensor_elems(&a->prog, i); k++) {
            double d = (double)x[k] - (double)y[k], m = (double)x[k];
            difference = d * d > difference * difference ? d : difference;
            largest = m * m > largest * largest ? m : largest;
        }
        double part = difference / largest;
        worst = part * part > worst * worst ? part : worst;
        *same_bits &= memcmp(x, y, (size_t)tensor_bytes(&a->prog, i)) == 0;
        n_compared++;
    }
    assert_true(n_compared > 3);
    return worst < 0 ? -worst : worst;
}

static const char norm_text[] =
    "loss l; tensor x input f32 [4 8]; tensor y input f32 [4 8]; "
    "tensor w parameter f32 [8 8] persistent; tensor gm parameter f32 [8] persistent; "
    "tensor bt parameter f32 [8] persistent; tensor u parameter f32 [8 8] persistent; "
    "tensor a activation f32 [4 8]; tensor b activation f32 [4 8]; tensor c activation f32 [4 8]; "
    "tensor d activation f32 [4 8]; tensor m activation f32 [4]; tensor r activation f32 [4]; "
    "tensor l activation f32 [1] output; "
    "a = linear x, w; b = add x, a; c, m, r = layernorm b, gm, bt; d = linear c, u; l = mse d, y";
static const char head_text[] =
    "loss l; tensor i input i32 [4 5]; tensor t input i32 [4 5]; "
    "tensor e parameter f32 [11 8] persistent; tensor p parameter f32 [6 8] persistent; "
    "tensor u parameter f32 [8 8] persistent; "
    "tensor a activation f32 [4 5 8]; tensor b activation f32 [4 5 8]; "
    "tensor l activation f32 [1] output; "
    "tensor lse activation f32 [20]; "
    "a = embedding i, e, p; b = linear a, u; l, lse = linear_cross_entropy b, e, t";
/* One weight in two layers with two biases: gradients that have a past beside some that have
 * none. */
static const char tied_text[] =
    "loss l; tensor x input f32 [4 8]; tensor y input f32 [4 8]; "
    "tensor w parameter f32 [8 8] persistent; tensor p parameter f32 [8] persistent; "
    "tensor q parameter f32 [8] persistent; tensor u parameter f32 [8 8] persistent; "
    "tensor a activation f32 [4 8]; tensor b activation f32 [4 8]; tensor c activation f32 [4 8]; "
    "tensor l activation f32 [1] output; "
    "a = linear x, w, p; b = linear a, w, q; c = linear b, u; l = mse c, y";

enum { N_SUBJECTS = 7 };
static void make_subjects(struct subject subjects[N_SUBJECTS])
{
    static const struct subject list[N_SUBJECTS] = {
        {.name = "gpt2"},
        {.name = "mlp:7-6-11,act=relu", .to_the_bit = true},
        {.name = "mlp:7-6-11,act=tanh"},
        {.name = "mlp:7-6-3,loss=mse", .to_the_bit = true},
        {.name = "add and norm", .text = norm_text, .to_the_bit = true},
        {.name = "head", .text = head_text, .to_the_bit = true},
        {.name = "tied", .text = tied_text, .to_the_bit = true},
    };
    memcpy(subjects, list, sizeof list);
    for (int i = 0; i < N_SUBJECTS; i++)
        if (subjects[i].text == NULL)
            assert_int_equal(model_from_name(subjects[i].name, &subjects[i].model, NULL), SNUG_OK);
    subjects[0].model.decoder = decoder_gpt2(2, 2, WIDTH, SEQ + 1, VOCABULARY);
}

static int count(const struct program *prog, enum op_kind kind)
{
    int n = 0;
    for (int i = 0; i < prog->n_ops; i++)
        n += prog->ops[i].kind == kind;
    return n;
}

static void test_fused_is_the_same(void **state)
{
    (void)state;
    struct subject subjects[N_SUBJECTS];
    make_subjects(subjects);
    for (int i = 0; i < N_SUBJECTS; i++)
        for (int n_micro = 1; n_micro <= 2; n_micro++) {
            struct run plain, fused;
            bool same_bits;
            run_model(&plain, &subjects[i], n_micro, NO_ALIAS);
            run_model(&fused, &subjects[i], n_micro, FUSED);
            double worst = worst_difference(&plain, &fused, &same_bits);
            if (!(worst < 2e-6) || (subjects[i].to_the_bit && !same_bits))
                fail_msg("%s, %d micro-batches: fused differs by %g", subjects[i].name, n_micro,
                         worst);
            if (i == 0) { /* all four rewrites */
                assert_int_equal(count(&fused.prog, OP_add), 0);
                assert_int_equal(count(&fused.prog, OP_act), 0);
                assert_int_equal(count(&fused.prog, OP_add_layernorm), 4);
                assert_int_equal(count(&fused.prog, OP_linear_cross_entropy_train), 1);
            }
            end_run(&plain);
            end_run(&fused);
        }
}

static int count_biases(const struct program *prog)
{
    int n = 0;
    for (int i = 0; i < prog->n_ops; i++)
        n += prog->ops[i].kind == OP_linear_grad_w && prog->ops[i].n_out > 1 &&
             prog->ops[i].out[1] != TENSOR_NONE;
    return n;
}

/* The reference sums what is offloaded, whoever sums it: the same bits. */
static void test_bias_sums_are_the_same(void **state)
{
    (void)state;
    struct subject subjects[N_SUBJECTS];
    make_subjects(subjects);
    for (int i = 0; i < N_SUBJECTS; i++)
        for (int n_micro = 1; n_micro <= 2; n_micro++) {
            struct run fused, summing;
            bool same_bits;
            run_model(&fused, &subjects[i], n_micro, FUSED);
            run_model(&summing, &subjects[i], n_micro, WITH_SUMS);
            worst_difference(&fused, &summing, &same_bits);
            if (!same_bits)
                fail_msg("%s, %d micro-batches: other sums", subjects[i].name, n_micro);
            if (i == 0) { /* of four in a layer, those of qkv come from the attention */
                assert_int_equal(count_biases(&fused.prog), 8);
                assert_int_equal(count_biases(&summing.prog), 2);
            }
            end_run(&fused);
            end_run(&summing);
        }
}

static void test_micro_batches_are_the_batch(void **state)
{
    (void)state;
    struct subject subjects[N_SUBJECTS];
    make_subjects(subjects);
    for (int i = 0; i < N_SUBJECTS; i++)
        for (int n_micro = 2; n_micro <= SAMPLES; n_micro *= 2) {
            struct run whole, parts;
            bool same_bits;
            run_model(&whole, &subjects[i], 1, FUSED);
            run_model(&parts, &subjects[i], n_micro, FUSED);
            double worst = worst_difference(&whole, &parts, &same_bits);
            if (!(worst < 1e-5))
                fail_msg("%s: %d micro-batches differ from the batch by %g", subjects[i].name,
                         n_micro, worst);
            end_run(&whole);
            end_run(&parts);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_is_the_same),
        cmocka_unit_test(test_bias_sums_are_the_same),
        cmocka_unit_test(test_micro_batches_are_the_batch),
        cmocka_unit_test(test_unknown_pass),
        cmocka_unit_test(test_every_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
