/*
 * test_text.c -- the text form: what parses, how it prints, what is refused and with which message;
 * random programs survive the round trip and random damage never crashes the parser.
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
#include "ir/program.h"
#include "ir/text_form.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

#define X  "tensor x input f32 [2 3]; "
#define XY X "tensor y activation f32 [2 3]; "

/* ---- rows that parse ------------------------------------------------------------------------ */

static const struct {
    const char *name, *text, *printed;
} good_rows[] = {
    {"nothing", "", "program \"\"\n"},
    {"comments and blank lines", "# a\n\n ; ;\t# b ; tensor\nprogram p # c\r\n", "program p\n"},
    {"a tensor", "program p\ntensor x input f32 [2 3]",
     "program p\ntensor x input      f32  [2 3]\n"},
    {"every word",
     "tensor w parameter bf16 [5] frozen decays init=normal:2e-2 output offloaded persistent",
     "program \"\"\ntensor w parameter  bf16 [5] persistent offloaded output decays frozen "
     "init=normal:0.02\n"},
    {"a view above its base", "tensor v gradient f32 [2] view=b+4; tensor b gradient f32 [8]",
     "program \"\"\ntensor v gradient   f32  [2] view=b+4\ntensor b gradient   f32  [8]\n"},
    {"a gradient above its weight",
     "tensor g gradient f32 [2] gradient_of=w; tensor w parameter f32 [2]; "
     "tensor m optimizer f32 [2] state_of=w init=zeros; tensor n optimizer f32 [2] master_of=_",
     "program \"\"\ntensor g gradient   f32  [2] gradient_of=w\ntensor w parameter  f32  [2]\n"
     "tensor m optimizer  f32  [2] init=zeros state_of=w\ntensor n optimizer  f32  [2]\n"},
    {"an op", XY "y = act x {act=gelu}",
     "program \"\"\ntensor x input      f32  [2 3]\ntensor y activation f32  [2 3]\n"
     "y = act x {act=gelu}\n"},
    {"defaults are not printed", XY "y = act x {act=none}",
     "program \"\"\ntensor x input      f32  [2 3]\ntensor y activation f32  [2 3]\ny = act x\n"},
    {"an op above its tensors", "y = add x, x\n" XY,
     "program \"\"\ntensor x input      f32  [2 3]\ntensor y activation f32  [2 3]\n"
     "y = add x, x\n"},
    {"left out operands and workspace",
     XY "tensor ws temporary u8 [64]; y, _ = linear x, x, _ {layout=in_out, act=tanh} work=ws",
     "program \"\"\ntensor x  input      f32  [2 3]\ntensor y  activation f32  [2 3]\n"
     "tensor ws temporary  u8   [64]\ny, _ = linear x, x, _ {act=tanh, layout=in_out} work=ws\n"},
    {"what the pass book leaves", XY "y = act x last no_alias kernel=7",
     "program \"\"\ntensor x input      f32  [2 3]\ntensor y activation f32  [2 3]\n"
     "y = act x last no_alias kernel=7\n"},
    {"tensors named as keywords",
     "tensor tensor input f32 [1]; tensor loss activation f32 [1]; tensor work activation f32 [1]\n"
     "loss loss; loss = act tensor; work = act loss work=work",
     "program \"\"\nloss loss\ntensor tensor input      f32  [1]\n"
     "tensor loss   activation f32  [1]\ntensor work   activation f32  [1]\n"
     "loss = act tensor\nwork = act loss work=work\n"},
    {"sections and special tensors",
     "program p; scalars s; loss l; body 1 x 4; tensor s optimizer f64 [8] persistent\n"
     "tensor l activation f32 [1]; " XY "l = mse x, x {accumulate=after_first}; y = act x",
     "program p\nbody 1 x 4\nloss l\nscalars s\ntensor s optimizer  f64  [8] persistent\n"
     "tensor l activation f32  [1]\ntensor x input      f32  [2 3]\n"
     "tensor y activation f32  [2 3]\nl = mse x, x {accumulate=after_first}\ny = act x\n"},
    {"quoted names",
     "program \"mlp:3-4\"; tensor \"a b\\x0a\\x22\" input i32 [1]; tensor \"_\" "
     "input i32 [1]",
     "program \"mlp:3-4\"\ntensor \"a b\\x0a\\x22\" input i32 [1]\n"
     "tensor \"_\"   input      i32  [1]\n"},
    {"numbers keep their bits",
     XY "tensor l activation f32 [1]; l = mse x, y {weight=0.1}; "
        "y, _, _ = layernorm x, x, x {eps=1.0000000000000002e-300}",
     "program \"\"\ntensor x input      f32  [2 3]\ntensor y activation f32  [2 3]\n"
     "tensor l activation f32  [1]\nl = mse x, y {weight=0.1}\n"
     "y, _, _ = layernorm x, x, x {eps=1.0000000000000002e-300}\n"},
};

