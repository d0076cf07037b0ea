/*
 * cmd_train.c -- snug train: prints a header, trains, prints a summary.
 */
#include "cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/progress.h"

struct train {
    struct args args;
    struct snug_train_options options;
    bool json, quiet, resume, weights_only;
    int64_t grace_s;
    snug_model *model;
    snug_trainer *trainer;
    struct progress progress;
    struct snug_summary summary;
};

static bool check_flags(struct train *train)
{
    const struct args *args = &train->args;
    enum { MOST_GRACE_S = 1000000 };
    const char *needs_out = train->weights_only              ? "resume-weights-only"
                            : train->resume                  ? "resume"
                            : args_given(args, "save-every") ? "save-every"
                            : args_given(args, "keep")       ? "keep"
                                                             : NULL;
    if (args_given(args, "steps") && args_given(args, "epochs"))
        cli_usage_error("--steps and --epochs both set the length of the run: choose one");
    else if (args_given(args, "epochs") && train->options.epochs == 0)
        cli_usage_error("--epochs needs a number above 0");
    else if (train->grace_s > MOST_GRACE_S)
        cli_usage_error("--grace can be at most %d seconds", MOST_GRACE_S);
    else if (needs_out != NULL && train->options.out == NULL)
        cli_usage_error("--%s needs the folder of the run: add --out DIR", needs_out);
    else
        return true;
    return false;
}

static int print_header(const struct train *train)
{
    char *header = snug_trainer_describe(train->trainer);
    if (header == NULL)
        return cli_fail(&(struct snug_error){SNUG_NO_MEMORY, "out of memory"});
    printf("%s\n", header);
    fflush(stdout);
    snug_free(header);
    return CLI_DONE;
}

static int print_notes(const struct train *train)
{
    char *notes = snug_trainer_notes(train->trainer), *rest = notes;
    if (notes == NULL)
        return cli_fail(&(struct snug_error){SNUG_NO_MEMORY, "out of memory"});
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n"))
        if (line[0] != '\0')
            cli_note("%s", line);
    snug_free(notes);
    return CLI_DONE;
}

/* The live line goes to standard error, which must be a terminal.  Standard output must be one too,
 * except with --json, where it gets only the line of JSON. */
static void choose_progress(struct train *train)
{
    FILE *lines_to = train->json ? stderr : stdout;
    bool live = screen_is_live(stderr) && (train->json || screen_is_live(stdout));
    if (train->quiet)
        progress_begin(&train->progress, PROGRESS_NONE, lines_to);
    else if (live)
        progress_begin(&train->progress, PROGRESS_LIVE, stderr);
    else
        progress_begin(&train->progress, PROGRESS_LINES, lines_to);
}

static void print_rank(const struct train *train, int rank)
{
    int gpu = snug_trainer_rank_gpu(train->trainer, rank);
    int64_t planned, allocated, runtime, peak;
    double seconds, waited;
    if (!snug_trainer_rank_bytes(train->trainer, rank, &planned, &allocated) ||
        !snug_trainer_rank_measured(train->trainer, rank, &runtime, &peak) ||
        !snug_trainer_rank_seconds(train->trainer, rank, &seconds, &waited))
        return;
    printf("%s{\"planned_bytes\": %" PRId64 ", \"allocated_bytes\": %" PRId64
           ", \"seconds\": %.6f, \"waited_seconds\": %.6f, \"runtime_bytes\": %" PRId64
           ", \"measured_peak_bytes\": %" PRId64,
           rank == 0 ? "" : ", ", planned, allocated, seconds, waited, runtime, peak);
    if (gpu >= 0)
        printf(", \"gpu\": %d", gpu);
    putchar('}');
}

/* With several ranks: the bytes of each, and how long it waited for the others. */
static void print_ranks(const struct train *train)
{
    const char *transport = snug_trainer_transport(train->trainer);
    int n = snug_trainer_ranks(train->trainer);
    if (n > 1) {
        printf("\"ranks\": [");
        for (int rank = 0; rank < n; rank++)
            print_rank(train, rank);
        printf("], ");
    }
    if (transport != NULL)
        json_text(stdout, "transport", transport, ", ");
}

