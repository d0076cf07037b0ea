/*
 * token_shards.c -- token streams: text, and shards of 16- or 32-bit token ids.
 *
 * All files together are one stream, in the order of their paths:
 *
 *     | file 0 | file 1 |     file 2     | file 3 |
 *     |<------- train ------->|<--- held out ---->|     the first nine tenths, or up to the first
 *                                                       file with "val" in its name (shards)
 *
 * A sample is a window of T + 1 tokens, which may span files: the first T are the input, the last T
 * the target.  The stream is never loaded into memory.
 *
 * Held-out windows are contiguous: the last token of one is the first of the next.  A remainder of
 * less than T tokens is not used.
 */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fd.h"
#include "base/rng.h"
#include "base/text.h"
#include "token/shard_header.h"
#include "token/tokenizer.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian");

enum { N_BYTES = 256, N_SHORT_IDS = 1 << 16, SNIFF_BYTES = 4096, SCAN_AT_ONCE = 1 << 16 };

struct token_file {
    char *path;
    int64_t begin; /* position of its first token in the stream */
    int64_t n_tokens;
    int64_t header_bytes; /* before the first token */
    int64_t n_bytes;      /* file size when it was opened */
    int token_bytes;      /* 1, 2 or 4 */
    uint64_t tokenizer;   /* its identity; 0: unknown */
};

struct tokens {
    struct data data;
    struct token_file *files;
    int n_files, capacity;
    int n_llmc;                  /* files with llm.c's header */
    int64_t begin[2], end[2];    /* of each split in the stream */
    int64_t first_held_out_file; /* index of the first file named *val*, or -1 */
    int open_file, fd;           /* the file that is open, or -1 */
    int text_fd;     /* the ids of all text files, or -1; `open_file` is not used then */
    int32_t *window; /* T + 1 tokens */
};

static void close_tokens(struct data *data)
{
    struct tokens *tokens = (struct tokens *)data;
    for (int i = 0; i < tokens->n_files; i++)
        free(tokens->files[i].path);
    if (tokens->fd >= 0)
        close(tokens->fd);
    if (tokens->text_fd >= 0)
        close(tokens->text_fd);
    free(tokens->files);
    free(tokens->window);
    free(tokens);
}

/* ---- reading ----------------------------------------------------------------------------- */

static enum snug_status use_file(struct tokens *tokens, int index, struct snug_error *err)
{
    const struct token_file *file = &tokens->files[index];
    int64_t n_bytes;
    if (tokens->open_file == index || tokens->text_fd >= 0)
        return SNUG_OK;
    if (tokens->fd >= 0)
        close(tokens->fd);
    tokens->open_file = -1;
    TRY(fd_open_read(file->path, &tokens->fd, &n_bytes, err));
    if (n_bytes < file->n_bytes)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: the file has shrunk from %lld to %lld bytes since it was opened",
                         file->path, (long long)file->n_bytes, (long long)n_bytes);
    tokens->open_file = index;
    return SNUG_OK;
}

static int file_at(const struct tokens *tokens, int64_t place)
{
    int low = 0, high = tokens->n_files - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (tokens->files[middle].begin <= place)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Reads n tokens of one file, starting at token `first`, and widens them in place: the raw bytes go
 * to the end of `out`, so a forward pass never overwrites an unread id. */
static enum snug_status read_part(struct tokens *tokens, int index, int64_t first, int64_t n,
                                  int32_t *out, struct snug_error *err)
{
    TRY(use_file(tokens, index, err));
    const struct token_file *file = &tokens->files[index];
    int64_t raw_bytes = n * file->token_bytes;
    unsigned char *raw = (unsigned char *)(out + n) - raw_bytes;
    TRY(fd_read_at(tokens->text_fd >= 0 ? tokens->text_fd : tokens->fd, file->path, raw, raw_bytes,
                   file->header_bytes + first * file->token_bytes, err));
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = 0;
        memcpy(&id, raw + i * file->token_bytes, (size_t)file->token_bytes); /* little-endian */
        if (id >= tokens->data.request.n_classes)
            return snug_fail(
                err, SNUG_MISMATCH,
                "%s: token id %u at position %lld, but the model's vocabulary has %lld tokens: %s",
                file->path, id, (long long)(first + i), (long long)tokens->data.request.n_classes,
                file->token_bytes == 1 ? "give text that has no such bytes"
                : file->token_bytes == 4 && file->header_bytes == 0
                    ? "for a vocabulary of more than 65536, *.bin is read as 32-bit ids"
                    : "give shards of this model's tokenizer");
        out[i] = (int32_t)id;
    }
    return SNUG_OK;
}

