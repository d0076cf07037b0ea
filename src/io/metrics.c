/*
 * metrics.c -- appending to metrics.jsonl; see metrics.h.
 */
#include "io/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "io/json.h"

#define HELD_SUFFIX ".held"

struct metrics {
    char *path, *held; /* "metrics.jsonl", "metrics.jsonl.held" */
    bool holds;        /* the held file exists */
    int fd;
    int64_t n_bytes; /* length of the complete lines */
};

/* Reads the step of a line, -1 if it has none, and its loss, NaN if it has none. */
static enum snug_status read_line(const char *line, size_t n_bytes, const char *path, int64_t *step,
                                  double *loss, struct snug_error *err)
{
    json_t *object;
    struct snug_error why = {0};
    *step = -1;
    *loss = NAN;
    enum snug_status status = json_parse(line, n_bytes, path, &object, &why);
    if (status == SNUG_NO_MEMORY)
        return snug_fail(err, status, "%s", why.message);
    if (status != SNUG_OK)
        return SNUG_OK;
    if (json_get_integer(object, "", "step", 0, INT64_MAX, step, NULL) != SNUG_OK)
        *step = -1;
    if (json_get_real(object, "", "loss", loss, NULL) != SNUG_OK)
        *loss = NAN;
    json_decref(object);
    return SNUG_OK;
}

static enum snug_status step_of(const char *line, size_t n_bytes, const char *path, int64_t *step,
                                struct snug_error *err)
{
    double loss;
    return read_line(line, n_bytes, path, step, &loss, err);
}

/* Finds where to truncate.  *cut is the length of the lines before the first one that is incomplete
 * or belongs to a step after keep_steps; *last is the step of the last line within.  A read error
 * must not pass for the end of the file, or the lines after it would be lost. */
static enum snug_status read_lines(FILE *file, const char *path, int64_t keep_steps, int64_t *cut,
                                   int64_t *last, struct snug_error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    int64_t step = 0;
    enum snug_status status = SNUG_OK;
    *cut = 0;
    errno = 0;
    while ((length = getline(&line, &capacity, file)) > 0 && line[length - 1] == '\n') {
        status = step_of(line, (size_t)length, path, &step, err);
        if (status != SNUG_OK || step < 0 || step > keep_steps)
            break;
        *cut += length;
        *last = step;
        errno = 0;
    }
    if (length < 0 && !feof(file))
        status = snug_fail(err, errno == ENOMEM ? SNUG_NO_MEMORY : SNUG_IO_ERROR,
                           "%s: cannot read: %s", path, strerror(errno));
    free(line);
    return status;
}

static enum snug_status find_cut(int fd, const char *path, int64_t keep_steps, int64_t *cut,
                                 int64_t *last, struct snug_error *err)
{
    int copy = dup(fd);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "r");
    if (file == NULL) {
        int reason = errno;
        if (copy >= 0)
            close(copy);
        return snug_fail(err, reason == ENOMEM ? SNUG_NO_MEMORY : SNUG_IO_ERROR,
                         "%s: cannot read: %s", path, strerror(reason));
    }
    enum snug_status status = read_lines(file, path, keep_steps, cut, last, err);
    fclose(file);
    return status;
}

/* Appends the held line of step `keep_steps` if the process ended before doing so. */
static enum snug_status take_held(struct metrics *metrics, int64_t keep_steps, int64_t last,
                                  struct snug_error *err)
{
    enum { LONGEST = 1 << 16 };
    char *line;
    size_t length;
    int64_t step = -1;
    if (access(metrics->held, F_OK) != 0 && errno == ENOENT)
        return SNUG_OK;
    TRY(file_read_all(metrics->held, LONGEST, &line, &length, err));
    enum snug_status status = step_of(line, length, metrics->held, &step, err);
    if (status == SNUG_OK && last < keep_steps && step == keep_steps)
        status = metrics_append(metrics, line, NULL, err);
    if (status == SNUG_OK)
        file_remove(metrics->held, NULL); /* whether used or not */
    free(line);
    return status;
}

