/*
 * adapter.c -- reading, writing and merging adapters; see adapter.h.
 */
#include "checkpoint/adapter.h"

#include "base/fd.h"
#include "checkpoint/weight_form.h"
#include "checkpoint/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 512 };

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory for an adapter");
}

/* The length of LAYER in a name "LAYER" + ending (".lora_A.weight"), or 0. */
static size_t layer_length(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n > m && strcmp(name + n - m, ending) == 0 ? n - m : 0;
}

/* The frozen matrix that an adapter matrix belongs to; TENSOR_NONE if it is not one. */
static tensor_id weight_of(const struct program *prog, const char *part)
{
    char name[NAME_MAX_BYTES];
    size_t length = layer_length(part, PEFT_A);
    if (length == 0)
        length = layer_length(part, PEFT_B);
    if (length == 0 || length + sizeof ".weight" > sizeof name)
        return TENSOR_NONE;
    snprintf(name, sizeof name, "%.*s.weight", (int)length, part);
    tensor_id id = program_find(prog, name);
    if (id == TENSOR_NONE) {
        name[length] = '\0';
        id = program_find(prog, name);
    }
    return id != TENSOR_NONE && prog->tensors[id].role == ROLE_parameter ? id : TENSOR_NONE;
}

bool adapter_has(const struct program *prog, tensor_id id)
{
    const struct tensor *t = &prog->tensors[id];
    return t->link == LINK_adapter && !t->frozen;
}

/* ---- W + scale B A
 * ---------------------------------------------------------------------------- */

/* Element [r, c] of the delta is scale * dot(rows[r], cols[c]).  For a matrix [out, in], rows are
 * the rows of B and cols the columns of A; for layout [in, out] it is the other way round. */
struct delta {
    int64_t rank, n_rows, n_cols;
    int threads;
    float scale;
    float *rows, *cols; /* `rank` elements each */
};

static void add_delta(const struct delta *d, int64_t at, int64_t n, float *values)
{
#pragma omp parallel for schedule(static) num_threads(d->threads)
    for (int64_t i = 0; i < n; i++) {
        const float *row = d->rows + (at + i) / d->n_cols * d->rank;
        const float *col = d->cols + (at + i) % d->n_cols * d->rank;
        float sum = 0;
        for (int64_t k = 0; k < d->rank; k++)
            sum += row[k] * col[k];
        values[i] += d->scale * sum;
    }
}

/* Sets rows and cols from a [rank, in] and b [out, rank]. */
static void set_delta(struct delta *d, const struct shape *weight, bool in_out, const float *a,
                      const float *b)
{
    float *of_a = in_out ? d->rows : d->cols, *of_b = in_out ? d->cols : d->rows;
    int64_t n_in = weight->dim[in_out ? 0 : 1], n_out = weight->dim[in_out ? 1 : 0];
    d->n_rows = weight->dim[0];
    d->n_cols = weight->dim[1];
    for (int64_t i = 0; i < n_in; i++)
        for (int64_t k = 0; k < d->rank; k++)
            of_a[i * d->rank + k] = a[k * n_in + i];
    memcpy(of_b, b, (size_t)(n_out * d->rank) * sizeof *b);
}

/* Do the linear layers of a program read this matrix with layout [in, out]? */
static bool is_in_out(const struct program *prog, tensor_id weight)
{
    for (int i = 0; i < prog->n_ops; i++) {
        tensor_id read = prog->ops[i].kind == OP_linear ? prog->ops[i].in[1] : TENSOR_NONE;
        if (read == weight)
            return attrs_of(&prog->ops[i], linear)->layout == LAYOUT_in_out;
        /* a quantized matrix is read through the op before */
        if (read != TENSOR_NONE && i > 0 && prog->ops[i - 1].out[0] == read &&
            prog->ops[i - 1].in[0] == weight)
            return attrs_of(&prog->ops[i], linear)->layout == LAYOUT_in_out;
    }
    return false;
}

/* ---- from a folder
 * ---------------------------------------------------------------------------- */

/* A and B of one layer in an adapter's file. */
struct part_pair {
    const struct st_entry *a, *b;
    tensor_id weight;
};

static enum snug_status open_adapter(const char *folder, struct peft_config *config,
                                     struct safetensors **st, struct snug_error *err)
{
    TRY(peft_config_read(folder, config, err));
    char *path = path_join(folder, PEFT_MODEL_NAME, "");
    if (path == NULL)
        return no_memory(err);
    enum snug_status status = safetensors_open(path, st, err);
    free(path);
    return status;
}