/* Reads the T + 1 tokens of a sample into tokens->window. */
static enum snug_status read_window(struct data *data, enum data_split split, int64_t position,
                                    struct snug_error *err)
{
    struct tokens *tokens = (struct tokens *)data;
    int64_t length = data->request.sample_elems;
    int64_t n_tokens = tokens->end[split] - tokens->begin[split];
    int64_t place = tokens->begin[split];
    if (split == DATA_TRAIN)
        place += (int64_t)(rng_u64(data->request.seed, rng_hash_string("token windows"),
                                   (uint64_t)position) %
                           (uint64_t)(n_tokens - length));
    else
        place += position % data->n_samples[split] * length;

    int index = file_at(tokens, place);
    for (int64_t done = 0; done < length + 1; index++) {
        const struct token_file *file = &tokens->files[index];
        int64_t first = place + done - file->begin, n = file->n_tokens - first;
        if (n > length + 1 - done)
            n = length + 1 - done;
        TRY(read_part(tokens, index, first, n, tokens->window + done, err));
        done += n;
    }
    return SNUG_OK;
}

static enum snug_status fill(struct data *data, enum data_split split, int64_t position,
                             void *input, void *target, struct snug_error *err)
{
    const struct tokens *tokens = (struct tokens *)data;
    int64_t length = data->request.sample_elems;
    TRY(read_window(data, split, position, err));
    memcpy(input, tokens->window, (size_t)length * sizeof(int32_t));
    memcpy(target, tokens->window + 1, (size_t)length * sizeof(int32_t));
    return SNUG_OK;
}

/* Can a file of ids of this width hold one that the vocabulary lacks? */
static bool can_exceed(const struct tokens *tokens, const struct token_file *file)
{
    return tokens->data.request.n_classes < (int64_t)1 << 8 * file->token_bytes;
}

/* Reads files from the token `begin` of the stream on, until its token `end` or *left tokens. */
static enum snug_status scan_part(struct tokens *tokens, int64_t begin, int64_t end, int64_t *left,
                                  int32_t *buffer, struct snug_error *err)
{
    for (int64_t place = begin, n; place<end && * left> 0; place += n) {
        int index = file_at(tokens, place);
        const struct token_file *file = &tokens->files[index];
        int64_t in_file = file->begin + file->n_tokens - place;
        n = in_file < end - place ? in_file : end - place;
        if (!can_exceed(tokens, file))
            continue;
        n = n < SCAN_AT_ONCE ? n : SCAN_AT_ONCE;
        n = n < *left ? n : *left;
        TRY(read_part(tokens, index, place - file->begin, n, buffer, err));
        *left -= n;
    }
    return SNUG_OK;
}

