/*
 * dump.c -- prints a program as text that parse.c can read: for people, tests and bug reports.
 *
 * Dumps are needed most when a program is broken, so this file trusts no id and no enum: a value
 * out of range prints as `?` and the value, which the parser rejects.
 */
#include "ir/text_form.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const char *const role_list[] = {
#define WORD(name) #name,
    ROLE_LIST(WORD)
#undef WORD
};
static const char *const dtype_list[] = {
#define WORD(name, bytes, safetensors) #name,
    DTYPE_LIST(WORD)
#undef WORD
};
static const char *const init_list[] = {"none", "zeros", "ones", "normal", "uniform", "weight"};
static const char *const link_list[] = {"linked_to", /* printed only if the program is broken */
#define WORD(name) #name "_of",
                                        LINK_LIST(WORD)
#undef WORD
};
static const char *const act_list[] = {"none", "relu", "gelu", "sigmoid", "tanh"};
static const char *const layout_list[] = {"out_in", "in_out"};
static const char *const accumulate_list[] = {"no", "yes", "after_first"};
static const char *const average_list[] = {"none", "schedule_free", "queue", "ema"};
static const char *const direction_list[] = {"none", "scaled", "as_is"};
static const char *const rule_list[] = {
#define RULE(name) #name,
#include "ir/rules.def"
#undef RULE
};
_Static_assert(INIT_weight == 5 && ACT_tanh == 4 && LAYOUT_in_out == 1 && ACC_after_first == 2 &&
                   AVERAGE_ema == 3,
               "an enum has a new value: extend its list of words above");

const struct words role_words = {role_list, COUNT(role_list)};
const struct words dtype_words = {dtype_list, COUNT(dtype_list)};
const struct words init_words = {init_list, COUNT(init_list)};
const struct words link_words = {link_list, COUNT(link_list)};

const struct tensor_flag tensor_flags[N_TENSOR_FLAGS] = {
    {"persistent", offsetof(struct tensor, persistent)},
    {"offloaded", offsetof(struct tensor, offloaded)},
    {"output", offsetof(struct tensor, is_output)},
    {"decays", offsetof(struct tensor, decays)},
    {"recomputed", offsetof(struct tensor, recomputed)},
    {"frozen", offsetof(struct tensor, frozen)},
};