static void print_json(const struct train *train, bool stopped)
{
    const struct snug_summary *summary = &train->summary;
    const struct snug_metrics *validation = &train->progress.last_validation;
    bool samples = summary->unit != NULL && strcmp(summary->unit, "samples") == 0;
    printf("{\"steps\": %" PRId64 ", ", summary->steps);
    json_number(stdout, "loss", summary->loss, ", ");
    printf("\"planned_bytes\": %" PRId64 ", \"allocated_bytes\": %" PRId64
           ", \"runtime_bytes\": %" PRId64 ", \"measured_peak_bytes\": %" PRId64 ", ",
           summary->planned_bytes, summary->allocated_bytes, summary->runtime_bytes,
           summary->measured_peak_bytes);
    if (stopped)
        fputs("\"stopped\": true, ", stdout);
    print_ranks(train);
    if (validation->has_validation)
        json_number(stdout, "val_loss", validation->val_loss, ", ");
    if (validation->has_accuracy)
        json_number(stdout, "val_accuracy", validation->val_accuracy, ", ");
    if (samples)
        json_number(stdout, "samples_per_s", summary->per_second, ", ");
    json_number(stdout, "tokens_per_s", summary->per_second, "}\n");
}

static void print_bytes(const char *label, int64_t bytes, const char *remark)
{
    char count[NUMBER_MAX], size[NUMBER_MAX];
    printf("%-15s %18s bytes  %8s%s%s\n", label, number_count(bytes, count),
           number_size(bytes, size), remark[0] != '\0' ? "  " : "", remark);
}

static void print_place(const char *folder)
{
    char *shown = strdup(folder);
    printf("%-15s %s\n", "saved in", shown == NULL ? "?" : snug_printable(shown));
    free(shown);
}

static void print_table(const struct train *train)
{
    const struct snug_summary *summary = &train->summary;
    const struct snug_metrics *validation = &train->progress.last_validation;
    char number[NUMBER_MAX], steps[NUMBER_MAX];
    bool as_planned = summary->allocated_bytes == summary->planned_bytes;
    bool bold = screen_has_color(stdout);
    if (!train->quiet)
        putchar('\n');
    printf("%-15s %s%s%s after %s step%s\n", "loss", bold ? "\033[1m" : "",
           number_loss(summary->loss, number), bold ? "\033[0m" : "",
           number_count(summary->steps, steps), summary->steps == 1 ? "" : "s");
    if (validation->has_validation) {
        printf("%-15s %s", "validation loss", number_loss(validation->val_loss, number));
        if (validation->has_accuracy)
            printf(", accuracy %.2f%%", 100 * validation->val_accuracy);
        putchar('\n');
    }
    printf("%-15s %s %s/s\n", "speed", number_rate(summary->per_second, number),
           summary->unit != NULL ? summary->unit : "tokens");
    print_bytes("planned", summary->planned_bytes,
                snug_trainer_ranks(train->trainer) > 1 ? "on the rank with the highest peak" : "");
    print_bytes("allocated", summary->allocated_bytes,
                as_planned ? "as planned" : "not as planned");
    print_bytes("runtime", summary->runtime_bytes, "on top of the plan");
    print_bytes("measured peak", summary->measured_peak_bytes, "runtime included");
    if (train->options.out != NULL)
        print_place(train->options.out);
}

/* A resumed run that was already complete. */
static int report_finished(const struct train *train)
{
    const struct snug_train_options *options = &train->options;
    long long step = (long long)train->summary.steps;
    long long asked = options->steps > 0 ? (long long)options->steps : step;
    FILE *to = train->json ? stderr : stdout;
    if (!train->json || !train->quiet)
        fprintf(to, "already at step %lld of %lld: increase --%s to continue\n", step, asked,
                options->epochs > 0 ? "epochs" : "steps");
    if (train->json)
        print_json(train, false);
    return CLI_DONE;
}

/* Prints the results of a run that completed or was stopped, and returns its exit status. */
static int report(struct train *train, bool stopped)
{
    const struct snug_metrics *last = &train->progress.last;
    snug_trainer_summary(train->trainer, &train->summary);
    if (last->step == 0)
        return report_finished(train);
    if (train->json)
        print_json(train, stopped);
    else
        print_table(train);
    if (!stopped)
        return CLI_DONE;
    if (train->options.out == NULL) {
        cli_note("stopped at step %lld of %lld; nothing is saved without --out",
                 (long long)last->step, (long long)last->n_steps);
        return CLI_STOPPED;
    }
    if (last->step == last->n_steps)
        cli_note(
            "all %lld steps are saved in %s; the evaluation was canceled: run snug eval for it",
            (long long)last->step, train->options.out);
    else
        cli_note("stopped at step %lld of %lld; saved in %s; continue with --resume",
                 (long long)last->step, (long long)last->n_steps, train->options.out);
    return CLI_DONE;
}

