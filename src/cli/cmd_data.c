/*
 * cmd_data.c -- snug data: downloads a data set from its publisher and verifies it.
 */
#include "cli/cli.h"

static void say(const char *line, void *user)
{
    (void)user;
    printf("%s\n", line);
    fflush(stdout);
}

int cmd_data(int argc, char **argv)
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
