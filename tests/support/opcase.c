/*
 * opcase.c -- reads case files and builds the small programs they describe.  See opcase.h.
 */
#include "support/opcase.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"
#include "ir/text_form.h"

static const char *const use_words[CASE_USES] = {"sizes", "small", "time"};

/* ---- files ---------------------------------------------------------------------------------- */

static enum snug_status add_line(struct case_list *list, const char *path, int number, char *line,
                                 struct snug_error *err)
{
    line[strcspn(line, "#\n")] = '\0';
    line += strspn(line, " ");
    if (*line == '\0')
        return SNUG_OK;
    char *copy = arena_copy_string(&list->arena, line);
    size_t word = strcspn(line, " ");
    if (word == 4 && strncmp(line, "case", 4) == 0) {
        if (list->n_cases == MAX_CASES)
            return snug_fail(err, SNUG_BAD_FILE, "%s:%d: too many cases", path, number);
        list->cases[list->n_cases++] = (struct case_text){.name = copy + 4 + strspn(copy + 4, " ")};
        return SNUG_OK;
    }
    struct case_text *c = list->n_cases == 0 ? NULL : &list->cases[list->n_cases - 1];
    if (c == NULL || c->n_lines == MAX_CASE_LINES)
        return snug_fail(err, SNUG_BAD_FILE, "%s:%d: outside a case, or too long", path, number);
    for (int use = 0; use < CASE_USES; use++)
        if (word == strlen(use_words[use]) && strncmp(line, use_words[use], word) == 0) {
            c->use[use][c->n_uses[use]++] = copy + word;
            return SNUG_OK;
        }
    c->line[c->n_lines++] = copy;
    return SNUG_OK;
}

static enum snug_status read_file(struct case_list *list, const char *path, struct snug_error *err)
{
    char line[256];
    enum snug_status status = SNUG_OK;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return snug_fail(err, SNUG_BAD_FILE, "%s: %s", path, strerror(errno));
    for (int number = 1; status == SNUG_OK && fgets(line, sizeof line, file) != NULL; number++)
        status = add_line(list, path, number, line, err);
    fclose(file);
    return status;
}

static int is_case_file(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return dot != NULL && strcmp(dot, ".case") == 0;
}

enum snug_status case_list_read(const char *folder, struct case_list *list, struct snug_error *err)
{
    struct dirent **entries;
    memset(list, 0, sizeof *list);
    int n = scandir(folder, &entries, is_case_file, alphasort);
    if (n < 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: %s; run from the root of the repository, or set "
                         "SNUG_CASES",
                         folder, strerror(errno));
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < n; i++) {
        if (status == SNUG_OK)
            status = read_file(
                list, arena_format(&list->arena, "%s/%s", folder, entries[i]->d_name), err);
        free(entries[i]);
    }
    free(entries);
    return status;
}

void case_list_free(struct case_list *list)
{
    arena_free(&list->arena);
}

/* ---- lines to a program --------------------------------------------------------------------- */

struct builder {
    struct opcase *c;
    const char *case_name, *sizes;
    enum dtype dtype;
    struct snug_error *err;
    char *rest; /* of the line at hand, for strtok_r */
};

static enum snug_status fail(const struct builder *b, const char *what, const char *word)
{
    return snug_fail(b->err, SNUG_BAD_FILE, "case %s: %s: %s", b->case_name, what,
                     word == NULL ? "end of line" : word);
}

static char *next_word(struct builder *b)
{
    return strtok_r(NULL, " ", &b->rest);
}

/* The value of a key of `length` letters in the size line; false if it has none. */
static bool look_up(const struct builder *b, const char *key, size_t length, char value[24])
{
    char wanted[24];
    snprintf(wanted, sizeof wanted, " %.*s=", (int)length, key);
    const char *found = strstr(b->sizes, wanted);
    if (found == NULL)
        return false;
    found += strlen(wanted);
    snprintf(value, 24, "%.*s", (int)strcspn(found, " "), found);
    return true;
}

/* `4`, `B` or `3*C`: a product of numbers and sizes. */
static bool read_size(const struct builder *b, const char *text, int64_t *value)
{
    *value = 1;
    for (;;) {
        size_t length = strcspn(text, "*,");
        char digits[24];
        int64_t factor = 0;
        if (!look_up(b, text, length, digits))
            snprintf(digits, sizeof digits, "%.*s", (int)length, text);
        if (!text_parse_count(digits, &factor))
            return false;
        *value *= factor;
        if (text[length] != '*')
            return true;
        text += length + 1;
    }
}

