/*
 * progress.c -- prints the progress of a run.
 *
 *     step 120/5000  loss 3.2101  lr 3.00e-04  12,345 tokens/s  4m12s left
 *
 * On a terminal this line is redrawn in place, at most ten times a second.  A log gets it for the
 * first and the last step, about twenty times in between, and at least once a minute.  Evaluations
 * and saves get a separate line in both.
 *
 *     step 120/5000  evaluating  42%  12s left
 *
 * is shown during an evaluation: redrawn on a terminal, once a minute in a log.
 */
#include "cli/progress.h"

#include <stdarg.h>
#include <time.h>

#include "cli/cli.h"

enum { LINES_BETWEEN = 20, LINE_MAX_BYTES = 256 };
static const double redraw_s = 0.1;
static const double silence_s = 60;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_begin(struct progress *progress, enum progress_mode mode, FILE *to)
{
    *progress = (struct progress){.mode = mode, .to = to, .unit = "tokens"};
    progress_start_clock(progress, NULL);
}

void progress_start_clock(struct progress *progress, const char *unit)
{
    if (unit != NULL)
        progress->unit = unit;
    progress->begun_s = progress->drawn_s = now_s();
}

/* Extrapolates from the steps of this process only; a resumed run has earlier ones. */
static double seconds_left(const struct progress *progress, const struct snug_metrics *metrics)
{
    int64_t n_done = metrics->step - progress->first_step + 1;
    int64_t n_left = metrics->n_steps - metrics->step;
    return (now_s() - progress->begun_s) / (double)n_done * (double)n_left;
}

/* "step  60/400", padded to the same width for every step.  Returns the length. */
static int format_head(const struct snug_metrics *metrics, char line[LINE_MAX_BYTES])
{
    int width = snprintf(NULL, 0, "%lld", (long long)metrics->n_steps);
    return snprintf(line, LINE_MAX_BYTES, "step %*lld/%lld", width, (long long)metrics->step,
                    (long long)metrics->n_steps);
}

