/*
 * cmd_bench.c -- snug bench: the rates of this machine and the time of each op in a step.
 */
#include "cli/cli.h"

int cmd_bench(int argc, char **argv)
{
    bool json = false;
    struct flag flags[] = {{.name = "json", .kind = FLAG_SWITCH, .value = &json}};
    struct args args = {
        .command = "bench",
        .operand_names = "cpu [MODEL] or cuda [MODEL]",
        .least_operands = 1,
        .most_operands = 2,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
        .takes_recipe = true,
    };
    struct snug_error err = {0};
    snug_model *model = NULL; /* the library's default */
    char *text = NULL;
    int status = CLI_DONE;
    if (!args_parse(&args, argc, argv))
        status = args.exit_status;
    else if ((args.n_operands > 1 && snug_model_open(args.operands[1], &model, &err) != SNUG_OK) ||
             snug_bench(args.operands[0], model, args.recipe, json, &text, &err) != SNUG_OK)
        status = cli_fail(&err);
    else
        status = cli_print_text(text);
    snug_model_free(model);
    args_free(&args);
    return status;
}
