/*
 * documents.c -- the token ids of text files, each a document.
 *
 * A file is read and encoded in windows of WINDOW_BYTES, cut where the ids are those of the whole
 * text (encoder_cut).  Only a tokenizer whose words have no end (encoder.c), or a text without a
 * place for a cut, needs all of the file in memory.
 */
#include "data/documents.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"

enum { WINDOW_BYTES = 1 << 21, TEXT_MOST = INT32_MAX / 2 };

enum snug_status documents_begin(struct documents *d, const struct tokenizer *t, int threads,
                                 documents_fn *take, void *user, struct snug_error *err)
{
    *d = (struct documents){.tokenizer = t, .take = take, .user = user};
    return encoder_new(t, threads, &d->encoder, err);
}

void documents_free(struct documents *d)
{
    encoder_free(d->encoder);
    free(d->window);
    free(d->ids.data);
    *d = (struct documents){0};
}

static enum snug_status reserve(struct documents *d, const char *path, size_t n_bytes,
                                struct snug_error *err)
{
    if (n_bytes <= d->capacity)
        return SNUG_OK;
    char *grown = realloc(d->window, n_bytes);
    if (grown == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory tokenizing the text", path);
    d->window = grown;
    d->capacity = n_bytes;
    return SNUG_OK;
}

/* Encodes the first n bytes of the window. */
static enum snug_status encode(struct documents *d, size_t n, bool continues, bool goes_on,
                               int64_t *n_ids, struct snug_error *err)
{
    size_t end;
    struct token_text text = {d->window, n, continues, goes_on};
    d->ids.n = 0;
    TRY(encoder_encode(d->encoder, &text, 1, true, &d->ids, &end, err));
    *n_ids += (int64_t)d->ids.n;
    return d->ids.n == 0 ? SNUG_OK : d->take(d->ids.data, d->ids.n, d->user, err);
}

static enum snug_status take_one(struct documents *d, int32_t id, int64_t *n_ids,
                                 struct snug_error *err)
{
    if (id == NO_TOKEN)
        return SNUG_OK;
    ++*n_ids;
    return d->take(&id, 1, d->user, err);
}

/* Encodes n_bytes of a file. */
static enum snug_status encode_file(struct documents *d, int fd, const char *path, int64_t n_bytes,
                                    int64_t *n_ids, struct snug_error *err)
{
    size_t held = 0, window = WINDOW_BYTES; /* bytes in the window, and how many it should have */
    bool continues = false;
    for (int64_t at = 0; at < n_bytes || held > 0;) {
        size_t n = window - held, left = (size_t)(n_bytes - at);
        n = n < left ? n : left;
        TRY(reserve(d, path, held + n, err));
        TRY(fd_read_at(fd, path, d->window + held, (int64_t)n, at, err));
        at += (int64_t)n;
        held += n;
        bool goes_on = at < n_bytes;
        size_t cut = goes_on ? encoder_cut(d->encoder, d->window, held) : held;
        if (cut == 0) {
            window *= 2; /* no place for a cut so far */
            continue;
        }
        TRY(encode(d, cut, continues, goes_on, n_ids, err));
        memmove(d->window, d->window + cut, held - cut);
        held -= cut;
        continues = true;
        window = WINDOW_BYTES > 2 * held ? WINDOW_BYTES : 2 * held;
    }
    return SNUG_OK;
}

enum snug_status documents_add(struct documents *d, const char *path, int64_t *n_ids,
                               struct snug_error *err)
{
    int fd;
    int64_t n_bytes;
    *n_ids = 0;
    TRY(fd_open_read(path, &fd, &n_bytes, err));
    enum snug_status status = SNUG_OK;
    if (n_bytes > TEXT_MOST)
        status = snug_fail(err, SNUG_UNSUPPORTED, "%s: a text of more than 1 GiB: split it", path);
    if (status == SNUG_OK && n_bytes > 0)
        status = take_one(d, d->tokenizer->begin_of_text, n_ids, err);
    if (status == SNUG_OK)
        status = encode_file(d, fd, path, n_bytes, n_ids, err);
    if (status == SNUG_OK && n_bytes > 0)
        status = take_one(d, d->tokenizer->end_of_text, n_ids, err);
    close(fd);
    return status;
}
