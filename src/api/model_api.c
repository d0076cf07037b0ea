/*
 * model_api.c -- opening a model: by preset name, or from a Hugging Face folder.
 */
#include "api/open.h"

#include "base/fd.h"
#include "io/hf_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void use_config(const struct hf_config *config, struct snug_model *model)
{
    if (config->model == HF_GPT2) {
        const struct hf_gpt2 *g = &config->gpt2;
        model->family = MODEL_gpt2;
        model->gpt2 = (struct gpt2_shape){g->n_layer,     g->n_head,     g->n_embd,
                                          g->n_positions, g->vocab_size, g->layer_norm_epsilon,
                                          g->activation};
        return;
    }
    model->family = MODEL_mlp;
    model->mlp = (struct mlp_shape){
        .n_sizes = config->mlp.n_sizes,
        .activation = config->mlp.activation,
        .loss = config->mlp.loss == HF_MEAN_SQUARED_ERROR ? LOSS_mse : LOSS_cross_entropy};
    memcpy(model->mlp.sizes, config->mlp.sizes, sizeof model->mlp.sizes);
}

/* "DIR" or "DIR/config.json": the folder that model.safetensors may lie in. */
static char *folder_of(const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return strdup(path);
    const char *slash = strrchr(path, '/');
    return slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path));
}

enum snug_status open_model_folder(const char *path, struct snug_model *model,
                                   struct snug_error *err)
{
    struct hf_config config;
    TRY(hf_config_read(path, &config, err));
    use_config(&config, model);
    snprintf(model->name, sizeof model->name, "%s", path);
    char *folder = folder_of(path);
    char *weights = folder == NULL ? NULL : path_join(folder, "model.safetensors", "");
    free(folder);
    if (weights == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (access(weights, F_OK) == 0)
        model->weights_path = weights;
    else
        free(weights);
    return SNUG_OK;
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
    struct program prog;
    if (model_forward(model, MODEL_FOR_LOSS, 1, 0, &prog, NULL) != SNUG_OK)
        return 0;
    int64_t n = model_count_parameters(&prog);
    program_free(&prog);
    return n;
}
