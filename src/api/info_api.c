/*
 * info_api.c -- functions that need no plan or trainer: version, lists, ops, inspect.
 */
#include "api/model_api.h"
#include "base/fd.h"
#include "base/nearest.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/launcher.h"
#include "data/data.h"
#include "data/fetch.h"
#include "exec/plugin.h"
#include "checkpoint/checkpoint.h"
#include "io/json.h"
#include "io/metrics.h"
#include "io/peft.h"
#include "model/model.h"
#include "optim/optim.h"
#include "pass/autodiff.h"
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *snug_version(void)
{
    return SNUG_VERSION_STRING;
}

char *snug_build_info(void)
{
    struct text out = {0};
    text_add(&out, "snug %s\n", SNUG_VERSION_STRING);
    backend_cpu_describe(&out);
    plugin_describe(&out);
    comm_describe(&out);
#ifdef SNUG_ZLIB
    text_add(&out, "zlib: reads gzip data\n");
#else
    text_add(&out, "no zlib: unpack gzip data first\n");
#endif
    return text_take(&out);
}

char *snug_list(const char *what)
{
    struct text out = {0};
    if (strcmp(what, "models") == 0)
        model_list(&out);
    else if (strcmp(what, "optimizers") == 0)
        optimizer_list(&out);
    else if (strcmp(what, "data-sets") == 0)
        fetch_list(&out);
    return text_take(&out);
}

void snug_ranks_abandon(void)
{
    comm_abandon();
}

void snug_free(void *text)
{
    free(text);
}

char *snug_ops_table(void)
{
    struct report_op rows[OP_COUNT];
    for (int i = 0; i < OP_COUNT; i++) {
        enum op_kind kind = (enum op_kind)i;
        rows[i] = (struct report_op){.name = op_infos[i].name,
                                     .reference = backend_cpu_has_reference(kind) ? "yes" : "",
                                     .cpu = backend_cpu_simd_kernels(kind),
                                     .cuda = backend_cuda_kernels(kind),
                                     .gradient = gradient_rule_of(kind) != NULL ? "yes" : ""};
    }
    return report_ops_table(rows, OP_COUNT);
}

/* ---- inspect --------------------------------------------------------------------------------- */

static void add_tensors(struct safetensors *st, struct text *out)
{
    enum { NAME_WIDTH = 38, SHAPE_WIDTH = 18 };
    char bytes[TEXT_SIZE_MAX], count[TEXT_SIZE_MAX + 8];
    int64_t total_bytes = 0, total_elems = 0;
    for (int i = 0; i < safetensors_count(st); i++) {
        const struct st_entry *e = safetensors_entry(st, i);
        struct text shape = {0}, name = {0};
        text_add_shown(&name, e->name);
        for (int d = 0; d < e->shape.n_dims; d++)
            text_add(&shape, "%s%lld", d == 0 ? "" : " x ", (long long)e->shape.dim[d]);
        int longer = (int)strlen(text_part(out, &name)) - NAME_WIDTH;
        text_add(out, "  %-*s %-5s %-*s %10s\n", NAME_WIDTH, text_part(out, &name),
                 e->dtype < DTYPE_COUNT ? dtype_name(e->dtype) : "?",
                 longer > 0 && longer < SHAPE_WIDTH ? SHAPE_WIDTH - longer : SHAPE_WIDTH,
                 text_part(out, &shape), text_size(e->n_bytes, bytes));
        text_free(&shape);
        text_free(&name);
        total_bytes += e->n_bytes;
        total_elems += shape_elems(&e->shape);
    }
    text_add(out, "  %d tensors, %s elements, %s\n", safetensors_count(st),
             text_count(total_elems, count), text_size(total_bytes, bytes));
}

static enum snug_status inspect_run(const char *path, struct text *out, struct snug_error *err)
{
    static const char *const files[] = {"model.safetensors", "adapter/" PEFT_MODEL_NAME,
                                        "optimizer.safetensors"};
    struct checkpoint *checkpoint;
    json_t *state = NULL;
    TRY(checkpoint_open(path, &checkpoint, err));
    const char *text = checkpoint_state(checkpoint);
    enum snug_status status = json_parse(text, strlen(text), path, &state, err);
    int64_t step = 0, n_steps = 0;
    const char *model = "";
    if (status == SNUG_OK)
        status = json_get_integer(state, path, "step", 0, INT64_MAX, &step, err);
    if (status == SNUG_OK)
        status = json_get_integer(state, path, "n_steps", 0, INT64_MAX, &n_steps, err);
    if (status == SNUG_OK)
        status = json_get_string(state, path, "model", &model, err);
    if (status == SNUG_OK) {
        text_add_shown(out, path);
        text_add(out, ": a run of ");
        text_add_shown(out, model);
        text_add(out, ", step %lld of %lld\n", (long long)step, (long long)n_steps);
    }
    for (int i = 0; i < 3 && status == SNUG_OK; i++) {
        struct safetensors *st = checkpoint_find(checkpoint, files[i]);
        if (st == NULL)
            continue;
        text_add(out, "%s\n", files[i]);
        add_tensors(st, out);
    }
    json_decref(state);
    checkpoint_close(checkpoint);
    return status;
}

