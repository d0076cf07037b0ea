/*
 * recipe.c -- the keys of a recipe: one table for flags, recipe files, the help and saved runs.
 */
#include "train/recipe.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct key;
typedef bool set_fn(snug_recipe *recipe, const char *value);
typedef void get_fn(const snug_recipe *recipe, struct text *out);

/* ---- one setter and getter per kind of value ------------------------------------------------- */

static bool set_count(const char *value, int64_t least, int64_t *out)
{
    int64_t n;
    if (!text_parse_count(value, &n) || n < least || n > (int64_t)1e15)
        return false;
    *out = n;
    return true;
}

static bool set_real(const char *value, double least, double *out)
{
    double x;
    if (!text_parse_real(value, &x) || x < least)
        return false;
    *out = x;
    return true;
}

static bool set_threads(snug_recipe *r, const char *v)
{
    int64_t n;
    if (!set_count(v, 1, &n) || n > 1024)
        return false;
    r->threads = (int)n;
    return true;
}

static bool set_batch(snug_recipe *r, const char *v)
{
    return set_count(v, 1, &r->batch);
}

static bool set_micro_batch(snug_recipe *r, const char *v)
{
    return set_count(v, 1, &r->micro_batch);
}

static bool set_seq(snug_recipe *r, const char *v)
{
    return set_count(v, 1, &r->seq);
}

static bool set_precision(snug_recipe *r, const char *v)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } known[] = {{"fp32", DTYPE_f32}, {"bf16", DTYPE_bf16}, {"fp16", DTYPE_f16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(v, known[i].name) == 0) {
            r->precision = known[i].dtype;
            return true;
        }
    return false;
}

static bool set_optimizer(snug_recipe *r, const char *v)
{
    const struct optimizer *found = optimizer_find(v);
    if (found == NULL)
        return false;
    r->optimizer = found;
    return true;
}

/* beta1=0.9,beta2=0.95,eps=1e-8 */
static bool set_opt(snug_recipe *r, const char *v)
{
    char copy[256], *rest;
    if (snprintf(copy, sizeof copy, "%s", v) >= (int)sizeof copy)
        return false;
    for (char *pair = strtok_r(copy, ",", &rest); pair != NULL; pair = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(pair, '=');
        double x;
        if (equals == NULL || !set_real(equals + 1, 0, &x))
            return false;
        *equals = '\0';
        if (strcmp(pair, "beta1") == 0 && x < 1)
            r->beta1 = x;
        else if (strcmp(pair, "beta2") == 0 && x < 1)
            r->beta2 = x;
        else if (strcmp(pair, "eps") == 0)
            r->eps = x;
        else
            return false;
    }
    return true;
}

static bool set_lr(snug_recipe *r, const char *v)
{
    return set_real(v, 0, &r->lr);
}

static bool set_weight_decay(snug_recipe *r, const char *v)
{
    return set_real(v, 0, &r->weight_decay);
}

static bool set_clip(snug_recipe *r, const char *v)
{
    return set_real(v, 0, &r->clip);
}

static const char *const schedule_names[] = {"constant", "linear", "cosine"};

static bool set_schedule(snug_recipe *r, const char *v)
{
    for (int i = 0; i < 3; i++)
        if (strcmp(v, schedule_names[i]) == 0) {
            r->schedule = (enum schedule)i;
            return true;
        }
    return false;
}

static bool set_warmup(snug_recipe *r, const char *v)
{
    return set_count(v, 0, &r->warmup);
}

static bool set_lr_end(snug_recipe *r, const char *v)
{
    return set_real(v, 0, &r->lr_end) && r->lr_end <= 1;
}

static bool set_memory(snug_recipe *r, const char *v)
{
    return text_parse_size(v, &r->memory) && r->memory > 0;
}

static bool set_seed(snug_recipe *r, const char *v)
{
    return set_count(v, 0, &r->seed);
}

static bool set_kernels(snug_recipe *r, const char *v)
{
    r->reference_kernels = strcmp(v, "reference") == 0;
    return r->reference_kernels || strcmp(v, "fast") == 0;
}

static void get_threads(const snug_recipe *r, struct text *t)
{
    if (r->threads > 0)
        text_add(t, "%d", r->threads);
}

#define GET_COUNT(field)                                                                           \
    static void get_##field(const snug_recipe *r, struct text *t)                                  \
    {                                                                                              \
        if (r->field > 0)                                                                          \
            text_add(t, "%lld", (long long)r->field);                                              \
    }
GET_COUNT(batch)
GET_COUNT(micro_batch)
GET_COUNT(seq)
GET_COUNT(warmup)
GET_COUNT(memory)

