/*
 * tokenizer.c -- put a tokenizer together, and decode.
 *
 * Files of byte-level tokenizers write each byte as a printable character: those of Latin-1 that
 * are printable stand for themselves, the other 68 bytes for U+0100 and up, in order.
 */
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token/normalize.h"

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory for a tokenizer");
}

/* ---- the alphabet of byte-level files ------------------------------------------------------- */

static bool is_printable(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The byte that a character stands for, or -1. */
static int byte_of_char(uint32_t code)
{
    if (code < 256)
        return is_printable((int)code) ? (int)code : -1;
    for (int byte = 0, n = 256; byte < 256; byte++)
        if (!is_printable(byte) && (uint32_t)n++ == code)
            return byte;
    return -1;
}

/* Converts a text of the file to bytes.  false if it is not in the alphabet: then it stands for
 * itself, and no word equals it. */
static bool bytes_of(const struct tokenizer *t, const char *text, size_t n, char *to, size_t *n_to)
{
    if (!t->spec.byte_level) {
        memcpy(to, text, n);
        *n_to = n;
        return true;
    }
    *n_to = 0;
    for (size_t at = 0; at < n;) {
        uint32_t code;
        at += (size_t)unicode_decode(text + at, n - at, &code);
        int byte = byte_of_char(code);
        if (byte < 0) {
            memcpy(to, text, n);
            *n_to = n;
            return false;
        }
        to[(*n_to)++] = (char)byte;
    }
    return true;
}

/* ---- putting together ----------------------------------------------------------------------- */

enum snug_status tokenizer_new(const struct tokenizer_spec *spec, struct tokenizer **tokenizer,
                               struct snug_error *err)
{
    struct tokenizer *t = calloc(1, sizeof *t);
    *tokenizer = NULL;
    if (t == NULL)
        return no_memory(err);
    t->spec = *spec;
    t->begin_of_text = NO_TOKEN;
    t->unicode = unicode_new();
    t->bpe = (struct bpe){.vocabulary = &t->vocabulary,
                          .by_bytes = spec->byte_level,
                          .byte_fallback = spec->byte_fallback,
                          .fuse_unknown = spec->fuse_unknown,
                          .ignore_merges = spec->ignore_merges,
                          .unknown = NO_TOKEN};
    for (int i = 0; i < 256; i++)
        t->bpe.byte_ids[i] = NO_TOKEN;
    if (t->unicode == NULL) {
        tokenizer_free(t);
        return no_memory(err);
    }
    *tokenizer = t;
    return SNUG_OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (t == NULL)
        return;
    free(t->unicode);
    vocabulary_free(&t->vocabulary);
    bpe_free(&t->bpe);
    added_tokens_free(&t->added);
    added_tokens_free(&t->added_normalized);
    free(t->is_special);
    free(t->byte_of);
    free(t);
}

int32_t tokenizer_size(const struct tokenizer *t)
{
    return t->vocabulary.n_ids;
}

/* The added token with this content, or NULL. */
static const struct added_token *find_added(const struct tokenizer *t, const char *content)
{
    const struct added_tokens *lists[] = {&t->added, &t->added_normalized};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < lists[i]->n; k++)
            if (strcmp(lists[i]->data[k].content, content) == 0)
                return &lists[i]->data[k];
    return NULL;
}

static int32_t find_end_of_text(const struct tokenizer *t)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct added_token *token = find_added(t, names[i]);
        if (token != NULL && token->special)
            return token->id;
    }
    return NO_TOKEN;
}

enum snug_status tokenizer_set_begin(struct tokenizer *t, const char *where, const char *content,
                                     struct snug_error *err)
{
    const struct added_token *token = find_added(t, content);
    t->begin_of_text = token == NULL ? NO_TOKEN : token->id;
    if (token == NULL)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: \"%s\", which the post_processor puts before a text, is not an added "
                         "token",
                         where, content);
    return SNUG_OK;
}

static void identify(struct tokenizer *t, const void *bytes, size_t n)
{
    t->identity = (t->identity ^ token_hash(bytes, n)) * 0x9E3779B97F4A7C15u;
    t->identity ^= t->identity >> 31;
}

enum { ID_MOST = 1 << 28 };