const struct attr_spec attr_specs[ATTR_COUNT] = {
#define FORM_act        .form = ATTR_FORM_word, .words = {act_list, COUNT(act_list)}
#define FORM_layout     .form = ATTR_FORM_word, .words = {layout_list, COUNT(layout_list)}
#define FORM_accumulate .form = ATTR_FORM_word, .words = {accumulate_list, COUNT(accumulate_list)}
#define FORM_average    .form = ATTR_FORM_word, .words = {average_list, COUNT(average_list)}
#define FORM_direction  .form = ATTR_FORM_word, .words = {direction_list, COUNT(direction_list)}
#define FORM_integer    .form = ATTR_FORM_integer
#define FORM_small      .form = ATTR_FORM_small
#define FORM_flag       .form = ATTR_FORM_flag
#define FORM_real       .form = ATTR_FORM_real
#define FORM_rule       .form = ATTR_FORM_word, .words = {rule_list, COUNT(rule_list)}
#define FORM_reals      .form = ATTR_FORM_reals
#define SPEC(type, field, value) \
    {.name = #field, .default_offset = offsetof(struct attr_values, field), FORM_##type},
    ATTR_LIST(SPEC)
#undef SPEC
};

size_t attr_offset(enum attr_family family, int i)
{
#define OFFSET(which, field) [ATTR_INDEX_##field] = offsetof(struct attrs, which.field),
#define ROW(which)           [FAMILY_##which] = {ATTRS_OF_##which(OFFSET, which)},
    static const uint16_t offsets[FAMILY_COUNT][ATTR_COUNT] = {FAMILY_LIST(ROW)};
#undef ROW
#undef OFFSET
    return i == ATTR_INDEX_act          ? offsetof(struct attrs, act)
           : i == ATTR_INDEX_accumulate ? offsetof(struct attrs, accumulate)
                                        : offsets[family][i];
}

size_t attr_form_bytes(enum attr_form form)
{
    static const size_t bytes[] = {
        [ATTR_FORM_word] = sizeof(int),     [ATTR_FORM_integer] = sizeof(int64_t),
        [ATTR_FORM_small] = sizeof(int8_t), [ATTR_FORM_flag] = sizeof(bool),
        [ATTR_FORM_real] = sizeof(double),  [ATTR_FORM_reals] = sizeof(struct reals)};
    return bytes[form];
}

static int64_t attr_integer(const void *field, enum attr_form form)
{
    return form == ATTR_FORM_word    ? *(const int *)field
           : form == ATTR_FORM_small ? *(const int8_t *)field
           : form == ATTR_FORM_flag  ? *(const bool *)field
                                     : *(const int64_t *)field;
}

void attr_set_integer(void *field, enum attr_form form, int64_t value)
{
    if (form == ATTR_FORM_word)
        *(int *)field = (int)value;
    else if (form == ATTR_FORM_small)
        *(int8_t *)field = (int8_t)value;
    else if (form == ATTR_FORM_flag)
        *(bool *)field = value != 0;
    else
        *(int64_t *)field = value;
}

bool is_bare_letter(char letter)
{
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
           (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' || letter == '-' ||
           letter == '/';
}

/* Prints the shortest decimal that parses to the same bits, without the + of an exponent. */
static void add_real(struct text *out, double value)
{
    char digits[40];
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    char *plus = strchr(digits, '+');
    if (plus != NULL)
        memmove(plus, plus + 1, strlen(plus));
    text_add(out, "%s", digits);
}

static void add_word(struct text *out, struct words words, int value)
{
    if (value >= 0 && value < words.count)
        text_add(out, "%s", words.word[value]);
    else
        text_add(out, "?%d", value);
}

static void add_name(struct text *out, const char *name)
{
    size_t n_bare = 0;
    while (is_bare_letter(name[n_bare]))
        n_bare++;
    if (n_bare > 0 && name[n_bare] == '\0' && strcmp(name, "_") != 0) {
        text_add_bytes(out, name, n_bare);
        return;
    }
    text_add(out, "\"");
    for (; *name != '\0'; name++) {
        unsigned char letter = (unsigned char)*name;
        if (letter < ' ' || letter == 127 || letter == '"' || letter == '\\')
            text_add(out, "\\x%02x", letter);
        else
            text_add_bytes(out, name, 1);
    }
    text_add(out, "\"");
}

static void add_tensor_name(struct text *out, const struct program *prog, tensor_id id)
{
    if (id == TENSOR_NONE)
        text_add(out, "_");
    else if (id < 0 || id >= prog->n_tensors)
        text_add(out, "?%d", id);
    else
        add_name(out, prog->tensors[id].name);
}

static void pad_to(struct text *out, size_t line_start, size_t column)
{
    do
        text_add(out, " ");
    while (!out->failed && out->length < line_start + column);
}

static void add_dims(struct text *out, const struct shape *shape)
{
    text_add(out, "[");
    for (int d = 0; d < shape->n_dims && d < MAX_DIMS; d++)
        text_add(out, "%s%lld", d == 0 ? "" : " ", (long long)shape->dim[d]);
    text_add(out, "]");
}

static void add_tensor(struct text *out, const struct program *prog, const struct tensor *t,
                       size_t name_width)
{
    size_t start = out->length, after_name = strlen("tensor ") + name_width + 1;
    text_add(out, "tensor ");
    add_name(out, t->name);
    pad_to(out, start, after_name);
    add_word(out, role_words, (int)t->role);
    pad_to(out, start, after_name + strlen("activation "));
    add_word(out, dtype_words, (int)t->dtype);
    pad_to(out, start, after_name + strlen("activation bf16 "));
    add_dims(out, &t->shape);
    if (t->base != TENSOR_NONE) {
        text_add(out, " view=");
        add_tensor_name(out, prog, t->base);
    }
    if (t->base != TENSOR_NONE || t->offset_elems != 0)
        text_add(out, "%s+%lld", t->base == TENSOR_NONE ? " view=_" : "",
                 (long long)t->offset_elems);
    for (int i = 0; i < N_TENSOR_FLAGS; i++)
        if (*(const bool *)((const char *)t + tensor_flags[i].offset))
            text_add(out, " %s", tensor_flags[i].word);
    bool has_scale = t->init_scale < 0 || t->init_scale > 0;
    if (t->init != INIT_none || has_scale) {
        text_add(out, " init=");
        add_word(out, init_words, (int)t->init);
    }
    if (has_scale) {
        text_add(out, ":");
        add_real(out, t->init_scale);
    }
    if (t->whole.n_dims > 0) {
        text_add(out, " shard=%lld", (long long)t->whole_from);
        add_dims(out, &t->whole);
    }
    if (t->link != LINK_none || t->of != TENSOR_NONE) {
        text_add(out, " ");
        add_word(out, link_words, (int)t->link);
        text_add(out, "=");
        add_tensor_name(out, prog, t->of);
    }
    text_add(out, "\n");
}

/* Prints `[0.9 0.95]`, without zeros at the end. */
static void add_reals(struct text *out, const char *field)
{
    struct reals reals;
    int n = MAX_OPTIONS;
    memcpy(&reals, field, sizeof reals);
    while (n > 0 && reals.value[n - 1] == 0)
        n--;
    for (int i = 0; i < n; i++) {
        text_add(out, i == 0 ? "[" : " ");
        add_real(out, reals.value[i]);
    }
    text_add(out, n == 0 ? "[0]" : "]");
}

/* Prints ` {eps=1e-05` or `, eps=1e-05` if the attribute differs from its default. */
static bool add_attr(struct text *out, const struct attr_spec *spec, const void *field,
                     const char *before)
{
    const char *default_value = (const char *)&attr_defaults + spec->default_offset;
    if (memcmp(field, default_value, attr_form_bytes(spec->form)) == 0)
        return false;
    text_add(out, "%s%s=", before, spec->name);
    if (spec->form == ATTR_FORM_word)
        add_word(out, spec->words, (int)attr_integer(field, spec->form));
    else if (spec->form == ATTR_FORM_reals)
        add_reals(out, field);
    else if (spec->form == ATTR_FORM_real)
        add_real(out, *(const double *)field);
    else
        text_add(out, "%lld", (long long)attr_integer(field, spec->form));
    return true;
}
_Static_assert(sizeof(enum act) == sizeof(int) && sizeof(enum accumulate) == sizeof(int) &&
                   sizeof(enum rule) == sizeof(int),
               "attr_integer reads enum attributes as int");

static void add_operands(struct text *out, const struct program *prog, int n, const tensor_id *ids)
{
    for (int k = 0; k < n; k++) {
        text_add(out, "%s", k == 0 ? "" : ", ");
        add_tensor_name(out, prog, ids[k]);
    }
}

static void add_op(struct text *out, const struct program *prog, const struct op *op)
{
    add_operands(out, prog, op->n_out < MAX_OUTPUTS ? op->n_out : MAX_OUTPUTS, op->out);
    if ((unsigned)op->kind >= OP_COUNT) {
        text_add(out, " = ?%d\n", (int)op->kind);
        return;
    }
    const struct op_info *info = &op_infos[op->kind];
    text_add(out, " = %s ", info->name);
    add_operands(out, prog, op->n_in < MAX_INPUTS ? op->n_in : MAX_INPUTS, op->in);
    bool any = false;
    for (int i = 0; i < ATTR_COUNT; i++)
        if (info->attrs >> i & 1)
            any |= add_attr(out, &attr_specs[i],
                            (const char *)&op->attrs + attr_offset(info->family, i),
                            any ? ", " : " {");
    text_add(out, "%s", any ? "}" : "");
    if (op->work != TENSOR_NONE) {
        text_add(out, " work=");
        add_tensor_name(out, prog, op->work);
    }
    if (op->micro != 0)
        text_add(out, " micro=%d", op->micro);
    text_add(out, op->in_last ? " last" : "");
    text_add(out, op->no_alias ? " no_alias" : "");
    if (op->kernel != 0)
        text_add(out, " kernel=%d", op->kernel);
    text_add(out, "\n");
}

void program_dump(const struct program *prog, struct text *out)
{
    enum { WIDEST_COLUMN = 40 };
    text_add(out, "program ");
    add_name(out, prog->name);
    text_add(out, "\n");
    if (prog->body_end != 0 || prog->n_repeat != 1)
        text_add(out, "body %d x %d\n", prog->body_end, prog->n_repeat);
    if (prog->loss != TENSOR_NONE) {
        text_add(out, "loss ");
        add_tensor_name(out, prog, prog->loss);
        text_add(out, "\n");
    }
    if (prog->scalars != TENSOR_NONE) {
        text_add(out, "scalars ");
        add_tensor_name(out, prog, prog->scalars);
        text_add(out, "\n");
    }
    size_t name_width = 0;
    for (int i = 0; i < prog->n_tensors; i++) {
        size_t width = strlen(prog->tensors[i].name);
        if (width > name_width && width <= WIDEST_COLUMN)
            name_width = width;
    }
    for (int i = 0; i < prog->n_tensors; i++)
        add_tensor(out, prog, &prog->tensors[i], name_width);
    for (int i = 0; i < prog->n_ops; i++)
        add_op(out, prog, &prog->ops[i]);
}
