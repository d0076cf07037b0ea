/*
 * cmd_inspect.c -- snug inspect: lists the contents of a file or a run.
 */
#include "cli/cli.h"

int cmd_inspect(int argc, char **argv)
{
    struct args args = {
        .command = "inspect",
        .operand_names = "FILE or RUN",
        .least_operands = 1,
        .most_operands = 1,
    };
    struct snug_error err = {0};
    char *text = NULL;
    if (!args_parse(&args, argc, argv))
        return args.exit_status;
    if (snug_inspect(args.operands[0], &text, &err) != SNUG_OK)
        return cli_fail(&err);
    return cli_print_text(text);
}