enum snug_status tokenizer_add_piece(struct tokenizer *t, const char *where, int64_t id,
                                     const char *text, size_t n, struct snug_error *err)
{
    size_t n_bytes, n_before;
    if (id < 0 || id >= ID_MOST)
        return snug_fail(err, SNUG_BAD_FILE, "%s: id %lld of a piece is not in 0..%d", where,
                         (long long)id, ID_MOST - 1);
    if (vocabulary_piece(&t->vocabulary, (int32_t)id, &n_before) != NULL)
        return snug_fail(err, SNUG_BAD_FILE, "%s: two pieces have the id %lld", where,
                         (long long)id);
    char *bytes = malloc(n + 1);
    if (bytes == NULL)
        return no_memory(err);
    bool is_word = bytes_of(t, text, n, bytes, &n_bytes);
    bool added = vocabulary_add(&t->vocabulary, (int32_t)id, bytes, n_bytes, !is_word);
    if (added && is_word && t->spec.byte_level && n_bytes == 1)
        t->bpe.byte_ids[(unsigned char)bytes[0]] = (int32_t)id;
    free(bytes);
    identify(t, &id, sizeof id);
    identify(t, text, n);
    return added ? SNUG_OK : no_memory(err);
}

/* The id of a text of the file, or NO_TOKEN.  A text that is not in the alphabet is no word, though
 * its bytes may be those of one: "  " is not the piece of two spaces, U+0120 U+0120. */
static int32_t find(const struct tokenizer *t, const char *text, size_t n, char *spare)
{
    size_t n_bytes;
    bool is_word = bytes_of(t, text, n, spare, &n_bytes);
    return is_word ? vocabulary_find(&t->vocabulary, spare, n_bytes) : NO_TOKEN;
}

enum snug_status tokenizer_set_unknown(struct tokenizer *t, const char *where, const char *text,
                                       struct snug_error *err)
{
    char *spare = malloc(strlen(text) + 1);
    if (spare == NULL)
        return no_memory(err);
    t->bpe.unknown = find(t, text, strlen(text), spare);
    free(spare);
    identify(t, text, strlen(text));
    if (t->bpe.unknown == NO_TOKEN)
        return snug_fail(err, SNUG_BAD_FILE, "%s: unk_token \"%s\" is not in the vocabulary", where,
                         text);
    return SNUG_OK;
}

enum snug_status tokenizer_add_merge(struct tokenizer *t, const char *where, const char *left,
                                     size_t n_left, const char *right, size_t n_right,
                                     struct snug_error *err)
{
    char *both = malloc(n_left + n_right + 1), *spare = malloc(n_left + n_right + 1);
    int32_t ids[3] = {NO_TOKEN, NO_TOKEN, NO_TOKEN};
    enum snug_status status = SNUG_OK;
    if (both == NULL || spare == NULL) {
        status = no_memory(err);
    } else {
        memcpy(both, left, n_left);
        memcpy(both + n_left, right, n_right);
        both[n_left + n_right] = '\0';
        ids[0] = find(t, both, n_left, spare);
        ids[1] = find(t, right, n_right, spare);
        ids[2] = find(t, both, n_left + n_right, spare);
    }
    if (status == SNUG_OK && (ids[0] == NO_TOKEN || ids[1] == NO_TOKEN || ids[2] == NO_TOKEN))
        status = snug_fail(err, SNUG_BAD_FILE,
                           "%s: merge %zu makes \"%s\" of two pieces, and not all three are in the "
                           "vocabulary",
                           where, t->bpe.n_merges + 1, both);
    else if (status == SNUG_OK && !bpe_add_merge(&t->bpe, ids[0], ids[1], ids[2]))
        status = no_memory(err);
    free(both);
    free(spare);
    identify(t, ids, sizeof ids);
    return status;
}

/* Is this the text of the piece, as the file writes it? */
static bool is_text_of(const struct tokenizer *t, int32_t id, const char *text, size_t n,
                       char *spare)
{
    size_t n_piece, n_bytes;
    const char *piece = vocabulary_piece(&t->vocabulary, id, &n_piece);
    bool is_word = bytes_of(t, text, n, spare, &n_bytes);
    return is_word != t->vocabulary.pieces[id].is_hidden && n_piece == n_bytes &&
           memcmp(piece, spare, n_bytes) == 0;
}