static enum snug_status scan(struct data *data, int64_t most, struct snug_error *err)
{
    struct tokens *tokens = (struct tokens *)data;
    int32_t *buffer = malloc(SCAN_AT_ONCE * sizeof *buffer);
    if (buffer == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory checking the token ids");
    enum snug_status status = scan_part(tokens, tokens->begin[DATA_HELD_OUT],
                                        tokens->end[DATA_HELD_OUT], &most, buffer, err);
    if (status == SNUG_OK)
        status = scan_part(tokens, tokens->begin[DATA_TRAIN], tokens->end[DATA_TRAIN], &most,
                           buffer, err);
    free(buffer);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------- */

/* Do the first `length` characters end so, in any case? */
static bool part_ends_in(const char *path, size_t length, const char *ending)
{
    size_t n = strlen(ending);
    return length >= n && strncasecmp(path + length - n, ending, n) == 0;
}

/* Detects JSONL by name, compressed or not: nobody wants to train on its braces and keys. */
static bool is_json_lines(const char *path)
{
    static const char *const packed[] = {".gz", ".zst", ".bz2", ".xz"};
    size_t length = strlen(path);
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        if (part_ends_in(path, strlen(path), packed[i]))
            length = strlen(path) - strlen(packed[i]);
    return part_ends_in(path, length, ".jsonl") || part_ends_in(path, length, ".ndjson");
}

/* Describes files that users pass by mistake.  Raw tokens hardly ever start with these values: the
 * low 16 bits of llm.c's magic numbers are above GPT-2's vocabulary. */
static const char *foreign_kind(uint32_t magic)
{
    switch (magic) {
    case 20240326:
        return "an llm.c model, not tokens";
    case 20240327:
        return "an llm.c debug state, not tokens";
    case 20240328:
        return "an llm.c tokenizer, not tokens";
    case 20240522:
        return "an llm.c evaluation set, not plain tokens";
    case 0x04034b50: /* "PK\3\4" */
        return "a zip file (PyTorch weights?), not tokens";
    case 0x46554747: /* "GGUF" */
        return "a GGUF model, not tokens";
    case 0x0a8a0280:
        return "a Python pickle (PyTorch weights?), not tokens";
    default:
        return magic / 10000 == 2024 && magic / 100 % 100 <= 12
                   ? "an llm.c file of another kind, not tokens"
                   : NULL;
    }
}

/* Is every second of the first 16-bit numbers 0, the upper half of a small 32-bit id? */
static enum snug_status look_for_wide_ids(int fd, const struct token_file *file, bool *is_wide,
                                          struct snug_error *err)
{
    enum { LEAST_IDS = 16 };
    uint16_t halves[SNIFF_BYTES / 2] = {0}, low = 0, high = 0;
    int64_t n_bytes = file->n_bytes < SNIFF_BYTES ? file->n_bytes : SNIFF_BYTES;
    TRY(fd_read_at(fd, file->path, halves, n_bytes, 0, err));
    for (int64_t i = 0; i + 1 < n_bytes / 2; i += 2) {
        low |= halves[i];
        high |= halves[i + 1];
    }
    *is_wide = file->n_bytes % 4 == 0 && file->n_bytes >= 4 * LEAST_IDS && low != 0 && high == 0;
    return SNUG_OK;
}

/* nanoGPT's layout: nothing but ids, of 16 bits if these suffice for the model's vocabulary. */
static enum snug_status read_raw_shard(const struct tokens *tokens, int fd, struct token_file *file,
                                       struct snug_error *err)
{
    const struct shard_format *wide = shard_format_of_width(4);
    bool is_wide;
    TRY(look_for_wide_ids(fd, file, &is_wide, err));
    if (is_wide && tokens->data.request.n_classes <= N_SHORT_IDS)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: these are 32-bit ids (every second 16 bits are 0), but for a "
                         "vocabulary of %lld, *.bin without a header is read as 16-bit ids: write "
                         "them as 16 bits, or with llm.c's header (%u, version %u)",
                         file->path, (long long)tokens->data.request.n_classes, wide->magic,
                         wide->version);
    file->token_bytes = tokens->data.request.n_classes <= N_SHORT_IDS ? 2 : 4;
    if (file->n_bytes % file->token_bytes != 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: its %lld bytes are not a whole number of %d-bit tokens", file->path,
                         (long long)file->n_bytes, 8 * file->token_bytes);
    file->n_tokens = file->n_bytes / file->token_bytes;
    return SNUG_OK;
}

static enum snug_status read_shard_header(const struct tokens *tokens, int fd,
                                          struct token_file *file, bool *is_llmc,
                                          struct snug_error *err)
{
    uint32_t head[SHARD_HEADER_INTS] = {0};
    int64_t sniffed = file->n_bytes < (int64_t)sizeof head ? file->n_bytes : (int64_t)sizeof head;
    TRY(fd_read_at(fd, file->path, head, sniffed, 0, err));
    const struct shard_format *format = shard_format_of(head[0]);
    *is_llmc = format != NULL;
    if (format == NULL) {
        const char *foreign = foreign_kind(head[0]);
        if (foreign != NULL)
            return snug_fail(err, SNUG_BAD_FILE, "%s: this is %s", file->path, foreign);
        return read_raw_shard(tokens, fd, file, err);
    }
    file->header_bytes = SHARD_HEADER_BYTES;
    file->token_bytes = format->token_bytes;
    file->n_tokens = head[2];
    if (file->n_bytes < SHARD_HEADER_BYTES)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: truncated: %lld bytes, but the header alone has %d", file->path,
                         (long long)file->n_bytes, SHARD_HEADER_BYTES);
    if (head[1] != format->version)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: llm.c shard version %u is not supported; only version %u is",
                         file->path, head[1], format->version);
    file->tokenizer = shard_header_parse(head).tokenizer;
    int64_t n_present = (file->n_bytes - SHARD_HEADER_BYTES) / format->token_bytes;
    int64_t n_extra = file->n_bytes - SHARD_HEADER_BYTES - format->token_bytes * file->n_tokens;
    if (file->n_tokens > n_present)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: truncated: the header declares %lld tokens, but the file has %lld",
                         file->path, (long long)file->n_tokens, (long long)n_present);
    if (n_extra != 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: %lld extra bytes after the %lld tokens that the header declares",
                         file->path, (long long)n_extra, (long long)file->n_tokens);
    return SNUG_OK;
}

