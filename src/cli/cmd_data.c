/*
 * cmd_data.c -- snug data: downloads a data set, or turns text files into token shards.
 */
#include "cli/cli.h"

#include <string.h>

/* ---- snug data NAME ------------------------------------------------------------------------- */

static void say(const char *line, void *user)
{
    (void)user;
    printf("%s\n", line);
    fflush(stdout);
}

static int fetch(int argc, char **argv)
{
    const char *from = NULL;
    struct flag flags[] = {{.name = "from", .kind = FLAG_TEXT, .value = &from}};
    struct args args = {
        .command = "data",
        .operand_names = "NAME [FOLDER]",
        .least_operands = 1,
        .most_operands = 2,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
    };
    struct snug_error err = {0};
    int status = CLI_DONE;
    if (!args_parse(&args, argc, argv))
        status = args.exit_status;
    else if (snug_data_fetch(args.operands[0], args.operands[1], from, say, NULL, &err) != SNUG_OK)
        status = cli_fail(&err);
    args_free(&args);
    return status;
}

/* ---- snug data tokenize --------------------------------------------------------------------- */

static void print_line(FILE *to, const struct snug_tokenized *done)
{
    char tokens[NUMBER_MAX], bytes[NUMBER_MAX], documents[NUMBER_MAX];
    fprintf(to, "%s tokens of %s document%s (%s)", number_count(done->n_tokens, tokens),
            number_count(done->n_documents, documents), done->n_documents == 1 ? "" : "s",
            number_size(done->n_bytes, bytes));
}

static int show_progress(const struct snug_tokenized *done, void *user)
{
    const bool *is_live = user;
    if (*is_live && done->n_bytes < done->total_bytes) {
        fprintf(stderr, "\r\033[K%3.0f%%  ",
                100.0 * (double)done->n_bytes / (double)done->total_bytes);
        print_line(stderr, done);
        fflush(stderr);
    }
    return interrupt_asked();
}

static void print_result(const struct snug_tokenized *result, const char *folder)
{
    print_line(stdout, result);
    printf("\n%s: %d shard%s of %d-bit ids", folder, result->n_files,
           result->n_files == 1 ? "" : "s", result->token_bits);
    if (result->end_id >= 0)
        printf("; token %ld ends each document\n", (long)result->end_id);
    else
        printf("; the tokenizer has no token that ends a document\n");
}

static int tokenize(int argc, char **argv)
{
    const char *folder = NULL, *tokenizer = NULL;
    int64_t threads = 0;
    struct flag flags[] = {
        {.name = "out", .kind = FLAG_TEXT, .value = &folder, .letter = 'o'},
        {.name = "tokenizer", .kind = FLAG_TEXT, .value = &tokenizer},
        {.name = "threads", .kind = FLAG_COUNT, .value = &threads, .least = 1},
    };
    struct args args = {
        .command = "data",
        .operand_names = "tokenize FILES",
        .least_operands = 2,
        .most_operands = ARGS_POSITIONAL_MOST,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
    };
    struct snug_error err = {0};
    struct snug_tokenized result;
    int status = CLI_DONE;
    if (!args_parse(&args, argc, argv)) {
        status = args.exit_status;
    } else if (folder == NULL || tokenizer == NULL) {
        status = cli_usage_error("snug data tokenize needs %s; see snug help data",
                                 folder == NULL ? "-o FOLDER" : "--tokenizer FOLDER");
    } else {
        struct snug_tokenize_options options = {tokenizer, folder,
                                                threads > 1024 ? 1024 : (int)threads};
        bool is_live = screen_is_live(stderr);
        interrupt_watch();
        enum snug_status done = snug_data_tokenize(args.operands + 1, args.n_operands - 1, &options,
                                                   show_progress, &is_live, &result, &err);
        if (is_live)
            fputs("\r\033[K", stderr);
        if (done == SNUG_OK)
            print_result(&result, folder);
        else
            status = done == SNUG_INTERRUPTED ? (cli_fail(&err), CLI_STOPPED) : cli_fail(&err);
    }
    args_free(&args);
    return status;
}

int cmd_data(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "tokenize") == 0 ? tokenize(argc, argv) : fetch(argc, argv);
}
