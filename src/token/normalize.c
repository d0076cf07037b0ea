/*
 * normalize.c -- what a tokenizer changes in a text before it looks for words: NFC, or metaspaces.
 */
#include "token/normalize.h"

#include <string.h>

bool add_metaspaces(const struct tokenizer_spec *spec, const char *text, size_t n, bool begins_text,
                    bool begins_segment, struct buffer *out)
{
    bool has_one = n > 0 && (text[0] == ' ' || (n >= 3 && memcmp(text, METASPACE, 3) == 0));
    bool prefix = (spec->prefix == PREFIX_first && begins_text && !has_one) ||
                  (spec->prefix == PREFIX_each && begins_segment && !has_one) ||
                  (spec->prefix == PREFIX_in_any_case && begins_segment);
    if (n > 0 && prefix && !buffer_add(out, METASPACE, 3))
        return false;
    for (size_t at = 0; at < n;) {
        const char *space = memchr(text + at, ' ', n - at);
        size_t end = space == NULL ? n : (size_t)(space - text);
        if (!buffer_add(out, text + at, end - at) ||
            (space != NULL && !buffer_add(out, METASPACE, 3)))
            return false;
        at = end + (space != NULL);
    }
    return true;
}

bool tokenizer_normalizes(const struct tokenizer *t, const char *text, size_t n)
{
    return t->spec.nfc ? !unicode_is_nfc(t->unicode, text, n) : t->spec.metaspace_normalizes;
}

bool tokenizer_normalize(const struct tokenizer *t, const char *text, size_t n, bool begins,
                         struct buffer *out)
{
    if (t->spec.nfc)
        return unicode_nfc(t->unicode, text, n, out);
    return t->spec.metaspace_normalizes ? add_metaspaces(&t->spec, text, n, false, begins, out)
                                        : buffer_add(out, text, n);
}