static bool read_shape(const struct builder *b, const char *text, struct shape *shape)
{
    for (shape->n_dims = 0; shape->n_dims < MAX_DIMS;) {
        if (!read_size(b, text, &shape->dim[shape->n_dims++]))
            return false;
        const char *comma = strchr(text, ',');
        if (comma == NULL)
            return true;
        text = comma + 1;
    }
    return false;
}

static bool read_type(const struct builder *b, const char *word, enum dtype *dtype)
{
    if (strcmp(word, "float") == 0)
        *dtype = b->dtype;
    else if (!dtype_parse(word, dtype))
        return false;
    if (*dtype == DTYPE_f32 && b->dtype == DTYPE_f64)
        *dtype = DTYPE_f64;
    return true;
}

static enum snug_status add_tensor(const struct builder *b, const char *name, enum dtype dtype,
                                   const struct shape *shape, struct fill fill, tensor_id *id)
{
    struct opcase *c = b->c;
    struct tensor tensor = {TENSOR_INIT, .name = name, .dtype = dtype, .role = ROLE_activation,
                            .shape = *shape};
    TRY(program_add_tensor(&c->prog, &tensor, id, b->err));
    struct fill *fills = realloc(c->fills, (size_t)c->prog.n_tensors * sizeof *fills);
    if (fills == NULL)
        return snug_fail(b->err, SNUG_NO_MEMORY, "out of memory");
    c->fills = fills;
    c->fills[*id] = fill;
    return SNUG_OK;
}

static bool read_fill_word(const struct builder *b, char *word, struct fill *fill)
{
    static const char *const scalar_names[SCALAR_COUNT] = {
#define NAME(name) #name,
        SCALAR_LIST(NAME)
#undef NAME
    };
    if (strcmp(word, "positive") == 0)
        return fill->positive = true;
    char *equals = strchr(word, '=');
    if (equals == NULL)
        return false;
    *equals = '\0';
    const char *text = equals + 1;
    if (strcmp(word, "below") == 0)
        return read_size(b, text, &fill->below);
    if (strcmp(word, "documents") == 0)
        return read_size(b, text, &fill->documents);
    int64_t size;
    double value = read_size(b, text, &size) ? (double)size : strtod(text, NULL);
    for (int i = 0; fill->is_scalars && i < SCALAR_COUNT; i++)
        if (strcmp(word, scalar_names[i]) == 0) {
            fill->scalars[i] = value;
            return true;
        }
    if (strcmp(word, "scale") == 0)
        fill->scale = value;
    else if (strcmp(word, "shift") == 0)
        fill->shift = value;
    else
        return false;
    return true;
}

/* in NAME TYPE SHAPE words... */
static enum snug_status read_input(struct builder *b)
{
    const char *name = next_word(b), *type = next_word(b);
    if (name == NULL || type == NULL)
        return fail(b, "a name and a type expected", type);
    struct fill fill = {.is_input = true, .scale = 1.0};
    struct shape shape = {1, {SCALAR_COUNT}};
    enum dtype dtype = DTYPE_f64;
    fill.is_scalars = strcmp(type, "scalars") == 0;
    if (fill.is_scalars) {
        fill.scalars[SCALAR_lr] = 0.5; /* large, so that errors of a step show in the weights */
        fill.scalars[SCALAR_loss_scale] = 8.0;
        fill.scalars[SCALAR_update_count] = 3.0;
        fill.scalars[SCALAR_clip] = 0.5;
    } else {
        const char *dims = next_word(b);
        if (!read_type(b, type, &dtype) || dims == NULL || !read_shape(b, dims, &shape))
            return fail(b, "type or shape not understood", dims);
    }
    for (char *word; (word = next_word(b)) != NULL;)
        if (!read_fill_word(b, word, &fill))
            return fail(b, "not understood", word);
    tensor_id id;
    TRY(add_tensor(b, name, dtype, &shape, fill, &id));
    if (fill.is_scalars)
        b->c->prog.scalars = id;
    return SNUG_OK;
}

