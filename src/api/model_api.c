/*
 * model_api.c -- opens a model by preset name or from a Hugging Face folder.
 */
#include "api/model_api.h"

#include "base/fd.h"
#include "checkpoint/checkpoint.h"
#include "io/hf_config.h"
#include "io/peft.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum snug_status use_vision(const struct hf_vision *v, struct snug_model *model,
                                   struct snug_error *err)
{
    model->family = MODEL_vision;
    if (strchr(v->network, ':') != NULL || !vision_find(v->network, &model->vision))
        return snug_fail(err, SNUG_UNSUPPORTED, "there is no image network \"%s\"", v->network);
    model->vision = (struct vision_shape){model->vision.net, v->channels,  v->height,
                                          v->width,          v->n_classes, true};
    return vision_check(&model->vision, err);
}

static void use_config(const struct hf_config *config, struct snug_model *model)
{
    if (config->model == HF_DECODER) {
        model->family = MODEL_decoder;
        model->decoder = config->decoder;
        model->config_dropout = config->dropout;
        model->has_config_dropout = config->has_dropout;
        model->config_source = config->source;
        return;
    }
    model->family = MODEL_mlp;
    model->mlp = (struct mlp_shape){
        .n_sizes = config->mlp.n_sizes,
        .activation = config->mlp.activation,
        .loss = config->mlp.loss == HF_MEAN_SQUARED_ERROR ? LOSS_mse : LOSS_cross_entropy};
    memcpy(model->mlp.sizes, config->mlp.sizes, sizeof model->mlp.sizes);
}

/* The folder of "DIR" or "DIR/config.json". */
static char *folder_of(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return strdup(path);
    const char *slash = strrchr(path, '/');
    return slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path));
}

/* Is this the name of a file with weights of a model?  Adapters are others' weights. */
static bool is_weights(const char *name)
{
    static const char *const endings[] = {
        ".safetensors", ".bin", ".bin.index.json", ".h5", ".msgpack", ".pth", ".gguf"};
    if (name[0] == '.' || strncmp(name, "adapter_model", 13) == 0)
        return false;
    if (strstr(name, ".bin") != NULL && strncmp(name, "pytorch_model", 13) != 0)
        return false; /* tokens, training arguments */
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (name_ends_in(name, endings[i]))
            return true;
    return false;
}

/* The first such file of a folder, by name; "" if there is none. */
static enum snug_status find_other_weights(const char *folder, char found[NAME_MAX + 1],
                                           struct snug_error *err)
{
    DIR *dir = opendir(folder);
    found[0] = '\0';
    if (dir == NULL)
        return snug_fail(err, SNUG_IO_ERROR, "%s: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        if (is_weights(entry->d_name) && (found[0] == '\0' || strcmp(entry->d_name, found) < 0))
            snprintf(found, NAME_MAX + 1, "%s", entry->d_name);
    closedir(dir);
    return SNUG_OK;
}

/* Does the folder have weights that can be read?  Without weights a model starts at random, so
 * weights that cannot be read are an error. */
static enum snug_status find_weights(const char *folder, bool *found, struct snug_error *err)
{
    char other[NAME_MAX + 1];
    TRY(checkpoint_exists(folder, found, err));
    if (!*found)
        TRY(safetensors_has_model(folder, found, err));
    if (*found)
        return SNUG_OK;
    TRY(find_other_weights(folder, other, err));
    if (other[0] == '\0')
        return SNUG_OK;
    if (name_ends_in(other, ".safetensors"))
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s has %s, but neither " SAFETENSORS_MODEL " nor " SAFETENSORS_INDEX
                         ", which says what is where: download that as well",
                         folder, other);
    return snug_fail(err, SNUG_UNSUPPORTED, "%s has its weights in %s: convert them to safetensors",
                     folder, other);
}

/* Where config.json does not say whether the LM head is tied, a file without one tells. */
static enum snug_status look_for_head(struct snug_model *model, struct snug_error *err)
{
    struct safetensors *st;
    TRY(safetensors_open_folder(model->weights_folder, &st, err));
    model->decoder.tied = hf_find_tensor(st, HF_HEAD_NAME) == NULL;
    safetensors_close(st);
    return SNUG_OK;
}

enum snug_status open_model_folder(const char *path, struct snug_model *model,
                                   struct snug_error *err)
{
    struct hf_config config;
    bool has_adapter, has_config, has_weights;
    TRY(path_find(path, PEFT_CONFIG_NAME, &has_adapter, err));
    TRY(path_find(path, "config.json", &has_config, err));
    if (has_adapter && !has_config)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s holds an adapter and no model: give the base model and --lora-from %s",
                         path, path);
    enum snug_status status = hf_config_read(path, &config, err);
    if (status != SNUG_OK) {
        free(config.source);
        return status;
    }
    if (config.model == HF_VISION)
        TRY(use_vision(&config.vision, model, err));
    else
        use_config(&config, model);
    snprintf(model->name, sizeof model->name, "%s", path);
    model->folder = folder_of(path);
    model->weights_folder = folder_of(path);
    if (model->folder == NULL || model->weights_folder == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    TRY(find_weights(model->weights_folder, &has_weights, err));
    if (!has_weights) {
        free(model->weights_folder);
        model->weights_folder = NULL;
    } else if (config.model == HF_DECODER && !config.tied_is_given) {
        return look_for_head(model, err);
    }
    return SNUG_OK;
}

const char *snug_model_weights(const snug_model *model)
{
    return model->weights_folder;
}

enum snug_status snug_model_open(const char *spec, snug_model **out, struct snug_error *err)
{
    snug_model *model = calloc(1, sizeof *model);
    enum snug_status status;
    *out = NULL;
    if (model == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    bool is_path = !model_is_name(spec) && access(spec, F_OK) == 0;
    status = is_path ? open_model_folder(spec, model, err) : model_from_name(spec, model, err);
    if (status != SNUG_OK) {
        snug_model_free(model);
        return status;
    }
    *out = model;
    return SNUG_OK;
}

int64_t snug_model_parameters(const snug_model *model)
{
    struct program prog = {0};
    enum snug_status status = model_forward(model, MODEL_FOR_LOSS, 1, 0, &prog, NULL);
    int64_t n = status == SNUG_OK ? model_count_parameters(&prog) : 0;
    program_free(&prog);
    return n;
}
