/*
 * run_begin.c -- the run folder before its first checkpoint: check that it may be used, then write
 * config.json, plan.json, the adapter's config and metrics.jsonl.
 */
#include "base/fd.h"
#include "io/hf_tokenizer_folder.h"
#include "checkpoint/checkpoint.h"
#include "io/hf_config.h"
#include "checkpoint/adapter.h"
#include "train/trainer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *config_text(const struct snug_trainer *t)
{
    struct hf_config config;
    switch (t->model->family) {
    case MODEL_decoder:
        config = (struct hf_config){.model = HF_DECODER,
                                    .decoder = t->model->decoder,
                                    .dropout = t->model->config_dropout,
                                    .source = t->model->config_source};
        return hf_config_text(&config, recipe_dtype(&t->recipe));
    case MODEL_mlp: {
        const struct mlp_shape *m = &t->model->mlp;
        config = (struct hf_config){
            .model = HF_MLP,
            .mlp = {.n_sizes = m->n_sizes,
                    .activation = m->activation,
                    .loss = m->loss == LOSS_mse ? HF_MEAN_SQUARED_ERROR : HF_CROSS_ENTROPY}};
        memcpy(config.mlp.sizes, m->sizes, sizeof m->sizes);
        return hf_config_text(&config, recipe_dtype(&t->recipe));
    }
    case MODEL_vision: {
        const struct vision_shape *v = &t->model->vision;
        config = (struct hf_config){.model = HF_VISION,
                                    .vision = {.channels = v->channels,
                                               .height = v->height,
                                               .width = v->width,
                                               .n_classes = v->n_classes}};
        snprintf(config.vision.network, sizeof config.vision.network, "%s", vision_name(v->net));
        return hf_config_text(&config, recipe_dtype(&t->recipe));
    }
    case MODEL_psi:
    case MODEL_custom:
        break;
    }
    struct text text = {0};
    text_add(&text, "{\"model_type\": \"snug-custom\"}\n");
    return text_take(&text);
}

/* Never overwrites a model that is not a run of snug's. */
static enum snug_status check_folder_is_free(const char *dir, struct snug_error *err)
{
    static const struct {
        const char *file, *mark; /* a run that has `file` has `mark`, too */
    } pairs[] = {{SAFETENSORS_MODEL, "state.json"},
                 {SAFETENSORS_INDEX, "state.json"},
                 {"config.json", "plan.json"},
                 {PEFT_CONFIG_NAME, "state.json"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        bool has_mark, has_file;
        TRY(path_find(dir, pairs[i].mark, &has_mark, err));
        TRY(path_find(dir, pairs[i].file, &has_file, err));
        if (has_file && !has_mark)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "%s already holds a model (%s): choose another --out", dir,
                             pairs[i].file);
    }
    return SNUG_OK;
}

enum snug_status trainer_check_out(const struct snug_trainer *t, struct snug_error *err)
{
    bool exists;
    TRY(checkpoint_exists(t->out, &exists, err));
    if (t->options.resume && !exists)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s holds no checkpoint to resume: start without --resume", t->out);
    if (t->options.resume)
        return SNUG_OK;
    if (exists)
        return snug_fail(
            err, SNUG_BAD_ARGUMENT,
            "%s already holds a run: continue it with --resume or choose another --out", t->out);
    return check_folder_is_free(t->out, err);
}

/* DIR/adapter and its adapter_config.json. */
static enum snug_status begin_adapter(const struct snug_trainer *t, struct snug_error *err)
{
    const char *folder = t->model->weights_folder;
    char real[PATH_MAX];
    const char *base = folder == NULL ? NULL : realpath(folder, real);
    if (folder != NULL && base == NULL && errno == ENOMEM)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    char *text = adapter_config_text(&t->compiled, &t->recipe, model_is_language(t->model), base);
    char *dir = path_join(t->out, ADAPTER_FOLDER, "");
    enum snug_status status =
        text == NULL || dir == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
    if (status == SNUG_OK)
        status = checkpoint_make_inner_dir(dir, err);
    if (status == SNUG_OK)
        status = checkpoint_write_text(dir, PEFT_CONFIG_NAME, text, NULL, err);
    free(text);
    free(dir);
    return status;
}

/* So that the run can be given text, and other programs find what they need. */
static enum snug_status copy_tokenizer(const struct snug_trainer *t, struct snug_error *err)
{
    bool is_given = t->recipe.tokenizer == TOKENIZER_path;
    const char *from = is_given ? t->recipe.tokenizer_path : t->model->folder;
    bool is_used = from != NULL && t->recipe.tokenizer != TOKENIZER_bytes;
    return is_used ? hf_tokenizer_copy(from, t->out, err) : SNUG_OK;
}

enum snug_status trainer_begin_run(struct snug_trainer *t, struct snug_error *err)
{
    if (t->comm->rank > 0)
        return SNUG_OK; /* rank 0 writes the folder */
    TRY(checkpoint_make_dir(t->out, err));
    char *config = config_text(t);
    char *plan = trainer_plan_json(t);
    char *path = path_join(t->out, "metrics.jsonl", "");
    enum snug_status status = SNUG_OK;
    if (config == NULL || plan == NULL || path == NULL)
        status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    if (status == SNUG_OK)
        status = checkpoint_write_text(t->out, "plan.json", plan, NULL, err);
    if (status == SNUG_OK)
        status = checkpoint_write_text(t->out, "config.json", config, NULL, err);
    if (status == SNUG_OK)
        status = copy_tokenizer(t, err);
    if (status == SNUG_OK && t->recipe.lora > 0)
        status = begin_adapter(t, err);
    if (status == SNUG_OK)
        status = metrics_open(path, t->step, &t->metrics, err);
    free(config);
    free(plan);
    free(path);
    return status;
}