static void test_good_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(good_rows); i++) {
        struct snug_error err = {0};
        struct program prog;
        struct text out = {0};
        if (program_parse(good_rows[i].text, &prog, &err) != SNUG_OK)
            fail_msg("%s: %s", good_rows[i].name, err.message);
        program_dump(&prog, &out);
        if (strcmp(out.data, good_rows[i].printed) != 0)
            fail_msg("%s: printed\n%sinstead of\n%s", good_rows[i].name, out.data,
                     good_rows[i].printed);
        text_free(&out);
        program_free(&prog);
    }
}

/* ---- rows that are refused ------------------------------------------------------------------ */

static const struct {
    const char *name, *text, *words;
} bad_rows[] = {
    {"unknown op", XY "\n\ny = gelux x", "line 3: unknown op \"gelux\""},
    {"undeclared operand", X "\ny = act x", "line 2: tensor \"y\" is not declared"},
    {"undeclared base", "tensor v input f32 [1] view=b+0", "tensor \"b\" is not declared"},
    {"undeclared weight", "tensor g gradient f32 [1] gradient_of=w",
     "tensor \"w\" is not declared"},
    {"a link to itself", "tensor w parameter f32 [1] master_of=w",
     "\"w\" cannot be linked to itself"},
    {"an unknown link", "tensor g gradient f32 [1] child_of=g",
     "gradient_of=TENSOR or another link"},
    {"undeclared loss", "loss l", "tensor \"l\" is not declared"},
    {"a kernel without a number", XY "y = act x kernel=v4", "the kernel"},
    {"undeclared workspace", XY "y = act x work=w", "tensor \"w\" is not declared"},
    {"duplicate name", X "\n" X, "line 2: tensor \"x\" is declared twice"},
    {"no name", "tensor [3]", "expected a name after tensor, found \"[\""},
    {"_ is no name", "tensor _ input f32 [3]", "expected a name after tensor, found \"_\""},
    {"unknown role", "tensor x weight f32 [3]", "input, parameter, gradient"},
    {"unknown type", "tensor x input f31 [3]", "one of f64, f32, bf16"},
    {"no shape", "tensor x input f32", "expected \"[\" before the dimensions, found the end"},
    {"no dimension", "tensor x input f32 []", "a dimension must be a whole number from 1"},
    {"shape without end", "tensor x input f32 [3 4", "not the end of the statement"},
    {"dimension 0", "tensor x input f32 [3 0]", "a dimension must be a whole number from 1"},
    {"dimension -1", "tensor x input f32 [-1]", "not \"-1\""},
    {"dimension 1.5", "tensor x input f32 [1.5]", "not \"1.5\""},
    {"dimension beyond int64", "tensor x input f32 [99999999999999999999]", "a dimension must be"},
    {"product beyond int64", "tensor x input f32 [1000000000 1000000000 1000000000]", "1e17"},
    {"seven dimensions", "tensor x input f32 [1 1 1 1 1 1 1]", "at most 6 dimensions"},
    {"unknown tensor word", "tensor x input f32 [1] thawed", "not \"thawed\""},
    {"view without offset", X "tensor v input f32 [1] view=x", "expected \"+\" and an offset"},
    {"negative offset", X "tensor v input f32 [1] view=x+-1",
     "offset of a view must be a whole number"},
    {"unknown init", "tensor x input f32 [1] init=xavier", "none, zeros, ones, normal, uniform"},
    {"scale is not finite", "tensor x input f32 [1] init=normal:1e999", "finite number"},
    {"too many inputs", XY "y = act x, x", "act has 1 inputs, not 2"},
    {"too few inputs", XY "y = add x", "add has 2 inputs, not 1"},
    {"too many outputs", XY "y, _ = act x", "act has 1 outputs, not 2"},
    {"no outputs", XY "= act x", "act has 1 outputs, not 0"},
    {"a hundred inputs", XY "y = act x,x,x,x,x,x,x,x,x,x,x,x,x", "too many inputs"},
    {"a hundred outputs", XY "y,y,y,y,y,y,y,y,y,y,y,y = act x", "too many outputs"},
    {"a comma too much", XY "y = add x, x,", "expected the name of a tensor or _, found the end"},
    {"no comma", XY "y = add x x", "add has 2 inputs, not 1"},
    {"attribute of another op", XY "y = add x, x {heads=2}", "add has no attribute \"heads\""},
    {"attribute without value", XY "y = act x {act}", "expected \"=\" after the name"},
    {"attribute word", XY "y = act x {act=swish}", "act must be one of none, relu, gelu"},
    {"attribute integer", XY "y, _ = attention x {heads=two}", "heads must be a whole number"},
    {"attribute flag", XY "y, _ = attention x {causal=2}",
     "causal must be a whole number from 0 to 1"},
    {"attribute byte", XY "y = dequantize x, x {state_bits=128}",
     "state_bits must be a whole number from -128 to 127"},
    {"attribute real", XY "y, _, _ = layernorm x, x, x {eps=nan}", "eps must be a finite number"},
    {"attributes without end", XY "y = act x {act=gelu", "expected \"}\" after the attributes"},
    {"something after an op", XY "y = act x {act=gelu} twice",
     "expected the end of the statement, found \"twice\""},
    {"unknown statement", "tensr x input f32 [1]", "\"tensr\" does not begin a statement"},
    {"program twice", "program a; program b", "program must be the first statement, and only once"},
    {"program without name", "program", "expected a name after program"},
    {"loss twice", X "loss x; loss x", "loss is given twice"},
    {"body without x", "body 1 2", "body END x REPEATS"},
    {"body 0 times", "body 0 x 0", "number of repeats must be a whole number from 1"},
    {"body beyond the ops", XY "y = act x; body 2 x 1", "does not fit the program's 1 ops"},
    {"strange character", "tensor x@ input f32 [1]", "unexpected character '@'"},
    {"strange byte", "tensor \x01", "unexpected byte 0x01"},
    {"byte above 127", "tensor \xff", "unexpected byte 0xff"},
    {"quote without end", "tensor \"x\n input", "must end in \""},
    {"bad escape", "tensor \"\\n\" input", "followed by x and two digits"},
    {"NUL in a name", "tensor \"\\x00\" input", "not 00"},
};

