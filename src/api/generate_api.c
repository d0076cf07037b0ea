/*
 * generate_api.c -- snug_generate: samples text from a saved run.
 */
#include "api/saved_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "compile/budget.h"
#include "io/hf_tokenizer.h"
#include "io/hf_tokenizer_folder.h"
#include "token/encoder.h"

struct sampler {
    struct snug_model *model;
    const snug_recipe *recipe;
    const char *run, *adapter;
    struct tokenizer *tokenizer;  /* NULL: a token is a byte */
    struct buffer text;           /* of a token */
    int64_t ends[HF_END_IDS_MAX]; /* ids after which the text is complete */
    int n_ends;
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
    int64_t most = s->model->decoder.n_positions, window = 32;
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
    return saved_run_load_weights(&s->compiled, s->exec, s->run, s->adapter, err);
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
    int64_t vocabulary = s->model->decoder.vocab_size;
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

/* Sets s->text.  Without a tokenizer, a token is a byte.  Ids that it does not have, or above 255,
 * are written as <1234>: vocabularies are often larger than their tokenizer. */
static enum snug_status set_text(struct sampler *s, int32_t token, struct snug_error *err)
{
    char text[16] = {(char)token};
    size_t n;
    s->text.n = 0;
    if (s->tokenizer != NULL && vocabulary_piece(&s->tokenizer->vocabulary, token, &n) != NULL)
        return tokenizer_add_text(s->tokenizer, token, &s->text, err);
    bool is_byte = s->tokenizer == NULL && token < 256;
    int length = is_byte ? 1 : snprintf(text, sizeof text, "<%d>", (int)token);
    return buffer_add(&s->text, text, (size_t)length)
               ? SNUG_OK
               : snug_fail(err, SNUG_NO_MEMORY, "out of memory for the text of a token");
}

/* Appends a token, and drops the oldest if the context of the model is full. */
static void push(struct sampler *s, int32_t token)
{
    if (s->n_tokens == s->model->decoder.n_positions)
        memmove(s->tokens, s->tokens + 1, (size_t)--s->n_tokens * sizeof *s->tokens);
    s->tokens[s->n_tokens++] = token;
    s->position++;
}

static bool is_end(const struct sampler *s, int32_t token)
{
    for (int i = 0; i < s->n_ends; i++)
        if (s->ends[i] == token)
            return true;
    return false;
}

static enum snug_status push_bytes(struct sampler *s, const char *prompt, struct snug_error *err)
{
    int64_t vocabulary = s->model->decoder.vocab_size;
    if (prompt[0] == '\0' && '\n' < vocabulary)
        push(s, '\n');
    for (size_t i = 0; prompt[i] != '\0'; i++) {
        unsigned char byte = (unsigned char)prompt[i];
        if (byte >= vocabulary)
            return snug_fail(
                err, SNUG_BAD_ARGUMENT,
                "byte %zu of the prompt is %d, but the vocabulary has only %lld tokens", i, byte,
                (long long)vocabulary);
        push(s, byte);
    }
    return SNUG_OK;
}

static enum snug_status push_text(struct sampler *s, const char *prompt, struct snug_error *err)
{
    struct encoder *encoder;
    struct token_ids ids = {0};
    size_t end;
    if (tokenizer_size(s->tokenizer) > s->model->decoder.vocab_size)
        return snug_fail(
            err, SNUG_MISMATCH, "%s: its tokenizer has %ld ids, but the vocabulary has %lld",
            s->run, (long)tokenizer_size(s->tokenizer), (long long)s->model->decoder.vocab_size);
    if (s->tokenizer->begin_of_text != NO_TOKEN)
        push(s, s->tokenizer->begin_of_text);
    TRY(encoder_new(s->tokenizer, 1, &encoder, err));
    enum snug_status status =
        encoder_encode(encoder, &(struct token_text){.data = prompt, .n = strlen(prompt)}, 1, true,
                       &ids, &end, err);
    for (size_t i = 0; status == SNUG_OK && i < ids.n; i++)
        push(s, ids.data[i]);
    encoder_free(encoder);
    free(ids.data);
    return status;
}

static enum snug_status sample(struct sampler *s, const struct snug_generate_options *o,
                               snug_text_fn *emit, void *user, struct snug_error *err)
{
    int64_t vocabulary = s->model->decoder.vocab_size;
    s->tokens = malloc((size_t)s->model->decoder.n_positions * sizeof *s->tokens);
    s->weights = malloc(2 * (size_t)vocabulary * sizeof *s->weights);
    if (s->tokens == NULL || s->weights == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    TRY(s->tokenizer != NULL ? push_text(s, o->prompt, err) : push_bytes(s, o->prompt, err));
    if (s->n_tokens == 0)
        push(s,
             s->n_ends > 0 && s->ends[0] >= 0 && s->ends[0] < vocabulary ? (int32_t)s->ends[0] : 0);
    for (int64_t i = 0; i < o->n_tokens; i++) {
        int32_t token = 0;
        TRY(next_token(s, o, &token, err));
        push(s, token);
        if (is_end(s, token))
            break;
        TRY(set_text(s, token, err));
        if (emit(s->text.data, s->text.n, user) != 0)
            break;
    }
    return SNUG_OK;
}

/* The tokenizer of the run's folder, unless the run was trained on bytes. */
static enum snug_status open_tokenizer(struct sampler *s, struct snug_error *err)
{
    json_t *state;
    bool is_small = s->model->decoder.vocab_size <= 256;
    if (s->recipe->tokenizer == TOKENIZER_bytes)
        return SNUG_OK;
    if (s->recipe->tokenizer == TOKENIZER_path)
        return hf_tokenizer_open(s->recipe->tokenizer_path, &s->tokenizer, err);
    TRY(saved_run_state(s->run, &state, err));
    bool is_bytes = saved_run_is_bytes(state);
    json_decref(state);
    if (!is_bytes && hf_tokenizer_exists(s->run))
        return hf_tokenizer_open(s->run, &s->tokenizer, err);
    return is_bytes || is_small
               ? SNUG_OK
               : snug_fail(err, SNUG_UNSUPPORTED,
                           "%s was not trained on bytes, and there is no tokenizer in it for its "
                           "vocabulary of %lld tokens: give one with --tokenizer FOLDER, or feed "
                           "the bytes of the prompt as tokens with --tokenizer bytes",
                           s->run, (long long)s->model->decoder.vocab_size);
}

/* What the folder says; else the token that ends a text. */
static enum snug_status find_end_ids(struct sampler *s, struct snug_error *err)
{
    TRY(hf_end_ids(s->run, s->ends, &s->n_ends, err));
    if (s->n_ends == 0 && s->tokenizer->end_of_text != NO_TOKEN)
        s->ends[s->n_ends++] = s->tokenizer->end_of_text;
    return SNUG_OK;
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
    enum snug_status status = saved_run_open(run, s.model, err);
    if (status == SNUG_OK && !model_is_language(s.model))
        status = snug_fail(err, SNUG_UNSUPPORTED,
                           "%s is not a language model: it cannot generate text", run);
    if (status == SNUG_OK)
        status = open_tokenizer(&s, err);
    if (status == SNUG_OK && s.tokenizer != NULL)
        status = find_end_ids(&s, err);
    if (status == SNUG_OK && options->n_tokens < 0)
        status = snug_fail(err, SNUG_BAD_ARGUMENT,
                           "cannot sample %lld tokens: the number must not be negative",
                           (long long)options->n_tokens);
    if (status == SNUG_OK)
        status = sample(&s, options, emit, user, err);
    exec_free(s.exec);
    compiled_step_free(&s.compiled);
    tokenizer_free(s.tokenizer);
    free(s.text.data);
    free(s.tokens);
    free(s.weights);
    snug_model_free(s.model);
    return status;
}
