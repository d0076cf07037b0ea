/*
 * text_tokens.c -- tokenizes text files into an unlinked temporary file.
 *
 * Encoding is faster than most disks, so text needs no preparation: it is tokenized when the data set
 * is opened.  Each file is a document, and the token that ends a text follows it.
 */
#include "data/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "token/encoder.h"

enum { TEXT_MOST = INT32_MAX / 2 };

static enum snug_status read_text(const char *path, struct token_text *text, struct snug_error *err)
{
    int fd;
    int64_t n_bytes;
    TRY(fd_open_read(path, &fd, &n_bytes, err));
    enum snug_status status = SNUG_OK;
    char *bytes = NULL;
    if (n_bytes > TEXT_MOST)
        status = snug_fail(err, SNUG_UNSUPPORTED, "%s: a text of more than 1 GiB: split it", path);
    else if ((bytes = malloc((size_t)n_bytes + 1)) == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory reading the text", path);
    else
        status = fd_read_at(fd, path, bytes, n_bytes, 0, err);
    close(fd);
    if (status == SNUG_OK)
        *text = (struct token_text){bytes, (size_t)n_bytes};
    else
        free(bytes);
    return status;
}

static enum snug_status tokenize_file(struct encoder *encoder, int32_t end, const char *path,
                                      struct token_ids *ids, struct snug_error *err)
{
    struct token_text text;
    size_t n;
    TRY(read_text(path, &text, err));
    ids->n = 0;
    enum snug_status status = encoder_encode(encoder, &text, 1, true, ids, &n, err);
    free((void *)(uintptr_t)text.data);
    if (status == SNUG_OK && end != NO_TOKEN && ids->n > 0 && !token_ids_add(ids, end))
        status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory tokenizing the text", path);
    return status;
}

enum snug_status source_tokenize(const struct tokenizer *t, int threads, const char *const *paths,
                                 int n, int64_t *n_tokens, int *fd, struct snug_error *err)
{
    struct encoder *encoder;
    struct token_ids ids = {0};
    int32_t end = tokenizer_end_of_text(t);
    *fd = -1;
    TRY(encoder_new(t, threads, &encoder, err));
    enum snug_status status = SNUG_OK;
    int file = source_temporary();
    if (file < 0)
        status = snug_fail(err, SNUG_IO_ERROR,
                           "%s: cannot create a temporary file for its tokens: %s; set TMPDIR",
                           paths[0], strerror(errno));
    for (int i = 0; i < n && status == SNUG_OK; i++) {
        status = tokenize_file(encoder, end, paths[i], &ids, err);
        n_tokens[i] = (int64_t)ids.n;
        if (status == SNUG_OK && !source_write(file, ids.data, ids.n * sizeof *ids.data))
            status = snug_fail(err, SNUG_IO_ERROR, "%s: cannot store its tokens: %s; %s", paths[i],
                               strerror(errno),
                               errno == EFBIG ? "raise the file size limit (ulimit -f)"
                                              : "set TMPDIR to a folder with more space");
    }
    encoder_free(encoder);
    free(ids.data);
    if (status == SNUG_OK)
        *fd = file;
    else if (file >= 0)
        close(file);
    return status;
}
