/*
 * save_resume.c -- save a run, and resume it.
 *
 *     model.safetensors       the parameters, or their averages if the optimizer averages them
 *     optimizer.safetensors   optimizer states and master weights; also the parameters, if the
 *                             model file has the averages
 *     state.json              all else that the next step depends on: step, seed, data position,
 *                             recipe, loss scale
 *
 * A resumed run takes exactly the steps that the first run would have taken.
 *
 * A run with adapters (adapter.h) restores A and B from adapter/adapter_model.safetensors.  Its
 * model.safetensors has them merged, for use by other tools.  The frozen base is loaded again from
 * its original place; state.json has its checksum.
 */
#include "base/fd.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "io/hf_config.h"
#include "io/json.h"
#include "checkpoint/adapter.h"
#include "checkpoint/rank_save.h"
#include "checkpoint/run_format.h"
#include "train/trainer.h"
#include "checkpoint/weights.h"

#include <stdlib.h>
#include <string.h>

enum { IDENTITY_MAX = 32 };

/* A hash of the model's forward program, independent of its name. */
static enum snug_status identity_of(const snug_model *model, char out[IDENTITY_MAX],
                                    struct snug_error *err)
{
    struct program prog = {0};
    struct text text = {0};
    enum snug_status status = model_forward(model, MODEL_FOR_LOSS, 1, 0, &prog, err);
    if (status == SNUG_OK) {
        prog.name[0] = '\0';
        program_dump(&prog, &text);
        if (text.failed)
            status = snug_fail(err, SNUG_NO_MEMORY, "out of memory");
        else
            snprintf(out, IDENTITY_MAX, "%016llx", (unsigned long long)rng_hash_string(text.data));
    }
    text_free(&text);
    program_free(&prog);
    return status;
}

/* NULL if out of memory. */
static json_t *recipe_json(const snug_recipe *recipe)
{
    struct text text = {0};
    recipe_write(recipe, &text);
    char *lines = text_take(&text), *rest = NULL;
    if (lines == NULL)
        return NULL;
    json_t *object = json_object();
    for (char *line = strtok_r(lines, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strstr(line, " = ");
        *equals = '\0';
        json_put(&object, line, json_string(equals + 3));
    }
    free(lines);
    return object;
}

/* The recipe with the defaults of the model and the machine filled in: the next process may run on
 * another machine and must take the same steps. */
static snug_recipe effective_recipe(const struct snug_trainer *t)
{
    snug_recipe recipe = t->recipe;
    recipe.batch = t->compiled.batch;
    recipe.micro_batch = t->compiled.micro_batch;
    recipe.seq = t->compiled.seq;
    recipe.threads = t->compiled.facts.threads;
    recipe.ranks = recipe.stages = 0; /* a run may resume with another number of ranks */
    recipe.lr = recipe_lr(&t->recipe);
    recipe.weight_decay = recipe_weight_decay(&t->recipe);
    recipe.state_bits = recipe_state_bits(&t->recipe);
    if (recipe.lora > 0)
        recipe.lora_alpha = recipe_lora_alpha(&t->recipe);
    return recipe;
}

/* The base weights that the adapters belong to; *base is NULL if out of memory. */
static enum snug_status base_json(const struct snug_trainer *t, json_t **base,
                                  struct snug_error *err)
{
    char crc[16];
    uint32_t of_base;
    const char *folder = t->model->weights_folder;
    TRY(adapter_base_crc(&t->compiled, t->exec, &of_base, err));
    snprintf(crc, sizeof crc, "%08lx", (unsigned long)of_base);
    *base = json_pack("{s:s, s:s}", "weights", folder == NULL ? "random" : folder, "crc32", crc);
    return SNUG_OK;
}

static enum snug_status same_base(const struct snug_trainer *t, const json_t *state,
                                  struct snug_error *err)
{
    json_t *base;
    const char *crc, *weights;
    char *end;
    uint32_t of_base;
    TRY(json_get_object(state, t->out, "base", &base, err));
    TRY(json_get_string(base, t->out, "crc32", &crc, err));
    TRY(json_get_string(base, t->out, "weights", &weights, err));
    TRY(adapter_base_crc(&t->compiled, t->exec, &of_base, err));
    if (strtoul(crc, &end, 16) != of_base)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s has adapters for other base weights: use the model that the run "
                         "started from (%s)",
                         t->out, weights);
    return SNUG_OK;
}

