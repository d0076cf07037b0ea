/*
 * cmd_plan.c -- snug plan: where the bytes would go.
 */
#include "cli/cli.h"

#include <string.h>

struct plan {
    struct args args;
    bool json, quiet;
    const char *dump; /* name of a pass, or NULL */
    snug_model *model;
    snug_plan *plan;
};

static void print_total(const struct plan *plan)
{
    char total[NUMBER_MAX], size[NUMBER_MAX];
    struct snug_ledger ledger;
    snug_plan_ledger(plan->plan, &ledger);
    printf("%s bytes (%s)\n", number_count(ledger.total, total), number_size(ledger.total, size));
}

/* Over budget, the plan is still the answer; the status and a line say that it does not fit. */
static int run(struct plan *plan)
{
    struct snug_error err = {0};
    char *text = NULL;
    if (snug_model_open(plan->args.operands[0], &plan->model, &err) != SNUG_OK)
        return cli_fail(&err);
    if (plan->dump != NULL) {
        if (snug_dump(plan->model, plan->args.recipe, plan->dump, &text, &err) != SNUG_OK)
            return cli_fail(&err);
        return cli_print_text(text);
    }
    if (snug_plan_make(plan->model, plan->args.recipe, &plan->plan, &err) != SNUG_OK)
        return cli_fail(&err);
    int status = CLI_DONE;
    if (plan->json)
        status = cli_print_text(snug_plan_json(plan->plan));
    else if (plan->quiet)
        print_total(plan);
    else
        status = cli_print_text(snug_plan_text(plan->plan, screen_has_color(stdout)));
    if (status == CLI_DONE && snug_plan_check_budget(plan->plan, &err) != SNUG_OK)
        status = cli_fail(&err);
    return status;
}

int cmd_plan(int argc, char **argv)
{
    struct plan plan = {0};
    struct flag flags[] = {
        {.name = "json", .kind = FLAG_SWITCH, .value = &plan.json},
        {.name = "quiet", .kind = FLAG_SWITCH, .value = &plan.quiet},
        {.name = "dump", .kind = FLAG_TEXT, .value = &plan.dump},
    };
    plan.args = (struct args){
        .command = "plan",
        .operand_names = "MODEL",
        .least_operands = 1,
        .most_operands = 1,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
        .takes_recipe = true,
    };
    int status;
    if (!args_parse(&plan.args, argc, argv))
        status = plan.args.exit_status;
    else if (plan.json && plan.dump != NULL)
        status = cli_usage_error("--dump prints the program, --json the plan; keep one");
    else
        status = run(&plan);
    snug_plan_free(plan.plan);
    snug_model_free(plan.model);
    args_free(&plan.args);
    return status;
}
