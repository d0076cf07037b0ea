/*
 * json_parse.c -- a JSON parser that builds jansson values.
 *
 * jansson's own parser does not check whether its token buffer could grow.  When memory runs out, a
 * key or a number silently loses a character.  This parser accepts the same texts (jansson's rules,
 * no duplicate keys, no NUL in strings) and reports out of memory as an error.
 *
 * It is a recursive descent parser.  The text need not end in NUL: no byte at or after `end` is
 * read.
 */
#include "io/json.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

enum { MAX_DEPTH = 2048, WRONG_MAX = 160 };

struct parser {
    const char *at, *end;
    int line, depth;
    struct text word;      /* the current string or number */
    bool no_memory;        /* parsing failed because memory ran out */
    char wrong[WRONG_MAX]; /* parsing failed because of this syntax error */
};

static json_t *parse_value(struct parser *p);

static json_t *wrong(struct parser *p, const char *what)
{
    if (!p->no_memory && p->wrong[0] == '\0')
        snprintf(p->wrong, sizeof p->wrong, "%s", what);
    return NULL;
}

static json_t *no_memory(struct parser *p)
{
    p->no_memory = true;
    return NULL;
}

/* The next byte, or -1 at the end. */
static int peek(const struct parser *p)
{
    return p->at < p->end ? (unsigned char)*p->at : -1;
}

static int peek_past_blanks(struct parser *p)
{
    for (; p->at < p->end && strchr(" \t\r\n", *p->at) != NULL && *p->at != '\0'; p->at++)
        p->line += *p->at == '\n';
    return peek(p);
}

/* ---- strings --------------------------------------------------------------------------------- */

static void put(struct parser *p, const char *bytes, size_t n)
{
    text_add_bytes(&p->word, bytes, n);
    if (p->word.failed)
        no_memory(p);
}

static void empty_word(struct parser *p)
{
    p->word.length = 0;
    put(p, "", 0); /* allocates the buffer and terminates it with NUL */
}

static void put_code_point(struct parser *p, uint32_t code)
{
    char out[4];
    if (code < 0x80) {
        out[0] = (char)code;
        put(p, out, 1);
    } else if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        put(p, out, 2);
    } else if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        put(p, out, 3);
    } else {
        out[0] = (char)(0xf0 | code >> 18);
        out[1] = (char)(0x80 | (code >> 12 & 0x3f));
        out[2] = (char)(0x80 | (code >> 6 & 0x3f));
        out[3] = (char)(0x80 | (code & 0x3f));
        put(p, out, 4);
    }
}

/* Length in bytes of the code point at `at`, or 0 if it is not valid UTF-8. */
static size_t utf8_bytes(const unsigned char *at, const char *end)
{
    size_t left = (size_t)(end - (const char *)at);
    size_t n = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    if (n == 0 || n > left || at[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool longer_than_needed = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool surrogate = at[0] == 0xed && at[1] > 0x9f, too_large = at[0] == 0xf4 && at[1] > 0x8f;
    return longer_than_needed || surrogate || too_large ? 0 : n;
}

/* The four digits after \u, or -1. */
static int32_t take_hex(struct parser *p)
{
    int32_t code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = peek(p) <= 0 ? NULL : strchr(digits, *p->at);
        if (digit == NULL)
            return -1;
        int value = (int)(digit - digits);
        code = code * 16 + (value < 16 ? value : value - 6);
    }
    return code;
}

static void take_unicode(struct parser *p)
{
    int32_t code = take_hex(p);
    if (code < 0) {
        wrong(p, "invalid escape: \\u needs four hex digits");
        return;
    }
    if (code >= 0xd800 && code <= 0xdbff && p->end - p->at >= 6 && p->at[0] == '\\' &&
        p->at[1] == 'u') {
        p->at += 2;
        int32_t low = take_hex(p);
        code =
            low < 0xdc00 || low > 0xdfff ? -1 : ((code - 0xd800) << 10) + (low - 0xdc00) + 0x10000;
    }
    if (code < 0 || (code >= 0xd800 && code <= 0xdfff))
        wrong(p, "invalid Unicode escape: unpaired surrogate");
    else if (code == 0)
        wrong(p, "\\u0000 is not allowed");
    else
        put_code_point(p, (uint32_t)code);
}

static void take_escape(struct parser *p)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    p->at++;
    if (peek(p) == 'u') {
        p->at++;
        take_unicode(p);
        return;
    }
    const char *letter = peek(p) <= 0 ? NULL : strchr(letters, *p->at);
    if (letter == NULL) {
        wrong(p, "invalid escape");
        return;
    }
    put(p, &meanings[letter - letters], 1);
    p->at++;
}