static int append(char line[LINE_MAX_BYTES], int length, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int append(char line[LINE_MAX_BYTES], int length, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    length += vsnprintf(line + length, (size_t)(LINE_MAX_BYTES - length), format, args);
    va_end(args);
    return length < LINE_MAX_BYTES ? length : LINE_MAX_BYTES - 1;
}

/* Less than a second is "<1s", never "0s". */
static void append_left(char line[LINE_MAX_BYTES], int length, double seconds)
{
    char number[NUMBER_MAX];
    append(line, length, "  %s left", seconds < 1 ? "<1s" : number_duration(seconds, number));
}

static void format_step(const struct progress *progress, const struct snug_metrics *metrics,
                        char line[LINE_MAX_BYTES])
{
    char number[NUMBER_MAX];
    int length = format_head(metrics, line);
    length =
        append(line, length, "  loss %s  lr %.2e", number_loss(metrics->loss, number), metrics->lr);
    length =
        append(line, length, "  %s %s/s", number_rate(metrics->per_second, number), progress->unit);
    if (metrics->skipped) /* fp16 overflow; rare, so it may replace the time left */
        append(line, length, "  skipped");
    else if (metrics->step < metrics->n_steps)
        append_left(line, length, seconds_left(progress, metrics));
}

static void format_events(const struct snug_metrics *metrics, char line[LINE_MAX_BYTES])
{
    char number[NUMBER_MAX];
    int length = format_head(metrics, line);
    if (metrics->has_validation)
        length =
            append(line, length, "  validation loss %s", number_loss(metrics->val_loss, number));
    if (metrics->has_accuracy)
        length = append(line, length, "  accuracy %.2f%%", 100 * metrics->val_accuracy);
    if (metrics->saved)
        append(line, length, "  saved");
}

static void clear_line(struct progress *progress)
{
    if (progress->line_is_open)
        fputs("\r\033[K", progress->to);
    progress->line_is_open = false;
}

/* Leaves the last column free: some terminals wrap when it is written. */
static void draw_live(struct progress *progress, const char *line)
{
    clear_line(progress);
    fprintf(progress->to, "%.*s", screen_columns(progress->to) - 1, line);
    progress->line_is_open = true;
}

static bool is_due(const struct progress *progress, const struct snug_metrics *metrics, double now)
{
    if (metrics->step == progress->first_step || metrics->step == metrics->n_steps)
        return true;
    if (progress->mode == PROGRESS_LIVE)
        return now - progress->drawn_s >= redraw_s;
    int64_t stride = metrics->n_steps / LINES_BETWEEN;
    return stride <= 1 || metrics->step % stride == 0 || now - progress->drawn_s >= silence_s;
}

static void format_evaluation(const struct progress *progress, const struct snug_doing *doing,
                              double now, char line[LINE_MAX_BYTES])
{
    struct snug_metrics at = {.step = doing->step, .n_steps = doing->n_steps};
    double share = (double)doing->done / (double)doing->total;
    int length = doing->n_steps == 0 ? 0 : append(line, format_head(&at, line), "  ");
    length = append(line, length, "evaluating %3d%%", (int)(100 * share));
    if (doing->done > 0)
        append_left(line, length, (now - progress->evaluation_s) * (1 - share) / share);
}

static void show_evaluation(struct progress *progress, const struct snug_doing *doing)
{
    char line[LINE_MAX_BYTES];
    double now = now_s();
    if (progress->evaluation_s == 0)
        progress->evaluation_s = now;
    if (progress->mode == PROGRESS_NONE || doing->total < 1 ||
        now - progress->drawn_s < (progress->mode == PROGRESS_LIVE ? redraw_s : silence_s))
        return;
    format_evaluation(progress, doing, now, line);
    if (progress->mode == PROGRESS_LIVE)
        draw_live(progress, line);
    else
        fprintf(progress->to, "%s\n", line);
    fflush(progress->to);
    progress->drawn_s = now;
}

/* Prepares the message for a step that does not end within --grace. */
static void begin_step(const struct progress *progress, const struct snug_doing *doing)
{
    char message[1024];
    long long step = (long long)doing->step, saved = (long long)doing->saved_step;
    if (progress->is_mute)
        message[0] = '\0';
    else if (progress->out == NULL)
        snprintf(message, sizeof message,
                 "stopped in step %lld of %lld, which did not end within --grace; nothing is saved "
                 "without --out",
                 step, (long long)doing->n_steps);
    else if (saved < 0)
        snprintf(
            message, sizeof message,
            "stopped in step %lld of %lld, which did not end within --grace; no checkpoint was "
            "saved before it: use --save-every N",
            step, (long long)doing->n_steps);
    else
        snprintf(
            message, sizeof message,
            "stopped in step %lld of %lld, which did not end within --grace; the checkpoint of "
            "step %lld is in %s; continue with --resume",
            step, (long long)doing->n_steps, saved, progress->out);
    interrupt_begin_step(message);
}

int progress_watch(const struct snug_doing *doing, void *user)
{
    struct progress *progress = user;
    if (doing->activity == SNUG_STEP)
        begin_step(progress, doing);
    else
        interrupt_end_step();
    if (doing->activity == SNUG_EVALUATION)
        show_evaluation(progress, doing);
    else
        progress->evaluation_s = 0;
    return interrupt_asked();
}

int progress_step(const struct snug_metrics *metrics, void *user)
{
    struct progress *progress = user;
    char line[LINE_MAX_BYTES];
    double now = now_s();
    interrupt_end_step();
    bool has_event = metrics->has_validation || metrics->saved;
    if (progress->last.step == 0)
        progress->first_step = metrics->step;
    progress->last = *metrics;
    if (metrics->has_validation)
        progress->last_validation = *metrics;

    if (progress->mode != PROGRESS_NONE && (has_event || is_due(progress, metrics, now))) {
        if (has_event && progress->mode == PROGRESS_LIVE) {
            clear_line(progress);
            format_events(metrics, line);
            fprintf(progress->to, "%s\n", line);
        }
        format_step(progress, metrics, line);
        if (progress->mode == PROGRESS_LIVE)
            draw_live(progress, line);
        else
            fprintf(progress->to, "%s\n", line);
        if (has_event && progress->mode == PROGRESS_LINES) {
            format_events(metrics, line);
            fprintf(progress->to, "%s\n", line);
        }
        fflush(progress->to);
        progress->drawn_s = now;
    }
    return interrupt_asked();
}

void progress_end(struct progress *progress)
{
    clear_line(progress);
    fflush(progress->to);
}