/* *nul is the offset of the first NUL byte, or -1 if there is none and the file may be text. */
static enum snug_status sniff_text(int fd, const struct token_file *file, int64_t *nul,
                                   struct snug_error *err)
{
    unsigned char head[SNIFF_BYTES];
    int64_t n = file->n_bytes < SNIFF_BYTES ? file->n_bytes : SNIFF_BYTES;
    TRY(fd_read_at(fd, file->path, head, n, 0, err));
    const unsigned char *found = n == 0 ? NULL : memchr(head, 0, (size_t)n);
    *nul = found == NULL ? -1 : found - head;
    return SNUG_OK;
}

/* Appends a file to the stream.  With `from_folder`, skips files that are empty or not text. */
static enum snug_status add_file(struct tokens *tokens, const char *path, bool is_shard,
                                 bool from_folder, struct snug_error *err)
{
    struct token_file file = {.token_bytes = 1};
    bool is_llmc = false;
    int64_t nul = -1;
    int fd = -1;
    if (!is_shard && is_json_lines(path))
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: JSONL is not supported yet: convert it to plain text or to token "
                         "shards (*.bin)",
                         path);
    if (!array_grow((void **)&tokens->files, &tokens->capacity, tokens->n_files + 1,
                    sizeof *tokens->files) ||
        (file.path = strdup(path)) == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory listing the files", path);

    enum snug_status status = fd_open_read(path, &fd, &file.n_bytes, err);
    if (status == SNUG_OK && is_shard)
        status = read_shard_header(tokens, fd, &file, &is_llmc, err);
    else if (status == SNUG_OK)
        status = sniff_text(fd, &file, &nul, err);
    if (status == SNUG_OK && !is_shard)
        file.n_tokens = file.n_bytes;
    if (status == SNUG_OK && !from_folder && nul >= 0)
        status = snug_fail(err, SNUG_BAD_FILE,
                           "%s: not text (byte %lld is NUL): give text, token shards (*.bin) or a "
                           "folder of IDX images",
                           path, (long long)nul);
    if (status == SNUG_OK && !from_folder && file.n_tokens == 0)
        status = snug_fail(err, SNUG_NO_DATA, "%s: the file is empty", path);
    if (fd >= 0)
        close(fd);
    if (status == SNUG_OK && nul < 0 && file.n_tokens > 0) {
        if (tokens->n_files > 0) {
            const struct token_file *last = &tokens->files[tokens->n_files - 1];
            file.begin = last->begin + last->n_tokens;
        }
        tokens->n_llmc += is_llmc;
        tokens->files[tokens->n_files++] = file;
        file.path = NULL;
    }
    free(file.path);
    return status;
}

static bool is_named_held_out(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strstr(slash == NULL ? path : slash + 1, "val") != NULL;
}

