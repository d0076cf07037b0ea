/*
 * unicode.c -- UTF-8, classes of characters, and normalization form C.
 *
 * NFC in three steps: replace every character by its decomposition, sort the marks after each base
 * character by their combining class, and compose what can be composed again.  Few texts need it:
 * unicode_is_nfc finds those that do not.
 */
#include "token/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Hangul syllables are composed by arithmetic. */
enum {
    HANGUL = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    N_L = 19,
    N_V = 21,
    N_T = 28
};

int unicode_decode(const char *text, size_t n, uint32_t *code)
{
    const unsigned char *s = (const unsigned char *)text;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    int length = s[0] < 0x80 ? 1 : s[0] < 0xC0 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    *code = UNICODE_INVALID;
    if (length == 1)
        *code = s[0];
    if (length < 2 || s[0] >= 0xF8 || (size_t)length > n)
        return 1;
    uint32_t value = s[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 1;
        value = value << 6 | (s[i] & 0x3F);
    }
    if (value < least[length] || value >= UNICODE_INVALID || (value >= 0xD800 && value < 0xE000))
        return 1;
    *code = value;
    return length;
}

int unicode_encode(uint32_t code, char *to)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    int length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3F));
    to[0] = (char)((0xF00 >> length & 0xFF) | code);
    return length;
}

/* ---- tables --------------------------------------------------------------------------------- */