enum snug_status adapter_read_recipe(struct snug_recipe *recipe, struct snug_error *err)
{
    struct peft_config config;
    if (recipe->lora_from[0] == '\0')
        return SNUG_OK;
    TRY(peft_config_read(recipe->lora_from, &config, err));
    if (recipe->lora > 0 && recipe->lora != config.rank)
        return snug_fail(err, SNUG_MISMATCH, "%s has rank %lld, not --lora %lld: leave --lora out",
                         recipe->lora_from, (long long)config.rank, (long long)recipe->lora);
    double alpha = config.scale * (double)config.rank;
    if (!isnan(recipe->lora_alpha) && recipe->lora_alpha != alpha)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s has alpha %g, not --lora-alpha %g: leave --lora-alpha out",
                         recipe->lora_from, alpha, recipe->lora_alpha);
    if (config.layers[0] == '\0' && !recipe_is_given(recipe, "lora-on"))
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s: its \"target_modules\" are not a short list of names: say with "
                         "--lora-on which layers it adapts",
                         recipe->lora_from);
    recipe->lora = config.rank;
    recipe->lora_alpha = alpha;
    if (config.layers[0] == '\0' ||
        recipe_inherit(recipe, "lora-on", config.layers, NULL) == SNUG_OK)
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_FILE, "%s: \"target_modules\" has a name that no layer can have",
                     recipe->lora_from);
}

static enum snug_status wrong_part(const struct safetensors *st, const char *name, const char *what,
                                   struct snug_error *err)
{
    return snug_fail(err, SNUG_MISMATCH, "%s: \"%s\" %s", safetensors_path(st), name, what);
}

enum snug_status adapter_load_file(const struct compiled_step *compiled, struct exec *exec,
                                   struct safetensors *st, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    int n_missing = 0;
    for (int id = 0; id < prog->n_tensors; id++)
        n_missing += adapter_has(prog, id);
    for (int k = 0; k < safetensors_count(st); k++, n_missing--) {
        const struct st_entry *entry = safetensors_entry(st, k);
        tensor_id id = program_find(prog, peft_bare_name(entry->name));
        if (id == TENSOR_NONE || !adapter_has(prog, id))
            return wrong_part(st, entry->name,
                              "matches no adapter of this model: leave --lora-on out", err);
        TRY(weights_read_entry(compiled, exec, id, st, entry, err));
    }
    if (n_missing != 0)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s lacks %d adapter matrices that this model has: leave --lora-on out",
                         safetensors_path(st), n_missing);
    return weights_start_copies(compiled, exec, err);
}

enum snug_status adapter_load(const struct compiled_step *compiled, struct exec *exec,
                              const char *folder, struct snug_error *err)
{
    struct peft_config config;
    struct safetensors *st = NULL;
    TRY(open_adapter(folder, &config, &st, err));
    enum snug_status status = adapter_load_file(compiled, exec, st, err);
    safetensors_close(st);
    return status;
}

static enum snug_status check_pair(const struct program *prog, const struct safetensors *st,
                                   const struct part_pair *pair, int64_t rank, bool in_out,
                                   struct snug_error *err)
{
    const struct shape *w = &prog->tensors[pair->weight].shape;
    struct shape a = {2, {rank, w->dim[in_out ? 0 : 1]}}, b = {2, {w->dim[in_out ? 1 : 0], rank}};
    if (!shape_equal(&pair->a->shape, &a) || pair->a->dtype >= DTYPE_COUNT)
        return wrong_part(st, pair->a->name, "does not match its rank and the layer's shape", err);
    if (!shape_equal(&pair->b->shape, &b) || pair->b->dtype >= DTYPE_COUNT)
        return wrong_part(st, pair->b->name, "does not match its rank and the layer's shape", err);
    return SNUG_OK;
}

