/*
 * registry.c -- models by name: the presets, "mlp:784-512-10,act=gelu,loss=mse" and "psi:7.5e9".
 */
#include "base/nearest.h"
#include "base/text.h"
#include "model/model.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct vision_shape vision_presets[] = {
    {VISION_cnn, 1, 28, 28, 10, false},
    {VISION_resnet18, 3, 224, 224, 1000, false},
    {VISION_resnet50, 3, 224, 224, 1000, false},
    {VISION_vit_tiny, 3, 224, 224, 1000, false},
};
static const char *const vision_names[] = {[VISION_cnn] = "cnn",
                                           [VISION_resnet18] = "resnet18",
                                           [VISION_resnet50] = "resnet50",
                                           [VISION_vit_tiny] = "vit-tiny"};
enum { N_VISION_PRESETS = (int)(sizeof vision_presets / sizeof *vision_presets) };

static const char mlp_default[] = "mlp:784-512-512-10";

/* "mlp" first, then image networks, then decoders.  Returns NULL after the last one. */
static const char *preset_name(int i)
{
    if (i == 0)
        return "mlp";
    if (--i < N_VISION_PRESETS)
        return vision_names[vision_presets[i].net];
    i -= N_VISION_PRESETS;
    const struct decoder_preset *decoder = decoder_preset(i);
    return decoder != NULL ? decoder->name : NULL;
}

void model_list(struct text *out)
{
    enum { COLUMN = 14 };
    text_add(out, "%-*s %s\n", COLUMN, "mlp", mlp_default);
    for (int i = 0; i < N_VISION_PRESETS; i++) {
        const struct vision_shape *v = &vision_presets[i];
        text_add(out, "%-*s images of %lld x %lld x %lld, %lld classes\n", COLUMN,
                 vision_names[v->net], (long long)v->channels, (long long)v->height,
                 (long long)v->width, (long long)v->n_classes);
    }
    const struct decoder_preset *decoder;
    for (int i = 0; (decoder = decoder_preset(i)) != NULL; i++) {
        const struct decoder_shape *d = &decoder->shape;
        text_add(out, "%-*s %lld layers, %lld", COLUMN, decoder->name, (long long)d->n_layer,
                 (long long)d->n_head);
        if (d->n_kv_head != d->n_head)
            text_add(out, "/%lld", (long long)d->n_kv_head);
        text_add(out, " heads, %lld wide, %lld long, %lld tokens\n", (long long)d->n_embd,
                 (long long)d->n_positions, (long long)d->vocab_size);
    }
}

const char *vision_name(enum vision_net net)
{
    return vision_names[net];
}

bool vision_find(const char *name, struct vision_shape *shape)
{
    size_t length = strcspn(name, ":");
    for (int i = 0; i < N_VISION_PRESETS; i++) {
        const char *own = vision_names[vision_presets[i].net];
        if (strlen(own) == length && strncmp(own, name, length) == 0) {
            *shape = vision_presets[i];
            return true;
        }
    }
    return false;
}

bool model_is_name(const char *spec)
{
    struct vision_shape vision;
    struct decoder_shape decoder;
    return vision_find(spec, &vision) || decoder_find(spec, &decoder) || strcmp(spec, "mlp") == 0 ||
           strncmp(spec, "mlp:", 4) == 0 || strncmp(spec, "psi:", 4) == 0;
}

static enum snug_status mlp_option(const char *option, struct mlp_shape *m, struct snug_error *err)
{
    static const struct {
        const char *text;
        enum act act;
    } acts[] = {{"act=relu", ACT_relu},
                {"act=gelu", ACT_gelu},
                {"act=sigmoid", ACT_sigmoid},
                {"act=tanh", ACT_tanh}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(option, acts[i].text) == 0) {
            m->activation = acts[i].act;
            return SNUG_OK;
        }
    if (strcmp(option, "loss=cross_entropy") == 0)
        m->loss = LOSS_cross_entropy;
    else if (strcmp(option, "loss=mse") == 0)
        m->loss = LOSS_mse;
    else
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "mlp: \"%.60s\" is none of act=relu|gelu|sigmoid|tanh, "
                         "loss=cross_entropy|mse",
                         option);
    return SNUG_OK;
}

