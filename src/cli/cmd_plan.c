/*
 * cmd_plan.c -- snug plan: shows where the bytes of a training step go.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct plan {
    struct args args;
    bool json, quiet, timeline, each;
    const char *dump;    /* name of a pass, or NULL */
    const char *compare; /* recipes, separated by ; */
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

struct column { /* one recipe of --compare */
    const char *name;
    snug_recipe *recipe;
    snug_plan *plan;
};

static int make_column(const struct plan *plan, char *line, struct column *column)
{
    struct snug_error err = {0};
    line += strspn(line, " ");
    for (size_t end = strlen(line); end > 0 && line[end - 1] == ' '; end--)
        line[end - 1] = '\0';
    column->name = line;
    column->recipe = snug_recipe_copy(plan->args.recipe);
    if (column->recipe == NULL)
        err.status = SNUG_NO_MEMORY;
    else if (snug_recipe_set_line(column->recipe, line, &err) == SNUG_OK &&
             snug_plan_make(plan->model, column->recipe, &column->plan, &err) == SNUG_OK)
        return CLI_DONE;
    return cli_fail(&err);
}

enum { COLUMNS_MOST = 64 };

static int print_columns(const struct plan *plan, const struct column *columns, int n)
{
    const snug_plan *plans[COLUMNS_MOST];
    const char *names[COLUMNS_MOST];
    for (int i = 0; i < n; i++) {
        plans[i] = columns[i].plan;
        names[i] = columns[i].name;
    }
    return cli_print_text(plan->json
                              ? snug_compare_json(plans, names, n)
                              : snug_compare_text(plans, names, n, screen_has_color(stdout)));
}

static int compare(const struct plan *plan)
{
    struct column columns[COLUMNS_MOST] = {{0}};
    struct snug_error err = {.status = SNUG_NO_MEMORY};
    char *lines = strdup(plan->compare);
    int n = 0, status = lines == NULL ? cli_fail(&err) : CLI_DONE;
    for (char *line = lines, *next; line != NULL && status == CLI_DONE; line = next) {
        next = strchr(line, ';');
        if (next != NULL)
            *next++ = '\0';
        status = n == COLUMNS_MOST
                     ? cli_usage_error("--compare takes at most %d recipes", COLUMNS_MOST)
                     : make_column(plan, line, &columns[n]);
        n += n < COLUMNS_MOST;
    }
    if (status == CLI_DONE)
        status = print_columns(plan, columns, n);
    for (int i = 0; i < n; i++) {
        snug_plan_free(columns[i].plan);
        snug_recipe_free(columns[i].recipe);
    }
    free(lines);
    return status;
}

static int print_plan(const struct plan *plan)
{
    int color = screen_has_color(stdout);
    if (plan->timeline)
        return cli_print_text(plan->json ? snug_plan_timeline_json(plan->plan)
                                         : snug_plan_timeline_text(plan->plan, color));
    if (plan->quiet) {
        print_total(plan);
        return CLI_DONE;
    }
    return cli_print_text(plan->json ? snug_plan_json(plan->plan)
                                     : snug_plan_text(plan->plan, color));
}

/* The length of a weight's name without ".weight". */
static int layer_length(const char *weight)
{
    size_t length = strlen(weight), ending = strlen(".weight");
    bool ends = length > ending && strcmp(weight + length - ending, ".weight") == 0;
    return (int)(ends ? length - ending : length);
}

/* For a pipeline: the stage, its first and last weight.  As text, once per stage. */
static void print_stage(const struct plan *plan, const snug_plan *of_rank, int *before)
{
    const char *first, *last;
    int stage = snug_plan_stage(of_rank, &first, &last);
    bool is_new = stage >= 0 && stage != *before;
    *before = stage;
    struct snug_ledger ledger;
    snug_plan_ledger(of_rank, &ledger);
    if (stage >= 0 && plan->json) {
        printf(", \"stage\": %d, ", stage);
        json_text(stdout, "first", first, ", ");
        json_text(stdout, "last", last, ", ");
        json_number(stdout, "bubble", ledger.idle_share, "");
    } else if (is_new && !plan->json && !plan->quiet)
        printf("stage %d: %.*s to %.*s\n", stage, layer_length(first), first, layer_length(last),
               last);
}

