/*
 * recipe.c -- the table of recipe keys, shared by the flags, recipe files, the help and saved runs.
 * It is long because the table is, which has all that is known of a key in one place.
 */
#include "recipe/recipe.h"

#include "recipe/recipe_hint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    COUNT,  /* int64, from `least` to `most`; "none" is 0 for keys whose `values` begin with it */
    REAL,   /* double, from `least` to `most` */
    CHOICE, /* int, one of the names in `choices` */
    OWN     /* any type, through `set` and `get` */
};

struct choice {
    const char *name;
    int value;
};

struct key {
    const char *name, *values, *about; /* `about` is one line of the help: at most 62 columns */
    enum kind kind;
    size_t field; /* offset in the recipe */
    double least, most;
    const struct choice *choices; /* ends with a NULL name; for REAL: one named value */
    bool (*set)(snug_recipe *recipe, const char *value);
    void (*get)(const snug_recipe *recipe, struct text *out); /* adds nothing for a default */
    void (*list)(struct text *out);                           /* adds the values; or use `values` */
};

/* ---- setters and getters of OWN keys --------------------------------------------------------- */

static bool set_threads(snug_recipe *recipe, const char *value)
{
    int64_t n;
    if (!text_parse_count(value, &n) || n < 1 || n > MAX_THREADS)
        return false;
    recipe->threads = (int)n;
    return true;
}

static void get_threads(const snug_recipe *recipe, struct text *out)
{
    if (recipe->threads > 0)
        text_add(out, "%d", recipe->threads);
}

static bool set_optimizer(snug_recipe *recipe, const char *value)
{
    const struct optimizer *found = optimizer_find(value);
    if (found != NULL)
        recipe->optimizer = found;
    return found != NULL;
}

static void get_optimizer(const snug_recipe *recipe, struct text *out)
{
    text_add(out, "%s", recipe->optimizer->name);
}

/* --opt may come before --optimizer, so its text is stored and parsed when both are known. */
static bool set_opt(snug_recipe *recipe, const char *value)
{
    return snprintf(recipe->opt, sizeof recipe->opt, "%s", value) < (int)sizeof recipe->opt;
}

static void get_opt(const snug_recipe *recipe, struct text *out)
{
    double values[MAX_OPTIONS];
    if (recipe_options(recipe, values, NULL) == SNUG_OK)
        optimizer_write_options(recipe->optimizer, values, out);
}

static const struct choice checkpoints[] = {{"none", CHECKPOINT_none}, {"cheap", CHECKPOINT_cheap},
                                            {"all", CHECKPOINT_all},   {"sqrt", CHECKPOINT_sqrt},
                                            {"auto", CHECKPOINT_auto}, {NULL, 0}};

static bool set_checkpoint(snug_recipe *recipe, const char *value)
{
    static const char every[] = "every:";
    const size_t length = sizeof every - 1;
    int64_t n;
    for (const struct choice *c = checkpoints; c->name != NULL; c++)
        if (strcmp(value, c->name) == 0) {
            recipe->checkpoint = c->value;
            return true;
        }
    if (strncmp(value, every, length) != 0 || !text_parse_count(value + length, &n) || n < 1)
        return false;
    recipe->checkpoint = CHECKPOINT_every;
    recipe->checkpoint_every = n;
    return true;
}

void recipe_checkpoint_name(const struct snug_recipe *recipe, struct text *out)
{
    if (recipe->checkpoint == CHECKPOINT_every)
        text_add(out, "every:%lld", (long long)recipe->checkpoint_every);
    for (const struct choice *c = checkpoints; c->name != NULL; c++)
        if (c->value == recipe->checkpoint)
            text_add(out, "%s", c->name);
}

static bool set_memory(snug_recipe *recipe, const char *value)
{
    return text_parse_size(value, &recipe->memory) && recipe->memory > 0;
}

static void get_memory(const snug_recipe *recipe, struct text *out)
{
    if (recipe->memory > 0 && recipe->memory_origin[0] == '\0')
        text_add(out, "%lld", (long long)recipe->memory);
}

