/*
 * tokenize_api.c -- snug_data_tokenize: text files to token shards.
 *
 * A file is a document.  Documents are encoded in batches, and the token that ends a text follows each.
 */
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fd.h"
#include "base/text.h"
#include "data/folder.h"
#include "io/hf_tokenizer.h"
#include "io/shard_writer.h"
#include "token/encoder.h"

enum { BATCH_BYTES = 1 << 26, BATCH_TEXTS = 4096, SNIFF_BYTES = 4096, TEXT_MOST = INT32_MAX / 2 };

struct job {
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct shard_writer *writer;
    int32_t end; /* of a document, or NO_TOKEN */
    struct file_list files;
    struct token_text *texts; /* of a batch */
    size_t *ends;
    int n_texts;
    size_t n_bytes; /* of the batch */
    struct token_ids ids;
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

static enum snug_status add_file(struct job *job, const char *path, struct snug_error *err)
{
    static const char *const no_text[] = {".jsonl",   ".ndjson", ".jsonl.gz", ".jsonl.zst",
                                          ".parquet", ".arrow",  ".csv",      ".bin",
                                          ".gz",      ".zst",    ".zip",      ".tar"};
    if (has_ending(path, no_text, sizeof no_text / sizeof *no_text))
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: only plain text can be tokenized so far: extract the text first",
                         path);
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
            status = add_file(job, list.paths[k], err);
        file_list_free(&list);
        TRY(status);
    }
    for (int i = 0; i < job->files.n; i++) {
        int fd;
        int64_t n_bytes;
        TRY(fd_open_read(job->files.paths[i], &fd, &n_bytes, err));
        close(fd);
        if (n_bytes > TEXT_MOST)
            return snug_fail(err, SNUG_UNSUPPORTED, "%s: a document of more than 1 GiB: split it",
                             job->files.paths[i]);
        job->done.total_bytes += n_bytes;
    }
    return SNUG_OK;
}

/* ---- batches -------------------------------------------------------------------------------- */

static void free_texts(struct job *job)
{
    for (int i = 0; i < job->n_texts; i++)
        free((void *)(uintptr_t)job->texts[i].data);
    job->n_texts = 0;
    job->n_bytes = 0;
}

static enum snug_status read_text(struct job *job, const char *path, struct snug_error *err)
{
    int fd;
    int64_t n_bytes;
    TRY(fd_open_read(path, &fd, &n_bytes, err));
    char *text = n_bytes > TEXT_MOST ? NULL : malloc((size_t)n_bytes + 1);
    enum snug_status status =
        text == NULL ? no_memory(err) : fd_read_at(fd, path, text, n_bytes, 0, err);
    close(fd);
    size_t sniffed = n_bytes < SNIFF_BYTES ? (size_t)n_bytes : SNIFF_BYTES;
    if (status == SNUG_OK && memchr(text, 0, sniffed) != NULL)
        status = snug_fail(err, SNUG_BAD_FILE, "%s: not text: it has NUL bytes", path);
    if (status != SNUG_OK) {
        free(text);
        return status;
    }
    job->texts[job->n_texts++] = (struct token_text){text, (size_t)n_bytes};
    job->n_bytes += (size_t)n_bytes;
    return SNUG_OK;
}

/* Encodes and writes the batch. */
static enum snug_status end_batch(struct job *job, struct snug_error *err)
{
    job->ids.n = 0;
    enum snug_status status =
        encoder_encode(job->encoder, job->texts, job->n_texts, true, &job->ids, job->ends, err);
    for (int i = 0; i < job->n_texts && status == SNUG_OK; i++) {
        size_t begin = i == 0 ? 0 : job->ends[i - 1], n = job->ends[i] - begin;
        if (n == 0)
            continue; /* an empty file is no document */
        status = shard_writer_add(job->writer, job->ids.data + begin, (int64_t)n, err);
        if (status == SNUG_OK && job->end != NO_TOKEN)
            status = shard_writer_add(job->writer, &job->end, 1, err);
        job->done.n_documents++;
    }
    job->done.n_bytes += (int64_t)job->n_bytes;
    job->done.n_tokens = shard_writer_n_tokens(job->writer);
    free_texts(job);
    return status;
}

static enum snug_status convert(struct job *job, snug_tokenize_fn *progress, void *user,
                                struct snug_error *err)
{
    for (int i = 0; i < job->files.n; i++) {
        TRY(read_text(job, job->files.paths[i], err));
        bool is_full = job->n_texts == BATCH_TEXTS || job->n_bytes >= BATCH_BYTES;
        if (!is_full && i + 1 < job->files.n)
            continue;
        TRY(end_batch(job, err));
        if (progress != NULL && progress(&job->done, user) != 0)
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
    TRY(encoder_new(job->tokenizer, o->threads > 0 ? o->threads : omp_get_num_procs(),
                    &job->encoder, err));
    job->end = tokenizer_end_of_text(job->tokenizer);
    job->texts = malloc(BATCH_TEXTS * sizeof *job->texts);
    job->ends = malloc(BATCH_TEXTS * sizeof *job->ends);
    if (job->texts == NULL || job->ends == NULL)
        return no_memory(err);
    bool is_narrow = tokenizer_size(job->tokenizer) <= 1 << 16;
    struct shard_writer_spec spec = {.folder = o->folder,
                                     .token_bytes = is_narrow ? 2 : 4,
                                     .tokenizer = job->tokenizer->identity};
    job->done.token_bits = 8 * spec.token_bytes;
    job->done.end_id = job->end;
    return shard_writer_open(&spec, &job->writer, err);
}

enum snug_status snug_data_tokenize(const char *const *paths, int n_paths,
                                    const struct snug_tokenize_options *options,
                                    snug_tokenize_fn *progress, void *user,
                                    struct snug_tokenized *result, struct snug_error *err)
{
    struct job job = {.end = NO_TOKEN};
    enum snug_status status = list_files(&job, paths, n_paths, err);
    if (status == SNUG_OK)
        status = begin(&job, options, err);
    if (status == SNUG_OK)
        status = convert(&job, progress, user, err);
    if (status == SNUG_OK) {
        *result = job.done;
        result->n_files = shard_writer_n_files(job.writer);
    }
    free_texts(&job);
    free(job.texts);
    free(job.ends);
    free(job.ids.data);
    shard_writer_free(job.writer);
    encoder_free(job.encoder);
    tokenizer_free(job.tokenizer);
    file_list_free(&job.files);
    return status;
}
