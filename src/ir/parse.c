/*
 * parse.c -- reads the text form of a program (docs/program.md) back into a program.
 *
 * The parser reads the text twice: the first walk creates the tensors, the second reads everything
 * that names them.  So a statement may use a tensor that is declared below it, such as the base of
 * a view that a later pass added.  Any bytes are safe as input: an error is one line with the line
 * number and what was expected.
 *
 * The parser checks each line on its own, and everything that code which walks a program relies on:
 * names, counts, ranges.  Rules that involve several lines are checked by verify.c.
 */
#include "ir/text_form.h"
#include "ir/lexer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define fail(p, ...) tokens_fail(&(p)->t, __VA_ARGS__)

struct parser {
    struct tokens t;
    struct program *prog;
    bool saw_body, saw_loss, saw_scalars;
    char shown[64];
};

/* ---- tokens to values ----------------------------------------------------------------------- */

static const struct token *peek(const struct parser *p)
{
    return &p->t.token[p->t.next];
}

static const struct token *take(struct parser *p)
{
    const struct token *token = &p->t.token[p->t.next];
    p->t.next += token->kind != END;
    return token;
}

static bool accept(struct parser *p, int kind)
{
    if (peek(p)->kind != kind)
        return false;
    take(p);
    return true;
}

static bool is_word(const struct token *token, const char *word)
{
    return token->kind == WORD && strcmp(token->text, word) == 0;
}

/* A token as written, for error messages; cut if it is long. */
static const char *show(struct parser *p, const struct token *token)
{
    enum { SHOWN_MAX = 40 };
    const char *quote = token->kind == QUOTED ? "" : "\"";
    if (token->kind == END)
        return "the end of the statement";
    snprintf(p->shown, sizeof p->shown, "%s%.*s%s%s", quote,
             token->source_length < SHOWN_MAX ? token->source_length : SHOWN_MAX, token->source,
             token->source_length > SHOWN_MAX ? "..." : "", quote);
    return p->shown;
}

static enum snug_status expect(struct parser *p, int kind, const char *where)
{
    if (accept(p, kind))
        return SNUG_OK;
    return fail(p, "expected \"%c\" %s, found %s", kind, where, show(p, peek(p)));
}

static enum snug_status expect_end(struct parser *p)
{
    if (peek(p)->kind == END)
        return SNUG_OK;
    return fail(p, "expected the end of the statement, found %s", show(p, peek(p)));
}

static enum snug_status read_integer(struct parser *p, const char *what, int64_t least,
                                     int64_t most, int64_t *value)
{
    const struct token *token = take(p);
    if (token->kind != WORD || !text_parse_count(token->text, value) || *value < least ||
        *value > most)
        return fail(p, "%s must be a whole number from %lld to %lld, not %s", what,
                    (long long)least, (long long)most, show(p, token));
    return SNUG_OK;
}

static enum snug_status read_real(struct parser *p, const char *what, double *value)
{
    const struct token *token = take(p);
    if (token->kind != WORD || !text_parse_real(token->text, value))
        return fail(p, "%s must be a finite number, not %s", what, show(p, token));
    return SNUG_OK;
}

static enum snug_status read_word(struct parser *p, const char *what, struct words words,
                                  int *value)
{
    const struct token *token = take(p);
    char all[200] = "";
    size_t used = 0;
    for (int i = 0; i < words.count; i++) {
        if (is_word(token, words.word[i])) {
            *value = i;
            return SNUG_OK;
        }
        used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i == 0 ? "" : ", ",
                                 words.word[i]);
        if (used >= sizeof all)
            used = sizeof all - 1;
    }
    return fail(p, "%s must be one of %s, not %s", what, all, show(p, token));
}

static bool is_name(const struct token *token)
{
    return token->kind == QUOTED || (token->kind == WORD && strcmp(token->text, "_") != 0);
}