/* One line per rank, after a header line.  Text has rounded sizes, --json and --quiet bytes. */
static void print_rank(const struct plan *plan, int rank, const snug_plan *of_rank, int *stage)
{
    struct snug_ledger of, *ledger = &of;
    snug_plan_ledger(of_rank, &of);
    const int64_t bytes[] = {ledger->parameters,  ledger->gradients, ledger->optimizer,
                             ledger->activations, ledger->temporary, ledger->total};
    static const char *const heads[] = {"parameters",  "gradients", "optimizer",
                                        "activations", "temporary", "total"};
    enum { N = sizeof heads / sizeof *heads };
    if (rank == 0 && !plan->json && !plan->quiet) {
        printf("%4s", "rank");
        for (int i = 0; i < N; i++)
            printf(" %11s", heads[i]);
        putchar('\n');
    }
    if (!plan->json)
        print_stage(plan, of_rank, stage);
    printf(plan->json ? "%s{\"rank\": %d" : "%s%4d", plan->json && rank > 0 ? ", " : "", rank);
    for (int i = plan->quiet ? N - 1 : 0; i < N; i++) {
        char count[NUMBER_MAX];
        if (plan->json)
            printf(", \"%s\": %" PRId64, heads[i], bytes[i]);
        else
            printf(" %11s",
                   plan->quiet ? number_count(bytes[i], count) : number_size(bytes[i], count));
    }
    if (plan->json)
        print_stage(plan, of_rank, stage);
    fputs(plan->json ? "}" : "\n", stdout);
}

static int print_each(struct plan *plan)
{
    int n = snug_plan_ranks(plan->plan), stage = -1;
    struct snug_ledger ledger;
    struct snug_error err = {0};
    if (plan->json)
        printf("[");
    for (int rank = 0; rank < n; rank++) {
        snug_plan *of_rank = NULL;
        if (snug_plan_make_rank(plan->model, plan->args.recipe, rank, &of_rank, &err) != SNUG_OK)
            return cli_fail(&err);
        print_rank(plan, rank, of_rank, &stage);
        snug_plan_free(of_rank);
    }
    snug_plan_ledger(plan->plan, &ledger);
    if (plan->json)
        printf("]\n");
    else if (!plan->quiet && ledger.idle_share > 0)
        printf("each stage is idle for %.3g%% of a step\n", 100 * ledger.idle_share);
    return CLI_DONE;
}

/* Prints the plan even if it is over budget; then the error message and the exit status follow. */
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
    if (plan->compare != NULL)
        return compare(plan);
    if (snug_plan_make(plan->model, plan->args.recipe, &plan->plan, &err) != SNUG_OK)
        return cli_fail(&err);
    int status = plan->each ? print_each(plan) : print_plan(plan);
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
        {.name = "each", .kind = FLAG_SWITCH, .value = &plan.each},
        {.name = "timeline", .kind = FLAG_SWITCH, .value = &plan.timeline},
        {.name = "dump", .kind = FLAG_TEXT, .value = &plan.dump},
        {.name = "compare", .kind = FLAG_TEXT, .value = &plan.compare},
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
        status = cli_usage_error("--dump prints the program, --json the plan: choose one");
    else if (plan.quiet && plan.json && !plan.each)
        status = cli_usage_error("--quiet prints one number, --json an object: choose one");
    else if (plan.quiet && plan.timeline)
        status = cli_usage_error("--quiet prints one number, --timeline a chart: choose one");
    else if (plan.each && (plan.timeline || plan.compare != NULL || plan.dump != NULL))
        status = cli_usage_error(
            "--each prints one line per rank: combine it only with --json or --quiet");
    else if (plan.compare != NULL && (plan.timeline || plan.dump != NULL || plan.quiet))
        status = cli_usage_error("--compare can be combined only with --json");
    else
        status = run(&plan);
    snug_plan_free(plan.plan);
    snug_model_free(plan.model);
    args_free(&plan.args);
    return status;
}
