/*
 * eval_api.c -- snug_eval: evaluates a saved run on held-out data.
 */
#include "api/saved_run.h"

#include <stdlib.h>

#include "compile/budget.h"
#include "train/evaluator.h"

/* The sequence length of the run, 0 if unknown. */
static int64_t seq_of(const json_t *state)
{
    const char *text = saved_run_text(state, "recipe", "seq");
    int64_t seq = 0;
    if (text != NULL)
        text_parse_count(text, &seq);
    return seq;
}

/* Takes over the loss of the run, unless the user sets another. */
static enum snug_status inherit_loss(const json_t *state, struct snug_recipe *recipe,
                                     struct snug_error *err)
{
    struct snug_error why = {0};
    const char *loss = saved_run_text(state, "recipe", "loss");
    enum snug_status status = loss == NULL ? SNUG_OK : recipe_inherit(recipe, "loss", loss, &why);
    return status == SNUG_NO_MEMORY ? snug_fail(err, status, "%s", why.message) : SNUG_OK;
}

struct watcher {
    snug_watch_fn *watch;
    void *user;
};

static bool stop_evaluation(void *user, int64_t done, int64_t total)
{
    const struct watcher *watcher = user;
    struct snug_doing doing = {
        .activity = SNUG_EVALUATION, .saved_step = -1, .done = done, .total = total};
    return watcher->watch != NULL && watcher->watch(&doing, watcher->user) != 0;
}

static enum snug_status evaluate(const char *run, const char *adapter, struct data *data,
                                 struct compile_request *q, struct watcher *watcher,
                                 struct snug_eval_result *result, struct snug_error *err)
{
    struct evaluator evaluator;
    TRY(evaluator_make(&evaluator, q, NULL, data, INT64_MAX, 0, NULL, err));
    evaluator.stop = stop_evaluation;
    evaluator.stop_user = watcher;
    enum snug_status status =
        saved_run_load_weights(&evaluator.compiled, evaluator.exec, run, adapter, err);
    if (status == SNUG_OK)
        status = evaluator_run(&evaluator, result, err);
    evaluator_free(&evaluator);
    return status;
}

enum snug_status snug_eval(const char *run, const char *data_spec, const snug_recipe *recipe,
                           struct snug_eval_result *result, struct snug_error *err)
{
    return snug_eval_watched(run, data_spec, recipe, NULL, NULL, result, err);
}

enum snug_status snug_eval_watched(const char *run, const char *data_spec,
                                   const snug_recipe *recipe, snug_watch_fn *watch, void *user,
                                   struct snug_eval_result *result, struct snug_error *err)
{
    struct watcher watcher = {watch, user};
    struct snug_model *model = calloc(1, sizeof *model);
    struct compiled_step compiled = {0};
    struct data *data = NULL;
    json_t *state = NULL;
    if (model == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    struct snug_recipe own = *recipe;
    struct compile_request q = {.model = model, .recipe = &own};
    enum snug_status status = saved_run_open(run, model, err);
    if (status != SNUG_OK || (status = saved_run_state(run, &state, err)) != SNUG_OK ||
        (status = inherit_loss(state, &own, err)) != SNUG_OK)
        goto done;
    if (saved_run_is_bytes(state))
        own.tokenizer = TOKENIZER_bytes;
    recipe_clear_lora(&own); /* the saved weights include the adapters */
    q.micro_batch = recipe->micro_batch > 0    ? recipe->micro_batch
                    : recipe->batch > 0        ? recipe->batch
                    : model_is_language(model) ? 4
                                               : 128;
    q.batch = q.micro_batch;
    q.seq = recipe->seq > 0 || !model_is_language(model) ? recipe->seq : seq_of(state);
    const char *trained_on = saved_run_text(state, "data", "spec"); /* owned by state */
    bool is_other = data_spec != NULL && (trained_on == NULL || strcmp(data_spec, trained_on) != 0);
    if (data_spec == NULL)
        data_spec = trained_on;
    if (data_spec == NULL) {
        status =
            snug_fail(err, SNUG_BAD_ARGUMENT,
                      "%s was not trained by snug, so there is no data set to evaluate on: add "
                      "DATA, or random",
                      run);
        goto done;
    }
    struct input_spec input_spec;
    struct input_source source = {
        .spec = data_spec, .model_folder = model->folder, .whole = is_other};
    status = compile_step(&q, &compiled, err);
    if (status == SNUG_OK)
        status = budget_check_forward(&compiled, recipe, model->name, err);
    if (status == SNUG_OK)
        status = input_spec_of(&compiled.prog, &input_spec, err);
    if (status == SNUG_OK)
        status = input_spec_open_data(&compiled, &input_spec, &source, q.recipe, &data, err);
    if (status == SNUG_OK)
        status = evaluate(run, recipe->lora_from, data, &q, &watcher, result, err);
done:
    data_close(data);
    compiled_step_free(&compiled);
    json_decref(state);
    snug_model_free(model);
    return status;
}