/* The scalars that carry over from one step to the next. */
static const struct {
    const char *name;
    enum scalar at;
    bool is_new; /* older checkpoints lack it; it is 0 then */
} kept_scalars[] = {
    {"loss_scale", SCALAR_loss_scale, false},
    {"update_count", SCALAR_update_count, false},
    {"good_steps", SCALAR_good_steps, false},
    {"lr_most", SCALAR_lr_most, true},
    {"average_sum", SCALAR_average_sum, true},
    {"n_kept", SCALAR_n_kept, true},
    {"d", SCALAR_d, true},
    {"d_numerator", SCALAR_d_numerator, true},
};
enum { N_KEPT_SCALARS = sizeof kept_scalars / sizeof *kept_scalars };

static json_t *scalars_json(const double *scalars)
{
    json_t *object = json_object();
    for (int i = 0; i < N_KEPT_SCALARS; i++)
        json_put(&object, kept_scalars[i].name, json_real(scalars[kept_scalars[i].at]));
    return object;
}

static enum snug_status restore_scalars(const struct snug_trainer *t, const json_t *state,
                                        struct snug_error *err)
{
    json_t *scalars;
    double *table = exec_scalars(t->exec);
    TRY(json_get_object(state, t->out, "scalars", &scalars, err));
    for (int i = 0; i < N_KEPT_SCALARS; i++)
        if (!kept_scalars[i].is_new || json_object_get(scalars, kept_scalars[i].name) != NULL)
            TRY(json_get_real(scalars, t->out, kept_scalars[i].name, &table[kept_scalars[i].at],
                              err));
    return SNUG_OK;
}

/* *text is for the caller to free. */
static enum snug_status state_text(const struct snug_trainer *t, char **text,
                                   struct snug_error *err)
{
    char identity[IDENTITY_MAX];
    json_t *base = NULL;
    snug_recipe recipe = effective_recipe(t);
    *text = NULL;
    TRY(identity_of(t->model, identity, err));
    if (t->recipe.lora > 0)
        TRY(base_json(t, &base, err));
    char fingerprint[32], name[sizeof t->model->name];
    snug_printable(memcpy(name, t->model->name, sizeof name)); /* may be cut inside a character */
    snprintf(fingerprint, sizeof fingerprint, "%016llx",
             t->data == NULL ? 0ull : (unsigned long long)data_fingerprint(t->data));
    json_t *state =
        json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:{s:s, s:s, s:s}, s:o, s:o}", "format",
                  RUN_FORMAT, "model", name, "identity", identity, "step", (json_int_t)t->step,
                  "n_steps", (json_int_t)t->n_steps, "seed", (json_int_t)t->recipe.seed,
                  "samples_seen", (json_int_t)(t->step * t->compiled.batch), "data", "spec",
                  t->data_spec == NULL ? "random" : t->data_spec, "kind",
                  t->data == NULL ? "given" : data_kind(t->data), "fingerprint", fingerprint,
                  "scalars", scalars_json(exec_scalars(t->exec)), "recipe", recipe_json(&recipe));
    if (t->recipe.lora > 0)
        json_put(&state, "base", base);
    *text = json_to_text(state, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    json_decref(state);
    return *text != NULL ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
}

enum { MODEL_FILE, OPTIMIZER_FILE, ADAPTER_FILE, N_FILES };
static const char *const file_names[N_FILES] = {SAFETENSORS_MODEL, "optimizer.safetensors",
                                                ADAPTER_FOLDER "/" PEFT_MODEL_NAME};

/* The roles restored from a file.  Nothing is restored from a model file that holds averages or
 * merged adapters. */
static unsigned roles_in(const struct snug_trainer *t, int file)
{
    const unsigned weights = 1u << ROLE_parameter, states = 1u << ROLE_optimizer;
    bool averages = t->recipe.optimizer->average != AVERAGE_none;
    int weights_file = t->recipe.lora > 0 ? ADAPTER_FILE : MODEL_FILE;
    if (file == OPTIMIZER_FILE)
        return averages ? weights | states : states;
    return file == weights_file && !averages ? weights : 0;
}