static void get_seed(const snug_recipe *r, struct text *t)
{
    text_add(t, "%lld", (long long)r->seed);
}

static void get_precision(const snug_recipe *r, struct text *t)
{
    text_add(t, "%s", r->precision == DTYPE_f32    ? "fp32"
                      : r->precision == DTYPE_bf16 ? "bf16"
                                                   : "fp16");
}

static void get_optimizer(const snug_recipe *r, struct text *t)
{
    text_add(t, "%s", r->optimizer->name);
}

static void get_opt(const snug_recipe *r, struct text *t)
{
    text_add(t, "beta1=%.17g,beta2=%.17g,eps=%.17g", r->beta1, r->beta2, r->eps);
}

static void get_lr(const snug_recipe *r, struct text *t)
{
    text_add(t, "%.17g", recipe_lr(r));
}

static void get_weight_decay(const snug_recipe *r, struct text *t)
{
    text_add(t, "%.17g", recipe_weight_decay(r));
}

static void get_clip(const snug_recipe *r, struct text *t)
{
    text_add(t, "%.17g", r->clip);
}

static void get_schedule(const snug_recipe *r, struct text *t)
{
    text_add(t, "%s", schedule_names[r->schedule]);
}

static void get_lr_end(const snug_recipe *r, struct text *t)
{
    text_add(t, "%.17g", r->lr_end);
}

static void get_kernels(const snug_recipe *r, struct text *t)
{
    text_add(t, "%s", r->reference_kernels ? "reference" : "fast");
}

/* ---- the table --------------------------------------------------------------------------------- */

static const struct key {
    const char *name, *values, *about;
    set_fn *set;       /* NULL: only the first of `values` is there in this version */
    get_fn *get;
} keys[] = {
    {"device", "cpu", "where it runs", NULL, NULL},
    {"threads", "all cores", "how many threads", set_threads, get_threads},
    {"batch", "a number", "samples or sequences per optimizer step", set_batch, get_batch},
    {"micro-batch", "the batch", "of those per forward pass; gradients are accumulated",
     set_micro_batch, get_micro_batch},
    {"seq", "the model's own length", "tokens per sequence", set_seq, get_seq},
    {"precision", "fp32, bf16, fp16", "16 bits keep an fp32 master of the weights", set_precision,
     get_precision},
    {"master", "fp32", "the master copy of 16-bit weights", NULL, NULL},
    {"optimizer", "adamw, adam, sgd", "how weights are updated", set_optimizer, get_optimizer},
    {"opt", "beta1=0.9,beta2=0.95,eps=1e-8", "constants of the optimizer", set_opt, get_opt},
    {"state-bits", "32", "bits of an optimizer state", NULL, NULL},
    {"update", "end", "when weights are updated", NULL, NULL},
    {"lr", "3e-4 (sgd: 0.1)", "learning rate", set_lr, get_lr},
    {"weight-decay", "0.1 (adam, sgd: 0)", "on matrices, not on biases and norms", set_weight_decay,
     get_weight_decay},
    {"clip", "1", "largest gradient norm; 0: no clipping", set_clip, get_clip},
    {"schedule", "constant, linear, cosine", "of the learning rate", set_schedule, get_schedule},
    {"warmup", "0", "steps over which it rises from 0", set_warmup, get_warmup},
    {"lr-end", "0.1", "its last value, as a fraction of --lr", set_lr_end, get_lr_end},
    {"scale-lr", "none", "scaling of --lr with the batch", NULL, NULL},
    {"checkpoint", "none", "which activations are computed again", NULL, NULL},
    {"memory", "no budget", "bytes the process may hold: 24G, 512M; refused if over it", set_memory,
     get_memory},
    {"lora", "0", "rank of low-rank adapters", NULL, NULL},
    {"offload", "none", "what is kept outside the device's memory", NULL, NULL},
    {"ranks", "1", "processes that share the work", NULL, NULL},
    {"parallel", "ddp", "how ranks share the work", NULL, NULL},
    {"zero", "0", "what is sharded over ranks", NULL, NULL},
    {"pipeline", "none", "how layers are split over ranks", NULL, NULL},
    {"stages", "1", "pipeline stages", NULL, NULL},
    {"dropout", "0", "probability of dropping an activation", NULL, NULL},
    {"label-smoothing", "0", "share of the target spread over all classes", NULL, NULL},
    {"seed", "1", "of weights and of the order of samples", set_seed, get_seed},
    {"kernels", "fast, reference", "reference: plain loops that define correct", set_kernels,
     get_kernels},
};
enum { N_KEYS = (int)(sizeof keys / sizeof *keys) };

