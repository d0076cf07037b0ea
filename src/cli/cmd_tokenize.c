/*
 * cmd_tokenize.c -- snug tokenize: texts on standard input to lines of token ids, and back.
 *
 * Texts are read and encoded in batches, so that a stream of any length takes little memory.
 */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH_BYTES = 1 << 24, RECORDS_MOST = 1 << 20 };

struct input { /* standard input */
    char *data;
    size_t n, capacity;
    char end; /* of a record */
    bool is_over;
};

struct records {
    const char **texts;
    size_t *lengths, *ends;
    int n;
};

static enum snug_status fail(struct snug_error *err, enum snug_status status, const char *message)
{
    err->status = status;
    snprintf(err->message, sizeof err->message, "%s", message);
    return status;
}

/* Reads until the buffer has a batch or the input is over. */
static enum snug_status read_more(struct input *in, struct snug_error *err)
{
    size_t most = in->n + BATCH_BYTES;
    if (in->capacity < most) {
        char *grown = realloc(in->data, most);
        if (grown == NULL)
            return fail(err, SNUG_NO_MEMORY, "out of memory for a text of standard input");
        in->data = grown;
        in->capacity = most;
    }
    in->n += fread(in->data + in->n, 1, in->capacity - in->n, stdin);
    if (ferror(stdin))
        return fail(err, SNUG_IO_ERROR, "reading standard input failed");
    in->is_over = feof(stdin) != 0;
    return SNUG_OK;
}

/* Finds the complete records; returns how many bytes they are, with their ends. */
static size_t find_records(const struct input *in, struct records *records)
{
    size_t at = 0;
    records->n = 0;
    while (at < in->n && records->n < RECORDS_MOST) {
        const char *end = memchr(in->data + at, in->end, in->n - at);
        if (end == NULL && !in->is_over)
            break;
        size_t length = (end == NULL ? in->n : (size_t)(end - in->data)) - at;
        records->texts[records->n] = in->data + at;
        records->lengths[records->n++] = length;
        at += length + (end != NULL);
    }
    return at;
}

static void print_ids(const int32_t *ids, size_t n)
{
    char line[4096];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        char digits[12];
        int n_digits = 0;
        uint32_t rest = (uint32_t)ids[i];
        do
            digits[n_digits++] = (char)('0' + rest % 10);
        while ((rest /= 10) > 0);
        if (i > 0)
            line[used++] = ' ';
        while (n_digits > 0)
            line[used++] = digits[--n_digits];
        if (used > sizeof line - 16) {
            fwrite(line, 1, used, stdout);
            used = 0;
        }
    }
    line[used++] = '\n';
    fwrite(line, 1, used, stdout);
}

static enum snug_status encode_batch(snug_tokenizer *tokenizer, const struct records *records,
                                     struct snug_error *err)
{
    int32_t *ids = NULL;
    enum snug_status status = snug_tokenizer_encode(tokenizer, records->texts, records->lengths,
                                                    records->n, 1, &ids, records->ends, err);
    for (int i = 0; status == SNUG_OK && i < records->n; i++) {
        size_t begin = i == 0 ? 0 : records->ends[i - 1];
        print_ids(ids + begin, records->ends[i] - begin);
    }
    snug_free(ids);
    return status;
}

/* Parses ids with spaces between them; -1: one is wrong. */
static long parse_ids(const char *line, size_t length, int32_t *ids)
{
    long n = 0;
    for (size_t at = 0; at < length;) {
        int64_t id = 0;
        size_t begin = at;
        for (; at < length && isdigit((unsigned char)line[at]) && id < INT32_MAX; at++)
            id = 10 * id + (line[at] - '0');
        bool is_id = at > begin && id <= INT32_MAX;
        if (!is_id && at > begin)
            return -1;
        if (is_id)
            ids[n++] = (int32_t)id;
        if (at < length && !isspace((unsigned char)line[at]))
            return -1;
        at += at < length;
    }
    return n;
}