static enum snug_status saved_entries(struct snug_trainer *t, unsigned roles,
                                      struct st_entry **entries, int *n, struct rank_parts **parts,
                                      struct snug_error *err)
{
    return t->comm->n_ranks > 1 ? rank_save_entries(&t->rank_state, roles, entries, n, parts, err)
                                : weights_entries(&t->compiled, t->exec, roles, entries, n, err);
}

/* The entries of the model file: the parameters, or their averages. */
static enum snug_status trained_entries(struct snug_trainer *t, struct st_entry **entries, int *n,
                                        struct rank_parts **parts, struct snug_error *err)
{
    if (t->averages_exec != NULL)
        TRY(exec_run(t->averages_exec, NULL, NULL, err));
    TRY(saved_entries(t, 1u << ROLE_parameter, entries, n, parts, err));
    if (t->averages_exec != NULL)
        weights_use_averages(&t->averages, t->averages_exec, *entries, *n);
    return SNUG_OK;
}

/* Adapters get a file of their own; the model file has them merged into the frozen base. */
static enum snug_status save_with(struct snug_trainer *t, const struct st_entry *trained,
                                  int n_trained, const struct st_entry *optimizer, int n_optimizer,
                                  const char *state, struct st_crew *crew, struct snug_error *err)
{
    struct checkpoint_file files[N_FILES] = {
        [MODEL_FILE] = {file_names[MODEL_FILE], trained, n_trained},
        [OPTIMIZER_FILE] = {file_names[OPTIMIZER_FILE], optimizer, n_optimizer}};
    if (t->recipe.lora == 0)
        return checkpoint_save(t->out, files, ADAPTER_FILE, state, crew, NULL, err);
    struct adapter_files adapter;
    const char *prefix = model_is_language(t->model) ? hf_prefix(t->model->decoder.family) : "";
    TRY(adapter_files_make(&t->compiled, t->exec, &t->recipe, prefix, trained, n_trained, &adapter,
                           err));
    files[MODEL_FILE].entries = adapter.model;
    files[MODEL_FILE].n = adapter.n_model;
    files[ADAPTER_FILE] =
        (struct checkpoint_file){file_names[ADAPTER_FILE], adapter.parts, adapter.n_parts};
    enum snug_status status = checkpoint_save(t->out, files, N_FILES, state, crew, NULL, err);
    adapter_files_free(&adapter);
    return status;
}

static enum snug_status save_files(struct snug_trainer *t, const struct st_entry *trained,
                                   int n_trained, const struct st_entry *optimizer, int n_optimizer,
                                   const char *state, struct snug_error *err)
{
    struct rank_crew crew;
    bool helped = t->comm->n_ranks > 1;
    rank_crew_make(&crew, &t->rank_state);
    enum snug_status status = save_with(t, trained, n_trained, optimizer, n_optimizer, state,
                                        helped ? &crew.crew : NULL, err);
    rank_crew_free(&crew);
    return status;
}

enum snug_status trainer_save(struct snug_trainer *t, struct snug_error *err)
{
    const char *broken;
    TRY(weights_find_nonfinite(&t->compiled, t->exec, &broken, err));
    if (broken != NULL)
        return snug_fail(
            err, SNUG_DIVERGED,
            "step %lld: \"%s\" is no longer finite; nothing was saved to %s%s; try a lower --lr",
            (long long)t->step, broken, t->out,
            t->saved_step >= 0 ? ", which keeps its last good checkpoint" : "");
    t->rank_state = (struct rank_state){.prog = &t->compiled.prog,
                                        .exec = t->exec,
                                        .comm = t->comm,
                                        .n_in_stage = t->compiled.n_ranks};
    struct st_entry *trained = NULL, *optimizer = NULL;
    struct rank_parts *parts[2] = {NULL, NULL};
    int n_trained = 0, n_optimizer = 0;
    char *state;
    enum snug_status status = state_text(t, &state, err);
    if (status == SNUG_OK)
        status = trained_entries(t, &trained, &n_trained, &parts[0], err);
    if (status == SNUG_OK)
        status =
            saved_entries(t, roles_in(t, OPTIMIZER_FILE), &optimizer, &n_optimizer, &parts[1], err);
    if (status == SNUG_OK && t->comm->rank > 0)
        status = rank_save_serve(&t->rank_state, err);
    else if (status == SNUG_OK)
        status = save_files(t, trained, n_trained, optimizer, n_optimizer, state, err);
    if (status == SNUG_OK)
        t->saved_step = t->step;
    if (status == SNUG_OK)
        status = trainer_keep(t, err);
    if (status == SNUG_OK && t->comm->rank == 0)
        status = rank_save_done(&t->rank_state, err);
    free(state);
    free(trained);
    free(optimizer);
    rank_parts_free(parts[0]);
    rank_parts_free(parts[1]);
    return status;
}