snug_recipe *snug_recipe_new(void)
{
    snug_recipe *recipe = malloc(sizeof *recipe);
    if (recipe != NULL)
        *recipe = (snug_recipe){.precision = DTYPE_f32, .optimizer = &optimizer_adamw,
                                .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .lr = NAN,
                                .weight_decay = NAN, .clip = 1, .lr_end = 0.1, .seed = 1};
    return recipe;
}

void snug_recipe_free(snug_recipe *recipe)
{
    free(recipe);
}

static const struct key *find_key(const char *name)
{
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

int snug_recipe_has_key(const char *name)
{
    return find_key(name) != NULL;
}

enum snug_status snug_recipe_set(snug_recipe *recipe, const char *name, const char *value,
                                 struct snug_error *err)
{
    const struct key *key = find_key(name);
    if (key == NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "there is no recipe key \"%.60s\"; `snug help train` lists them", name);
    if (key->set == NULL) {
        if (strcmp(value, key->values) == 0)
            return SNUG_OK;
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--%s %.60s is not in this version, only %s is",
                         name, value, key->values);
    }
    if (!key->set(recipe, value))
        return snug_fail(err, SNUG_BAD_ARGUMENT, "--%s: \"%.60s\" is not a value for it; it takes: %s",
                         name, value, key->values);
    return SNUG_OK;
}

static char *trim(char *text)
{
    while (*text == ' ' || *text == '\t')
        text++;
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL)
        text[--length] = '\0';
    return text;
}

enum snug_status snug_recipe_read(snug_recipe *recipe, const char *path, struct snug_error *err)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return snug_fail(err, SNUG_BAD_FILE, "recipe %s: %s", path, strerror(errno));
    char line[1024];
    enum snug_status status = SNUG_OK;
    for (int number = 1; status == SNUG_OK && fgets(line, sizeof line, file) != NULL; number++) {
        char *comment = strchr(line, '#');
        if (comment != NULL)
            *comment = '\0';
        char *name = trim(line), *equals = strchr(name, '=');
        if (*name == '\0')
            continue;
        if (equals == NULL) {
            status = snug_fail(err, SNUG_BAD_ARGUMENT, "recipe %s, line %d: write key = value", path,
                               number);
            break;
        }
        *equals = '\0';
        struct snug_error inner;
        status = snug_recipe_set(recipe, trim(name), trim(equals + 1), &inner);
        if (status != SNUG_OK)
            snug_fail(err, status, "recipe %s, line %d: %.300s", path, number, inner.message);
    }
    fclose(file);
    return status;
}

char *snug_recipe_help(void)
{
    struct text t = {0};
    for (int i = 0; i < N_KEYS; i++) {
        if (keys[i].set == NULL)
            continue;
        text_add(&t, "  --%-13s %s\n", keys[i].name, keys[i].about);
        text_add(&t, "  %15s default first: %s\n", "", keys[i].values);
    }
    return text_take(&t);
}

void recipe_write(const struct snug_recipe *recipe, struct text *out)
{
    for (int i = 0; i < N_KEYS; i++) {
        struct text value = {0};
        if (keys[i].get != NULL)
            keys[i].get(recipe, &value);
        if (value.length > 0)
            text_add(out, "%s = %s\n", keys[i].name, value.data);
        text_free(&value);
    }
}

double recipe_lr(const struct snug_recipe *recipe)
{
    return isnan(recipe->lr) ? recipe->optimizer->default_lr : recipe->lr;
}

double recipe_weight_decay(const struct snug_recipe *recipe)
{
    return isnan(recipe->weight_decay) ? recipe->optimizer->default_decay : recipe->weight_decay;
}

double recipe_lr_at(const struct snug_recipe *recipe, int64_t step, int64_t n_steps)
{
    double lr = recipe_lr(recipe);
    if (step < recipe->warmup)
        return lr * (double)(step + 1) / (double)recipe->warmup;
    int64_t left = n_steps - recipe->warmup;
    double done = left <= 1 ? 0 : (double)(step - recipe->warmup) / (double)(left - 1);
    done = done > 1 ? 1 : done;
    switch (recipe->schedule) {
    case SCHEDULE_constant:
        return lr;
    case SCHEDULE_linear:
        return lr * (1 - (1 - recipe->lr_end) * done);
    case SCHEDULE_cosine:
        return lr * (recipe->lr_end + (1 - recipe->lr_end) * 0.5 * (1 + cos(3.14159265358979 * done)));
    }
    return lr;
}

int recipe_threads(const struct snug_recipe *recipe)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return recipe->threads > 0 ? recipe->threads : cores < 1 ? 1 : cores > 1024 ? 1024 : (int)cores;
}