static void test_bad_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(bad_rows); i++) {
        struct snug_error err = {0};
        struct program prog;
        if (program_parse(bad_rows[i].text, &prog, &err) != SNUG_BAD_PROGRAM)
            fail_msg("%s: not refused", bad_rows[i].name);
        if (strstr(err.message, bad_rows[i].words) == NULL || strncmp(err.message, "line ", 5) != 0)
            fail_msg("%s: says \"%s\" and not \"%s\"", bad_rows[i].name, err.message,
                     bad_rows[i].words);
        assert_int_equal(program_parse(bad_rows[i].text, &prog, NULL), SNUG_BAD_PROGRAM);
        program_free(&prog); /* what a failure leaves behind is empty and may be freed */
    }
}

/* ---- random programs ------------------------------------------------------------------------ */

struct dice {
    uint64_t seed, index;
};

static int roll(struct dice *dice, int n)
{
    return (int)(rng_u64(dice->seed, 1, dice->index++) % (uint64_t)n);
}

/* A double with random bits, never the default and never infinite. */
static double random_real(struct dice *dice)
{
    uint64_t bits = rng_u64(dice->seed, 2, dice->index++) & ~(UINT64_C(1) << 62);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void random_name(struct dice *dice, char out[16])
{
    static const char letters[] = "abcXYZ019._-/ \"\\#;=\n\x7f\xc3";
    int usual = roll(dice, 4) > 0, length = 1 + roll(dice, 14);
    for (int i = 0; i < length; i++)
        out[i] = letters[roll(dice, usual ? 13 : (int)sizeof letters - 1)];
    out[length] = '\0';
}

static tensor_id random_id(struct dice *dice, const struct program *prog)
{
    return roll(dice, prog->n_tensors + 1) - 1;
}

static void add_random_tensor(struct dice *dice, struct program *prog)
{
    char name[16];
    random_name(dice, name);
    struct tensor tensor = {.name = name,
                            .dtype = (enum dtype)roll(dice, DTYPE_COUNT),
                            .role = (enum role)roll(dice, ROLE_COUNT),
                            .shape.n_dims = 1 + roll(dice, MAX_DIMS),
                            .base = TENSOR_NONE,
                            .persistent = roll(dice, 2),
                            .offloaded = roll(dice, 2),
                            .is_output = roll(dice, 2),
                            .decays = roll(dice, 2),
                            .frozen = roll(dice, 2),
                            .init = (enum init)roll(dice, INIT_weight + 1),
                            .init_scale = roll(dice, 2) ? random_real(dice) : 0};
    for (int d = 0; d < tensor.shape.n_dims; d++)
        tensor.shape.dim[d] = 1 + roll(dice, 100);
    if (roll(dice, 4) == 0) {
        tensor.whole = tensor.shape;
        tensor.whole.dim[0] *= 3;
        tensor.whole_from = roll(dice, 1000);
    }
    tensor_id id;
    assert_int_equal(program_add_tensor(prog, &tensor, &id, NULL), SNUG_OK);
}

static void add_random_op(struct dice *dice, struct program *prog)
{
    enum op_kind kind = (enum op_kind)roll(dice, OP_COUNT);
    const struct op_info *info = &op_infos[kind];
    struct attrs attrs = attrs_default(info->family);
    tensor_id in[MAX_INPUTS], out[MAX_OUTPUTS];
    int n_in = info->min_in + roll(dice, info->max_in - info->min_in + 1);
    int n_out = info->min_out + roll(dice, info->max_out - info->min_out + 1);
    for (int k = 0; k < MAX_INPUTS; k++)
        in[k] = random_id(dice, prog);
    for (int k = 0; k < MAX_OUTPUTS; k++)
        out[k] = random_id(dice, prog);
#define RANDOM_act        (enum act) roll(dice, ACT_tanh + 1)
#define RANDOM_layout     (enum weight_layout) roll(dice, LAYOUT_in_out + 1)
#define RANDOM_accumulate (enum accumulate) roll(dice, ACC_after_first + 1)
#define RANDOM_average    (enum average) roll(dice, AVERAGE_ema + 1)
#define RANDOM_direction  (enum direction) roll(dice, DIRECTION_as_is + 1)
#define RANDOM_integer    (int32_t) rng_u64(dice->seed, 3, dice->index++)
#define RANDOM_small      (int8_t) rng_u64(dice->seed, 3, dice->index++)
#define RANDOM_flag       (roll(dice, 2) != 0)
#define RANDOM_real       random_real(dice)
#define RANDOM_rule       (enum rule) roll(dice, RULE_COUNT)
#define RANDOM_reals                                \
    (struct reals)                                  \
    {                                               \
        {                                           \
            random_real(dice), 0, random_real(dice) \
        }                                           \
    }
#define RANDOM_ATTR(type, field, value)                                                 \
    if (kind_reads(kind, field) && roll(dice, 2)) {                                     \
        attr_##field random = RANDOM_##type;                                            \
        memcpy((char *)&attrs + attr_offset(info->family, ATTR_INDEX_##field), &random, \
               sizeof random);                                                          \
    }
    ATTR_LIST(RANDOM_ATTR)
    assert_int_equal(program_add_op(prog, kind, &attrs, n_in, in, n_out, out, NULL), SNUG_OK);
    prog->ops[prog->n_ops - 1].work = random_id(dice, prog);
    prog->ops[prog->n_ops - 1].in_last = roll(dice, 4) == 0;
    prog->ops[prog->n_ops - 1].no_alias = roll(dice, 4) == 0;
    prog->ops[prog->n_ops - 1].kernel = (int)roll(dice, 3);
}

static void make_random(struct program *prog, uint64_t seed)
{
    struct dice dice = {.seed = seed};
    char name[16];
    random_name(&dice, name);
    assert_int_equal(program_init(prog, name, NULL), SNUG_OK);
    for (int n = roll(&dice, 12); n > 0; n--)
        add_random_tensor(&dice, prog);
    for (int i = 0; i < prog->n_tensors; i++)
        if (roll(&dice, 3) == 0) {
            prog->tensors[i].base = random_id(&dice, prog);
            prog->tensors[i].offset_elems = roll(&dice, 1000);
        }
    for (int i = 0; i < prog->n_tensors; i++) {
        tensor_id of = random_id(&dice, prog);
        if (of != TENSOR_NONE && of != i)
            program_link(prog, i, (enum tensor_link)(1 + roll(&dice, LINK_COUNT - 1)), of);
    }
    for (int n = roll(&dice, 12); n > 0; n--)
        add_random_op(&dice, prog);
    prog->loss = random_id(&dice, prog);
    prog->scalars = random_id(&dice, prog);
    prog->body_end = roll(&dice, prog->n_ops + 1);
    prog->n_repeat = 1 + roll(&dice, 3);
}

static void assert_same_op(const struct op *a, const struct op *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->n_in, b->n_in);
    assert_int_equal(a->n_out, b->n_out);
    assert_memory_equal(a->in, b->in, sizeof a->in);
    assert_memory_equal(a->out, b->out, sizeof a->out);
    assert_int_equal(a->work, b->work);
    assert_int_equal(a->in_last, b->in_last);
    assert_int_equal(a->no_alias, b->no_alias);
    assert_int_equal(a->kernel, b->kernel);
    for (int i = 0; i < ATTR_COUNT; i++) {
        size_t at = attr_offset(op_infos[a->kind].family, i);
        if (op_infos[a->kind].attrs >> i & 1)
            assert_memory_equal((const char *)&a->attrs + at, (const char *)&b->attrs + at,
                                attr_form_bytes(attr_specs[i].form));
    }
}

static void assert_same_tensor(const struct tensor *a, const struct tensor *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->role, b->role);
    assert_true(shape_equal(&a->shape, &b->shape));
    assert_int_equal(a->base, b->base);
    assert_int_equal(a->offset_elems, b->offset_elems);
    assert_int_equal(a->persistent, b->persistent);
    assert_int_equal(a->offloaded, b->offloaded);
    assert_int_equal(a->is_output, b->is_output);
    assert_int_equal(a->decays, b->decays);
    assert_int_equal(a->frozen, b->frozen);
    assert_int_equal(a->init, b->init);
    assert_memory_equal(&a->init_scale, &b->init_scale, sizeof a->init_scale);
    assert_true(shape_equal(&a->whole, &b->whole));
    assert_int_equal(a->whole_from, b->whole_from);
    assert_int_equal(a->link, b->link);
    assert_int_equal(a->of, b->of);
    assert_int_equal(a->first_link, b->first_link);
    assert_int_equal(a->next_link, b->next_link);
}