static enum snug_status add_shards(struct tokens *tokens, const struct file_list *list,
                                   struct snug_error *err)
{
    for (int held_out = 0; held_out < 2; held_out++) {
        int n_before = tokens->n_files;
        for (int i = 0; i < list->n; i++)
            if (text_ends_in(list->paths[i], ".bin") &&
                is_named_held_out(list->paths[i]) == held_out)
                TRY(add_file(tokens, list->paths[i], true, true, err));
        if (held_out && n_before > 0 && tokens->n_files > n_before)
            tokens->first_held_out_file = n_before;
    }
    return SNUG_OK;
}

static enum snug_status add_folder(struct tokens *tokens, const char *folder, bool *is_shards,
                                   struct snug_error *err)
{
    struct file_list list;
    TRY(file_list_folder(folder, false, &list, err));
    for (int i = 0; i < list.n; i++)
        *is_shards = *is_shards || text_ends_in(list.paths[i], ".bin");
    enum snug_status status = SNUG_OK;
    if (*is_shards) {
        status = add_shards(tokens, &list, err);
    } else {
        file_list_free(&list);
        status = file_list_folder(folder, true, &list, err);
        for (int i = 0; status == SNUG_OK && i < list.n; i++)
            status = add_file(tokens, list.paths[i], false, true, err);
    }
    if (status == SNUG_OK && tokens->n_files == 0)
        status = snug_fail(err, SNUG_NO_DATA, "%s: the folder contains no %s", folder,
                           *is_shards ? "tokens" : "text, token shards or IDX images");
    file_list_free(&list);
    return status;
}

static enum snug_status split_stream(struct tokens *tokens, const char *path,
                                     struct snug_error *err)
{
    const struct token_file *files = tokens->files, *last = &files[tokens->n_files - 1];
    for (int i = 1; i < tokens->n_files; i++)
        if (files[i].tokenizer != files[0].tokenizer)
            return snug_fail(err, SNUG_MISMATCH, "%s and %s are of different tokenizers",
                             files[0].path, files[i].path);
    int64_t total = last->begin + last->n_tokens, length = tokens->data.request.sample_elems;
    bool is_whole = tokens->data.request.whole && tokens->first_held_out_file < 0;
    int64_t cut = is_whole                           ? 0
                  : tokens->first_held_out_file >= 0 ? files[tokens->first_held_out_file].begin
                                                     : total / 10 * 9 + total % 10 * 9 / 10;
    tokens->end[DATA_TRAIN] = tokens->begin[DATA_HELD_OUT] = cut;
    tokens->end[DATA_HELD_OUT] = total;
    if (is_whole && total < length + 1)
        return snug_fail(err, SNUG_NO_DATA,
                         "%s: %lld tokens, but one sequence needs %lld: add data or use a shorter "
                         "--seq",
                         path, (long long)total, (long long)(length + 1));
    if (!is_whole && cut < length + 1)
        return snug_fail(err, SNUG_NO_DATA,
                         "%s: %lld tokens, %lld of them for training, but one sequence needs %lld: "
                         "add data or use a shorter --seq",
                         path, (long long)total, (long long)cut, (long long)(length + 1));
    uint64_t hash = rng_hash_string(tokens->data.kind);
    for (int i = 0; i < tokens->n_files; i++)
        hash = source_mix(hash, (uint64_t)tokens->files[i].n_tokens);
    if (files[0].tokenizer != 0)
        hash = source_mix(hash, files[0].tokenizer);
    tokens->data.tokenizer = files[0].tokenizer;
    tokens->data.fingerprint = source_mix(hash, (uint64_t)cut);
    for (int split = 0; split < 2; split++)
        tokens->data.n_samples[split] =
            tokens->end[split] == tokens->begin[split]
                ? 0
                : (tokens->end[split] - tokens->begin[split] - 1) / length;
    return SNUG_OK;
}

