/*
 * cmd_eval.c -- snug eval: evaluates a saved run.
 */
#include "cli/cli.h"

#include <inttypes.h>

#include "cli/progress.h"

static void print_json(const struct snug_eval_result *result)
{
    printf("{\"n\": %" PRId64 ", ", result->n);
    json_number(stdout, "loss", result->loss, ", ");
    if (result->has_accuracy)
        json_number(stdout, "accuracy", result->accuracy, ", ");
    json_number(stdout, "perplexity", result->perplexity, "}\n");
}

/* Accuracy for a classifier, perplexity for a language model. */
static void print_result(const struct snug_eval_result *result)
{
    char number[NUMBER_MAX];
    printf("loss        %s\n", number_loss(result->loss, number));
    if (result->has_accuracy)
        printf("accuracy    %.2f%%\n", 100 * result->accuracy);
    else
        printf("perplexity  %.6g\n", result->perplexity);
    printf("over        %s %s\n", number_count(result->n, number),
           result->has_accuracy ? "samples" : "tokens");
}

static int run(const struct args *args, bool json)
{
    struct snug_error err = {0};
    struct snug_eval_result result;
    struct progress progress;
    progress_begin(&progress, screen_is_live(stderr) ? PROGRESS_LIVE : PROGRESS_NONE, stderr);
    interrupt_watch();
    enum snug_status status = snug_eval_watched(args->operands[0], args->operands[1], args->recipe,
                                                progress_watch, &progress, &result, &err);
    progress_end(&progress);
    if (status == SNUG_INTERRUPTED) {
        cli_note("%s", err.message);
        return CLI_STOPPED;
    }
    if (status != SNUG_OK)
        return cli_fail(&err);
    if (json)
        print_json(&result);
    else
        print_result(&result);
    return CLI_DONE;
}

int cmd_eval(int argc, char **argv)
{
    bool json = false;
    struct flag flags[] = {
        {.name = "json", .kind = FLAG_SWITCH, .value = &json},
    };
    struct args args = {
        .command = "eval",
        .operand_names = "RUN [DATA]",
        .least_operands = 1,
        .most_operands = 2,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
        .takes_recipe = true,
    };
    int status = args_parse(&args, argc, argv) ? run(&args, json) : args.exit_status;
    args_free(&args);
    return status;
}
