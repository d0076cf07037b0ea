/*
 * text_tokens.c -- tokenizes text files into an unlinked temporary file.
 *
 * Encoding is faster than most disks, so text needs no preparation: it is tokenized when the data
 * set is opened.
 */
#include "data/documents.h"
#include "data/source.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct store {
    int fd;
    const char *path; /* of the text */
};

static enum snug_status store_ids(const int32_t *ids, size_t n, void *user, struct snug_error *err)
{
    const struct store *store = user;
    if (source_write(store->fd, ids, n * sizeof *ids))
        return SNUG_OK;
    return snug_fail(err, SNUG_IO_ERROR, "%s: cannot store its tokens: %s; %s", store->path,
                     strerror(errno),
                     errno == EFBIG ? "raise the file size limit (ulimit -f)"
                                    : "set TMPDIR to a folder with more space");
}

enum snug_status source_tokenize(const struct tokenizer *t, int threads, const char *const *paths,
                                 int n, int64_t *n_tokens, int *fd, struct snug_error *err)
{
    struct store store = {.fd = source_temporary()};
    struct documents documents = {0};
    *fd = -1;
    if (store.fd < 0)
        return snug_fail(err, SNUG_IO_ERROR,
                         "%s: cannot create a temporary file for its tokens: %s; set TMPDIR",
                         paths[0], strerror(errno));
    enum snug_status status = documents_begin(&documents, t, threads, store_ids, &store, err);
    for (int i = 0; i < n && status == SNUG_OK; i++) {
        store.path = paths[i];
        status = documents_add(&documents, paths[i], &n_tokens[i], err);
    }
    documents_free(&documents);
    if (status == SNUG_OK)
        *fd = store.fd;
    else
        close(store.fd);
    return status;
}