/* A tensor by name, or _ for none. */
static enum snug_status read_operand(struct parser *p, tensor_id *id)
{
    const struct token *token = take(p);
    *id = TENSOR_NONE;
    if (is_word(token, "_"))
        return SNUG_OK;
    if (!is_name(token))
        return fail(p, "expected the name of a tensor or _, found %s", show(p, token));
    *id = program_find(p->prog, token->text);
    if (*id == TENSOR_NONE)
        return fail(p, "tensor %s is not declared; add a line: tensor NAME ROLE TYPE [DIMS]",
                    show(p, token));
    return SNUG_OK;
}

/* ---- statements ----------------------------------------------------------------------------- */

static enum snug_status read_shape(struct parser *p, enum dtype dtype, struct shape *shape)
{
    TRY(expect(p, '[', "before the dimensions"));
    int64_t elems = 1;
    do {
        int64_t dim;
        if (shape->n_dims == MAX_DIMS)
            return fail(p, "a shape has at most %d dimensions and ends in ], found %s", MAX_DIMS,
                        show(p, peek(p)));
        TRY(read_integer(p, "a dimension", 1, TENSOR_ELEMS_MAX, &dim));
        if (dim > TENSOR_ELEMS_MAX / elems)
            return fail(p, "the shape has more than 1e17 elements of %s",
                        dtype_words.word[(int)dtype]);
        elems *= dim;
        shape->dim[shape->n_dims++] = dim;
    } while (!accept(p, ']'));
    return SNUG_OK;
}

/* Returns the bool that a flag word sets, or NULL if `key` is not a flag. */
static bool *find_flag(struct tensor *tensor, const struct token *key)
{
    for (int i = 0; i < N_TENSOR_FLAGS; i++)
        if (is_word(key, tensor_flags[i].word))
            return (bool *)((char *)tensor + tensor_flags[i].offset);
    return NULL;
}

static enum tensor_link find_link(const struct token *key)
{
    int link = LINK_none + 1;
    while (link < LINK_COUNT && !is_word(key, link_words.word[link]))
        link++;
    return link < LINK_COUNT ? (enum tensor_link)link : LINK_none;
}

/* Reads the name of another tensor.  It may be declared below, so the first walk skips it. */
static enum snug_status read_other(struct parser *p, bool first_walk, tensor_id *id)
{
    if (!first_walk)
        return read_operand(p, id);
    take(p);
    return SNUG_OK;
}

/* Reads one of the properties after a tensor's shape. */
static enum snug_status read_tensor_word(struct parser *p, struct tensor *tensor, bool first_walk)
{
    const struct token *key = take(p);
    int word;
    bool *flag = find_flag(tensor, key);
    enum tensor_link link = find_link(key);
    if (flag != NULL) {
        *flag = true;
    } else if (is_word(key, "view")) {
        TRY(expect(p, '=', "after view"));
        TRY(read_other(p, first_walk, &tensor->base));
        TRY(expect(p, '+', "and an offset in elements after the base of a view"));
        TRY(read_integer(p, "the offset of a view", 0, TENSOR_ELEMS_MAX, &tensor->offset_elems));
    } else if (is_word(key, "init")) {
        TRY(expect(p, '=', "after init"));
        TRY(read_word(p, "init", init_words, &word));
        tensor->init = (enum init)word;
        if (accept(p, ':'))
            TRY(read_real(p, "the scale of init", &tensor->init_scale));
    } else if (is_word(key, "shard")) {
        TRY(expect(p, '=', "after shard"));
        TRY(read_integer(p, "the start of a shard", 0, TENSOR_ELEMS_MAX, &tensor->whole_from));
        tensor->whole.n_dims = 0;
        TRY(read_shape(p, tensor->dtype, &tensor->whole));
    } else if (link != LINK_none) {
        tensor->link = link;
        TRY(expect(p, '=', "after a link"));
        TRY(read_other(p, first_walk, &tensor->of));
    } else {
        return fail(p,
                    "after its shape a tensor may have view=BASE+OFFSET, persistent, "
                    "offloaded, output, decays, recomputed, frozen, init=WORD:SCALE, "
                    "shard=FROM[DIMS] and gradient_of=TENSOR or another link, not %s",
                    show(p, key));
    }
    return SNUG_OK;
}