/* Replaces the bytes of text files by their ids, if there is a tokenizer. */
static enum snug_status tokenize_files(struct tokens *tokens, const struct tokenizer *t,
                                       struct snug_error *err)
{
    int n = tokens->n_files;
    const char **paths = malloc((size_t)n * sizeof *paths);
    int64_t *n_tokens = malloc((size_t)n * sizeof *n_tokens), begin = 0;
    enum snug_status status =
        paths != NULL && n_tokens != NULL
            ? SNUG_OK
            : snug_fail(err, SNUG_NO_MEMORY, "out of memory for a list of files");
    for (int i = 0; i < n && status == SNUG_OK; i++)
        paths[i] = tokens->files[i].path;
    if (status == SNUG_OK)
        status = source_tokenize(t, tokens->data.request.threads, paths, n, n_tokens,
                                 &tokens->text_fd, err);
    for (int i = 0; i < n && status == SNUG_OK; i++) {
        struct token_file *file = &tokens->files[i];
        file->begin = begin;
        file->n_tokens = n_tokens[i];
        file->header_bytes = begin * (int64_t)sizeof(int32_t);
        file->token_bytes = sizeof(int32_t);
        file->tokenizer = t->identity;
        begin += n_tokens[i];
    }
    free((void *)paths);
    free(n_tokens);
    return status;
}

static enum snug_status tokenize_text(struct tokens *tokens, bool *is_done, struct snug_error *err)
{
    const struct data_request *request = &tokens->data.request;
    struct tokenizer *t = NULL;
    *is_done = false;
    if (request->bytes_as_tokens || request->open_tokenizer == NULL)
        return SNUG_OK;
    TRY(request->open_tokenizer(request->tokenizer_user, &t, err));
    if (t == NULL)
        return SNUG_OK;
    enum snug_status status = SNUG_OK;
    if (tokenizer_size(t) > request->n_classes)
        status =
            snug_fail(err, SNUG_MISMATCH,
                      "the tokenizer has %ld ids, but the model's vocabulary has %lld: use the "
                      "tokenizer of this model",
                      (long)tokenizer_size(t), (long long)request->n_classes);
    if (status == SNUG_OK)
        status = tokenize_files(tokens, t, err);
    tokenizer_free(t);
    *is_done = status == SNUG_OK;
    return status;
}

static enum snug_status open_stream(struct tokens *tokens, const char *path, struct snug_error *err)
{
    struct stat info;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    bool is_shards = !is_folder && text_ends_in(path, ".bin");
    if (tokens->data.request.target != DATA_TARGET_TOKENS)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: this is text or tokens, but the model does not take tokens: give it "
                         "IDX images, or choose a language model",
                         path);
    TRY(is_folder ? add_folder(tokens, path, &is_shards, err)
                  : add_file(tokens, path, is_shards, false, err));
    const struct data_request *request = &tokens->data.request;
    bool is_text = false;
    if (!is_shards)
        TRY(tokenize_text(tokens, &is_text, err));
    if (!is_shards && !is_text && request->n_classes > N_BYTES && !request->bytes_as_tokens)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s: text for a vocabulary of %lld tokens needs a tokenizer, and the "
                         "model's folder has none: add --tokenizer FOLDER, or feed each byte as a "
                         "token with --tokenizer bytes",
                         path, (long long)request->n_classes);
    tokens->data.kind = is_text                             ? "text"
                        : !is_shards                        ? "text bytes"
                        : tokens->n_llmc == tokens->n_files ? "token shards (llm.c)"
                        : tokens->n_llmc == 0               ? "token shards (nanoGPT)"
                                                            : "token shards (mixed)";
    return split_stream(tokens, path, err);
}

enum snug_status source_open_tokens(const char *path, const struct data_request *request,
                                    struct data **data, struct snug_error *err)
{
    struct tokens *tokens = malloc(sizeof *tokens);
    if (tokens == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the data set", path);
    *tokens = (struct tokens){.data = {.fill = fill,
                                       .scan = scan,
                                       .check = read_window,
                                       .close = close_tokens,
                                       .request = *request},
                              .first_held_out_file = -1,
                              .open_file = -1,
                              .fd = -1,
                              .text_fd = -1};
    tokens->data.request.spec = NULL;
    enum snug_status status = open_stream(tokens, path, err);
    if (status == SNUG_OK) {
        tokens->window = malloc(((size_t)request->sample_elems + 1) * sizeof *tokens->window);
        if (tokens->window == NULL)
            status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory for a window of %lld tokens",
                               path, (long long)request->sample_elems + 1);
    }
    if (status == SNUG_OK)
        *data = &tokens->data;
    else
        close_tokens(&tokens->data);
    return status;
}
