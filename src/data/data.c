/*
 * data.c -- finds what a data spec means and hands out its samples.
 */
#include "data/fetch.h"
#include "data/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cache.h"
#include "base/fd.h"

enum { LEAST_TO_SHARE = 16 }; /* samples: fewer are read before another thread is awake */

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "data: no memory for the name of a file");
}

/* Takes `folder`, or fails to; *found stays NULL where there is no such thing. */
static enum snug_status try_place(const char *folder, const char *below, const char *name,
                                  char **found, struct snug_error *err)
{
    if (*found != NULL || folder == NULL || *folder == '\0')
        return SNUG_OK;
    struct stat info;
    char *parent = path_join(folder, below, "");
    char *path = parent == NULL ? NULL : path_join(parent, name, "");
    free(parent);
    if (path == NULL)
        return no_memory(err);
    if (stat(path, &info) == 0)
        *found = path;
    else
        free(path);
    return SNUG_OK;
}

enum form { FORM_TOKENS, FORM_IDX, FORM_CIFAR };

/* What lies at a path. */
static enum snug_status form_of(const char *path, enum form *form, struct snug_error *err)
{
    bool is_idx, is_cifar = false;
    TRY(source_is_idx(path, &is_idx, err));
    if (!is_idx)
        TRY(source_is_cifar(path, &is_cifar, err));
    *form = is_idx ? FORM_IDX : is_cifar ? FORM_CIFAR : FORM_TOKENS;
    return SNUG_OK;
}

/* What is typed is a path if there is such a path, else the name of a set in the known places. */
static enum snug_status find(const char *spec, char **path, struct snug_error *err)
{
    struct stat info;
    *path = NULL;
    if (stat(spec, &info) == 0) {
        *path = strdup(spec);
        return *path == NULL ? no_memory(err) : SNUG_OK;
    }
    int reason = errno;
    if (*spec == '\0' || strchr(spec, '/') != NULL || reason != ENOENT)
        return snug_fail(err, SNUG_BAD_FILE, "data '%s': %s", spec, strerror(reason));
    TRY(try_place(getenv("SNUG_DATA"), ".", spec, path, err));
    char *cache;
    TRY(cache_folder(&cache, err));
    enum snug_status status = try_place(cache, ".", spec, path, err);
    free(cache);
    TRY(status);
    if (*path != NULL)
        return SNUG_OK;
    bool is_known = fetch_knows(spec);
    return snug_fail(
        err, SNUG_BAD_FILE,
        "data '%s': no such file or folder here, nor a set of that name in $SNUG_DATA or the "
        "cache; give a path or set SNUG_DATA%s%s",
        spec, is_known ? ", or download it: snug data " : "", is_known ? spec : "");
}

static enum snug_status check_request(const struct data_request *request, struct snug_error *err)
{
    bool wants_classes = request->target != DATA_TARGET_REAL;
    int64_t target_elems = request->target == DATA_TARGET_TOKENS  ? request->sample_elems
                           : request->target == DATA_TARGET_CLASS ? 1
                                                                  : request->target_elems;
    if (request->sample_elems < 1 || request->sample_elems > INT32_MAX ||
        request->target_elems != target_elems || request->target_elems < 1 ||
        (wants_classes && (request->n_classes < 1 || request->n_classes > INT32_MAX)))
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "data: cannot serve samples of %lld elements with targets of %lld among "
                         "%lld classes",
                         (long long)request->sample_elems, (long long)request->target_elems,
                         (long long)request->n_classes);
    return SNUG_OK;
}

static enum snug_status no_images(const char *spec, struct snug_error *err)
{
    return snug_fail(err, SNUG_BAD_ARGUMENT, "--augment is for images, and data '%s' is not", spec);
}

enum snug_status data_open(const struct data_request *request, struct data **data,
                           struct snug_error *err)
{
    char *path;
    *data = NULL;
    TRY(check_request(request, err));
    bool is_random = request->spec == NULL || strcmp(request->spec, "random") == 0;
    if (is_random && request->augment == DATA_AUGMENT_none)
        return source_open_random(request, data, err);
    if (is_random)
        return no_images("random", err);
    TRY(find(request->spec, &path, err));
    enum form form;
    enum snug_status status = form_of(path, &form, err);
    if (status != SNUG_OK)
        ; /* it has been said */
    else if (form == FORM_IDX)
        status = source_open_idx(path, request, data, err);
    else if (form == FORM_CIFAR)
        status = source_open_cifar(path, request, data, err);
    else if (request->augment != DATA_AUGMENT_none)
        status = no_images(request->spec, err);
    else
        status = source_open_tokens(path, request, data, err);
    free(path);
    return status;
}

bool data_has_classes(const struct data *data)
{
    return data->has_classes;
}

enum snug_status data_find_image(const char *spec, struct data_image *image, struct snug_error *err)
{
    char *path;
    *image = (struct data_image){0};
    if (spec == NULL || strcmp(spec, "random") == 0)
        return SNUG_OK;
    TRY(find(spec, &path, err));
    enum form form;
    enum snug_status status = form_of(path, &form, err);
    if (status == SNUG_OK && form == FORM_IDX)
        status = source_idx_image(path, image, err);
    else if (status == SNUG_OK && form == FORM_CIFAR)
        *image = source_cifar_image();
    free(path);
    return status;
}

void data_close(struct data *data)
{
    if (data != NULL)
        data->close(data);
}

const char *data_kind(const struct data *data)
{
    return data->kind;
}

bool data_kind_is_bytes(const char *kind)
{
    return kind != NULL && strcmp(kind, "text bytes") == 0;
}

int64_t data_n_samples(const struct data *data, enum data_split split)
{
    return data->n_samples[split];
}

uint64_t data_fingerprint(const struct data *data)
{
    return data->fingerprint;
}

enum snug_status data_fill(struct data *data, enum data_split split, int64_t first, int64_t n,
                           void *input, void *target, struct snug_error *err)
{
    const int64_t elem_bytes = 4; /* i32 and f32 alike */
    if (first < 0 || n < 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "data: samples %lld + %lld do not exist",
                         (long long)first, (long long)n);
    if (data->n_samples[split] < 1)
        return snug_fail(err, SNUG_BAD_FILE,
                         "data: the held-out part is shorter than one sample; give more data or a "
                         "shorter sequence");
    enum snug_status first_status = SNUG_OK;
    int64_t first_wrong = n; /* so that the message does not depend on who comes first */
    bool share = data->fills_in_any_thread && n >= LEAST_TO_SHARE && data->request.threads > 1;
    int threads = share ? data->request.threads : 1;
    (void)threads; /* without OpenMP */
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n; i++) {
        struct snug_error own;
        enum snug_status status = data->fill(
            data, split, first + i, (char *)input + i * data->request.sample_elems * elem_bytes,
            (char *)target + i * data->request.target_elems * elem_bytes, &own);
        if (status != SNUG_OK) {
#pragma omp critical
            if (i < first_wrong) {
                first_wrong = i;
                first_status = status;
                if (err != NULL)
                    *err = own;
            }
        }
    }
    return first_status;
}