/* Parses a string into p->word. */
static bool take_string(struct parser *p)
{
    empty_word(p);
    p->at++;
    while (!p->no_memory && p->wrong[0] == '\0') {
        int next = peek(p);
        if (next == '"') {
            p->at++;
            return true;
        }
        size_t n = next < 0 ? 0 : utf8_bytes((const unsigned char *)p->at, p->end);
        if (next < 0)
            wrong(p, "unexpected end of input");
        else if (next < 0x20)
            wrong(p, next == '\n' ? "newline in a string" : "control character in a string");
        else if (next == '\\')
            take_escape(p);
        else if (n == 0)
            wrong(p, "string is not UTF-8");
        else {
            put(p, p->at, n);
            p->at += n;
        }
    }
    return false;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool take_digits(struct parser *p)
{
    const char *from = p->at;
    while (peek(p) >= '0' && peek(p) <= '9')
        p->at++;
    return p->at > from;
}

/* Advances past a number.  Returns false if the text is not a number. */
static bool skip_number(struct parser *p, bool *is_real)
{
    *is_real = false;
    if (peek(p) == '-')
        p->at++;
    if (peek(p) == '0')
        p->at++;
    else if (!take_digits(p))
        return false;
    if (peek(p) == '.') {
        *is_real = true;
        p->at++;
        if (!take_digits(p))
            return false;
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        *is_real = true;
        p->at++;
        if (peek(p) == '+' || peek(p) == '-')
            p->at++;
        if (!take_digits(p))
            return false;
    }
    return true;
}

static json_t *parse_number(struct parser *p)
{
    const char *from = p->at;
    bool is_real;
    if (!skip_number(p, &is_real))
        return wrong(p, "invalid number");
    empty_word(p);
    put(p, from, (size_t)(p->at - from));
    if (p->no_memory)
        return NULL;
    json_t *number;
    errno = 0;
    if (is_real) {
        char *point = strchr(p->word.data, '.');
        if (point != NULL)
            *point = *localeconv()->decimal_point;
        double value = strtod(p->word.data, NULL);
        if (!isfinite(value))
            return wrong(p, "number is out of range");
        number = json_real(value);
    } else {
        long long value = strtoll(p->word.data, NULL, 10);
        if (errno == ERANGE)
            return wrong(p, "integer is out of range");
        number = json_integer(value);
    }
    return number != NULL ? number : no_memory(p);
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool take_word(struct parser *p, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* Parses a member.  Returns false on a syntax error or when memory runs out. */
static bool parse_member(struct parser *p, json_t *object)
{
    if (peek_past_blanks(p) != '"')
        return wrong(p, "string or '}' expected") != NULL;
    if (!take_string(p))
        return false;
    if (json_object_get(object, p->word.data) != NULL) {
        char what[WRONG_MAX];
        snprintf(what, sizeof what, "duplicate key \"%.100s\"", p->word.data);
        return wrong(p, what) != NULL;
    }
    char *key = text_take(&p->word); /* parsing the value reuses p->word */
    if (key == NULL)
        return no_memory(p) != NULL;
    json_t *value = NULL;
    if (peek_past_blanks(p) != ':') {
        wrong(p, "':' expected");
    } else {
        p->at++;
        value = parse_value(p);
        if (value != NULL && json_object_set_new_nocheck(object, key, value) != 0)
            value = no_memory(p);
    }
    free(key);
    return value != NULL;
}

static bool parse_element(struct parser *p, json_t *array)
{
    json_t *value = parse_value(p);
    if (value != NULL && json_array_append_new(array, value) != 0)
        value = no_memory(p);
    return value != NULL;
}

/* Parses members or elements up to the closing bracket. */
static json_t *parse_inside(struct parser *p, json_t *whole, int close,
                            bool (*parse_one)(struct parser *, json_t *))
{
    if (whole == NULL)
        return no_memory(p);
    p->at++;
    bool ok = ++p->depth <= MAX_DEPTH;
    if (!ok)
        wrong(p, "nested too deeply");
    bool is_empty = peek_past_blanks(p) == close;
    while (ok && !is_empty) {
        ok = parse_one(p, whole);
        if (!ok || peek_past_blanks(p) != ',')
            break;
        p->at++;
    }
    if (ok && peek(p) != close) {
        char expected[] = "'_' expected";
        expected[1] = (char)close;
        ok = wrong(p, expected) != NULL;
    }
    if (!ok) {
        json_decref(whole);
        return NULL;
    }
    p->at++;
    p->depth--;
    return whole;
}

static json_t *parse_value(struct parser *p)
{
    int next = peek_past_blanks(p);
    if (next == '{')
        return parse_inside(p, json_object(), '}', parse_member);
    if (next == '[')
        return parse_inside(p, json_array(), ']', parse_element);
    if (next == '"') {
        if (!take_string(p))
            return NULL;
        json_t *string = json_stringn_nocheck(p->word.data, p->word.length);
        return string != NULL ? string : no_memory(p);
    }
    if (next == '-' || (next >= '0' && next <= '9'))
        return parse_number(p);
    if (take_word(p, "true"))
        return json_true();
    if (take_word(p, "false"))
        return json_false();
    if (take_word(p, "null"))
        return json_null();
    return wrong(p, next < 0 ? "unexpected end of input" : "value expected");
}

enum snug_status json_parse(const char *text, size_t n_bytes, const char *where, json_t **value,
                            struct snug_error *err)
{
    struct parser p = {.at = text, .end = text + n_bytes, .line = 1};
    int first = peek_past_blanks(&p);
    *value = first == '{' || first == '[' ? parse_value(&p) : wrong(&p, "'[' or '{' expected");
    if (*value != NULL && peek_past_blanks(&p) >= 0) {
        json_decref(*value);
        *value = wrong(&p, "end of file expected");
    }
    text_free(&p.word);
    if (*value != NULL)
        return SNUG_OK;
    if (p.no_memory)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory parsing JSON", where);
    return snug_fail(err, SNUG_BAD_FILE, "%s: not valid JSON: line %d: %s", where, p.line, p.wrong);
}