/* Closes the file or set. */
static void inspect_tensors(struct safetensors *st, struct text *out)
{
    text_add_shown(out, safetensors_path(st));
    text_add(out, "\n");
    add_tensors(st, out);
    safetensors_close(st);
}

static enum snug_status inspect_safetensors(const char *path, struct text *out,
                                            struct snug_error *err)
{
    struct safetensors *st;
    TRY(safetensors_open(path, &st, err));
    inspect_tensors(st, out);
    return SNUG_OK;
}

/* Tries the path as tokens, then as images. */
static enum snug_status inspect_data(const char *path, struct text *out, struct snug_error *err)
{
    struct data *data;
    struct data_request tokens = {.spec = path,
                                  .target = DATA_TARGET_TOKENS,
                                  .sample_elems = 1,
                                  .target_elems = 1,
                                  .n_classes = 65536,
                                  .bytes_as_tokens = true};
    struct data_request images = {
        .spec = path, .target = DATA_TARGET_CLASS, .target_elems = 1, .n_classes = 256};
    static const int64_t image_elems[] = {28 * 28, 3 * 32 * 32}; /* (Fashion-)MNIST, CIFAR-10 */
    enum snug_status status = data_open(&tokens, &data, err);
    bool is_tokens = status == SNUG_OK, is_open = is_tokens;
    for (int i = 0; i < (int)(sizeof image_elems / sizeof *image_elems) && !is_open &&
                    status != SNUG_NO_MEMORY;
         i++) {
        struct snug_error why = {0};
        images.sample_elems = image_elems[i];
        enum snug_status as_images = data_open(&images, &data, &why);
        is_open = as_images == SNUG_OK;
        if (as_images == SNUG_NO_MEMORY)
            status = snug_fail(err, as_images, "%s", why.message);
    }
    if (!is_open)
        return status;
    char train[TEXT_SIZE_MAX + 8], held_out[TEXT_SIZE_MAX + 8];
    text_add_shown(out, path);
    text_add(out, ": %s, %s %s for training and %s held out\n", data_kind(data),
             text_count(data_n_samples(data, DATA_TRAIN), train), is_tokens ? "tokens" : "samples",
             text_count(data_n_samples(data, DATA_HELD_OUT), held_out));
    data_close(data);
    return SNUG_OK;
}

/* A metrics.jsonl that is not the log of a run is inspected as data. */
static enum snug_status inspect_metrics(const char *path, struct text *out, struct snug_error *err)
{
    struct metrics_tally tally;
    char count[TEXT_SIZE_MAX + 8];
    TRY(metrics_count(path, &tally, err));
    if (!tally.is_log)
        return inspect_data(path, out, err);
    text_add_shown(out, path);
    text_add(out, ": the log of a run, %s step%s", text_count(tally.n_steps, count),
             tally.n_steps == 1 ? "" : "s");
    if (tally.n_steps > 0 && !isnan(tally.loss))
        text_add(out, ", loss %.6g after step %lld", tally.loss, (long long)tally.last_step);
    text_add(out, "\n");
    return SNUG_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* A folder with a model, an adapter or a data set. */
static enum snug_status inspect_folder(const char *path, struct text *out, struct snug_error *err)
{
    bool has_model, has_adapter;
    TRY(checkpoint_refuse_begun(path, err));
    TRY(safetensors_has_model(path, &has_model, err));
    if (has_model) {
        struct safetensors *st;
        TRY(safetensors_open_folder(path, &st, err));
        inspect_tensors(st, out);
        return SNUG_OK;
    }
    TRY(path_find(path, PEFT_MODEL_NAME, &has_adapter, err));
    if (!has_adapter)
        return inspect_data(path, out, err);
    char *inside = path_join(path, PEFT_MODEL_NAME, "");
    if (inside == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status status = inspect_safetensors(inside, out, err);
    free(inside);
    return status;
}

enum snug_status snug_inspect(const char *path, char **text, struct snug_error *err)
{
    struct text out = {0};
    struct stat info;
    *text = NULL;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    bool is_run = false;
    enum snug_status status = is_folder ? checkpoint_exists(path, &is_run, err) : SNUG_OK;
    if (status != SNUG_OK)
        return status;
    if (is_run) {
        status = inspect_run(path, &out, err);
    } else if (name_ends_in(path, ".safetensors")) {
        status = inspect_safetensors(path, &out, err);
    } else if (is_folder) {
        status = inspect_folder(path, &out, err);
    } else if (strcmp(base_name(path), "metrics.jsonl") == 0) {
        status = inspect_metrics(path, &out, err);
    } else {
        status = inspect_data(path, &out, err);
    }
    if (status != SNUG_OK) {
        text_free(&out);
        return status;
    }
    *text = text_take(&out);
    return *text == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
}

const char *snug_nearest(const char *typed, const char *const *words, int n_words)
{
    return nearest_word(typed, words, n_words);
}

int snug_launch_rank(void)
{
    return launcher_rank();
}