static enum snug_status same_data(const struct snug_trainer *t, const json_t *state,
                                  struct snug_error *err)
{
    json_t *data;
    const char *saved, *spec;
    char fingerprint[32];
    if (t->data == NULL)
        return SNUG_OK;
    TRY(json_get_object(state, t->out, "data", &data, err));
    TRY(json_get_string(data, t->out, "fingerprint", &saved, err));
    TRY(json_get_string(data, t->out, "spec", &spec, err));
    snprintf(fingerprint, sizeof fingerprint, "%016llx",
             (unsigned long long)data_fingerprint(t->data));
    if (strcmp(saved, fingerprint) != 0)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s was trained on other data, \"%s\", and this is \"%s\": resume with "
                         "the data it was trained on",
                         t->out, spec, t->data_spec == NULL ? "random" : t->data_spec);
    return SNUG_OK;
}

static enum snug_status same_model(const struct snug_trainer *t, const json_t *state,
                                   struct snug_error *err)
{
    const char *name, *saved;
    char identity[IDENTITY_MAX];
    TRY(json_get_string(state, t->out, "model", &name, err));
    TRY(json_get_string(state, t->out, "identity", &saved, err));
    TRY(identity_of(t->model, identity, err));
    if (strcmp(saved, identity) != 0)
        return snug_fail(err, SNUG_MISMATCH, "%s is a run of %s, not of %s", t->out, name,
                         t->model->name);
    return SNUG_OK;
}

/* Seed and batch determine the order of samples and must not change; other keys may. */
static enum snug_status restore_state(struct snug_trainer *t, const json_t *state,
                                      struct snug_error *err)
{
    int64_t seen, seed, step, n_steps;
    TRY(json_get_integer(state, t->out, "step", 0, INT64_MAX / 2, &step, err));
    TRY(json_get_integer(state, t->out, "n_steps", 0, INT64_MAX / 2, &n_steps, err));
    TRY(json_get_integer(state, t->out, "seed", 0, INT64_MAX, &seed, err));
    TRY(json_get_integer(state, t->out, "samples_seen", 0, INT64_MAX / 2, &seen, err));
    if (!t->options.weights_only)
        TRY(restore_scalars(t, state, err));
    TRY(same_data(t, state, err));
    if (t->recipe.lora > 0)
        TRY(same_base(t, state, err));
    if (seed != t->recipe.seed || seen != step * t->compiled.batch)
        return snug_fail(
            err, SNUG_MISMATCH,
            "%s was trained with --seed %lld --batch %lld, and other values change the "
            "order of samples: leave both flags out, or give these values",
            t->out, (long long)seed, (long long)(step == 0 ? 0 : seen / step));
    t->step = step;
    if (t->options.steps <= 0 && t->options.epochs <= 0)
        t->n_steps = n_steps;
    return SNUG_OK;
}

static enum snug_status read_state(const struct checkpoint *checkpoint, const char *dir,
                                   json_t **state, struct snug_error *err)
{
    const char *text = checkpoint_state(checkpoint);
    TRY(json_parse(text, strlen(text), dir, state, err));
    return run_format_migrate(*state, dir, err);
}