/* tensor NAME ROLE TYPE [DIMS] WORDS.  The first walk creates the tensor, the second sets its base
 * and its link. */
static enum snug_status read_tensor(struct parser *p, bool first_walk)
{
    struct tensor tensor = {TENSOR_INIT, .of = TENSOR_NONE};
    const struct token *name = take(p);
    int role, dtype;
    tensor.name = name->text;
    if (!is_name(name))
        return fail(p, "expected a name after tensor, found %s", show(p, name));
    if (first_walk && program_find(p->prog, tensor.name) != TENSOR_NONE)
        return fail(p, "tensor %s is declared twice; names are unique", show(p, name));
    TRY(read_word(p, "the role of a tensor", role_words, &role));
    TRY(read_word(p, "the type of a tensor", dtype_words, &dtype));
    tensor.role = (enum role)role;
    tensor.dtype = (enum dtype)dtype;
    TRY(read_shape(p, tensor.dtype, &tensor.shape));
    while (peek(p)->kind != END)
        TRY(read_tensor_word(p, &tensor, first_walk));
    tensor_id id;
    if (first_walk)
        return program_add_tensor(p->prog, &tensor, &id, p->t.err);
    id = program_find(p->prog, tensor.name);
    p->prog->tensors[id].base = tensor.base;
    if (tensor.of == id)
        return fail(p, "tensor %s cannot be linked to itself", show(p, name));
    program_link(p->prog, id, tensor.of == TENSOR_NONE ? LINK_none : tensor.link, tensor.of);
    return SNUG_OK;
}

/* [0.9 0.95 1e-08] */
static enum snug_status read_reals(struct parser *p, const char *what, struct reals *reals)
{
    int n = 0;
    TRY(expect(p, '[', "before a list of numbers"));
    do {
        if (n == MAX_OPTIONS)
            return fail(p, "%s has at most %d numbers and ends in ], found %s", what, MAX_OPTIONS,
                        show(p, peek(p)));
        TRY(read_real(p, what, &reals->value[n++]));
    } while (!accept(p, ']'));
    return SNUG_OK;
}

static enum snug_status read_attr(struct parser *p, const struct attr_spec *spec, void *field)
{
    int64_t least = INT_MIN, most = INT_MAX, value;
    int word;
    switch (spec->form) {
    case ATTR_FORM_word:
        TRY(read_word(p, spec->name, spec->words, &word));
        attr_set_integer(field, spec->form, word);
        return SNUG_OK;
    case ATTR_FORM_real:
        return read_real(p, spec->name, field);
    case ATTR_FORM_reals:
        *(struct reals *)field = (struct reals){{0}};
        return read_reals(p, spec->name, field);
    case ATTR_FORM_small:
        least = INT8_MIN, most = INT8_MAX;
        break;
    case ATTR_FORM_flag:
        least = 0, most = 1;
        break;
    case ATTR_FORM_integer:
        break;
    }
    TRY(read_integer(p, spec->name, least, most, &value));
    attr_set_integer(field, spec->form, value);
    return SNUG_OK;
}

static enum snug_status read_attrs(struct parser *p, const struct op_info *info,
                                   struct attrs *attrs)
{
    do {
        const struct token *key = take(p);
        const struct attr_spec *spec = NULL;
        void *field = NULL;
        for (int i = 0; i < ATTR_COUNT; i++)
            if ((info->attrs >> i & 1) && is_word(key, attr_specs[i].name)) {
                spec = &attr_specs[i];
                field = (char *)attrs + attr_offset(info->family, i);
            }
        if (spec == NULL)
            return fail(p, "%s has no attribute %s", info->name, show(p, key));
        TRY(expect(p, '=', "after the name of an attribute"));
        TRY(read_attr(p, spec, field));
    } while (accept(p, ','));
    return expect(p, '}', "after the attributes");
}