/* Combining class. */
static unsigned combining_of(uint32_t code)
{
    int low = 0, high = unicode_combining_table_length;
    while (low < high) { /* the first range that begins after `code` */
        int middle = (low + high) / 2;
        if (unicode_combining_table[middle] >> 8 <= code)
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? 0 : unicode_combining_table[low - 1] & 0xFF;
}

/* The entry of a character, or NULL. */
static const uint32_t *decomposition_of(uint32_t code)
{
    int low = 0, high = unicode_decomposition_table_length / 3;
    while (low < high) {
        int middle = (low + high) / 2;
        if (unicode_decomposition_table[3 * middle] < code)
            low = middle + 1;
        else
            high = middle;
    }
    const uint32_t *entry = unicode_decomposition_table + (ptrdiff_t)3 * low;
    return 3 * low < unicode_decomposition_table_length && entry[0] == code ? entry : NULL;
}

/* What two characters compose to, or 0. */
static uint32_t composed(uint32_t first, uint32_t second)
{
    if (first >= HANGUL_L && first < HANGUL_L + N_L && second >= HANGUL_V &&
        second < HANGUL_V + N_V)
        return HANGUL + ((first - HANGUL_L) * N_V + (second - HANGUL_V)) * N_T;
    if (first >= HANGUL && first < HANGUL + N_L * N_V * N_T && (first - HANGUL) % N_T == 0 &&
        second > HANGUL_T && second < HANGUL_T + N_T)
        return first + (second - HANGUL_T);
    int low = 0, high = unicode_composition_table_length / 3;
    while (low < high) {
        int middle = (low + high) / 2;
        const uint32_t *entry = unicode_composition_table + (ptrdiff_t)3 * middle;
        if (entry[0] < first || (entry[0] == first && entry[1] < second))
            low = middle + 1;
        else
            high = middle;
    }
    const uint32_t *entry = unicode_composition_table + (ptrdiff_t)3 * low;
    bool found =
        3 * low < unicode_composition_table_length && entry[0] == first && entry[1] == second;
    return found ? entry[2] : 0;
}

static void mark_range(struct unicode *u, uint32_t first, uint32_t end)
{
    for (uint32_t c = first; c < end; c++)
        u->of[c] |= UNICODE_UNSTABLE;
}

/* Marks, characters that a decomposition changes for good, and those that may compose with the one
 * before. */
static void mark_unstable(struct unicode *u)
{
    for (int i = 0; i + 1 < unicode_combining_table_length; i++)
        if ((unicode_combining_table[i] & 0xFF) != 0)
            mark_range(u, unicode_combining_table[i] >> 8, unicode_combining_table[i + 1] >> 8);
    for (int i = 0; i < unicode_decomposition_table_length; i += 3) {
        const uint32_t *entry = unicode_decomposition_table + i;
        if (entry[2] == 0 || composed(entry[1], entry[2]) != entry[0])
            u->of[entry[0]] |= UNICODE_UNSTABLE;
    }
    for (int i = 0; i < unicode_composition_table_length; i += 3)
        u->of[unicode_composition_table[i + 1]] |= UNICODE_UNSTABLE;
    mark_range(u, HANGUL_V, HANGUL_V + N_V);
    mark_range(u, HANGUL_T + 1, HANGUL_T + N_T);
}

struct unicode *unicode_new(void)
{
    struct unicode *u = calloc(1, sizeof *u);
    if (u == NULL)
        return NULL;
    for (int i = 0; i < unicode_class_table_length; i++) {
        uint32_t begin = unicode_class_table[i] >> 4, end = UNICODE_INVALID;
        if (i + 1 < unicode_class_table_length)
            end = unicode_class_table[i + 1] >> 4;
        memset(u->of + begin, (int)(unicode_class_table[i] & 15), end - begin);
    }
    mark_unstable(u);
    return u;
}

/* ---- NFC ------------------------------------------------------------------------------------ */

bool unicode_is_nfc(const struct unicode *u, const char *text, size_t n)
{
    unsigned is;
    for (size_t at = 0; at < n;) {
        at += (size_t)unicode_at(u, text + at, n - at, &is);
        if (is & UNICODE_UNSTABLE)
            return false;
    }
    return true;
}

struct mark {
    uint32_t code; /* UNICODE_INVALID + byte for a byte that is not UTF-8 */
    unsigned combining;
};

struct marks {
    struct mark *data;
    size_t n, capacity;
};

static bool add_mark(struct marks *marks, uint32_t code)
{
    if (marks->n == marks->capacity) {
        size_t larger = 2 * marks->capacity + 64;
        struct mark *grown = realloc(marks->data, larger * sizeof *grown);
        if (grown == NULL)
            return false;
        marks->data = grown;
        marks->capacity = larger;
    }
    marks->data[marks->n++] = (struct mark){code, combining_of(code)};
    return true;
}

static bool decompose(struct marks *marks, uint32_t code)
{
    if (code >= HANGUL && code < HANGUL + N_L * N_V * N_T) {
        uint32_t at = code - HANGUL, last = at % N_T;
        return add_mark(marks, HANGUL_L + at / (N_V * N_T)) &&
               add_mark(marks, HANGUL_V + at % (N_V * N_T) / N_T) &&
               (last == 0 || add_mark(marks, HANGUL_T + last));
    }
    const uint32_t *entry = decomposition_of(code);
    if (entry == NULL)
        return add_mark(marks, code);
    return decompose(marks, entry[1]) && (entry[2] == 0 || decompose(marks, entry[2]));
}

/* Sorts n marks of class > 0 by class; equal ones stay in order.  `spare` has room for n. */
static void sort_marks(struct mark *marks, size_t n, struct mark *spare)
{
    size_t begin[257] = {0};
    for (size_t i = 0; i < n; i++)
        begin[marks[i].combining + 1]++;
    for (int k = 0; k < 256; k++)
        begin[k + 1] += begin[k];
    for (size_t i = 0; i < n; i++)
        spare[begin[marks[i].combining]++] = marks[i];
    memcpy(marks, spare, n * sizeof *marks);
}

static bool sort_all(struct marks *marks)
{
    struct mark *spare = NULL;
    size_t n_spare = 0;
    for (size_t i = 0, end; i < marks->n; i = end) {
        for (end = i; end < marks->n && marks->data[end].combining > 0; end++)
            continue;
        if (end - i > n_spare) {
            free(spare);
            n_spare = 2 * (end - i);
            spare = malloc(n_spare * sizeof *spare);
            if (spare == NULL)
                return false;
        }
        if (end - i > 1)
            sort_marks(marks->data + i, end - i, spare);
        end = end == i ? i + 1 : end;
    }
    free(spare);
    return true;
}

/* Composes in place. */
static void compose(struct marks *marks)
{
    size_t n = 0, base = SIZE_MAX; /* index of the last character of class 0 */
    unsigned before = 0;           /* class of the last mark that stayed after it */
    for (size_t i = 0; i < marks->n; i++) {
        struct mark mark = marks->data[i];
        bool is_reachable = base != SIZE_MAX && (n == base + 1 || before < mark.combining);
        uint32_t code = is_reachable ? composed(marks->data[base].code, mark.code) : 0;
        if (code != 0) {
            marks->data[base].code = code;
            continue;
        }
        if (mark.combining == 0)
            base = n;
        before = mark.combining;
        marks->data[n++] = mark;
    }
    marks->n = n;
}

/* Appends NFC of the text, whatever characters it has. */
static bool normalize(struct marks *marks, const char *text, size_t n, struct buffer *out)
{
    marks->n = 0;
    for (size_t at = 0; at < n;) {
        uint32_t code;
        int length = unicode_decode(text + at, n - at, &code);
        bool done = code == UNICODE_INVALID
                        ? add_mark(marks, UNICODE_INVALID + (unsigned char)text[at])
                        : decompose(marks, code);
        if (!done)
            return false;
        at += (size_t)length;
    }
    if (!sort_all(marks) || !buffer_reserve(out, 4 * marks->n))
        return false;
    compose(marks);
    for (size_t i = 0; i < marks->n; i++) {
        uint32_t code = marks->data[i].code;
        if (code >= UNICODE_INVALID)
            out->data[out->n++] = (char)(code - UNICODE_INVALID);
        else
            out->n += (size_t)unicode_encode(code, out->data + out->n);
    }
    return true;
}

/* Only runs of unstable characters need it, each with the character before it: a stable one neither
 * composes with what is before it nor moves. */
bool unicode_nfc(const struct unicode *u, const char *text, size_t n, struct buffer *out)
{
    struct marks marks = {0};
    size_t copied = 0, before = 0; /* where the last stable character begins */
    bool done = true;
    for (size_t at = 0; at < n && done;) {
        unsigned is;
        size_t length = (size_t)unicode_at(u, text + at, n - at, &is);
        if ((is & UNICODE_UNSTABLE) == 0) {
            before = at;
            at += length;
            continue;
        }
        size_t end = at;
        for (; end < n; end += length) {
            length = (size_t)unicode_at(u, text + end, n - end, &is);
            if ((is & UNICODE_UNSTABLE) == 0)
                break;
        }
        done = buffer_add(out, text + copied, before - copied) &&
               normalize(&marks, text + before, end - before, out);
        copied = before = at = end;
    }
    done = done && buffer_add(out, text + copied, n - copied);
    free(marks.data);
    return done;
}