static enum snug_status inherit_data(struct snug_trainer *t, const json_t *state,
                                     struct snug_error *err)
{
    json_t *data;
    const char *spec;
    TRY(json_get_object(state, t->out, "data", &data, err));
    TRY(json_get_string(data, t->out, "spec", &spec, err));
    t->data_spec = strdup(spec);
    return t->data_spec != NULL ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}

static const char *saved_value(const json_t *recipe, const char *key)
{
    return json_string_value(json_object_get(recipe, key));
}

/* Keys that belong to the saved optimizer are not inherited by another one. */
static bool is_inherited(const struct snug_trainer *t, const json_t *recipe, const char *key)
{
    static const char *const its_own[] = {"opt", "lr", "weight-decay", "state-bits", "schedule"};
    const char *saved = saved_value(recipe, "optimizer");
    struct snug_recipe probe = t->recipe;
    if (saved == NULL || recipe_inherit(&probe, "optimizer", saved, NULL) != SNUG_OK ||
        strcmp(probe.optimizer->name, saved) == 0)
        return true;
    for (size_t i = 0; i < sizeof its_own / sizeof *its_own; i++)
        if (strcmp(its_own[i], key) == 0)
            return false;
    return true;
}

/* Saved states fit only the optimizer and the types that they were saved with. */
static enum snug_status same_states(const struct snug_trainer *t, const json_t *saved,
                                    const json_t *now, struct snug_error *err)
{
    static const char *const keys[] = {"precision", "optimizer", "master", "state-bits"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *was = saved_value(saved, keys[i]), *is = saved_value(now, keys[i]);
        if (was != NULL && is != NULL && strcmp(was, is) != 0)
            return snug_fail(err, SNUG_MISMATCH,
                             "%s was trained with --%s %s, not %s: leave it out, or reset the "
                             "optimizer state with --resume-weights-only",
                             t->out, keys[i], was, is);
    }
    return SNUG_OK;
}

/* --lora-base, or the bits that the frozen matrices have without it. */
static const char *base_bits(const json_t *recipe)
{
    const char *bits = saved_value(recipe, "lora-base"),
               *precision = saved_value(recipe, "precision");
    bool is_fp32 = precision != NULL && strcmp(precision, "fp32") == 0;
    return bits != NULL ? bits : is_fp32 ? "32" : "16";
}

static bool is_same_adapter_key(const json_t *saved, const json_t *now, const char *key)
{
    const char *was = saved_value(saved, key), *is = saved_value(now, key);
    if (strcmp(key, "lora-base") == 0)
        return strcmp(base_bits(saved), base_bits(now)) == 0;
    return was == NULL || is == NULL ? was == is : strcmp(was, is) == 0;
}

/* A run goes on with the adapters that it has.  Others can start from its files in a new run: the
 * same adapters on another base, or other adapters on its merged model. */
static enum snug_status same_adapters(const struct snug_trainer *t, const json_t *saved,
                                      const json_t *now, struct snug_error *err)
{
    static const char *const keys[] = {"lora", "lora-on", "lora-alpha", "lora-base"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *key = keys[i], *was = saved_value(saved, key), *is = saved_value(now, key);
        char trained[2 * LORA_ON_MAX + 64];
        if (!recipe_is_given(&t->recipe, key) || is_same_adapter_key(saved, now, key) ||
            (t->recipe.lora == 0 && strcmp(key, "lora") != 0) ||
            (t->options.weights_only && strcmp(key, "lora-alpha") == 0))
            continue;
        if (was == NULL)
            snprintf(trained, sizeof trained, "without --%s", key);
        else
            snprintf(trained, sizeof trained, "with --%s %s, not %s", key, was,
                     is == NULL ? "none" : is);
        if (strcmp(key, "lora-base") == 0)
            return snug_fail(err, SNUG_MISMATCH,
                             "%s was trained %s: leave --lora-base out, or start a new run from "
                             "its adapter with --lora-from %s/" ADAPTER_FOLDER " --out NEW",
                             t->out, trained, t->out);
        return snug_fail(err, SNUG_MISMATCH,
                         "%s was trained %s: leave --%s out, or start a new run from its weights "
                         "with snug train %s --out NEW",
                         t->out, trained, key, t->out);
    }
    return SNUG_OK;
}