static bool read_attr(const struct builder *b, char *word, struct op *op)
{
    char *equals = strchr(word, '=');
    *equals = '\0';
    for (int i = 0; i < ATTR_COUNT; i++) {
        const struct attr_spec *row = &attr_specs[i];
        void *field = (char *)&op->attrs + attr_offset(op_infos[op->kind].family, i);
        int64_t whole;
        if (strcmp(row->name, word) != 0)
            continue;
        if ((op_infos[op->kind].attrs >> i & 1) == 0)
            return false;
        if (row->form == ATTR_FORM_real) {
            double value = strtod(equals + 1, NULL);
            memcpy(field, &value, sizeof value);
            return true;
        }
        if (row->form == ATTR_FORM_reals) { /* 0.9,0.95,N */
            struct reals reals = {{0}};
            char *text = equals + 1;
            for (int k = 0; k < MAX_OPTIONS && *text != '\0'; k++, text += *text == ',') {
                char size[24];
                bool is_size = look_up(b, text, strcspn(text, ","), size);
                reals.value[k] = is_size ? strtod(size, NULL) : strtod(text, &text);
                text += is_size ? strcspn(text, ",") : 0;
            }
            memcpy(field, &reals, sizeof reals);
            return *text == '\0';
        }
        if (row->form != ATTR_FORM_word) {
            bool ok = read_size(b, equals + 1, &whole);
            attr_set_integer(field, row->form, whole);
            return ok;
        }
        char given[24];
        if (!look_up(b, equals + 1, strlen(equals + 1), given))
            snprintf(given, sizeof given, "%s", equals + 1);
        for (int value = 0; value < row->words.count; value++)
            if (strcmp(row->words.word[value], given) == 0) {
                memcpy(field, &value, sizeof value);
                return true;
            }
    }
    return false;
}

/* Creates missing output tensors, and appends the op. */
static enum snug_status finish_op(struct builder *b, struct op *op, char *const *names)
{
    struct program *prog = &b->c->prog;
    struct shape shapes[MAX_OUTPUTS];
    enum dtype usual = DTYPE_f32;
    TRY(op_shapes(prog, op, shapes, b->err));
    for (int k = op->n_in - 1; k >= 0; k--)
        if (op->in[k] != TENSOR_NONE && op->in[k] != prog->scalars &&
            dtype_is_float(prog->tensors[op->in[k]].dtype))
            usual = prog->tensors[op->in[k]].dtype;
    if (op->kind == OP_sum_squares)
        usual = DTYPE_f64;
    for (int k = 0; k < op->n_out; k++) {
        enum dtype dtype = usual;
        bool keeps = op_infos[op->kind].keeps_f32 >> k & 1;
        char *colon = strchr(names[k], ':');
        if (strcmp(names[k], "_") == 0)
            continue;
        if ((keeps && !read_type(b, "f32", &dtype)) ||
            (colon != NULL && !read_type(b, colon + 1, &dtype)))
            return fail(b, "type not understood", names[k]);
        if (colon != NULL)
            *colon = '\0';
        op->out[k] = program_find(prog, names[k]);
        /* the initial value of an accumulated output; a loss is positive, so that the sum does not cancel */
        struct fill fill = {.scale = 1.0, .positive = shape_elems(&shapes[k]) == 1};
        if (op->out[k] == TENSOR_NONE)
            TRY(add_tensor(b, names[k], dtype, &shapes[k], fill, &op->out[k]));
    }
    return program_add_op(prog, op->kind, &op->attrs, op->n_in, op->in, op->n_out, op->out, b->err);
}

/* outputs = KIND inputs attributes */
static enum snug_status read_op(struct builder *b, char *first)
{
    struct op op = {.kind = OP_COUNT};
    char *names[MAX_OUTPUTS];
    for (int k = 0; k < MAX_OUTPUTS; k++)
        op.out[k] = TENSOR_NONE;
    for (char *word = first; word != NULL && strcmp(word, "=") != 0; word = next_word(b)) {
        if (op.n_out == MAX_OUTPUTS)
            return fail(b, "too many outputs", word);
        names[op.n_out++] = word;
    }
    const char *kind = next_word(b);
    for (int i = 0; kind != NULL && i < OP_COUNT; i++)
        if (strcmp(op_infos[i].name, kind) == 0)
            op.kind = (enum op_kind)i;
    if (op.kind == OP_COUNT)
        return fail(b, "no such op", kind);
    op.attrs = attrs_default(op_infos[op.kind].family);
    for (char *word; (word = next_word(b)) != NULL;) {
        if (strchr(word, '=') != NULL) {
            if (!read_attr(b, word, &op))
                return fail(b, "attribute not understood", word);
            continue;
        }
        tensor_id id = strcmp(word, "_") == 0 ? TENSOR_NONE : program_find(&b->c->prog, word);
        if ((id == TENSOR_NONE && strcmp(word, "_") != 0) || op.n_in == MAX_INPUTS)
            return fail(b, "no such tensor, or one too many", word);
        op.in[op.n_in++] = id;
    }
    return finish_op(b, &op, names);
}

