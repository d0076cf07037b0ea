/*
 * run_api.c -- evaluates a saved run, or samples from it.
 */
#include "api/open.h"

#include "base/fd.h"
#include "base/rng.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "checkpoint/adapter.h"
#include "compile/budget.h"
#include "train/trainer.h"
#include "checkpoint/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads state.json of a run; *state is NULL if the folder is not a run. */
static enum snug_status state_of(const char *run, json_t **state, struct snug_error *err)
{
    struct checkpoint *checkpoint;
    bool exists;
    *state = NULL;
    TRY(checkpoint_exists(run, &exists, err));
    if (!exists)
        return SNUG_OK;
    TRY(checkpoint_open(run, &checkpoint, err));
    const char *text = checkpoint_state(checkpoint);
    enum snug_status status = json_parse(text, strlen(text), run, state, err);
    checkpoint_close(checkpoint);
    return status;
}

/* Opens a folder with weights; it need not be a run. */
static enum snug_status open_run(const char *run, struct snug_model *model, struct snug_error *err)
{
    TRY(open_model_folder(run, model, err));
    return checkpoint_refuse_begun(run, err);
}

/* A string in an object of the state, or NULL. */
static const char *saved_text(const json_t *state, const char *object, const char *key)
{
    return json_string_value(json_object_get(json_object_get(state, object), key));
}

/* Was the run trained on text as bytes? */
static bool trained_on_bytes(const json_t *state)
{
    return data_kind_is_bytes(saved_text(state, "data", "kind"));
}

/* The sequence length of the run, 0 if unknown. */
static int64_t seq_of(const json_t *state)
{
    const char *text = saved_text(state, "recipe", "seq");
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
    const char *loss = saved_text(state, "recipe", "loss");
    enum snug_status status = loss == NULL ? SNUG_OK : recipe_inherit(recipe, "loss", loss, &why);
    return status == SNUG_NO_MEMORY ? snug_fail(err, status, "%s", why.message) : SNUG_OK;
}

/* Loads the weights of the run and merges the adapter of --lora-from.  Refuses weights that are not
 * finite, because the loss may hide them: relu turns NaN into 0. */
static enum snug_status load_weights(const struct compiled_step *compiled, struct exec *exec,
                                     const char *run, const char *adapter, struct snug_error *err)
{
    const char *broken;
    TRY(weights_load_folder(compiled, exec, run, err));
    if (adapter[0] != '\0')
        TRY(adapter_merge(compiled, exec, adapter, err));
    TRY(weights_find_nonfinite(compiled, exec, &broken, err));
    return broken == NULL ? SNUG_OK
                          : snug_fail(err, SNUG_BAD_FILE,
                                      "%s: weights are not finite, first in \"%s\"; use an earlier "
                                      "checkpoint or train again with a lower --lr",
                                      run, broken);
}

/* ---- eval ------------------------------------------------------------------------------------ */

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
    enum snug_status status = load_weights(&evaluator.compiled, evaluator.exec, run, adapter, err);
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
    enum snug_status status = open_run(run, model, err);
    if (status != SNUG_OK || (status = state_of(run, &state, err)) != SNUG_OK ||
        (status = inherit_loss(state, &own, err)) != SNUG_OK)
        goto done;
    if (trained_on_bytes(state))
        own.tokenizer = TOKENIZER_bytes;
    recipe_clear_lora(&own); /* the saved weights include the adapters */
    q.micro_batch = recipe->micro_batch > 0    ? recipe->micro_batch
                    : recipe->batch > 0        ? recipe->batch
                    : model_is_language(model) ? 4
                                               : 128;
    q.batch = q.micro_batch;
    q.seq = recipe->seq > 0 || !model_is_language(model) ? recipe->seq : seq_of(state);
    if (data_spec == NULL)
        data_spec = saved_text(state, "data", "spec"); /* owned by state */
    struct input_spec input_spec;
    status = compile_step(&q, &compiled, err);
    if (status == SNUG_OK)
        status = budget_check_forward(&compiled, recipe, model->name, err);
    if (status == SNUG_OK)
        status = input_spec_of(&compiled.prog, &input_spec, err);
    if (status == SNUG_OK)
        status = input_spec_open_data(&compiled, &input_spec, data_spec, q.recipe, &data, err);
    if (status == SNUG_OK)
        status = evaluate(run, recipe->lora_from, data, &q, &watcher, result, err);
done:
    data_close(data);
    compiled_step_free(&compiled);
    json_decref(state);
    snug_model_free(model);
    return status;
}

/* ---- generate -------------------------------------------------------------------------------- */

