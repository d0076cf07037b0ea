/*
 * text.c -- growing strings; parsing and printing of sizes and counts.
 */
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct text *text, size_t more)
{
    if (text->failed)
        return false;
    size_t need = text->length + more + 1;
    if (need <= text->capacity)
        return true;
    size_t capacity = text->capacity < 128 ? 128 : text->capacity;
    while (capacity < need)
        capacity *= 2;
    char *grown = realloc(text->data, capacity);
    if (grown == NULL) {
        text->failed = true;
        return false;
    }
    text->data = grown;
    text->capacity = capacity;
    return true;
}

void text_add_bytes(struct text *text, const char *bytes, size_t length)
{
    if (!reserve(text, length))
        return;
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void text_add(struct text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length >= 0 && reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

size_t text_utf8_length(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    static const struct {
        unsigned char first_low, first_high, second_low, second_high;
        size_t length;
    } forms[] = {
        {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
        {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
        {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
    };
    if (s[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (s[0] < forms[i].first_low || s[0] > forms[i].first_high)
            continue;
        if (s[1] < forms[i].second_low || s[1] > forms[i].second_high)
            return 0;
        for (size_t k = 2; k < forms[i].length; k++)
            if ((s[k] & 0xC0) != 0x80)
                return 0;
        return forms[i].length;
    }
    return 0;
}

bool text_is_utf8(const char *s)
{
    while (*s != '\0' && text_utf8_length(s) > 0)
        s += text_utf8_length(s);
    return *s == '\0';
}

bool text_ends_in(const char *text, const char *ending)
{
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

bool text_is_control(const char *s, size_t length, unsigned *code)
{
    const unsigned char *c = (const unsigned char *)s;
    *code = length == 1   ? c[0]
            : length == 2 ? (c[0] & 0x1Fu) << 6 | (c[1] & 0x3Fu)
            : length == 3 ? (c[0] & 0x0Fu) << 12 | (c[1] & 0x3Fu) << 6 | (c[2] & 0x3Fu)
                          : 0x10000;
    bool is_c0_or_c1 = *code < 0x20 || (*code >= 0x7F && *code < 0xA0);
    bool is_separator_or_bidi =
        (*code >= 0x2028 && *code <= 0x202E) || (*code >= 0x2066 && *code <= 0x2069);
    return is_c0_or_c1 || is_separator_or_bidi;
}

char *snug_printable(char *text)
{
    char *from = text, *to = text;
    unsigned code;
    while (*from != '\0') {
        size_t length = text_utf8_length(from);
        if (length == 0 || text_is_control(from, length, &code)) {
            *to++ = '?';
        } else {
            memmove(to, from, length);
            to += length;
        }
        from += length == 0 ? 1 : length;
    }
    *to = '\0';
    return text;
}

/* Writes bash's $'...' form: safe to print on a terminal, and to paste into a shell. */
static void add_escaped_word(struct text *text, const char *word)
{
    text_add(text, "$'");
    for (; *word != '\0'; word++) {
        unsigned char c = (unsigned char)*word;
        bool is_plain = c >= 0x20 && c < 0x7F && c != '\'' && c != '\\';
        text_add(text, is_plain ? "%c" : "\\x%02x", c);
    }
    text_add(text, "'");
}

static bool is_printable(const char *word)
{
    unsigned code;
    for (size_t length; *word != '\0'; word += length) {
        length = text_utf8_length(word);
        if (length == 0 || text_is_control(word, length, &code))
            return false;
    }
    return true;
}

void text_add_word(struct text *text, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_./:=,+-";
    if (*word != '\0' && word[strspn(word, plain)] == '\0') {
        text_add(text, "%s", word);
        return;
    }
    if (!is_printable(word)) {
        add_escaped_word(text, word);
        return;
    }
    text_add(text, "'");
    for (; *word != '\0'; word++)
        if (*word == '\'') /* close the quotes, add an escaped quote, reopen them */
            text_add(text, "'\\''");
        else
            text_add_bytes(text, word, 1);
    text_add(text, "'");
}

void text_add_shown(struct text *text, const char *name)
{
    size_t before = text->length;
    text_add(text, "%s", name);
    if (!text->failed)
        text->length = before + strlen(snug_printable(text->data + before));
}

const char *text_part(struct text *whole, const struct text *part)
{
    whole->failed |= part->failed;
    return part->failed || part->data == NULL ? "" : part->data;
}

char *text_take(struct text *text)
{
    if (!reserve(text, 0)) {
        text_free(text);
        return NULL;
    }
    text->data[text->length] = '\0';
    char *data = text->data;
    *text = (struct text){0};
    return data;
}

void text_free(struct text *text)
{
    free(text->data);
    *text = (struct text){0};
}

bool text_parse_real(const char *text, double *value)
{
    char *end;
    errno = 0;
    if (strspn(text, "+-.0123456789eE") != strlen(text)) /* no blanks, no hex, no "nan" */
        return false;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(parsed))
        return false;
    *value = parsed;
    return true;
}

bool text_parse_count(const char *text, int64_t *count)
{
    double real;
    char *end;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (strspn(text, "+-0123456789") == strlen(text) && end != text && errno == 0) {
        *count = whole;
        return true;
    }
    if (!text_parse_real(text, &real) || real != floor(real) || fabs(real) > 9e18)
        return false;
    *count = (int64_t)real;
    return true;
}

bool text_parse_size(const char *text, int64_t *bytes)
{
    static const char units[] = "KMGT";
    char number[64];
    size_t length = strlen(text);
    double scale = 1;
    if (length == 0 || length >= sizeof number)
        return false;
    memcpy(number, text, length + 1);
    if (length > 1 && (number[length - 1] == 'B' || number[length - 1] == 'b'))
        number[--length] = '\0';
    if (length > 1 && (number[length - 1] == 'i'))
        number[--length] = '\0';
    for (size_t i = 0; i < sizeof units - 1 && length > 0; i++)
        if ((number[length - 1] & ~0x20) == units[i]) {
            scale = ldexp(1.0, 10 * ((int)i + 1));
            number[--length] = '\0';
            break;
        }
    double value;
    if (!text_parse_real(number, &value) || value < 0 || value * scale > 9e18)
        return false;
    *bytes = (int64_t)(value * scale);
    return true;
}

const char *text_size(int64_t bytes, char out[TEXT_SIZE_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (fabs(value) >= 1000 && unit < 6) {
        value /= 1024;
        unit++;
    }
    int decimals = unit == 0 ? 0 : fabs(value) < 10 ? 2 : fabs(value) < 100 ? 1 : 0;
    snprintf(out, TEXT_SIZE_MAX, "%.*f %s", decimals, value, units[unit]);
    return out;
}

const char *text_count(int64_t n, char out[TEXT_SIZE_MAX + 8])
{
    char digits[TEXT_SIZE_MAX];
    uint64_t magnitude = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)magnitude);
    char *to = out;
    if (n < 0)
        *to++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}