/* The buffer holds A and B as read, and the rows and cols of the delta. */
static enum snug_status merge_pair(const struct compiled_step *compiled, struct exec *exec,
                                   struct safetensors *st, const struct part_pair *pair,
                                   const struct peft_config *config, struct snug_error *err)
{
    struct weight_form w = weight_form_of(&compiled->prog, exec, pair->weight);
    bool in_out = is_in_out(&compiled->prog, pair->weight);
    struct delta d = {
        .rank = config->rank, .threads = compiled->facts.threads, .scale = (float)config->scale};
    TRY(check_pair(&compiled->prog, st, pair, config->rank, in_out, err));
    size_t n_a = (size_t)shape_elems(&pair->a->shape), n_b = (size_t)shape_elems(&pair->b->shape);
    float *buffer = malloc(2 * (n_a + n_b) * sizeof *buffer), values[WEIGHT_PIECE];
    if (buffer == NULL)
        return no_memory(err);
    float *a = buffer, *b = buffer + n_a;
    d.rows = b + n_b;
    d.cols = d.rows + (in_out ? n_a : n_b);
    enum snug_status status = weights_read_f32(st, pair->a, a, err);
    if (status == SNUG_OK)
        status = weights_read_f32(st, pair->b, b, err);
    if (status == SNUG_OK)
        set_delta(&d, &w.shape, in_out, a, b);
    for (int64_t at = 0, n = shape_elems(&w.shape); at < n && status == SNUG_OK;
         at += WEIGHT_PIECE) {
        int64_t count = n - at < WEIGHT_PIECE ? n - at : WEIGHT_PIECE;
        status = weight_form_get(&w, at, count, values, err);
        if (status == SNUG_OK) {
            add_delta(&d, at, count, values);
            status = weight_form_put(&w, at, count, values, err);
        }
    }
    free(buffer);
    return status;
}

/* The B that belongs to an A. */
static const struct st_entry *partner_of(const struct safetensors *st, const char *a)
{
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "%.*s" PEFT_B, (int)layer_length(a, PEFT_A), a);
    return safetensors_find(st, name);
}

static enum snug_status merge_entry(const struct compiled_step *compiled, struct exec *exec,
                                    struct safetensors *st, const struct st_entry *entry,
                                    const struct peft_config *config, struct snug_error *err)
{
    struct part_pair pair = {.weight = weight_of(&compiled->prog, peft_bare_name(entry->name))};
    if (pair.weight == TENSOR_NONE || compiled->prog.tensors[pair.weight].shape.n_dims != 2)
        return wrong_part(st, entry->name, "matches no matrix of this model", err);
    if (layer_length(entry->name, PEFT_A) == 0)
        return SNUG_OK; /* a B is merged with its A */
    pair.a = entry;
    pair.b = partner_of(st, entry->name);
    if (pair.b == NULL)
        return wrong_part(st, entry->name, "has no matching lora_B", err);
    return merge_pair(compiled, exec, st, &pair, config, err);
}

enum snug_status adapter_merge(const struct compiled_step *compiled, struct exec *exec,
                               const char *folder, struct snug_error *err)
{
    struct peft_config config;
    struct safetensors *st = NULL;
    TRY(open_adapter(folder, &config, &st, err));
    enum snug_status status = SNUG_OK;
    for (int k = 0; k < safetensors_count(st) && status == SNUG_OK; k++)
        status = merge_entry(compiled, exec, st, safetensors_entry(st, k), &config, err);
    safetensors_close(st);
    return status;
}

/* ---- saving a run
 * ------------------------------------------------------------------------------ */

/* "h.0.attn.c_attn" -> "attn.c_attn": the part after the last number is the same in every block. */
static const char *end_of_layer(const char *layer)
{
    const char *end = layer;
    for (const char *at = layer; (at = strchr(at, '.')) != NULL;) {
        const char *begin = at;
        while (begin > layer && begin[-1] >= '0' && begin[-1] <= '9')
            begin--;
        at++;
        if (begin < at - 1 && (begin == layer || begin[-1] == '.'))
            end = at;
    }
    return end;
}

static const char *last_part(const char *layer)
{
    const char *dot = strrchr(layer, '.');
    return dot == NULL ? layer : dot + 1;
}

/* Is this the end of the name of a layer that ends in the same part as `end`, but is another? */
static bool is_namesake(const struct program *prog, tensor_id id, const char *end)
{
    char layer[NAME_MAX_BYTES];
    const struct tensor *t = &prog->tensors[id];
    size_t length = layer_length(t->name, ".weight");
    if (!t->frozen || length == 0 || length >= sizeof layer)
        return false;
    snprintf(layer, sizeof layer, "%.*s", (int)length, t->name);
    return strcmp(last_part(layer), last_part(end)) == 0 && strcmp(end_of_layer(layer), end) != 0;
}

/* The name for PEFT's target_modules, which are ends of names: "q_proj"; "attn.c_proj" where the
 * model also has an "mlp.c_proj". */
static char *target_of(const struct program *prog, tensor_id id)
{
    const char *name = prog->tensors[id].name;
    char *layer = strndup(name, layer_length(name, PEFT_A)), *target = NULL;
    if (layer == NULL)
        return NULL;
    const char *end = end_of_layer(layer), *shortest = last_part(end);
    for (int i = 0; i < prog->n_tensors && shortest != end; i++)
        if (is_namesake(prog, i, end))
            shortest = end;
    target = strdup(shortest);
    free(layer);
    return target;
}