static enum snug_status parse_mlp(const char *spec, struct mlp_shape *m, struct snug_error *err)
{
    char copy[512], *rest;
    *m = (struct mlp_shape){.activation = ACT_relu};
    if (snprintf(copy, sizeof copy, "%s", spec + 4) >= (int)sizeof copy)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "mlp: the description is too long");
    char *sizes = strtok_r(copy, ",", &rest);
    for (char *option = strtok_r(NULL, ",", &rest); option != NULL;
         option = strtok_r(NULL, ",", &rest))
        TRY(mlp_option(option, m, err));
    while (sizes != NULL) {
        char *size = strsep(&sizes, "-");
        int64_t n;
        if (m->n_sizes == MLP_SIZES_MAX)
            return snug_fail(err, SNUG_BAD_ARGUMENT, "mlp: more than %d sizes", MLP_SIZES_MAX);
        if (!text_parse_count(size, &n) || n < 1 || n > 1 << 28)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "mlp: \"%.40s\" is not a layer size; write mlp:784-512-10", size);
        m->sizes[m->n_sizes++] = n;
    }
    if (m->n_sizes < 2)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "mlp: needs at least an input and an output size, as in mlp:784-512-10");
    return SNUG_OK;
}

enum snug_status vision_check(const struct vision_shape *v, struct snug_error *err)
{
    if (v->channels < 1 || v->channels > 1024 || v->height < 1 || v->height > 16384 ||
        v->width < 1 || v->width > 16384 || v->n_classes < 1 || v->n_classes > 1 << 24)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "%s: images of %lld x %lld x %lld in %lld classes are out of range",
                         vision_name(v->net), (long long)v->channels, (long long)v->height,
                         (long long)v->width, (long long)v->n_classes);
    return SNUG_OK;
}

/* "resnet18:3x32x32" or "resnet18:3x32x32,classes=10" */
static enum snug_status parse_vision(const char *spec, struct vision_shape *v,
                                     struct snug_error *err)
{
    long long channels, height, width, classes = v->n_classes;
    const char *sizes = strchr(spec, ':');
    int end = 0;
    if (sizes == NULL)
        return SNUG_OK;
    bool good = sscanf(sizes, ":%6lldx%6lldx%6lld%n", &channels, &height, &width, &end) == 3;
    if (good && sizes[end] == ',') {
        sizes += end;
        end = 0;
        good = sscanf(sizes, ",classes=%9lld%n", &classes, &end) == 1;
    }
    if (!good || sizes[end] != '\0')
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "\"%.60s\": write channels, height and width as in %s:3x32x32, and add "
                         ",classes=10 unless there are %lld classes",
                         spec, vision_name(v->net), (long long)v->n_classes);
    *v = (struct vision_shape){v->net, channels, height, width, classes, true};
    return vision_check(v, err);
}

/* The name of a preset in that of a repository: "Qwen/Qwen2.5-7B-Instruct" is qwen2.5-7b. */
static void strip_name(const char *spec, char *name, size_t size)
{
    static const char *const endings[] = {"-instruct", "-base", "-chat", "-hf"};
    const char *slash = strrchr(spec, '/');
    const char *from = slash != NULL ? slash + 1 : spec;
    from += strncasecmp(from, "meta-", 5) == 0 ? 5 : 0;
    snprintf(name, size, "%s", from);
    for (char *c = name; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0)
            name[length - ending] = '\0';
    }
}

/* Do the first n characters of `typed`, two letters or more, begin the name, without "-", "." and
 * "_" in either? */
static bool begins_alike(const char *name, const char *typed, size_t n)
{
    static const char skipped[] = "-._";
    int n_equal = 0;
    for (const char *end = typed + n;; name++, typed++, n_equal++) {
        name += strspn(name, skipped);
        typed += strspn(typed, skipped);
        if (typed >= end)
            return n_equal >= 2;
        if (*name == '\0' || *name != *typed)
            return false;
    }
}

/* Lists the presets that begin with the first n characters of `typed`; false if none does. */
static bool list_alike(const char *typed, size_t n, struct text *out)
{
    enum { SHOWN = 6 };
    const char *name;
    int n_alike = 0;
    for (int i = 0; (name = preset_name(i)) != NULL; i++)
        if (begins_alike(name, typed, n) && n_alike++ <= SHOWN)
            text_add(out, "%s%s", n_alike == 1 ? "" : ", ", n_alike > SHOWN ? "..." : name);
    return n_alike > 0;
}

/* The presets that begin as typed (llama3), else the nearest (gtp2), else those of the same family
 * (llama2), as far as its name has four letters.  False if there are none. */
