/*
 * cmd_bench.c -- snug bench: what this machine does, where a step's time goes, and what a larger
 * batch does to accuracy.
 */
#include "cli/cli.h"

#include <string.h>

struct bench {
    struct args args;
    struct snug_large_batch large;
    bool json;
};

static void say(const char *line, void *user)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static bool is_large(const struct bench *bench)
{
    return strcmp(bench->args.operands[0], "large-batch") == 0;
}

static bool check_flags(const struct bench *bench)
{
    static const char *const own[] = {"large", "epochs", "seeds"};
    const struct args *args = &bench->args;
    if (is_large(bench))
        return true;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (args_given(args, own[i])) {
            cli_usage_error("--%s is for snug bench large-batch", own[i]);
            return false;
        }
    if (args->n_operands > 2)
        cli_usage_error("snug bench %s takes [MODEL]; \"%s\" is one too many", args->operands[0],
                        args->operands[2]);
    return args->n_operands <= 2;
}

static enum snug_status measure(struct bench *bench, const snug_model *model, char **text,
                                struct snug_error *err)
{
    const struct args *args = &bench->args;
    if (!is_large(bench))
        return snug_bench(args->operands[0], model, args->recipe, bench->json, text, err);
    bench->large.data = args->n_operands > 2 ? args->operands[2] : "fashion-mnist";
    return snug_bench_large_batch(model, args->recipe, &bench->large, bench->json, say, NULL, text,
                                  err);
}

int cmd_bench(int argc, char **argv)
{
    struct bench bench = {.large = {.large = 4096, .n_seeds = 3, .epochs = 5}};
    struct flag flags[] = {
        {.name = "json", .kind = FLAG_SWITCH, .value = &bench.json},
        {.name = "large", .kind = FLAG_COUNT, .value = &bench.large.large, .least = 2},
        {.name = "epochs", .kind = FLAG_REAL, .value = &bench.large.epochs},
        {.name = "seeds", .kind = FLAG_COUNT, .value = &bench.large.n_seeds, .least = 1}};
    bench.args = (struct args){
        .command = "bench",
        .operand_names = "cpu [MODEL], cuda [MODEL] or large-batch [MODEL [DATA]]",
        .least_operands = 1,
        .most_operands = 3,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
        .takes_recipe = true,
    };
    struct snug_error err = {0};
    snug_model *model = NULL;
    char *text = NULL;
    int status = CLI_DONE;
    if (!args_parse(&bench.args, argc, argv)) {
        status = bench.args.exit_status;
    } else if (!check_flags(&bench)) {
        status = CLI_WRONG_USAGE;
    } else {
        const char *spec = bench.args.n_operands > 1 ? bench.args.operands[1]
                           : is_large(&bench)        ? "mlp"
                                                     : NULL; /* the library's usual one */
        if ((spec != NULL && snug_model_open(spec, &model, &err) != SNUG_OK) ||
            measure(&bench, model, &text, &err) != SNUG_OK)
            status = cli_fail(&err);
        else
            status = cli_print_text(text);
    }
    snug_model_free(model);
    args_free(&bench.args);
    return status;
}
