/*
 * json_parse.c -- text to jansson's values.
 *
 * jansson has a parser of its own, but it does not look whether the buffer that it collects a word in
 * could grow: where memory runs out a key or a number loses a letter, and the value comes back as
 * if nothing had happened.  This one takes the same texts (jansson's rules, keys that occur twice
 * refused, no NUL in strings) and fails for lack of memory by saying so.
 *
 * Recursion over a text that ends in NUL or anywhere else: no byte at or after `end` is read.
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
    struct text word;      /* of the string or the number that is read */
    bool no_memory;        /* why it failed, or */
    char wrong[WRONG_MAX]; /* this */
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

/* ---- strings ----------------------------------------------------------------------------------- */

static void put(struct parser *p, const char *bytes, size_t n)
{
    text_add_bytes(&p->word, bytes, n);
    if (p->word.failed)
        no_memory(p);
}

static void empty_word(struct parser *p)
{
    p->word.length = 0;
    put(p, "", 0); /* now there is room, and a NUL */
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

/* How many bytes the code point at `at` has; 0: it is not UTF-8. */
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
        wrong(p, "invalid escape");
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
        wrong(p, "invalid Unicode escape");
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

/* The word between the quotes, into p->word. */
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
            wrong(p, "premature end of input");
        else if (next < 0x20)
            wrong(p, next == '\n' ? "unexpected newline" : "control character in a string");
        else if (next == '\\')
            take_escape(p);
        else if (n == 0)
            wrong(p, "not UTF-8");
        else {
            put(p, p->at, n);
            p->at += n;
        }
    }
    return false;
}

/* ---- numbers ----------------------------------------------------------------------------------- */

static bool take_digits(struct parser *p)
{
    const char *from = p->at;
    while (peek(p) >= '0' && peek(p) <= '9')
        p->at++;
    return p->at > from;
}

/* Moves behind it; false if it is not one. */
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
        return wrong(p, "invalid token");
    empty_word(p);
    put(p, from, (size_t)(p->at - from));
    if (p->no_memory)
        return NULL;
    json_t *made;
    errno = 0;
    if (is_real) {
        char *point = strchr(p->word.data, '.');
        if (point != NULL)
            *point = *localeconv()->decimal_point;
        double value = strtod(p->word.data, NULL);
        if (!isfinite(value))
            return wrong(p, "real number overflow");
        made = json_real(value);
    } else {
        long long value = strtoll(p->word.data, NULL, 10);
        if (errno == ERANGE)
            return wrong(p, "too big integer");
        made = json_integer(value);
    }
    return made != NULL ? made : no_memory(p);
}

/* ---- values ------------------------------------------------------------------------------------ */

static bool take_word(struct parser *p, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* A member; false: it is wrong. */
static bool parse_member(struct parser *p, json_t *object)
{
    if (peek_past_blanks(p) != '"')
        return wrong(p, "string or '}' expected") != NULL;
    if (!take_string(p))
        return false;
    if (json_object_get(object, p->word.data) != NULL) {
        char what[WRONG_MAX];
        snprintf(what, sizeof what, "duplicate object key \"%.100s\"", p->word.data);
        return wrong(p, what) != NULL;
    }
    char *key = text_take(&p->word); /* the value has words of its own */
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

/* Members or elements up to the bracket. */
static json_t *parse_inside(struct parser *p, json_t *whole, int close,
                            bool (*parse_one)(struct parser *, json_t *))
{
    if (whole == NULL)
        return no_memory(p);
    p->at++;
    bool ok = ++p->depth <= MAX_DEPTH;
    if (!ok)
        wrong(p, "maximum parsing depth reached");
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
        json_t *made = json_stringn_nocheck(p->word.data, p->word.length);
        return made != NULL ? made : no_memory(p);
    }
    if (next == '-' || (next >= '0' && next <= '9'))
        return parse_number(p);
    if (take_word(p, "true"))
        return json_true();
    if (take_word(p, "false"))
        return json_false();
    if (take_word(p, "null"))
        return json_null();
    return wrong(p, next < 0 ? "premature end of input" : "invalid token");
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
        return snug_fail(err, SNUG_NO_MEMORY, "%s: no memory to read its JSON", where);
    return snug_fail(err, SNUG_BAD_FILE, "%s: not valid JSON: line %d: %s", where, p.line, p.wrong);
}