/* The pass checks that the model has the layers. */
static bool set_lora_on(snug_recipe *recipe, const char *value)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    for (const char *at = value;; at++) {
        size_t n = strspn(at, letters);
        at += n;
        if (n == 0 || n >= LORA_ON_WORD_MAX || (*at != ',' && *at != '\0'))
            return false;
        if (*at == '\0')
            break;
    }
    return snprintf(recipe->lora_on, sizeof recipe->lora_on, "%s", value) <
           (int)sizeof recipe->lora_on;
}

static void get_lora_on(const snug_recipe *recipe, struct text *out)
{
    text_add(out, "%s", recipe->lora_on);
}

/* Both reject line breaks: a saved recipe has one line per key. */
static bool set_tokenizer(snug_recipe *recipe, const char *value)
{
    bool is_default = strcmp(value, "model") == 0 || strcmp(value, "none") == 0; /* as once named */
    recipe->tokenizer = is_default                    ? TOKENIZER_model
                        : strcmp(value, "bytes") == 0 ? TOKENIZER_bytes
                                                      : TOKENIZER_path;
    const char *path = recipe->tokenizer == TOKENIZER_path ? value : "";
    int n = snprintf(recipe->tokenizer_path, sizeof recipe->tokenizer_path, "%s", path);
    return *value != '\0' && strpbrk(value, "\r\n") == NULL &&
           n < (int)sizeof recipe->tokenizer_path;
}

static void get_tokenizer(const snug_recipe *recipe, struct text *out)
{
    text_add(out, "%s",
             recipe->tokenizer == TOKENIZER_path    ? recipe->tokenizer_path
             : recipe->tokenizer == TOKENIZER_bytes ? "bytes"
                                                    : "model");
}

static bool set_lora_from(snug_recipe *recipe, const char *value)
{
    const char *folder = strcmp(value, "none") == 0 ? "" : value;
    return value[0] != '\0' && strpbrk(value, "\r\n") == NULL &&
           snprintf(recipe->lora_from, sizeof recipe->lora_from, "%s", folder) <
               (int)sizeof recipe->lora_from;
}