/* Reads a list of operands, which may be empty. */
static enum snug_status read_operands(struct parser *p, const char *what, int most, int *n,
                                      tensor_id *ids)
{
    *n = 0;
    int kind = peek(p)->kind;
    bool is_work = is_word(peek(p), "work") && p->t.token[p->t.next + 1].kind == '=';
    if (kind == '=' || kind == '{' || kind == END || (is_work && p->t.next > 0))
        return SNUG_OK;
    do {
        if (*n == most)
            return fail(p, "too many %s: no op has more than %d", what, most);
        TRY(read_operand(p, &ids[(*n)++]));
    } while (accept(p, ','));
    return SNUG_OK;
}

static enum snug_status check_count(struct parser *p, const char *op, const char *what, int n,
                                    int least, int most)
{
    if (n >= least && n <= most)
        return SNUG_OK;
    if (least == most)
        return fail(p, "%s has %d %s, not %d; write _ for one that is left out", op, most, what, n);
    return fail(p, "%s has %d to %d %s, not %d; write _ for one that is left out", op, least, most,
                what, n);
}

/* Consumes the next token if it is this word. */
static bool accept_word(struct parser *p, const char *word)
{
    bool is_next = is_word(peek(p), word);
    if (is_next)
        take(p);
    return is_next;
}

/* OUTPUTS = KIND INPUTS {ATTRIBUTES} work=TENSOR micro=NUMBER last no_alias kernel=NUMBER */
static enum snug_status read_op(struct parser *p)
{
    tensor_id in[MAX_INPUTS], out[MAX_OUTPUTS], work = TENSOR_NONE;
    int n_in = 0, n_out, kind = 0;
    int64_t micro = 0, kernel = 0;
    if (is_name(&p->t.token[0]) && p->t.token[1].kind != '=' && p->t.token[1].kind != ',')
        return fail(p,
                    "%s does not begin a statement; statements are program, tensor, body, loss, "
                    "scalars and OUTPUTS = OP INPUTS",
                    show(p, peek(p)));
    TRY(read_operands(p, "outputs", MAX_OUTPUTS, &n_out, out));
    TRY(expect(p, '=', "after the outputs"));
    const struct token *name = take(p);
    while (kind < OP_COUNT && !is_word(name, op_infos[kind].name))
        kind++;
    if (kind == OP_COUNT)
        return fail(p, "unknown op %s; `snug ops` lists them", show(p, name));
    const struct op_info *info = &op_infos[kind];
    if (info->max_in > 0)
        TRY(read_operands(p, "inputs", MAX_INPUTS, &n_in, in));
    TRY(check_count(p, info->name, "inputs", n_in, info->min_in, info->max_in));
    TRY(check_count(p, info->name, "outputs", n_out, info->min_out, info->max_out));
    struct attrs attrs = attrs_default(info->family);
    if (accept(p, '{'))
        TRY(read_attrs(p, info, &attrs));
    if (accept_word(p, "work")) {
        TRY(expect(p, '=', "after work"));
        TRY(read_operand(p, &work));
    }
    if (accept_word(p, "micro")) {
        TRY(expect(p, '=', "after micro"));
        TRY(read_integer(p, "the micro-batch", 0, INT_MAX, &micro));
    }
    bool in_last = accept_word(p, "last"), no_alias = accept_word(p, "no_alias");
    if (accept_word(p, "kernel")) {
        TRY(expect(p, '=', "after kernel"));
        TRY(read_integer(p, "the kernel", 0, INT_MAX, &kernel));
    }
    TRY(expect_end(p));
    TRY(program_add_op(p->prog, (enum op_kind)kind, &attrs, n_in, in, n_out, out, p->t.err));
    p->prog->ops[p->prog->n_ops - 1].work = work;
    p->prog->ops[p->prog->n_ops - 1].micro = (int)micro;
    p->prog->ops[p->prog->n_ops - 1].in_last = in_last;
    p->prog->ops[p->prog->n_ops - 1].no_alias = no_alias;
    p->prog->ops[p->prog->n_ops - 1].kernel = (int)kernel;
    return SNUG_OK;
}

