/*
 * data.c -- resolve a data spec, open it and fill batches from it.
 */
#include "data/fetch.h"
#include "data/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cache.h"
#include "base/fd.h"

enum { LEAST_TO_SHARE = 16 }; /* fewer samples are read before a second thread wakes up */

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "data: out of memory building a path");
}

/* Sets *found to FOLDER/BELOW/NAME if that exists and *found is still NULL. */
static enum snug_status try_folder(const char *folder, const char *below, const char *name,
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

enum format { FORMAT_TOKENS, FORMAT_IDX, FORMAT_CIFAR };

static enum snug_status detect_format(const char *path, enum format *format, struct snug_error *err)
{
    bool is_idx, is_cifar = false;
    TRY(source_is_idx(path, &is_idx, err));
    if (!is_idx)
        TRY(source_is_cifar(path, &is_cifar, err));
    *format = is_idx ? FORMAT_IDX : is_cifar ? FORMAT_CIFAR : FORMAT_TOKENS;
    return SNUG_OK;
}

/* The spec is a path if that exists, else the name of a data set in $SNUG_DATA or the cache. */
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
        return snug_fail(err, SNUG_BAD_FILE, "data \"%s\": %s", spec, strerror(reason));
    TRY(try_folder(getenv("SNUG_DATA"), ".", spec, path, err));
    char *cache;
    TRY(cache_folder(&cache, err));
    enum snug_status status = try_folder(cache, ".", spec, path, err);
    free(cache);
    TRY(status);
    if (*path != NULL)
        return SNUG_OK;
    bool is_known = fetch_knows(spec);
    return snug_fail(
        err, SNUG_BAD_FILE,
        "data \"%s\": no such file or folder, and no data set of that name in $SNUG_DATA or the "
        "cache: give a path or set SNUG_DATA%s%s",
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
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "data: cannot provide samples of %lld input elements, %lld target elements and "
            "%lld classes",
            (long long)request->sample_elems, (long long)request->target_elems,
            (long long)request->n_classes);
    return SNUG_OK;
}

static enum snug_status no_images(const char *spec, struct snug_error *err)
{
    return snug_fail(err, SNUG_BAD_ARGUMENT,
                     "--augment works on images only, and data \"%s\" has none", spec);
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
    enum format format;
    enum snug_status status = detect_format(path, &format, err);
    if (status != SNUG_OK)
        ; /* err is set */
    else if (format == FORMAT_IDX)
        status = source_open_idx(path, request, data, err);
    else if (format == FORMAT_CIFAR)
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
    enum format format;
    enum snug_status status = detect_format(path, &format, err);
    if (status == SNUG_OK && format == FORMAT_IDX)
        status = source_idx_image(path, image, err);
    else if (status == SNUG_OK && format == FORMAT_CIFAR)
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

bool data_is_text(const struct data *data)
{
    return strcmp(data->kind, "text") == 0;
}

uint64_t data_tokenizer(const struct data *data)
{
    return data->tokenizer;
}

enum snug_status data_fill(struct data *data, enum data_split split, int64_t first, int64_t n,
                           void *input, void *target, struct snug_error *err)
{
    const int64_t elem_bytes = 4; /* both i32 and f32 */
    if (first < 0 || n < 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "data: the first sample (%lld) and the count (%lld) must not be negative",
                         (long long)first, (long long)n);
    if (data->n_samples[split] < 1) /* data_open refuses an empty training split */
        return snug_fail(err, SNUG_BAD_FILE,
                         "data: the held-out split is shorter than one sample: add data or use a "
                         "shorter --seq");
    enum snug_status first_status = SNUG_OK;
    int64_t first_wrong = n; /* report the first bad sample, whichever thread fails first */
    bool share = data->fills_in_any_thread && n >= LEAST_TO_SHARE && data->request.threads > 1;
    int threads = share ? data->request.threads : 1;
    (void)threads; /* unused without OpenMP */
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

enum snug_status data_scan(struct data *data, int64_t most, struct snug_error *err)
{
    return data->scan == NULL ? SNUG_OK : data->scan(data, most, err);
}

enum snug_status data_check(struct data *data, enum data_split split, int64_t first, int64_t n,
                            struct snug_error *err)
{
    for (int64_t i = 0; i < n && data->check != NULL; i++)
        TRY(data->check(data, split, first + i, err));
    return SNUG_OK;
}
