/*
 * metrics.c -- appending to metrics.jsonl; see metrics.h.
 */
#include "io/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/json.h"

struct metrics {
    char *path;
    int fd;
    int64_t n_bytes; /* whole lines */
};

/* The step of a line, or -1 if it is not one of ours. */
static int64_t step_of(const char *line, size_t n_bytes)
{
    json_t *object;
    int64_t step = -1;
    if (json_parse(line, n_bytes, "", &object, NULL) != SNUG_OK)
        return -1;
    if (json_get_integer(object, "", "step", 0, INT64_MAX, &step, NULL) != SNUG_OK)
        step = -1;
    json_decref(object);
    return step;
}

/* How many bytes to keep: up to the first line that is beyond keep_steps or was cut short. */
static int64_t find_cut(int fd, int64_t keep_steps)
{
    int64_t cut = 0;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    int copy = dup(fd);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "r");
    if (file == NULL) {
        if (copy >= 0)
            close(copy);
        return -1;
    }
    while ((length = getline(&line, &capacity, file)) > 0 && line[length - 1] == '\n') {
        int64_t step = step_of(line, (size_t)length);
        if (step < 0 || step > keep_steps)
            break;
        cut += length;
    }
    free(line);
    fclose(file);
    return cut;
}

enum snug_status metrics_open(const char *path, int64_t keep_steps, struct metrics **out,
                              struct snug_error *err)
{
    *out = NULL;
    struct metrics *metrics = calloc(1, sizeof *metrics);
    char *copy = strdup(path);
    if (metrics == NULL || copy == NULL) {
        free(metrics);
        free(copy);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: no memory to open it", path);
    }
    metrics->path = copy;
    enum snug_status opened = file_open_update(path, &metrics->fd, err);
    if (opened != SNUG_OK) {
        metrics_close(metrics);
        return opened;
    }
    if (keep_steps > 0)
        metrics->n_bytes = find_cut(metrics->fd, keep_steps);
    if (metrics->n_bytes < 0 || ftruncate(metrics->fd, metrics->n_bytes) != 0) {
        enum snug_status status = snug_fail(
            err, SNUG_IO_ERROR, "%s: cannot open it for writing: %s", path, strerror(errno));
        metrics_close(metrics);
        return status;
    }
    *out = metrics;
    return SNUG_OK;
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
    if (status == SNUG_OK)
        metrics->n_bytes += length + 1;
    else if (ftruncate(metrics->fd, metrics->n_bytes) != 0)
        return status; /* what is left of the line is written over, or cut off by a resume */
    return status;
}

void metrics_close(struct metrics *metrics)
{
    if (metrics == NULL)
        return;
    if (metrics->fd >= 0)
        close(metrics->fd);
    free(metrics->path);
    free(metrics);
}