static enum snug_status read_pair(struct builder *b, const char *of, const char *by,
                                  struct pair *pairs, int *n)
{
    struct pair pair = {of == NULL ? TENSOR_NONE : program_find(&b->c->prog, of),
                        by == NULL ? TENSOR_NONE : program_find(&b->c->prog, by)};
    if (pair.of == TENSOR_NONE || pair.by == TENSOR_NONE || *n == MAX_CASE_PAIRS)
        return fail(b, "two tensors expected", of);
    pairs[(*n)++] = pair;
    return SNUG_OK;
}

static enum snug_status read_line(struct builder *b, char *line)
{
    struct opcase *c = b->c;
    char *word = strtok_r(line, " ", &b->rest);
    if (strcmp(word, "in") == 0)
        return read_input(b);
    if (strcmp(word, "gradient") == 0) {
        const char *of = next_word(b), *by = next_word(b);
        return read_pair(b, of, by, c->gradient, &c->n_gradient);
    }
    if (strcmp(word, "functional") != 0)
        return read_op(b, word);
    while ((word = next_word(b)) != NULL) {
        char *star = strchr(word, '*');
        if (star == NULL)
            return fail(b, "output*tensor expected", word);
        *star = '\0';
        TRY(read_pair(b, word, star + 1, c->functional, &c->n_functional));
    }
    return SNUG_OK;
}

/* ---- values --------------------------------------------------------------------------------- */

void opcase_fill(const struct opcase *c, tensor_id id, void *data, uint64_t stream)
{
    const struct tensor *tensor = program_tensor(&c->prog, id);
    const struct fill *fill = &c->fills[id];
    stream += rng_hash_string(tensor->name);
    int64_t start = 0; /* of the document */
    for (int64_t i = 0, n = shape_elems(&tensor->shape); i < n; i++) {
        uint64_t at = (uint64_t)i;
        double value;
        if (fill->is_scalars)
            value = fill->scalars[i];
        else if (fill->below > 0)
            value = (double)(rng_u64(c->seed, stream, at) % (uint64_t)fill->below);
        else if (fill->documents > 0) {
            int64_t position = i % shape_last(&tensor->shape);
            if (position == 0 || rng_u64(c->seed, stream, at) % (uint64_t)fill->documents == 0)
                start = position;
            value = (double)start;
        } else
            value = rng_normal(c->seed, stream, at) * fill->scale + fill->shift;
        if (fill->positive && value < 0)
            value = -value;
        dtype_store(tensor->dtype, data, i, value);
    }
}

static enum snug_status allocate(struct opcase *c, struct snug_error *err)
{
    c->n_tensors = c->prog.n_tensors;
    c->data = calloc((size_t)c->n_tensors, sizeof *c->data);
    for (int id = 0; c->data != NULL && id < c->n_tensors; id++) {
        size_t bytes = (size_t)tensor_bytes(&c->prog, id);
        c->data[id] = malloc(bytes);
        if (c->data[id] == NULL)
            return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
        memset(c->data[id], 0xff, bytes);
        if (c->fills[id].is_input)
            opcase_fill(c, id, c->data[id], 0);
    }
    return c->data == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
}

bool opcase_is_for(const struct case_text *text, enum case_use use, int index, enum dtype dtype)
{
    const char *only = strstr(text->use[use][index], " only=");
    const char *name = dtype_name(dtype);
    size_t length = only == NULL ? 0 : strcspn(only + 6, " ");
    return only == NULL || (length == strlen(name) && strncmp(only + 6, name, length) == 0);
}

enum snug_status opcase_build(const struct case_text *text, enum case_use use, int index,
                              enum dtype dtype, uint64_t seed, struct opcase *c,
                              struct snug_error *err)
{
    *c = (struct opcase){.seed = seed};
    struct builder b = {.c = c,
                        .case_name = text->name,
                        .sizes = text->use[use][index],
                        .dtype = dtype,
                        .err = err};
    snprintf(c->label, sizeof c->label, "%s%s %s seed %llu", text->name, b.sizes, dtype_name(dtype),
             (unsigned long long)seed);
    TRY(program_init(&c->prog, text->name, err));
    for (int i = 0; i < text->n_lines; i++) {
        char line[256];
        snprintf(line, sizeof line, "%s", text->line[i]);
        TRY(read_line(&b, line));
    }
    return allocate(c, err);
}

void opcase_free(struct opcase *c)
{
    for (int id = 0; id < c->n_tensors; id++)
        free(c->data[id]);
    free(c->data);
    free(c->fills);
    program_free(&c->prog);
    *c = (struct opcase){0};
}
