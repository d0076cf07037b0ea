/*
 * cmd_ops.c -- snug ops: the table of ops and their kernels.
 */
#include "cli/cli.h"

int cmd_ops(int argc, char **argv)
{
    struct args args = {.command = "ops"};
    if (!args_parse(&args, argc, argv))
        return args.exit_status;
    return cli_print_text(snug_ops_table());
}
