/*
 * tokenize_api.c -- snug_data_tokenize: text files to token shards.
 *
 * A file is a document (data/documents.h).
 */
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fd.h"
#include "base/text.h"
#include "data/documents.h"
#include "data/folder.h"
#include "io/hf_tokenizer.h"
#include "io/shard_writer.h"

enum { SNIFF_BYTES = 4096 };

struct job {
    struct tokenizer *tokenizer;
    struct documents documents;
    struct shard_writer *writer;
    struct file_list files;
    snug_tokenize_fn *progress;
    void *user;
    struct snug_tokenized done;
};

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory tokenizing files");
}

/* ---- the files ------------------------------------------------------------------------------ */

static bool has_ending(const char *path, const char *const *endings, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text_ends_in(path, endings[i]))
            return true;
    return false;
}

static const char *const no_text[] = {".jsonl", ".ndjson", ".parquet", ".arrow", ".csv",
                                      ".bin",   ".gz",     ".zst",     ".zip",   ".tar"};

static enum snug_status add_file(struct job *job, const char *path, struct snug_error *err)
{
    if (has_ending(path, no_text, sizeof no_text / sizeof *no_text))
        return snug_fail(
            err, SNUG_UNSUPPORTED,
            "%s: only plain text can be tokenized so far: convert it to plain text first", path);
    struct file_list *list = &job->files;
    char *copy = strdup(path);
    if (copy == NULL ||
        !array_grow((void **)&list->paths, &list->capacity, list->n + 1, sizeof *list->paths)) {
        free(copy);
        return no_memory(err);
    }
    list->paths[list->n++] = copy;
    return SNUG_OK;
}

static enum snug_status check_text(const char *path, int64_t *n_bytes, struct snug_error *err)
{
    char head[SNIFF_BYTES];
    int fd;
    TRY(fd_open_read(path, &fd, n_bytes, err));
    int64_t n = *n_bytes < SNIFF_BYTES ? *n_bytes : SNIFF_BYTES;
    enum snug_status status = fd_read_at(fd, path, head, n, 0, err);
    if (status == SNUG_OK && memchr(head, 0, (size_t)n) != NULL)
        status = snug_fail(err, SNUG_BAD_FILE,
                           "%s: not text, it has NUL bytes: extract the text first", path);
    close(fd);
    return status;
}

static bool is_text(const char *path)
{
    int64_t n_bytes;
    return !has_ending(path, no_text, sizeof no_text / sizeof *no_text) &&
           check_text(path, &n_bytes, NULL) == SNUG_OK;
}

/* Files of folders come in the order of their paths. */
static enum snug_status list_files(struct job *job, const char *const *paths, int n_paths,
                                   struct snug_error *err)
{
    for (int i = 0; i < n_paths; i++) {
        struct stat info;
        if (stat(paths[i], &info) != 0 || !S_ISDIR(info.st_mode)) {
            TRY(add_file(job, paths[i], err));
            continue;
        }
        struct file_list list;
        TRY(file_list_folder(paths[i], true, &list, err));
        enum snug_status status = SNUG_OK;
        for (int k = 0; k < list.n && status == SNUG_OK; k++)
            if (is_text(list.paths[k])) /* as for train */
                status = add_file(job, list.paths[k], err);
        file_list_free(&list);
        TRY(status);
    }
    for (int i = 0; i < job->files.n; i++) {
        int fd;
        int64_t n_bytes;
        TRY(fd_open_read(job->files.paths[i], &fd, &n_bytes, err));
        close(fd);
        job->done.total_bytes += n_bytes;
    }
    return SNUG_OK;
}

/* ---- converting ----------------------------------------------------------------------------- */

static enum snug_status write_ids(const int32_t *ids, size_t n, void *user, struct snug_error *err)
{
    struct job *job = user;
    return shard_writer_add(job->writer, ids, (int64_t)n, err);
}

static enum snug_status convert(struct job *job, struct snug_error *err)
{
    for (int i = 0; i < job->files.n; i++) {
        const char *path = job->files.paths[i];
        int64_t n_bytes, n_ids;
        TRY(check_text(path, &n_bytes, err));
        TRY(documents_add(&job->documents, path, &n_ids, err));
        job->done.n_documents += n_ids > 0; /* an empty file is no document */
        job->done.n_bytes += n_bytes;
        job->done.n_tokens = shard_writer_n_tokens(job->writer);
        if (job->progress != NULL && job->progress(&job->done, job->user) != 0)
            return snug_fail(err, SNUG_INTERRUPTED, "stopped: nothing was written");
    }
    if (job->done.n_tokens == 0)
        return snug_fail(err, SNUG_NO_DATA, "the files have no text");
    return shard_writer_finish(job->writer, err);
}

static enum snug_status begin(struct job *job, const struct snug_tokenize_options *o,
                              struct snug_error *err)
{
    TRY(hf_tokenizer_open(o->tokenizer, &job->tokenizer, err));
    TRY(documents_begin(&job->documents, job->tokenizer,
                        o->threads > 0 ? o->threads : omp_get_num_procs(), write_ids, job, err));
    bool is_narrow = tokenizer_size(job->tokenizer) <= 1 << 16;
    struct shard_writer_spec spec = {.folder = o->folder,
                                     .token_bytes = is_narrow ? 2 : 4,
                                     .tokenizer = job->tokenizer->identity};
    job->done.token_bits = 8 * spec.token_bytes;
    job->done.end_id = job->tokenizer->end_of_text;
    return shard_writer_open(&spec, &job->writer, err);
}

enum snug_status snug_data_tokenize(const char *const *paths, int n_paths,
                                    const struct snug_tokenize_options *options,
                                    snug_tokenize_fn *progress, void *user,
                                    struct snug_tokenized *result, struct snug_error *err)
{
    struct job job = {.progress = progress, .user = user};
    enum snug_status status = list_files(&job, paths, n_paths, err);
    if (status == SNUG_OK)
        status = begin(&job, options, err);
    if (status == SNUG_OK)
        status = convert(&job, err);
    if (status == SNUG_OK) {
        *result = job.done;
        result->n_files = shard_writer_n_files(job.writer);
    }
    shard_writer_free(job.writer);
    documents_free(&job.documents);
    tokenizer_free(job.tokenizer);
    file_list_free(&job.files);
    return status;
}