static enum snug_status same_recipe(const struct snug_trainer *t, const json_t *saved,
                                    struct snug_error *err)
{
    snug_recipe recipe = t->recipe;
    recipe.state_bits = recipe_state_bits(&t->recipe);
    if (recipe.lora > 0)
        recipe.lora_alpha = recipe_lora_alpha(&t->recipe);
    json_t *now = recipe_json(&recipe);
    enum snug_status status =
        now == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
    if (status == SNUG_OK && !t->options.weights_only)
        status = same_states(t, saved, now, err);
    if (status == SNUG_OK)
        status = same_adapters(t, saved, now, err);
    json_decref(now);
    return status;
}

static bool is_of_bytes(const json_t *state)
{
    return data_kind_is_bytes(saved_value(json_object_get(state, "data"), "kind"));
}

enum snug_status trainer_inherit(struct snug_trainer *t, struct snug_error *err)
{
    struct checkpoint *checkpoint;
    json_t *state = NULL, *recipe, *value;
    const char *key;
    TRY(checkpoint_open(t->out, &checkpoint, err));
    enum snug_status status = read_state(checkpoint, t->out, &state, err);
    if (status == SNUG_OK && t->data_spec == NULL)
        status = inherit_data(t, state, err);
    if (status == SNUG_OK)
        status = trainer_fit_model(t, err);
    if (status == SNUG_OK)
        status = same_model(t, state, err);
    if (status == SNUG_OK)
        status = json_get_object(state, t->out, "recipe", &recipe, err);
    if (status == SNUG_OK && saved_value(recipe, "optimizer") != NULL) /* first: it parses "opt" */
        status = recipe_inherit(&t->recipe, "optimizer", saved_value(recipe, "optimizer"), err);
    if (status == SNUG_OK)
        json_object_foreach(recipe, key, value)
        {
            if (status == SNUG_OK && json_is_string(value) && is_inherited(t, recipe, key))
                status = recipe_inherit(&t->recipe, key, json_string_value(value), err);
        }
    if (status == SNUG_OK && saved_value(recipe, "tokenizer") == NULL && is_of_bytes(state))
        status = recipe_inherit(&t->recipe, "tokenizer", "bytes",
                                err); /* saved before this key existed */
    if (status == SNUG_OK)
        status = same_recipe(t, recipe, err);
    json_decref(state);
    checkpoint_close(checkpoint);
    return status;
}

/* Restores a file exactly.  With --resume-weights-only, loads weights of any type instead; masters
 * and averages then start as copies of them. */
static enum snug_status restore_file(struct snug_trainer *t, const struct checkpoint *checkpoint,
                                     int file, struct snug_error *err)
{
    const char *name = file_names[file];
    struct safetensors *st = checkpoint_find(checkpoint, name);
    if (st == NULL)
        return snug_fail(err, SNUG_BAD_FILE, "%s has no %s", t->out, name);
    if (!t->options.weights_only)
        TRY(weights_restore(&t->compiled, t->exec, roles_in(t, file), st, err));
    else if (file == ADAPTER_FILE)
        TRY(adapter_load_file(&t->compiled, t->exec, st, err));
    else
        TRY(weights_load(&t->compiled, t->exec, st, err));
    return checkpoint_verify(checkpoint, name, err);
}

enum snug_status trainer_resume(struct snug_trainer *t, struct snug_error *err)
{
    struct checkpoint *checkpoint = NULL;
    json_t *state = NULL;
    int weights_file = t->recipe.lora > 0 ? ADAPTER_FILE : MODEL_FILE;
    TRY(checkpoint_open(t->out, &checkpoint, err));
    enum snug_status status = read_state(checkpoint, t->out, &state, err);
    if (status == SNUG_OK)
        status = restore_state(t, state, err);
    for (int file = 0; file < N_FILES && status == SNUG_OK; file++)
        if (t->options.weights_only ? file == weights_file : roles_in(t, file) != 0)
            status = restore_file(t, checkpoint, file, err);
    t->saved_step = t->step;
    json_decref(state);
    checkpoint_close(checkpoint);
    return status;
}