static void get_lora_from(const snug_recipe *recipe, struct text *out)
{
    text_add(out, "%s", recipe->lora_from);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct choice devices[] = {{"cpu", DEVICE_cpu}, {"cuda", DEVICE_cuda}, {NULL, 0}};
static const struct choice precisions[] = {
    {"fp32", DTYPE_f32}, {"bf16", DTYPE_bf16}, {"fp16", DTYPE_f16}, {NULL, 0}};
static const struct choice schedules[] = {
    {"constant", SCHEDULE_constant}, {"linear", SCHEDULE_linear}, {"cosine", SCHEDULE_cosine},
    {"cyclic", SCHEDULE_cyclic},     {"wsd", SCHEDULE_wsd},       {NULL, 0}};
static const struct choice scalings[] = {
    {"none", SCALE_LR_none}, {"linear", SCALE_LR_linear}, {"sqrt", SCALE_LR_sqrt}, {NULL, 0}};
static const struct choice losses[] = {{"model", RECIPE_LOSS_model},
                                       {"cross-entropy", RECIPE_LOSS_cross_entropy},
                                       {"mse", RECIPE_LOSS_mse},
                                       {NULL, 0}};
static const struct choice augments[] = {{"none", DATA_AUGMENT_none},
                                         {"flip", DATA_AUGMENT_flip},
                                         {"shift", DATA_AUGMENT_shift},
                                         {"flip+shift", DATA_AUGMENT_flip | DATA_AUGMENT_shift},
                                         {NULL, 0}};
static const struct choice offloads[] = {
    {"none", OFFLOAD_none},
    {"states", OFFLOAD_states},
    {"activations", OFFLOAD_activations},
    {"states+activations", OFFLOAD_states | OFFLOAD_activations},
    {NULL, 0}};
static const struct choice masters[] = {{"fp32", 0}, {"none", 1}, {NULL, 0}};
static const struct choice state_bits[] = {{"32", 32}, {"16", 16}, {"8", 8}, {"4", 4}, {NULL, 0}};
static const struct choice updates[] = {{"end", 0}, {"in-backward", 1}, {NULL, 0}};
static const struct choice lora_bases[] = {{"16", 16}, {"8", 8}, {"4", 4}, {NULL, 0}};
static const struct choice targets[] = {
    {"here", TARGET_here}, {"cpu", TARGET_cpu},   {"v100-32g", TARGET_v100}, {"a100", TARGET_a100},
    {"h100", TARGET_h100}, {"h200", TARGET_h200}, {"4090", TARGET_4090},     {NULL, 0}};
static const struct choice parallels[] = {{"ddp", PARALLEL_ddp}, {"ps", PARALLEL_ps}, {NULL, 0}};
static const struct choice zeros[] = {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {NULL, 0}};
static const struct choice pipelines[] = {
    {"none", PIPELINE_none}, {"naive", PIPELINE_naive},         {"gpipe", PIPELINE_gpipe},
    {"1f1b", PIPELINE_1f1b}, {"pipedream", PIPELINE_pipedream}, {NULL, 0}};
static const struct choice networks[] = {{"25G", NETWORK_25G},       {"1G", NETWORK_1G},
                                         {"10G", NETWORK_10G},       {"100G", NETWORK_100G},
                                         {"200G", NETWORK_200G},     {"400G", NETWORK_400G},
                                         {"nvlink", NETWORK_nvlink}, {NULL, 0}};
static const struct choice deterministic[] = {
    {"yes", 0}, {"no", 1}, {"fixed", 0}, {"any", 1}, {NULL, 0}}; /* fixed, any: of old --order */
static const struct choice dropouts[] = {{"config", DROPOUT_FROM_CONFIG}, {NULL, 0}};
static const struct choice kernels[] = {{"fast", 0}, {"reference", 1}, {NULL, 0}};

#define FIELD(name) offsetof(struct snug_recipe, name)
#define ANY         1e15

static const struct key keys[] = {
    {"device", "cpu, cuda", "device to train on", .kind = CHOICE, .field = FIELD(device),
     .choices = devices},
    {"threads", "all cores, or a number", "number of CPU threads", .kind = OWN, .set = set_threads,
     .get = get_threads},
    {"batch", "8 (mlp and image models: 128; more if the ranks need it), or a whole number from 1",
     "samples or sequences per optimizer step, over all ranks", .kind = COUNT,
     .field = FIELD(batch), .least = 1, .most = ANY},
    {"micro-batch", "the batch, or a divisor of it",
     "samples or sequences per forward pass; gradients accumulate", .kind = COUNT,
     .field = FIELD(micro_batch), .least = 1, .most = ANY},
    {"seq", "the model's maximum, at most 2048; or a number up to the maximum",
     "tokens per sequence", .kind = COUNT, .field = FIELD(seq), .least = 1, .most = ANY},
    {"precision", "fp32, bf16, fp16",
     "compute type; 16-bit types use fp32 master weights (--master)", .kind = CHOICE,
     .field = FIELD(precision), .choices = precisions},
    {"master", "fp32, none (train the 16-bit weights directly, with stochastic rounding)",
     "master copy of 16-bit weights", .kind = CHOICE, .field = FIELD(no_master),
     .choices = masters},
    {"optimizer", NULL, "optimizer; snug help optimizers describes them", .kind = OWN,
     .set = set_optimizer, .get = get_optimizer, .list = optimizer_list_names},
    {"opt",
     "name=value,... (adamw: beta1=0.9,beta2=0.95,eps=1e-8; adagrad, rmsprop: eps-outside=1 is "
     "PyTorch's sqrt(v) + eps; adam, amsgrad: decoupled=1 is adamw's decay)",
     "optimizer options", .kind = OWN, .set = set_opt, .get = get_opt},
    {"state-bits", "32 (adam-8bit: 8, adam-4bit: 4), 16, 8, 4",
     "bits per element of the optimizer state", .kind = CHOICE, .field = FIELD(state_bits),
     .choices = state_bits},
    {"update",
     "end, in-backward (each weight as soon as its gradient is ready, so the gradients are never "
     "all in memory)",
     "when to update the weights", .kind = CHOICE, .field = FIELD(in_backward), .choices = updates},
    {"lr",
     "the optimizer's default (adamw: 3e-4; sgd: 0.1; adafactor and amos compute it), or a number "
     "from 0",
     "learning rate", .kind = REAL, .field = FIELD(lr), .least = 0, .most = 1e300},
    {"weight-decay",
     "the optimizer's default (adamw: 0.1; adam and sgd: 0; amos has its own rule), or a number "
     "from 0",
     "weight decay of matrices; biases and norms have none", .kind = REAL,
     .field = FIELD(weight_decay), .least = 0, .most = 1e300},
    {"clip", "1, or a number from 0", "maximum gradient norm; 0: no clipping", .kind = REAL,
     .field = FIELD(clip), .least = 0, .most = 1e300},
    {"schedule", "constant, linear, cosine, cyclic, wsd",
     "learning rate schedule; --optimizer cyclic-lr has its own", .kind = CHOICE,
     .field = FIELD(schedule), .choices = schedules},
    {"warmup", "0, or a whole number", "steps of linear warmup", .kind = COUNT,
     .field = FIELD(warmup), .least = 0, .most = ANY},
    {"lr-end", "0.1, or a number from 0 to 1", "final learning rate, as a fraction of --lr",
     .kind = REAL, .field = FIELD(lr_end), .least = 0, .most = 1},
    {"cycles", "4, or a whole number from 1",
     "for --schedule cyclic: number of cycles, each warmup + cosine", .kind = COUNT,
     .field = FIELD(cycles), .least = 1, .most = 1e6},
    {"decay-from", "0.8, or a number from 0 to 1",
     "for --schedule wsd: fraction of the steps before the decay", .kind = REAL,
     .field = FIELD(decay_from), .least = 0, .most = 1},
    {"scale-lr", "none, linear, sqrt",
     "multiply --lr by batch / --base-batch, or by its square root", .kind = CHOICE,
     .field = FIELD(scale_lr), .choices = scalings},
    {"base-batch", "none, or a whole number from 1", "batch that --lr was tuned for", .kind = COUNT,
     .field = FIELD(base_batch), .least = 1, .most = ANY},
    {"loss", "model, cross-entropy, mse", "loss function; model: the model's own", .kind = CHOICE,
     .field = FIELD(loss), .choices = losses},
    {"augment", "none, flip, shift, flip+shift",
     "augment images: random horizontal flip, shift up to 4 pixels", .kind = CHOICE,
     .field = FIELD(augment), .choices = augments},
    {"tokenizer",
     "model (the one in the model's folder; without one, bytes if the vocabulary has at most 256 "
     "tokens), bytes (each byte is a token), or a folder",
     "tokenizer of text data", .kind = OWN, .set = set_tokenizer, .get = get_tokenizer},
    {"checkpoint",
     "none, cheap, sqrt, every:K (layers), all, auto (recompute as little as fits --memory)",
     "activations to recompute in backward instead of saving them", .kind = OWN,
     .set = set_checkpoint, .get = recipe_checkpoint_name},
    {"memory",
     "no budget (with --checkpoint auto: the memory of the machine or GPU), or a size such as "
     "24G or 512M",
     "memory budget per rank; refuse if plan + runtime exceed it", .kind = OWN, .set = set_memory,
     .get = get_memory},
    {"lora", "none, or a rank from 1", "train LoRA adapters of this rank; the model is frozen",
     .kind = COUNT, .field = FIELD(lora), .least = 1, .most = 1e6},
    {"lora-on", "attention (q, k, v), mlp, all, or a list of q,k,v,o,gate,up,down",
     "linear layers with adapters", .kind = OWN, .set = set_lora_on, .get = get_lora_on},
    {"lora-alpha", "twice the rank, or a number", "adapter outputs are scaled by alpha / rank",
     .kind = REAL, .field = FIELD(lora_alpha), .least = 1e-30, .most = 1e30},
    {"lora-base", "as --precision, or 16, 8, 4", "bits per element of the frozen matrices",
     .kind = CHOICE, .field = FIELD(lora_base), .choices = lora_bases},
    {"lora-from", "none, or a folder", "start from this adapter, saved by PEFT or by a run",
     .kind = OWN, .set = set_lora_from, .get = get_lora_from},
    {"offload", "none, states, activations, states+activations",
     "tensors to move to a file (cuda: host memory) until needed", .kind = CHOICE,
     .field = FIELD(offload), .choices = offloads},
    {"ranks", "as many as mpirun or srun starts, or a number to plan for",
     "number of ranks (processes)", .kind = COUNT, .field = FIELD(ranks), .least = 1,
     .most = 1 << 20},
    {"parallel", "ddp, ps (parameter server)",
     "ddp: optimizer states on every rank; ps: only on rank 0", .kind = CHOICE,
     .field = FIELD(parallel), .choices = parallels},
    {"zero", "0, 1, 2, 3", "ZeRO stage; 1 shards states, 2 also gradients, 3 also weights",
     .kind = CHOICE, .field = FIELD(zero), .choices = zeros},
    {"network", "25G, 1G, 10G, 100G, 200G, 400G, nvlink",
     "link between ranks (bit/s), for time estimates", .kind = CHOICE, .field = FIELD(network),
     .choices = networks},
    {"pipeline", "none, naive, gpipe, 1f1b, pipedream",
     "pipeline schedule; the layers are split over the ranks", .kind = CHOICE,
     .field = FIELD(pipeline), .choices = pipelines},
    {"stages", "the number of ranks, or a divisor of it",
     "pipeline stages; ranks of the same stage share the batch", .kind = COUNT,
     .field = FIELD(stages), .least = 1, .most = STAGES_MAX},
    {"dropout", "0, a number up to 0.99, or config (the rates in the model's config.json)",
     "dropout probability", .kind = REAL, .field = FIELD(dropout), .least = 0, .most = 0.99,
     .choices = dropouts},
    {"label-smoothing", "0, or a number up to 1", "target probability spread over all classes",
     .kind = REAL, .field = FIELD(label_smoothing), .least = 0, .most = 1},
    {"seed", "1, or a whole number from 0", "random seed of weights and sample order",
     .kind = COUNT, .field = FIELD(seed), .least = 0, .most = ANY},
    {"target", "here, cpu, v100-32g, a100, h100, h200, 4090",
     "device of the time estimates; a GPU implies --device cuda", .kind = CHOICE,
     .field = FIELD(target), .choices = targets},
    {"kernels", "fast, reference", "reference: plain C loops that define the correct result",
     .kind = CHOICE, .field = FIELD(kernels), .choices = kernels},
    {"deterministic", "yes, no", "no: faster on a GPU, but the last bits vary from run to run",
     .kind = CHOICE, .field = FIELD(nondeterministic), .choices = deterministic},
};
/* Old names of keys, still accepted in scripts and recipe files but not listed in the help. */
static const struct {
    const char *old, *name;
} renamed[] = {{"order", "deterministic"}};
enum { N_KEYS = (int)(sizeof keys / sizeof *keys) };
_Static_assert(N_KEYS <= 64, "recipe.given has a bit per key");

static bool set_value(snug_recipe *recipe, const struct key *key, const char *value)
{
    void *field = (char *)recipe + key->field;
    int64_t n;
    double x;
    switch (key->kind) {
    case COUNT:
        if (strcmp(value, "none") == 0 && strncmp(key->values, "none,", 5) == 0) {
            *(int64_t *)field = 0;
            return true;
        }
        if (!text_parse_count(value, &n) || (double)n < key->least || (double)n > key->most)
            return false;
        *(int64_t *)field = n;
        return true;
    case REAL:
        if (key->choices != NULL && strcmp(value, key->choices->name) == 0)
            x = key->choices->value;
        else if (!text_parse_real(value, &x) || x < key->least || x > key->most)
            return false;
        *(double *)field = x;
        return true;
    case CHOICE:
        for (const struct choice *c = key->choices; c->name != NULL; c++)
            if (strcmp(value, c->name) == 0) {
                *(int *)field = c->value;
                return true;
            }
        return false;
    case OWN:
        return key->set(recipe, value);
    }
    return false;
}

/* The fewest digits that parse back to the same value: 0.1, not 0.10000000000000001. */
static void add_real(struct text *out, double value)
{
    char digits[32];
    int precision = 6;
    do
        snprintf(digits, sizeof digits, "%.*g", precision, value);
    while (strtod(digits, NULL) != value && ++precision <= 17);
    text_add(out, "%s", digits);
}

/* Adds the value in the form that set_value parses, or nothing if the model or optimizer
 * decides. */
static void get_value(const snug_recipe *recipe, const struct key *key, struct text *out)
{
    const void *field = (const char *)recipe + key->field;
    switch (key->kind) {
    case COUNT:
        if (*(const int64_t *)field > 0 || key->least == 0)
            text_add(out, "%lld", (long long)*(const int64_t *)field);
        break;
    case REAL:
        if (key->choices != NULL && *(const double *)field == key->choices->value)
            text_add(out, "%s", key->choices->name);
        else if (!isnan(*(const double *)field))
            add_real(out, *(const double *)field);
        break;
    case CHOICE:
        for (const struct choice *c = key->choices; c->name != NULL; c++)
            if (c->value == *(const int *)field) {
                text_add(out, "%s", c->name);
                break;
            }
        break;
    case OWN:
        key->get(recipe, out);
        break;
    }
}

static const struct key *find_key(const char *name)
{
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(renamed[i].old, name) == 0)
            name = renamed[i].name;
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

int snug_recipe_has_key(const char *name)
{
    return find_key(name) != NULL;
}

const char *snug_recipe_key(int index)
{
    return index >= 0 && index < N_KEYS ? keys[index].name : NULL;
}

static void add_values(const struct key *key, struct text *out)
{
    if (key->list != NULL)
        key->list(out);
    else
        text_add(out, "%s", key->values);
}

/* Suggests a near value for keys that take words from a fixed list, else lists the values. */
static enum snug_status no_such_value(const struct key *key, const char *value,
                                      struct snug_error *err)
{
    bool has_words = key->kind == CHOICE || key->set == set_optimizer || key->set == set_checkpoint;
    snug_recipe scratch = {0};
    struct text values = {0}, words = {0};
    add_values(key, &values);
    add_values(key, &words);
    const char *near = has_words && words.data != NULL && !words.failed
                           ? recipe_hint(key->name, value, words.data)
                           : NULL;
    if (near != NULL && set_value(&scratch, key, near))
        snug_fail(err, SNUG_BAD_ARGUMENT, "--%s: \"%.60s\" is not a valid value; did you mean %s?",
                  key->name, value, near);
    else
        snug_fail(err, SNUG_BAD_ARGUMENT, "--%s: \"%.60s\" is not a valid value; it takes: %.300s",
                  key->name, value, values.data == NULL ? "?" : values.data);
    text_free(&values);
    text_free(&words);
    return SNUG_BAD_ARGUMENT;
}

static enum snug_status set_key(snug_recipe *recipe, const struct key *key, const char *value,
                                struct snug_error *err)
{
    if (!set_value(recipe, key, value))
        return no_such_value(key, value, err);
    if (key->set == set_memory && recipe_is_bare_size(value, recipe->memory))
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "--memory %.60s is %lld bytes: write a unit, as in --memory 24G or 512M",
                         value, (long long)recipe->memory);
    return SNUG_OK;
}