static int run(struct train *train)
{
    struct snug_error err = {0};
    if (train->options.out != NULL) /* a closed pipe must not end a run that can be saved */
        signal(SIGPIPE, SIG_IGN);
    choose_progress(train);
    if (snug_model_open(train->args.operands[0], &train->model, &err) != SNUG_OK) {
        if (err.status == SNUG_NO_MEMORY) /* other errors occur on every rank */
            snug_ranks_abandon();
        return cli_fail(&err);
    }
    if (snug_trainer_open(train->model, train->args.recipe, &train->options, &train->trainer,
                          &err) != SNUG_OK)
        return cli_fail(&err);
    bool is_mute = snug_trainer_rank(train->trainer) > 0; /* only rank 0 prints */
    train->quiet |= is_mute;
    if (is_mute)
        choose_progress(train);
    if (!train->quiet &&
        (print_notes(train) != CLI_DONE || (!train->json && print_header(train) != CLI_DONE))) {
        snug_trainer_abandon(train->trainer); /* the other ranks are about to train */
        return CLI_FAILED;
    }
    snug_trainer_summary(train->trainer, &train->summary);
    train->progress.out = train->options.out;
    train->progress.is_mute = is_mute;
    snug_trainer_watch(train->trainer, progress_watch, &train->progress);
    interrupt_watch();
    interrupt_set_grace((int)train->grace_s);
    progress_start_clock(&train->progress, train->summary.unit);
    enum snug_status status =
        snug_trainer_run(train->trainer, progress_step, &train->progress, &err);
    interrupt_end_step(); /* after a failure no callback ended the step */
    progress_end(&train->progress);
    if (status != SNUG_OK && status != SNUG_INTERRUPTED)
        return cli_fail(&err);
    bool cut_short = train->progress.last.step < train->progress.last.n_steps;
    if (is_mute)
        return CLI_DONE;
    return report(train, status == SNUG_INTERRUPTED || (interrupt_asked() && cut_short));
}

int cmd_train(int argc, char **argv)
{
    struct train train = {.grace_s = 20};
    struct snug_train_options *options = &train.options;
    struct flag flags[] = {
        {.name = "steps", .kind = FLAG_COUNT, .value = &options->steps, .least = 1},
        {.name = "epochs", .kind = FLAG_REAL, .value = &options->epochs},
        {.name = "out", .kind = FLAG_TEXT, .value = &options->out},
        {.name = "resume", .kind = FLAG_SWITCH, .value = &train.resume},
        {.name = "resume-weights-only", .kind = FLAG_SWITCH, .value = &train.weights_only},
        {.name = "eval-every", .kind = FLAG_COUNT, .value = &options->eval_every, .least = -1},
        {.name = "eval-batches", .kind = FLAG_COUNT, .value = &options->eval_batches},
        {.name = "save-every", .kind = FLAG_COUNT, .value = &options->save_every},
        {.name = "keep", .kind = FLAG_COUNT, .value = &options->keep},
        {.name = "grace", .kind = FLAG_COUNT, .value = &train.grace_s},
        {.name = "json", .kind = FLAG_SWITCH, .value = &train.json},
        {.name = "quiet", .kind = FLAG_SWITCH, .value = &train.quiet},
    };
    int status = CLI_WRONG_USAGE;
    train.args = (struct args){
        .command = "train",
        .operand_names = "MODEL [DATA]",
        .least_operands = 1,
        .most_operands = 2,
        .flags = flags,
        .n_flags = sizeof flags / sizeof flags[0],
        .takes_recipe = true,
    };
    if (!args_parse(&train.args, argc, argv)) {
        status = train.args.exit_status;
        if (status == CLI_FAILED)
            snug_ranks_abandon();
        goto done;
    }
    options->data = train.args.n_operands > 1 ? train.args.operands[1] : NULL;
    options->resume = train.resume || train.weights_only;
    options->weights_only = train.weights_only;
    if (!check_flags(&train))
        goto done;
    status = run(&train);
done:
    snug_trainer_free(train.trainer);
    snug_model_free(train.model);
    args_free(&train.args);
    return status;
}