static void assert_same_program(const struct program *a, const struct program *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->n_tensors, b->n_tensors);
    assert_int_equal(a->n_ops, b->n_ops);
    for (int i = 0; i < a->n_tensors; i++)
        assert_same_tensor(&a->tensors[i], &b->tensors[i]);
    for (int i = 0; i < a->n_ops; i++)
        assert_same_op(&a->ops[i], &b->ops[i]);
    assert_int_equal(a->body_end, b->body_end);
    assert_int_equal(a->n_repeat, b->n_repeat);
    assert_int_equal(a->loss, b->loss);
    assert_int_equal(a->scalars, b->scalars);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct snug_error err = {0};
        struct program made, read;
        struct text first = {0}, second = {0};
        make_random(&made, seed);
        program_dump(&made, &first);
        if (program_parse(first.data, &read, &err) != SNUG_OK)
            fail_msg("seed %d: %s in\n%s", (int)seed, err.message, first.data);
        assert_same_program(&made, &read);
        program_dump(&read, &second);
        assert_string_equal(first.data, second.data);
        text_free(&first);
        text_free(&second);
        program_free(&made);
        program_free(&read);
    }
}

/* ---- links ---------------------------------------------------------------------------------- */

static void assert_linked(const struct program *prog, const char *of, enum tensor_link link,
                          const char *expected)
{
    tensor_id id = program_linked(prog, program_find(prog, of), link);
    assert_string_equal(id == TENSOR_NONE ? "none" : prog->tensors[id].name, expected);
}