static bool list_suggestions(const char *typed, struct text *out)
{
    enum { NAMES_MAX = 64, LEAST_FAMILY = 4 };
    const char *words[NAMES_MAX], *name;
    int n = 0;
    for (; n < NAMES_MAX && (name = preset_name(n)) != NULL; n++)
        words[n] = name;
    size_t length = strlen(typed);
    if (list_alike(typed, length, out))
        return true;
    const char *near = nearest_word(typed, words, n);
    if (near != NULL)
        text_add(out, "%s", near);
    bool found = near != NULL;
    while (!found && --length >= LEAST_FAMILY && length < strlen(typed))
        found = list_alike(typed, length, out);
    return found;
}

static enum snug_status no_such_model(const char *spec, struct snug_error *err)
{
    char stripped[128];
    struct text names = {0};
    strip_name(spec, stripped, sizeof stripped);
    bool is_path = spec[0] == '.' || spec[0] == '/';
    bool found = !is_path && list_suggestions(stripped, &names);
    if (found)
        snug_fail(err, SNUG_BAD_ARGUMENT, "unknown model \"%.100s\"; did you mean %s?", spec,
                  names.data == NULL ? "another" : names.data);
    else
        snug_fail(err, SNUG_BAD_ARGUMENT,
                  "unknown model \"%.100s\": no preset (snug help models lists them), and no "
                  "folder with a config.json",
                  spec);
    text_free(&names);
    return SNUG_BAD_ARGUMENT;
}

enum snug_status model_from_name(const char *spec, struct snug_model *model, struct snug_error *err)
{
    snprintf(model->name, sizeof model->name, "%s", spec);
    if (decoder_find(spec, &model->decoder)) {
        model->family = MODEL_decoder;
        return SNUG_OK;
    }
    if (strcmp(spec, "mlp") == 0 || strncmp(spec, "mlp:", 4) == 0) {
        model->family = MODEL_mlp;
        return parse_mlp(strcmp(spec, "mlp") == 0 ? mlp_default : spec, &model->mlp, err);
    }
    if (vision_find(spec, &model->vision)) {
        model->family = MODEL_vision;
        return parse_vision(spec, &model->vision, err);
    }
    if (strncmp(spec, "psi:", 4) == 0) {
        model->family = MODEL_psi;
        if (!text_parse_count(spec + 4, &model->psi) || model->psi < 1 ||
            model->psi > (int64_t)1e16)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "psi: \"%.40s\" is not a number of parameters; write psi:7.5e9",
                             spec + 4);
        return SNUG_OK;
    }
    return no_such_model(spec, err);
}

bool model_is_language(const struct snug_model *model)
{
    return model->family == MODEL_decoder;
}

int64_t model_count_parameters(const struct program *prog)
{
    int64_t n = 0;
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].role == ROLE_parameter)
            n += tensor_elems(prog, i);
    return n;
}

enum snug_status model_forward(const struct snug_model *model, enum model_purpose purpose,
                               int64_t batch, int64_t seq, struct program *prog,
                               struct snug_error *err)
{
    if (seq != 0 && model->family != MODEL_decoder)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "%s has no sequences: remove --seq", model->name);
    if (model->family == MODEL_custom) {
        if (!model->finished)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "%s: call snug_model_finish before using the model", model->name);
        TRY(program_copy(prog, &model->built, err));
        return program_set_batch(prog, batch, err);
    }
    TRY(program_init(prog, model->name, err));
    tensor_id id;
    switch (model->family) {
    case MODEL_psi:
        return build_parameter(prog, "psi", &(struct shape){1, {model->psi}}, INIT_zeros, 0, &id,
                               err);
    case MODEL_mlp:
        TRY(mlp_forward(&model->mlp, prog, err));
        break;
    case MODEL_vision:
        TRY(vision_forward(&model->vision, prog, err));
        break;
    case MODEL_decoder:
        if (seq > model->decoder.n_positions)
            return snug_fail(err, SNUG_BAD_ARGUMENT,
                             "--seq %lld is too long for %s, which has %lld positions",
                             (long long)seq, model->name, (long long)model->decoder.n_positions);
        TRY(decoder_forward(&model->decoder, purpose,
                            seq == 0 ? decoder_default_seq(&model->decoder) : seq, prog, err));
        break;
    case MODEL_custom:
        break;
    }
    return program_set_batch(prog, batch, err);
}