enum snug_status tokenizer_add_token(struct tokenizer *t, const char *where,
                                     const struct added_token *token, struct snug_error *err)
{
    size_t n_before;
    if (token->n == 0)
        return SNUG_OK; /* finds nothing */
    char *spare = malloc(token->n + 1);
    if (spare == NULL)
        return no_memory(err);
    int32_t id = find(t, token->content, token->n, spare);
    bool is_piece = vocabulary_piece(&t->vocabulary, token->id, &n_before) != NULL;
    bool is_next = !is_piece && token->id == t->vocabulary.n_ids; /* tokenizers leaves no gaps */
    bool is_it = is_piece && !t->vocabulary.pieces[token->id].is_added &&
                 is_text_of(t, token->id, token->content, token->n, spare);
    free(spare);
    if (!(is_next || is_it) || (id != NO_TOKEN && id != token->id))
        return snug_fail(
            err, SNUG_BAD_FILE,
            "%s: the added token \"%s\" cannot have the id %lld: another token has its "
            "id or its text, or ids before it are missing",
            where, token->content, (long long)token->id);
    if (is_next && !vocabulary_add(&t->vocabulary, token->id, token->content, token->n, true))
        return no_memory(err);
    t->vocabulary.pieces[token->id].is_added = true;
    bool is_normalized = token->normalized && (t->spec.nfc || t->spec.metaspace_normalizes);
    int flags[] = {token->single_word, token->lstrip,  token->rstrip,
                   is_normalized,      token->special, token->id};
    identify(t, flags, sizeof flags);
    identify(t, token->content, token->n);
    struct added_tokens *list = token->normalized ? &t->added_normalized : &t->added;
    return added_tokens_add(list, token) ? SNUG_OK : no_memory(err);
}

/* <0x00> to <0xFF>, the pieces of bytes that no piece has as characters. */
static bool is_byte_piece(const char *piece, size_t n, int *byte)
{
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>')
        return false;
    const char *high = memchr(digits, piece[3], 16), *low = memchr(digits, piece[4], 16);
    if (high == NULL || low == NULL)
        return false;
    *byte = (int)((high - digits) << 4 | (low - digits));
    return true;
}

static void find_byte_pieces(struct tokenizer *t)
{
    for (int32_t id = 0; id < t->vocabulary.n_ids; id++) {
        size_t n;
        int byte;
        const char *piece = vocabulary_piece(&t->vocabulary, id, &n);
        t->byte_of[id] = -1;
        if (t->spec.byte_level || piece == NULL || !is_byte_piece(piece, n, &byte))
            continue;
        t->byte_of[id] = (int16_t)byte;
        t->bpe.byte_ids[byte] = id;
    }
}

/* Does every character get an id?  If not, those beside it become neighbors. */
static bool keeps_all_characters(const struct tokenizer *t)
{
    bool has_all_bytes = t->spec.byte_fallback;
    for (int i = 0; i < 256; i++)
        has_all_bytes = has_all_bytes && t->bpe.byte_ids[i] != NO_TOKEN;
    return has_all_bytes || t->bpe.unknown != NO_TOKEN;
}

/* Does a merge make a piece with a metaspace after another character?  If not, runs of metaspaces
 * begin words, even without a pre-tokenizer. */
static bool merges_across_spaces(const struct tokenizer *t)
{
    for (size_t i = 0; i < t->bpe.table_size; i++) {
        const struct bpe_merge *merge = &t->bpe.table[i];
        size_t n;
        const char *piece =
            merge->left == NO_TOKEN ? NULL : vocabulary_piece(&t->vocabulary, merge->joined, &n);
        size_t at = 0;
        while (piece != NULL && at + 3 <= n && memcmp(piece + at, METASPACE, 3) == 0)
            at += 3;
        for (; piece != NULL && at + 3 <= n; at++)
            if (memcmp(piece + at, METASPACE, 3) == 0)
                return true;
    }
    return false;
}

/* Is a letter the first or the last character of an added token, or does one care what is beside
 * it? */
static bool forbids_cuts(const struct added_tokens *tokens)
{
    for (int i = 0; i < tokens->n; i++) {
        const struct added_token *token = &tokens->data[i];
        if (token->lstrip || token->rstrip || token->single_word ||
            is_ascii_letter(token->content[token->n - 1]) || is_ascii_letter(token->content[0]) ||
            memchr(token->content, '\n', token->n) != NULL ||
            memchr(token->content, ' ', token->n) != NULL)
            return true;
    }
    return false;
}