struct sampler {
    struct snug_model *model;
    const snug_recipe *recipe;
    const char *run, *adapter;
    struct compiled_step compiled;
    struct exec *exec;
    tensor_id input, logits;    /* of the compiled program */
    int64_t window;             /* sequence length of the compiled program */
    int32_t *tokens;            /* the latest tokens, at most n_positions */
    int64_t n_tokens, position; /* tokens in the buffer; prompt and sampled tokens so far */
    double *weights;            /* 2 x vocabulary: logits or probabilities, and scratch for top-k */
};

/* A program for logits has one input and one output. */
static void find_ends(struct sampler *s)
{
    const struct program *prog = &s->compiled.prog;
    for (int i = 0; i < prog->n_tensors; i++) {
        if (prog->tensors[i].role == ROLE_input)
            s->input = i;
        if (prog->tensors[i].is_output)
            s->logits = i;
    }
}

/* Compiles a program for at least `need` tokens.  Short texts get a short, fast program. */
static enum snug_status ensure_window(struct sampler *s, int64_t need, struct snug_error *err)
{
    int64_t most = s->model->gpt2.n_positions, window = 32;
    if (s->exec != NULL && need <= s->window)
        return SNUG_OK;
    while (window < need)
        window *= 2;
    window = window > most ? most : window;
    if (s->exec != NULL && window == s->window)
        return SNUG_OK;
    exec_free(s->exec);
    compiled_step_free(&s->compiled);
    s->exec = NULL;
    struct compile_request q = {.model = s->model,
                                .recipe = s->recipe,
                                .purpose = MODEL_FOR_LOGITS,
                                .batch = 1,
                                .micro_batch = 1,
                                .seq = window};
    TRY(compile_step(&q, &s->compiled, err));
    TRY(budget_check_forward(&s->compiled, s->recipe, s->model->name, err));
    TRY(exec_create(&s->compiled.prog, &s->compiled.plan, s->compiled.backend, &s->compiled.facts,
                    NULL, &s->exec, err));
    find_ends(s);
    s->window = window;
    return load_weights(&s->compiled, s->exec, s->run, s->adapter, err);
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Samples a token: the one at which the running sum of the weights passes a random threshold.  A
 * sorted copy gives the top-k limit. */
static int64_t pick(struct sampler *s, const struct snug_generate_options *o, int64_t vocabulary,
                    int64_t position)
{
    double *w = s->weights, *sorted = s->weights + vocabulary;
    int64_t best = 0;
    for (int64_t i = 1; i < vocabulary; i++)
        best = w[i] > w[best] ? i : best;
    if (o->temperature <= 0)
        return best;
    double most = w[best], limit = -INFINITY, sum = 0;
    if (o->top_k > 0 && o->top_k < vocabulary) {
        memcpy(sorted, w, (size_t)vocabulary * sizeof *sorted);
        qsort(sorted, (size_t)vocabulary, sizeof *sorted, descending);
        limit = sorted[o->top_k - 1];
    }
    for (int64_t i = 0; i < vocabulary; i++) {
        w[i] = w[i] < limit ? 0 : exp((w[i] - most) / o->temperature);
        sum += w[i];
    }
    double left = rng_uniform(o->seed, rng_hash_string("sample"), (uint64_t)position) * sum;
    for (int64_t i = 0; i < vocabulary; i++) {
        left -= w[i];
        if (left < 0)
            return i;
    }
    return best;
}

/* The weights are finite, so a value overflowed its type. */
static enum snug_status not_finite(struct sampler *s, struct snug_error *err)
{
    const char *name = NULL;
    struct snug_error inner = {0};
    if (exec_find_nonfinite(s->exec, NULL, NULL, &name, &inner) != SNUG_OK || name == NULL)
        name = "logits";
    return snug_fail(err, SNUG_DIVERGED,
                     "%s: activations are not finite, first in \"%.256s\"; try --precision fp32",
                     s->run, name);
}

static enum snug_status next_token(struct sampler *s, const struct snug_generate_options *o,
                                   int32_t *token, struct snug_error *err)
{
    TRY(ensure_window(s, s->n_tokens, err));
    int64_t used = s->n_tokens < s->window ? s->n_tokens : s->window;
    int32_t *input = exec_input(s->exec, s->input);
    memset(input, 0, (size_t)s->window * sizeof *input); /* causal: padding has no effect */
    memcpy(input, s->tokens + s->n_tokens - used, (size_t)used * sizeof *input);
    exec_scalars(s->exec)[SCALAR_row] = (double)(used - 1);
    TRY(exec_run(s->exec, NULL, NULL, err));
    int64_t vocabulary = s->model->gpt2.vocab_size;
    enum dtype dtype = s->compiled.prog.tensors[s->logits].dtype;
    const void *values;
    TRY(exec_view(s->exec, s->logits, &values, err));
    for (int64_t i = 0; i < vocabulary; i++) {
        s->weights[i] = dtype_load(dtype, values, i);
        if (!isfinite(s->weights[i]))
            return not_finite(s, err);
    }
    *token = (int32_t)pick(s, o, vocabulary, s->position);
    return SNUG_OK;
}

/* A token is a byte.  Tokens above 255 are printed as <1234>. */
static int emit_token(int32_t token, snug_text_fn *emit, void *user)
{
    char text[16] = {(char)token};
    int length = token < 256 ? 1 : snprintf(text, sizeof text, "<%d>", (int)token);
    return emit(text, (size_t)length, user);
}

/* Appends a token, and drops the oldest if the context of the model is full. */
static void push(struct sampler *s, int32_t token)
{
    if (s->n_tokens == s->model->gpt2.n_positions)
        memmove(s->tokens, s->tokens + 1, (size_t)--s->n_tokens * sizeof *s->tokens);
    s->tokens[s->n_tokens++] = token;
    s->position++;
}

static enum snug_status sample(struct sampler *s, const struct snug_generate_options *o,
                               snug_text_fn *emit, void *user, struct snug_error *err)
{
    size_t n_prompt = strlen(o->prompt);
    int64_t vocabulary = s->model->gpt2.vocab_size;
    s->tokens = malloc((size_t)s->model->gpt2.n_positions * sizeof *s->tokens);
    s->weights = malloc(2 * (size_t)vocabulary * sizeof *s->weights);
    if (s->tokens == NULL || s->weights == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n_prompt; i++) {
        unsigned char byte = (unsigned char)o->prompt[i];
        if (byte >= vocabulary)
            return snug_fail(
                err, SNUG_BAD_ARGUMENT,
                "byte %zu of the prompt is %d, but the vocabulary has only %lld tokens", i, byte,
                (long long)vocabulary);
        push(s, byte);
    }
    if (s->n_tokens == 0)
        push(s, '\n' < vocabulary ? '\n' : 0);
    for (int64_t i = 0; i < o->n_tokens; i++) {
        int32_t token = 0;
        TRY(next_token(s, o, &token, err));
        push(s, token);
        if (emit_token(token, emit, user) != 0)
            break;
    }
    return SNUG_OK;
}

/* A prompt is fed as bytes, so the run must have been trained on bytes. */
static enum snug_status check_trained_on_bytes(const char *run, const struct snug_model *model,
                                               struct snug_error *err)
{
    json_t *state;
    TRY(state_of(run, &state, err));
    bool is_bytes = trained_on_bytes(state);
    json_decref(state);
    return is_bytes
               ? SNUG_OK
               : snug_fail(err, SNUG_UNSUPPORTED,
                           "%s was not trained on bytes, and there is no tokenizer yet for its "
                           "vocabulary of %lld tokens: use a run trained on bytes, or feed the "
                           "bytes of the prompt as tokens with --tokenizer bytes",
                           run, (long long)model->gpt2.vocab_size);
}

enum snug_status snug_generate(const char *run, const struct snug_generate_options *options,
                               const snug_recipe *recipe, snug_text_fn *emit, void *user,
                               struct snug_error *err)
{
    struct snug_recipe own = *recipe;
    struct sampler s = {.run = run, .recipe = &own, .adapter = recipe->lora_from};
    recipe_clear_lora(&own);
    s.model = calloc(1, sizeof *s.model);
    if (s.model == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    enum snug_status status = open_run(run, s.model, err);
    if (status == SNUG_OK && !model_is_language(s.model))
        status = snug_fail(err, SNUG_UNSUPPORTED,
                           "%s is not a language model: it cannot generate text", run);
    if (status == SNUG_OK && s.model->gpt2.vocab_size > 256 && own.tokenizer != TOKENIZER_bytes)
        status = check_trained_on_bytes(run, s.model, err);
    if (status == SNUG_OK && options->n_tokens < 0)
        status = snug_fail(err, SNUG_BAD_ARGUMENT,
                           "cannot sample %lld tokens: the number must not be negative",
                           (long long)options->n_tokens);
    if (status == SNUG_OK)
        status = sample(&s, options, emit, user, err);
    exec_free(s.exec);
    compiled_step_free(&s.compiled);
    free(s.tokens);
    free(s.weights);
    snug_model_free(s.model);
    return status;
}
