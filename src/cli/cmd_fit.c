/*
 * cmd_fit.c -- snug fit: finds the fastest recipe inside a budget.
 */
#include "cli/cli.h"

struct fit {
    struct args args;
    bool json, quiet, frontier;
    const char *allow;
    snug_model *model;
    snug_fit *fit;
};

/* If nothing fits, prints the error, and before it the frontier if --frontier asks for it. */
static int run(struct fit *fit)
{
    struct snug_error err = {0};
    if (snug_model_open(fit->args.operands[0], &fit->model, &err) != SNUG_OK)
        return cli_fail(&err);
    enum snug_status found =
        snug_fit_make(fit->model, fit->args.recipe, fit->allow, &fit->fit, &err);
    struct snug_error failed = {0};
    if (fit->fit == NULL)
        return cli_fail(&err);
    if (fit->frontier && snug_fit_sweep(fit->fit, &failed) != SNUG_OK)
        return cli_fail(&failed);
    int status = CLI_DONE;
    if (fit->json)
        status = cli_print_text(snug_fit_json(fit->fit));
    else if (found == SNUG_OK && fit->quiet)
        status = cli_print_text(snug_fit_command(fit->fit)); /* ready to paste */
    else if (found == SNUG_OK || fit->frontier)
        status = cli_print_text(snug_fit_text(fit->fit, fit->frontier, screen_has_color(stdout)));
    return found == SNUG_OK || status != CLI_DONE ? status : cli_fail(&err);
}

int cmd_fit(int argc, char **argv)
{
    struct fit fit = {0};
    struct flag flags[] = {
        {.name = "json", .kind = FLAG_SWITCH, .value = &fit.json},
        {.name = "quiet", .kind = FLAG_SWITCH, .value = &fit.quiet},
        {.name = "frontier", .kind = FLAG_SWITCH, .value = &fit.frontier},
        {.name = "allow", .kind = FLAG_TEXT, .value = &fit.allow},
    };
    fit.args = (struct args){
        .command = "fit",
        .operand_names = "MODEL",
        .least_operands = 1,
        .most_operands = 1,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
        .takes_recipe = true,
    };
    int status;
    if (!args_parse(&fit.args, argc, argv))
        status = fit.args.exit_status;
    else if (fit.quiet && (fit.json || fit.frontier))
        status = cli_usage_error("--quiet prints only the command: drop --json and --frontier");
    else
        status = run(&fit);
    snug_fit_free(fit.fit);
    snug_model_free(fit.model);
    args_free(&fit.args);
    return status;
}