/* Added tokens that are searched in normalized text are normalized themselves. */
static bool normalize_added(struct tokenizer *t)
{
    for (int i = 0; i < t->added_normalized.n; i++) {
        struct added_token *token = &t->added_normalized.data[i];
        struct buffer text = {0};
        bool done = tokenizer_normalize(t, token->content, token->n, true, &text);
        size_t n = text.n;
        if (!done || !buffer_add(&text, "", 1)) {
            free(text.data);
            return false;
        }
        free(token->content);
        token->content = text.data;
        token->n = n;
    }
    return true;
}

enum snug_status tokenizer_finish(struct tokenizer *t, struct snug_error *err)
{
    t->end_of_text = find_end_of_text(t);
    if (!normalize_added(t))
        return no_memory(err);
    size_t n = (size_t)t->vocabulary.n_ids + 1;
    t->is_special = calloc(n, sizeof *t->is_special);
    t->byte_of = calloc(n, sizeof *t->byte_of);
    if (t->is_special == NULL || t->byte_of == NULL || !added_tokens_finish(&t->added) ||
        !added_tokens_finish(&t->added_normalized))
        return no_memory(err);
    for (int i = 0; i < t->added.n; i++)
        t->is_special[t->added.data[i].id] |= t->added.data[i].special;
    for (int i = 0; i < t->added_normalized.n; i++)
        t->is_special[t->added_normalized.data[i].id] |= t->added_normalized.data[i].special;
    find_byte_pieces(t);
    t->bpe.byte_of = t->byte_of;
    if (!bpe_count_symbols(&t->bpe))
        return no_memory(err);
    if (t->spec.metaspace && t->spec.split == SPLIT_none &&
        vocabulary_find(&t->vocabulary, METASPACE, 3) != NO_TOKEN && !t->spec.ignore_merges &&
        keeps_all_characters(t) && !merges_across_spaces(t))
        t->spec.split = SPLIT_spaces;
    t->can_cut = t->spec.split != SPLIT_none && !t->spec.space_prefix && !forbids_cuts(&t->added) &&
                 !forbids_cuts(&t->added_normalized);
    identify(t, &t->bpe.unknown, sizeof t->bpe.unknown);
    int flags[] = {t->spec.byte_level,           t->spec.nfc,           t->spec.metaspace,
                   t->spec.metaspace_normalizes, (int)t->spec.prefix,   t->spec.space_prefix,
                   (int)t->spec.split,           t->spec.byte_fallback, t->spec.fuse_unknown,
                   t->spec.ignore_merges};
    identify(t, flags, sizeof flags);
    return SNUG_OK;
}

/* ---- decoding ------------------------------------------------------------------------------- */

/* Appends a piece, with spaces for metaspaces. */
static bool add_piece(const struct tokenizer *t, int32_t id, const char *piece, size_t n,
                      struct buffer *text)
{
    if (t->byte_of[id] >= 0) {
        char byte = (char)t->byte_of[id];
        return buffer_add(text, &byte, 1);
    }
    if (!t->spec.metaspace)
        return buffer_add(text, piece, n);
    for (size_t at = 0; at < n;) {
        bool is_space = n - at >= 3 && memcmp(piece + at, METASPACE, 3) == 0;
        if (!buffer_add(text, is_space ? " " : piece + at, 1))
            return false;
        at += is_space ? 3 : 1;
    }
    return true;
}

enum snug_status tokenizer_add_text(const struct tokenizer *t, int32_t id, struct buffer *text,
                                    struct snug_error *err)
{
    size_t n;
    const char *piece = vocabulary_piece(&t->vocabulary, id, &n);
    if (piece == NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "%lld is not an id of the tokenizer: these are 0..%lld", (long long)id,
                         (long long)t->vocabulary.n_ids - 1);
    return add_piece(t, id, piece, n, text) ? SNUG_OK : no_memory(err);
}

enum snug_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                                  struct buffer *text, struct snug_error *err)
{
    size_t begin = text->n;
    for (size_t i = 0; i < n; i++)
        TRY(tokenizer_add_text(t, ids[i], text, err));
    if (t->spec.strips_space && text->n > begin && text->data[begin] == ' ') {
        memmove(text->data + begin, text->data + begin + 1, text->n - begin - 1);
        text->n--;
    }
    return SNUG_OK;
}