static enum snug_status no_such_key(const char *name, struct snug_error *err)
{
    return snug_fail(err, SNUG_BAD_ARGUMENT,
                     "there is no recipe key \"%.60s\"; snug help train lists all keys", name);
}

enum snug_status snug_recipe_set(snug_recipe *recipe, const char *name, const char *value,
                                 struct snug_error *err)
{
    const struct key *key = find_key(name);
    if (key == NULL)
        return no_such_key(name, err);
    TRY(set_key(recipe, key, value, err));
    recipe->given |= (uint64_t)1 << (key - keys);
    if (strcmp(name, "target") == 0 && !recipe_is_given(recipe, "device"))
        recipe->device = target_is_gpu(recipe->target) ? DEVICE_cuda : DEVICE_cpu;
    return SNUG_OK;
}

/* Merges the saved options with those that the user gave; the user's win. */
static enum snug_status inherit_options(struct snug_recipe *recipe, const char *saved,
                                        struct snug_error *err)
{
    double values[MAX_OPTIONS];
    struct text all = {0};
    optimizer_default_options(recipe->optimizer, values);
    TRY(optimizer_read_options(recipe->optimizer, saved, values, err));
    TRY(optimizer_read_options(recipe->optimizer, recipe->opt, values, err));
    optimizer_write_options(recipe->optimizer, values, &all);
    bool is_set = !all.failed && set_opt(recipe, all.length == 0 ? "" : all.data);
    text_free(&all);
    return is_set ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory");
}

