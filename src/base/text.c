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

void text_add_word(struct text *text, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_./:=,+-";
    if (*word != '\0' && word[strspn(word, plain)] == '\0') {
        text_add(text, "%s", word);
        return;
    }
    text_add(text, "'");
    for (; *word != '\0'; word++)
        if (*word == '\'') /* it ends the quotes, stands alone, and they begin again */
            text_add(text, "'\\''");
        else
            text_add_bytes(text, word, 1);
    text_add(text, "'");
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