static void test_links(void **state)
{
    (void)state;
    struct snug_error err = {0};
    struct program prog, copy;
    tensor_id id;
    assert_int_equal(program_parse("tensor w parameter f32 [2]; tensor v parameter f32 [2]\n"
                                   "tensor m optimizer f32 [2] state_of=w\n"
                                   "tensor s optimizer f32 [2]; tensor d gradient f32 [2]\n"
                                   "tensor x optimizer f32 [2] master_of=w",
                                   &prog, &err),
                     SNUG_OK);
    program_link(&prog, program_find(&prog, "d"), LINK_gradient, program_find(&prog, "w"));
    program_link(&prog, program_find(&prog, "s"), LINK_state, program_find(&prog, "w"));
    assert_linked(&prog, "w", LINK_gradient, "d");
    assert_linked(&prog, "w", LINK_master, "x");
    assert_linked(&prog, "w", LINK_state, "m"); /* the first by its id */
    assert_linked(&prog, "w", LINK_gathered, "none");
    assert_linked(&prog, "v", LINK_gradient, "none");
    assert_int_equal(program_linked(&prog, TENSOR_NONE, LINK_state), TENSOR_NONE);
    program_link(&prog, program_find(&prog, "m"), LINK_state, program_find(&prog, "v"));
    assert_linked(&prog, "w", LINK_state, "s");
    assert_linked(&prog, "v", LINK_state, "m");
    struct tensor like = prog.tensors[program_find(&prog, "d")]; /* a copy is nobody's gradient */
    assert_int_equal(program_add_tensor(&prog, &like, &id, &err), SNUG_OK);
    assert_int_equal(prog.tensors[id].link, LINK_none);
    program_link(&prog, program_find(&prog, "d"), LINK_none, TENSOR_NONE);
    assert_linked(&prog, "w", LINK_gradient, "none");
    assert_linked(&prog, "w", LINK_master, "x");
    assert_int_equal(program_copy(&copy, &prog, &err), SNUG_OK);
    assert_same_program(&prog, &copy);
    program_free(&copy);
    program_free(&prog);
}