enum snug_status recipe_inherit(struct snug_recipe *recipe, const char *name, const char *value,
                                struct snug_error *err)
{
    const struct key *key = find_key(name);
    if (key == NULL)
        return no_such_key(name, err);
    if (key->set == set_opt)
        return inherit_options(recipe, value, err);
    return recipe->given >> (key - keys) & 1 ? SNUG_OK : set_key(recipe, key, value, err);
}

bool recipe_is_given(const struct snug_recipe *recipe, const char *name)
{
    const struct key *key = find_key(name);
    return key != NULL && recipe->given >> (key - keys) & 1;
}

void recipe_get(const struct snug_recipe *recipe, const char *name, struct text *out)
{
    const struct key *key = find_key(name);
    if (key != NULL)
        get_value(recipe, key, out);
}

/* Adds indented text, wrapped at 80 columns. */
static void add_wrapped(struct text *out, const char *words)
{
    enum { INDENT = 18, WIDTH = 80 };
    size_t column = 0;
    for (const char *rest = words; *rest != '\0';) {
        size_t length = strcspn(rest, " ");
        if (column > 0 && column + 1 + length > WIDTH) {
            text_add(out, "\n");
            column = 0;
        }
        text_add(out, "%*s%.*s", column == 0 ? INDENT : 1, "", (int)length, rest);
        column += length + (column == 0 ? INDENT : 1);
        rest += length + strspn(rest + length, " ");
    }
    text_add(out, "\n");
}