char *adapter_config_text(const struct compiled_step *compiled, const struct snug_recipe *recipe,
                          bool is_language, const char *base)
{
    const struct program *prog = &compiled->prog;
    char **targets = calloc((size_t)prog->n_tensors + 1, sizeof *targets);
    struct peft_config config = {.rank = recipe->lora,
                                 .alpha = recipe_lora_alpha(recipe),
                                 .is_language = is_language,
                                 .base = base,
                                 .targets = (const char *const *)targets};
    bool failed = targets == NULL;
    for (int id = 0; id < prog->n_tensors && !failed; id++) {
        if (layer_length(prog->tensors[id].name, PEFT_A) == 0 || !adapter_has(prog, id))
            continue;
        config.in_out = is_in_out(prog, weight_of(prog, prog->tensors[id].name));
        char *target = target_of(prog, id);
        bool is_known = false;
        for (int i = 0; target != NULL && i < config.n_targets; i++)
            is_known |= strcmp(targets[i], target) == 0;
        failed = target == NULL;
        if (is_known || failed)
            free(target);
        else
            targets[config.n_targets++] = target;
    }
    char *text = failed ? NULL : peft_config_text(&config);
    for (int i = 0; i < config.n_targets; i++)
        free(targets[i]);
    free(targets);
    return text;
}

static enum snug_status add_crc(const struct program *prog, const struct exec *exec, tensor_id id,
                                uint32_t *crc, struct snug_error *err)
{
    enum { PIECE_BYTES = 1 << 16 };
    unsigned char piece[PIECE_BYTES];
    int64_t n = tensor_bytes(prog, id);
    for (int64_t at = 0; at < n; at += PIECE_BYTES) {
        int64_t count = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        TRY(exec_read(exec, id, at, count, piece, err));
        *crc = file_crc32(*crc, piece, (size_t)count);
    }
    return SNUG_OK;
}

enum snug_status adapter_base_crc(const struct compiled_step *compiled, const struct exec *exec,
                                  uint32_t *crc, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    *crc = 0;
    for (int id = 0; id < prog->n_tensors; id++)
        if (prog->tensors[id].frozen && exec_holds(exec, id))
            TRY(add_crc(prog, exec, id, crc, err));
    return SNUG_OK;
}

/* Merges adapters into their matrices while a file is written.  The delta of one matrix is in
 * memory at a time. */
struct adapter_merger {
    struct merged { /* one per tensor of the file */
        struct weight_form weight;
        bool in_out;
        const struct st_entry *a, *b; /* NULL if the matrix has no adapter */
        struct adapter_merger *merger;
    } * tensors;
    const struct merged *loaded; /* the matrix that `delta` is for */
    struct delta delta;
    float *buffer, *a, *b;
    char (*names)[NAME_MAX_BYTES]; /* PEFT's */
};

/* With several ranks the bytes of an entry may be on another one, so only entry->read reads
 * them. */
static enum snug_status load_f32(const struct st_entry *entry, float *to, struct snug_error *err)
{
    double piece[WEIGHT_PIECE]; /* large enough for the widest type */
    int64_t size = (int64_t)dtype_bytes(entry->dtype), n = shape_elems(&entry->shape);
    for (int64_t at = 0; at < n; at += WEIGHT_PIECE) {
        int64_t count = n - at < WEIGHT_PIECE ? n - at : WEIGHT_PIECE;
        if (entry->data != NULL)
            memcpy(piece, (const char *)entry->data + at * size, (size_t)(count * size));
        else
            TRY(entry->read(entry->owner, entry->id, at * size, count * size, piece, err));
        for (int64_t i = 0; i < count; i++)
            to[at + i] = (float)dtype_load(entry->dtype, piece, i);
    }
    return SNUG_OK;
}

static enum snug_status load_delta(struct adapter_merger *m, const struct merged *tensor,
                                   struct snug_error *err)
{
    if (m->loaded == tensor)
        return SNUG_OK;
    m->loaded = tensor;
    TRY(load_f32(tensor->a, m->a, err));
    TRY(load_f32(tensor->b, m->b, err));
    m->delta.cols = m->delta.rows + m->delta.rank * tensor->weight.shape.dim[0];
    set_delta(&m->delta, &tensor->weight.shape, tensor->in_out, m->a, m->b);
    return SNUG_OK;
}