/* ---- damage --------------------------------------------------------------------------------- */

/* Replaces, removes, repeats or inserts bytes; sometimes a token that means something. */
static void damage(struct dice *dice, struct text *text)
{
    static const char *const tokens[] = {"=",
                                         ",",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         "+",
                                         ":",
                                         ";",
                                         "\"",
                                         "\\x",
                                         "#",
                                         "_",
                                         "tensor ",
                                         "work=",
                                         "view=",
                                         "init=",
                                         "body ",
                                         "-9223372036854775808",
                                         "1e308",
                                         "99999999999",
                                         "\n"};
    size_t at = (size_t)roll(dice, (int)text->length + 1);
    size_t tail = text->length - at, cut = (size_t)roll(dice, 8);
    struct text out = {0};
    cut = cut > tail ? tail : cut;
    text_add_bytes(&out, text->data, at);
    switch (roll(dice, 4)) {
    case 0: { /* another byte; a NUL ends the text, as it should */
        char byte = (char)roll(dice, 256);
        text_add_bytes(&out, &byte, 1);
        cut = tail > 0;
        break;
    }
    case 1: /* a piece less */
        break;
    case 2: /* a piece twice */
        text_add_bytes(&out, text->data + at, cut);
        cut = 0;
        break;
    default:
        text_add(&out, "%s", tokens[roll(dice, (int)LENGTH(tokens))]);
        cut = 0;
    }
    text_add_bytes(&out, text->data + at + cut, tail - cut);
    text_free(text);
    *text = out;
}