static enum snug_status read_body(struct parser *p)
{
    int64_t end, repeat;
    TRY(read_integer(p, "the end of the body (0: the end of the program)", 0, INT_MAX, &end));
    if (!is_word(take(p), "x"))
        return fail(p, "a body is written as: body END x REPEATS");
    TRY(read_integer(p, "the number of repeats", 1, INT_MAX, &repeat));
    p->prog->body_end = (int)end;
    p->prog->n_repeat = (int)repeat;
    return expect_end(p);
}

static enum snug_status read_special(struct parser *p, tensor_id *id)
{
    TRY(read_operand(p, id));
    return expect_end(p);
}

static enum snug_status mark_once(struct parser *p, bool *saw, const char *what)
{
    if (*saw)
        return fail(p, "%s is given twice", what);
    *saw = true;
    return SNUG_OK;
}

/* Reads the current statement.  A first word before = or , is a tensor, even if it is a keyword. */
static enum snug_status read_one(struct parser *p, bool first_walk)
{
    bool is_op = p->t.token[1].kind == '=' || p->t.token[1].kind == ',';
    const struct token *first = peek(p);
    p->t.next = !is_op;
    if (!is_op && is_word(first, "tensor"))
        return read_tensor(p, first_walk);
    if (!is_op && is_word(first, "program"))
        return fail(p, "program must be the first statement, and only once");
    if (first_walk)
        return SNUG_OK;
    if (!is_op && is_word(first, "body")) {
        TRY(mark_once(p, &p->saw_body, "body"));
        return read_body(p);
    }
    if (!is_op && is_word(first, "loss")) {
        TRY(mark_once(p, &p->saw_loss, "loss"));
        return read_special(p, &p->prog->loss);
    }
    if (!is_op && is_word(first, "scalars")) {
        TRY(mark_once(p, &p->saw_scalars, "scalars"));
        return read_special(p, &p->prog->scalars);
    }
    p->t.next = 0;
    return read_op(p);
}

/* Reads `program NAME` if the text begins with it. */
static enum snug_status read_header(struct parser *p, const char **name, bool *found)
{
    bool more;
    *name = "";
    TRY(tokens_read_statement(&p->t, &more));
    *found = more && is_word(peek(p), "program") && p->t.token[1].kind != '=' &&
             p->t.token[1].kind != ',';
    if (!*found)
        return SNUG_OK;
    take(p);
    const struct token *token = take(p);
    if (token->kind != WORD && token->kind != QUOTED)
        return fail(p, "expected a name after program, found %s", show(p, token));
    *name = token->text;
    return expect_end(p);
}

static enum snug_status read_all(struct parser *p, const char *text)
{
    const char *name;
    bool more, has_header;
    TRY(read_header(p, &name, &has_header));
    TRY(program_init(p->prog, name, p->t.err));
    const char *start = has_header ? p->t.at : text;
    int start_line = has_header ? p->t.line : 1;
    for (int walk = 1; walk <= 2; walk++) {
        p->t.at = start;
        p->t.line = start_line;
        for (;;) {
            TRY(tokens_read_statement(&p->t, &more));
            if (!more)
                break;
            TRY(read_one(p, walk == 1));
        }
    }
    if (p->prog->body_end > p->prog->n_ops)
        return fail(p, "the body, ops 0 to %d, does not fit the program's %d ops",
                    p->prog->body_end, p->prog->n_ops);
    return SNUG_OK;
}

enum snug_status program_parse(const char *text, struct program *prog, struct snug_error *err)
{
    struct parser p = {.prog = prog};
    *prog = (struct program){.loss = TENSOR_NONE, .scalars = TENSOR_NONE};
    enum snug_status status = tokens_open(text, &p.t, err);
    if (status == SNUG_OK)
        status = read_all(&p, text);
    if (status != SNUG_OK)
        program_free(prog);
    tokens_close(&p.t);
    return status;
}