static enum snug_status fill_merged(const struct st_entry *entry, int64_t at, int64_t n, void *out,
                                    struct snug_error *err)
{
    const struct merged *tensor = entry->maker;
    float values[WEIGHT_PIECE];
    for (int64_t i = 0; i < n; i += WEIGHT_PIECE) {
        int64_t count = n - i < WEIGHT_PIECE ? n - i : WEIGHT_PIECE;
        TRY(weight_form_get(&tensor->weight, at + i, count, values, err));
        if (tensor->a != NULL) {
            TRY(load_delta(tensor->merger, tensor, err));
            add_delta(&tensor->merger->delta, at + i, count, values);
        }
        for (int64_t k = 0; k < count; k++)
            dtype_store(entry->dtype, out, i + k, (double)values[k]);
    }
    return SNUG_OK;
}

static const struct st_entry *find_part(const struct st_entry *entries, int n,
                                        const struct program *prog, tensor_id weight,
                                        const char *ending)
{
    for (int i = 0; i < n; i++)
        if (layer_length(entries[i].name, ending) > 0 && weight_of(prog, entries[i].name) == weight)
            return &entries[i];
    return NULL;
}

static void add_model_entry(struct adapter_files *files, const struct program *prog,
                            struct exec *exec, tensor_id id, const struct st_entry *entries, int n)
{
    struct st_entry *entry = &files->model[files->n_model];
    struct merged *merged = &files->merger->tensors[files->n_model++];
    *merged = (struct merged){.weight = weight_form_of(prog, exec, id),
                              .in_out = is_in_out(prog, id),
                              .a = find_part(entries, n, prog, id, PEFT_A),
                              .b = find_part(entries, n, prog, id, PEFT_B),
                              .merger = files->merger};
    *entry = (struct st_entry){.name = prog->tensors[id].name,
                               .dtype = merged->weight.dtype,
                               .shape = merged->weight.shape};
    weights_point(entry, exec, id);
    if (merged->a != NULL || merged->weight.stored != merged->weight.dtype) {
        entry->fill = fill_merged;
        entry->maker = merged;
    }
}

enum snug_status adapter_files_make(const struct compiled_step *compiled, struct exec *exec,
                                    const struct snug_recipe *recipe, const char *prefix,
                                    const struct st_entry *entries, int n,
                                    struct adapter_files *files, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    size_t n_tensors = (size_t)prog->n_tensors + 1, most_a = 0, most_b = 0;
    struct adapter_merger *m = calloc(1, sizeof *m);
    *files = (struct adapter_files){.merger = m, .n_parts = n};
    for (int i = 0; i < n; i++) {
        size_t elems = (size_t)shape_elems(&entries[i].shape);
        size_t *most = layer_length(entries[i].name, PEFT_A) > 0 ? &most_a : &most_b;
        *most = elems > *most ? elems : *most;
    }
    files->parts = calloc((size_t)n + 1, sizeof *files->parts);
    files->model = calloc(n_tensors, sizeof *files->model);
    if (m != NULL) {
        m->tensors = calloc(n_tensors, sizeof *m->tensors);
        m->names = calloc((size_t)n + 1, sizeof *m->names);
        m->buffer = malloc((2 * (most_a + most_b) + 1) * sizeof *m->buffer);
    }
    if (m == NULL || files->parts == NULL || files->model == NULL || m->tensors == NULL ||
        m->names == NULL || m->buffer == NULL) {
        adapter_files_free(files);
        return no_memory(err);
    }
    m->a = m->buffer;
    m->b = m->a + most_a;
    m->delta = (struct delta){.rank = recipe->lora,
                              .threads = compiled->facts.threads,
                              .scale = (float)(recipe_lora_alpha(recipe) / (double)recipe->lora),
                              .rows = m->b + most_b};
    for (int i = 0; i < n; i++) {
        snprintf(m->names[i], sizeof m->names[i], "base_model.model.%s%s", prefix, entries[i].name);
        files->parts[i] = entries[i];
        files->parts[i].name = m->names[i];
    }
    for (int id = 0; id < prog->n_tensors; id++)
        if (prog->tensors[id].frozen && !weight_form_is_scales(prog, id) && exec_holds(exec, id))
            add_model_entry(files, prog, exec, id, entries, n);
    return SNUG_OK;
}

void adapter_files_free(struct adapter_files *files)
{
    if (files->merger != NULL) {
        free(files->merger->tensors);
        free(files->merger->names);
        free(files->merger->buffer);
    }
    free(files->merger);
    free(files->parts);
    free(files->model);
    *files = (struct adapter_files){0};
}