static void test_damage(void **state)
{
    (void)state;
    int n_read = 0, n_refused = 0;
    for (uint64_t seed = 0; seed < 6000; seed++) {
        struct dice dice = {.seed = seed + 77};
        struct snug_error err = {0};
        struct program prog;
        struct text text = {0}, again = {0};
        make_random(&prog, seed % 500);
        program_dump(&prog, &text);
        program_free(&prog);
        for (int n = 1 + roll(&dice, 4); n > 0; n--)
            damage(&dice, &text);
        if (program_parse(text.data, &prog, &err) == SNUG_OK) {
            n_read++;
            program_verify(&prog, NULL); /* whatever it answers, it must be safe to ask */
            program_dump(&prog, &again);
            text_free(&again);
        } else {
            n_refused++;
            assert_memory_equal(err.message, "line ", 5);
        }
        program_free(&prog);
        text_free(&text);
    }
    assert_true(n_read > 100 && n_refused > 100); /* both ways were walked */
}

/* The program that docs/program.md shows is one, and is printed as shown. */
static void test_documented_program(void **state)
{
    (void)state;
    static char page[32768];
    FILE *file = fopen("docs/program.md", "r");
    assert_non_null(file);
    size_t n = fread(page, 1, sizeof page - 1, file);
    fclose(file);
    page[n] = '\0';
    char *begin = strstr(page, "program \"mlp:");
    assert_non_null(begin);
    *strstr(begin, "```") = '\0';

    struct snug_error err = {0};
    struct program prog;
    struct text out = {0};
    if (program_parse(begin, &prog, &err) != SNUG_OK || program_verify(&prog, &err) != SNUG_OK)
        fail_msg("%s", err.message);
    program_dump(&prog, &out);
    assert_string_equal(out.data, begin);
    text_free(&out);
    program_free(&prog);
}

/* A broken program must print: that is when a dump is wanted. */
static void test_broken_program_prints(void **state)
{
    (void)state;
    struct program prog;
    struct text out = {0};
    tensor_id in = 7, result = -5;
    assert_int_equal(program_init(&prog, "p", NULL), SNUG_OK);
    assert_int_equal(program_add_op(&prog, OP_act, NULL, 1, &in, 1, &result, NULL), SNUG_OK);
    prog.ops[0].attrs.act = (enum act)99;
    program_dump(&prog, &out);
    assert_string_equal(out.data, "program p\n?-5 = act ?7 {act=?99}\n");
    text_free(&out);
    prog.ops[0].kind = OP_COUNT;
    program_dump(&prog, &out);
    assert_non_null(strstr(out.data, "program p\n?-5 = ?"));
    text_free(&out);
    program_free(&prog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_rows),
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_documented_program),
        cmocka_unit_test(test_broken_program_prints),
    };
    return cmocka_run_group_tests_name("text form", tests, NULL, NULL);
}