char *snug_recipe_help(void)
{
    struct text t = {0};
    for (int i = 0; i < N_KEYS; i++) {
        text_add(&t, "  --%-13s %s\n", keys[i].name, keys[i].about);
        struct text values = {0};
        add_values(&keys[i], &values);
        add_wrapped(&t, text_part(&t, &values));
        text_free(&values);
    }
    return text_take(&t);
}

void recipe_write(const struct snug_recipe *recipe, struct text *out)
{
    for (int i = 0; i < N_KEYS; i++) {
        struct text value = {0};
        get_value(recipe, &keys[i], &value);
        const char *words = text_part(out, &value);
        if (*words != '\0')
            text_add(out, "%s = %s\n", keys[i].name, words);
        text_free(&value);
    }
}

static const char *choice_name(const struct choice *choices, int value)
{
    while (choices->name != NULL && choices->value != value)
        choices++;
    return choices->name == NULL ? "?" : choices->name;
}

const char *recipe_precision_name(const struct snug_recipe *recipe)
{
    return choice_name(precisions, recipe->precision);
}

const char *recipe_offload_name(const struct snug_recipe *recipe)
{
    return choice_name(offloads, recipe->offload);
}

const char *recipe_schedule_name(const struct snug_recipe *recipe)
{
    return choice_name(schedules, recipe->schedule);
}

const char *recipe_pipeline_name(const struct snug_recipe *recipe)
{
    return choice_name(pipelines, recipe->pipeline);
}