enum snug_status metrics_open(const char *path, int64_t keep_steps, struct metrics **out,
                              struct snug_error *err)
{
    int64_t last = 0;
    *out = NULL;
    struct metrics *metrics = calloc(1, sizeof *metrics);
    char *copy = strdup(path);
    size_t held_bytes = strlen(path) + sizeof HELD_SUFFIX;
    char *held = malloc(held_bytes);
    if (metrics == NULL || copy == NULL || held == NULL) {
        free(metrics);
        free(copy);
        free(held);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the file", path);
    }
    snprintf(held, held_bytes, "%s" HELD_SUFFIX, path);
    metrics->path = copy;
    metrics->held = held;
    enum snug_status status = file_open_update(path, &metrics->fd, err);
    if (status == SNUG_OK && keep_steps > 0)
        status = find_cut(metrics->fd, path, keep_steps, &metrics->n_bytes, &last, err);
    if (status == SNUG_OK && ftruncate(metrics->fd, metrics->n_bytes) != 0)
        status = snug_fail(err, SNUG_IO_ERROR, "%s: cannot truncate: %s", path, strerror(errno));
    if (status == SNUG_OK)
        status = take_held(metrics, keep_steps, last, err);
    if (status == SNUG_OK)
        *out = metrics;
    else
        metrics_close(metrics);
    return status;
}

enum snug_status metrics_append(struct metrics *metrics, const char *line,
                                struct file_faults *faults, struct snug_error *err)
{
    int64_t length = (int64_t)strlen(line);
    enum snug_status status = file_write_at(metrics->fd, metrics->path, line, length,
                                            metrics->n_bytes, NULL, faults, err);
    if (status == SNUG_OK)
        status = file_write_at(metrics->fd, metrics->path, "\n", 1, metrics->n_bytes + length, NULL,
                               faults, err);
    if (status == SNUG_OK) {
        metrics->n_bytes += length + 1;
        if (metrics->holds)
            file_remove(metrics->held, faults);
        metrics->holds = false;
    } else if (ftruncate(metrics->fd, metrics->n_bytes) != 0)
        return status; /* the next append overwrites the partial line, or a resume removes it */
    return status;
}

enum snug_status metrics_hold(struct metrics *metrics, const char *line, struct file_faults *faults,
                              struct snug_error *err)
{
    TRY(file_write_atomic(metrics->held, line, strlen(line), faults, err));
    metrics->holds = true;
    return SNUG_OK;
}

void metrics_close(struct metrics *metrics)
{
    if (metrics == NULL)
        return;
    if (metrics->fd >= 0)
        close(metrics->fd);
    free(metrics->path);
    free(metrics->held);
    free(metrics);
}

/* Adds a line to the tally.  Clears is_log if the line has no step. */
static enum snug_status count_line(const char *line, size_t n_bytes, const char *path,
                                   struct metrics_tally *tally, struct snug_error *err)
{
    TRY(read_line(line, n_bytes, path, &tally->last_step, &tally->loss, err));
    tally->is_log = tally->last_step >= 0;
    tally->n_steps += tally->is_log;
    return SNUG_OK;
}

enum snug_status metrics_count(const char *path, struct metrics_tally *tally,
                               struct snug_error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    int64_t n_bytes;
    int fd;
    enum snug_status status = SNUG_OK;
    *tally = (struct metrics_tally){.is_log = true};
    TRY(fd_open_read(path, &fd, &n_bytes, err));
    FILE *file = fdopen(fd, "r");
    if (file == NULL) {
        close(fd);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory reading the file", path);
    }
    while (status == SNUG_OK && tally->is_log && (errno = 0) == 0 &&
           (length = getline(&line, &capacity, file)) > 0 &&
           line[length - 1] == '\n') /* an incomplete last line is still being written */
        status = count_line(line, (size_t)length, path, tally, err);
    if (status == SNUG_OK && (ferror(file) || errno == ENOMEM))
        status = snug_fail(err, errno == ENOMEM ? SNUG_NO_MEMORY : SNUG_IO_ERROR,
                           "%s: cannot read: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}