static enum snug_status decode_batch(snug_tokenizer *tokenizer, const struct records *records,
                                     char end, int64_t *line, struct snug_error *err)
{
    for (int i = 0; i < records->n; i++) {
        ++*line;
        int32_t *ids = malloc((records->lengths[i] / 2 + 1) * sizeof *ids);
        long n = ids == NULL ? 0 : parse_ids(records->texts[i], records->lengths[i], ids);
        struct snug_error cause = {0};
        char *text = NULL;
        size_t length;
        enum snug_status status = SNUG_OK;
        if (ids == NULL)
            status = fail(err, SNUG_NO_MEMORY, "out of memory for a line of ids");
        else if (n < 0)
            status = fail(&cause, SNUG_BAD_FILE, "it must have token ids with spaces between them");
        else
            status = snug_tokenizer_decode(tokenizer, ids, (size_t)n, &text, &length, &cause);
        if (status != SNUG_OK && ids != NULL) {
            err->status = SNUG_BAD_FILE;
            snprintf(err->message, sizeof err->message, "line %lld of standard input: %.400s",
                     (long long)*line, cause.message);
        }
        if (status == SNUG_OK) {
            fwrite(text, 1, length, stdout);
            putchar(end);
        }
        snug_free(text);
        free(ids);
        if (status != SNUG_OK)
            return status;
    }
    return SNUG_OK;
}

/* `end` ends a text; lines of ids end with a newline. */
static enum snug_status convert(snug_tokenizer *tokenizer, bool decodes, char end,
                                struct snug_error *err)
{
    struct input in = {.end = decodes ? '\n' : end};
    struct records records = {.texts = malloc(RECORDS_MOST * sizeof *records.texts),
                              .lengths = malloc(RECORDS_MOST * sizeof *records.lengths),
                              .ends = malloc(RECORDS_MOST * sizeof *records.ends)};
    enum snug_status status = SNUG_OK;
    int64_t line = 0;
    if (records.texts == NULL || records.lengths == NULL || records.ends == NULL)
        status = fail(err, SNUG_NO_MEMORY, "out of memory for a batch of texts");
    while (status == SNUG_OK && !(in.is_over && in.n == 0)) {
        if (!in.is_over)
            status = read_more(&in, err);
        size_t used = status == SNUG_OK ? find_records(&in, &records) : 0;
        if (status == SNUG_OK)
            status = decodes ? decode_batch(tokenizer, &records, end, &line, err)
                             : encode_batch(tokenizer, &records, err);
        if (in.n > used)
            memmove(in.data, in.data + used, in.n - used);
        in.n -= used;
        if (ferror(stdout))
            break; /* main.c reports it */
    }
    free((void *)records.texts);
    free(records.lengths);
    free(records.ends);
    free(in.data);
    return status;
}

int cmd_tokenize(int argc, char **argv)
{
    bool is_null = false, decodes = false;
    int64_t threads = 0;
    struct flag flags[] = {
        {.name = "null", .kind = FLAG_SWITCH, .value = &is_null, .letter = '0'},
        {.name = "decode", .kind = FLAG_SWITCH, .value = &decodes},
        {.name = "threads", .kind = FLAG_COUNT, .value = &threads, .least = 1},
    };
    struct args args = {.command = "tokenize",
                        .operand_names = "TOKENIZER",
                        .least_operands = 1,
                        .most_operands = 1,
                        .flags = flags,
                        .n_flags = sizeof flags / sizeof flags[0]};
    struct snug_error err = {0};
    snug_tokenizer *tokenizer = NULL;
    int status = CLI_DONE;
    if (!args_parse(&args, argc, argv))
        status = args.exit_status;
    else if (snug_tokenizer_open(args.operands[0], threads > 1024 ? 1024 : (int)threads, &tokenizer,
                                 &err) != SNUG_OK)
        status = cli_fail(&err);
    if (tokenizer != NULL && isatty(STDIN_FILENO))
        cli_note("reading %s from the terminal; end with Ctrl-D",
                 decodes ? "lines of token ids" : "text");
    if (tokenizer != NULL && convert(tokenizer, decodes, is_null ? '\0' : '\n', &err) != SNUG_OK)
        status = cli_fail(&err);
    snug_tokenizer_free(tokenizer);
    args_free(&args);
    return status;
}
