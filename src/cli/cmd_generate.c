/*
 * cmd_generate.c -- snug generate: prints the prompt and its continuation as it is sampled.
 */
#include "cli/cli.h"

#include <string.h>

struct printer {
    const char *prompt; /* printed with the first piece, so that a run that fails prints nothing */
    char last;
    struct screen_text out;
};

/* Returns nonzero to stop: on a signal, or when the output is closed. */
static int print_piece(const char *text, size_t length, void *user)
{
    struct printer *printer = user;
    if (printer->prompt != NULL)
        screen_write(&printer->out, printer->prompt, strlen(printer->prompt));
    printer->prompt = NULL;
    screen_write(&printer->out, text, length);
    if (length > 0)
        printer->last = text[length - 1];
    return fflush(stdout) != 0 || interrupt_asked();
}

static int run(const struct args *args, const struct snug_generate_options *options)
{
    struct snug_error err = {0};
    struct printer printer = {.prompt = options->prompt, .out.to = stdout};
    interrupt_watch();
    enum snug_status status =
        snug_generate(args->operands[0], options, args->recipe, print_piece, &printer, &err);
    if (status == SNUG_OK && printer.prompt != NULL)
        print_piece("", 0, &printer); /* the first token ended the text */
    screen_end(&printer.out);
    if (printer.prompt == NULL && printer.last != '\n')
        putchar('\n');
    if (interrupt_asked())
        return CLI_STOPPED;
    return status == SNUG_OK || status == SNUG_INTERRUPTED ? CLI_DONE : cli_fail(&err);
}

int cmd_generate(int argc, char **argv)
{
    struct snug_generate_options options = {.n_tokens = 100, .temperature = 1.0};
    int64_t seed = 1;
    struct flag flags[] = {
        {.name = "prompt", .kind = FLAG_TEXT, .value = &options.prompt},
        {.name = "tokens", .kind = FLAG_COUNT, .value = &options.n_tokens, .least = 1},
        {.name = "temperature", .kind = FLAG_REAL, .value = &options.temperature},
        {.name = "top-k", .kind = FLAG_COUNT, .value = &options.top_k},
        {.name = "seed", .kind = FLAG_COUNT, .value = &seed},
    };
    struct args args = {
        .command = "generate",
        .operand_names = "RUN",
        .least_operands = 1,
        .most_operands = 1,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
        .takes_recipe = true,
    };
    int status;
    if (!args_parse(&args, argc, argv)) {
        status = args.exit_status;
    } else if (options.prompt == NULL) {
        status = cli_usage_error("snug generate needs a text to continue: add --prompt TEXT");
    } else {
        options.seed = (uint64_t)seed;
        status = run(&args, &options);
    }
    args_free(&args);
    return status;
}
