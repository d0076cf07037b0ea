/*
 * weights.c -- start values, loading and saving of persistent tensors.
 */
#include "train/weights.h"

#include "base/fd.h"
#include "base/rng.h"
#include "io/hf_config.h"
#include "train/adapter.h"
#include "train/stored.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tensor_id master_of(const struct program *prog, tensor_id parameter)
{
    char name[512];
    snprintf(name, sizeof name, "master.%s", prog->tensors[parameter].name);
    tensor_id id = program_find(prog, name);
    return id != TENSOR_NONE && prog->tensors[id].role == ROLE_optimizer ? id : TENSOR_NONE;
}

static bool is_of_model(const struct tensor *t)
{
    return t->role == ROLE_parameter || t->role == ROLE_buffer;
}

/* Is it in model.safetensors by its name?  Adapters are in a file of their own, scales go with codes. */
static bool is_in_model_file(const struct program *prog, tensor_id id)
{
    return is_of_model(&prog->tensors[id]) && !adapter_has(prog, id) && !stored_is_scales(prog, id);
}

/* How many elements the piece that begins here has. */
static int64_t piece_at(int64_t n, int64_t at)
{
    return n - at < STORED_PIECE ? n - at : STORED_PIECE;
}

static double start_value(const struct tensor *t, uint64_t seed, uint64_t stream, int64_t i)
{
    switch (t->init) {
    case INIT_ones:
        return 1;
    case INIT_normal:
        return t->init_scale * rng_normal(seed, stream, (uint64_t)i);
    case INIT_uniform:
        return t->init_scale * (2 * rng_uniform(seed, stream, (uint64_t)i) - 1);
    case INIT_none:
    case INIT_zeros:
    case INIT_weight:
        break;
    }
    return 0;
}

/* Masters have theirs already. */
void weights_start_copies(const struct session *session, struct exec *exec)
{
    const struct program *prog = &session->prog;
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        const char *dot = strchr(t->name, '.');
        if (t->init != INIT_weight || t->role != ROLE_optimizer || dot == NULL)
            continue;
        tensor_id weight = program_find(prog, dot + 1), master = master_of(prog, weight);
        tensor_id from = master != TENSOR_NONE ? master : weight;
        enum dtype dtype = prog->tensors[from].dtype;
        const void *data = exec_data(exec, from);
        void *copy = exec_data(exec, id);
        int64_t n = from != id ? tensor_elems(prog, id) : 0;
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++)
            dtype_store(t->dtype, copy, i, dtype_load(dtype, data, i));
    }
}

static void start_parameter(const struct program *prog, struct exec *exec, tensor_id id,
                            uint64_t seed)
{
    const struct tensor *t = &prog->tensors[id];
    struct stored weight = stored_of(prog, exec, id);
    tensor_id master = master_of(prog, id);
    float *wide = master == TENSOR_NONE ? NULL : exec_data(exec, master);
    uint64_t stream = rng_hash_string(t->name);
    int64_t n = shape_elems(&weight.shape);
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < n; at += STORED_PIECE) {
        float values[STORED_PIECE];
        int64_t count = piece_at(n, at);
        for (int64_t i = 0; i < count; i++)
            values[i] = (float)start_value(t, seed, stream, at + i);
        if (wide != NULL)
            memcpy(wide + at, values, (size_t)count * sizeof *wide);
        stored_put(&weight, at, count, values);
    }
}

void weights_init(const struct session *session, struct exec *exec, uint64_t seed)
{
    const struct program *prog = &session->prog;
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        void *data = exec_data(exec, id);
        if (!t->persistent || data == NULL || t->base != TENSOR_NONE)
            continue;
        if (is_of_model(t) && !stored_is_scales(prog, id))
            start_parameter(prog, exec, id, seed);
        else if (t->init != INIT_weight)
            memset(data, 0, (size_t)tensor_bytes(prog, id));
    }
    weights_start_copies(session, exec);
    double *scalars = exec_scalars(exec);
    if (scalars != NULL) {
        scalars[SCALAR_clip] = 1;
        scalars[SCALAR_loss_scale] = 1;
        for (int i = 0; i < prog->n_ops; i++)
            if (prog->ops[i].kind == OP_grad_norm && prog->ops[i].attrs.dynamic_scale)
                scalars[SCALAR_loss_scale] = 65536;
    }
}

/* ---- from a file ---------------------------------------------------------------------------------- */

static void shape_text(const struct shape *shape, struct text *out)
{
    text_add(out, "[");
    for (int d = 0; d < shape->n_dims; d++)
        text_add(out, "%s%lld", d == 0 ? "" : ", ", (long long)shape->dim[d]);
    text_add(out, "]");
}

static enum snug_status wrong_shape(const struct safetensors *st, const struct st_entry *entry,
                                    const struct shape *shape, enum dtype dtype,
                                    struct snug_error *err)
{
    struct text text = {0};
    text_add(&text, "%s: tensor \"%s\" is %s ", safetensors_path(st), entry->name,
             entry->dtype < DTYPE_COUNT ? dtype_name(entry->dtype) : "of an unknown type");
    shape_text(&entry->shape, &text);
    text_add(&text, ", the model has %s ", dtype_name(dtype));
    shape_text(shape, &text);
    snug_fail(err, SNUG_MISMATCH, "%s", text.data == NULL ? "shapes differ" : text.data);
    text_free(&text);
    return SNUG_MISMATCH;
}

/* Elements [at, at + count) of an entry, in the file's type. */
static enum snug_status read_piece(struct safetensors *st, const struct st_entry *entry, int64_t at,
                                   int64_t count, double buffer[STORED_PIECE],
                                   struct snug_error *err)
{
    int64_t size = (int64_t)dtype_bytes(entry->dtype);
    struct st_entry piece = *entry;
    piece.offset_bytes += at * size;
    piece.n_bytes = count * size;
    return safetensors_read(st, &piece, buffer, err);
}

/* Reads by pieces through a small buffer where the types differ. */
static enum snug_status read_as(struct safetensors *st, const struct st_entry *entry,
                                enum dtype dtype, void *out, struct snug_error *err)
{
    double buffer[STORED_PIECE]; /* room for the widest type */
    int64_t n = shape_elems(&entry->shape);
    if (entry->dtype == dtype)
        return safetensors_read(st, entry, out, err);
    for (int64_t at = 0; at < n; at += STORED_PIECE) {
        TRY(read_piece(st, entry, at, piece_at(n, at), buffer, err));
        for (int64_t i = 0; i < piece_at(n, at); i++)
            dtype_store(dtype, out, at + i, dtype_load(entry->dtype, buffer, i));
    }
    return SNUG_OK;
}

enum snug_status weights_read_f32(struct safetensors *st, const struct st_entry *entry, float *out,
                                  struct snug_error *err)
{
    return read_as(st, entry, DTYPE_f32, out, err);
}

/* The same into codes: the numbers pass through fp32. */
static enum snug_status read_codes(struct safetensors *st, const struct st_entry *entry,
                                   const struct stored *weight, struct snug_error *err)
{
    double buffer[STORED_PIECE];
    float values[STORED_PIECE];
    int64_t n = shape_elems(&entry->shape);
    for (int64_t at = 0; at < n; at += STORED_PIECE) {
        TRY(read_piece(st, entry, at, piece_at(n, at), buffer, err));
        for (int64_t i = 0; i < piece_at(n, at); i++)
            values[i] = (float)dtype_load(entry->dtype, buffer, i);
        stored_put(weight, at, piece_at(n, at), values);
    }
    return SNUG_OK;
}

enum snug_status weights_read(const struct session *session, struct exec *exec, tensor_id id,
                              struct safetensors *st, const struct st_entry *entry,
                              struct snug_error *err)
{
    struct stored weight = stored_of(&session->prog, exec, id);
    tensor_id master = master_of(&session->prog, id);
    if (!shape_equal(&entry->shape, &weight.shape) || entry->dtype >= DTYPE_COUNT ||
        !dtype_is_float(entry->dtype))
        return wrong_shape(st, entry, &weight.shape, weight.dtype, err);
    if (master != TENSOR_NONE)
        TRY(read_as(st, entry, DTYPE_f32, exec_data(exec, master), err));
    return weight.scales != NULL ? read_codes(st, entry, &weight, err)
                                 : read_as(st, entry, weight.kept, weight.data, err);
}

static bool ends_in(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n >= m && strcmp(name + n - m, ending) == 0;
}

/* Files may hold the tied head once more: it must be the token table, since that is what is run. */
static enum snug_status check_tied_head(struct safetensors *st, const struct st_entry *head,
                                        struct snug_error *err)
{
    const struct st_entry *table = hf_find_tensor(st, "wte.weight");
    double a[STORED_PIECE], b[STORED_PIECE];
    bool same = table != NULL && head->dtype == table->dtype && head->dtype < DTYPE_COUNT &&
                shape_equal(&head->shape, &table->shape);
    int64_t n = same ? shape_elems(&head->shape) : 0;
    for (int64_t at = 0; at < n && same; at += STORED_PIECE) {
        TRY(read_piece(st, head, at, piece_at(n, at), a, err));
        TRY(read_piece(st, table, at, piece_at(n, at), b, err));
        same = memcmp(a, b, (size_t)piece_at(n, at) * dtype_bytes(head->dtype)) == 0;
    }
    if (!same)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s has a head of its own (\"%s\"), not tied to the token table: snug "
                         "trains tied heads",
                         safetensors_path(st), head->name);
    return SNUG_OK;
}

/* Hugging Face's older files hold the causal mask as tensors, PyTorch's a count of batches for each norm:
 * no news in them. */
static bool is_ignorable(const char *name)
{
    return ends_in(name, ".attn.bias") || ends_in(name, ".attn.masked_bias") ||
           ends_in(name, "lm_head.weight") || ends_in(name, ".num_batches_tracked");
}

enum snug_status weights_load(const struct session *session, struct exec *exec,
                              struct safetensors *st, struct snug_error *err)
{
    const struct program *prog = &session->prog;
    int n_used = 0;
    for (int k = 0; k < safetensors_count(st); k++) {
        const struct st_entry *entry = safetensors_entry(st, k);
        n_used += is_ignorable(entry->name);
        if (ends_in(entry->name, "lm_head.weight"))
            TRY(check_tied_head(st, entry, err));
    }
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (!is_in_model_file(prog, id))
            continue;
        const struct st_entry *entry = hf_find_tensor(st, t->name);
        if (entry == NULL)
            return snug_fail(err, SNUG_MISMATCH, "%s has no tensor \"%s\", which the model needs",
                             safetensors_path(st), t->name);
        TRY(weights_read(session, exec, id, st, entry, err));
        n_used++;
    }
    for (int k = 0; k < safetensors_count(st) && n_used < safetensors_count(st); k++) {
        const char *name = safetensors_entry(st, k)->name;
        const char *bare = strncmp(name, "transformer.", 12) == 0 ? name + 12 : name;
        tensor_id id = program_find(prog, bare);
        if (!is_ignorable(name) && (id == TENSOR_NONE || !is_in_model_file(prog, id)))
            return snug_fail(err, SNUG_MISMATCH,
                             "%s has a tensor \"%s\" that the model has no place for",
                             safetensors_path(st), name);
    }
    weights_start_copies(session, exec);
    return SNUG_OK;
}

enum snug_status weights_load_folder(const struct session *session, struct exec *exec,
                                     const char *folder, struct snug_error *err)
{
    static const char file[] = "model.safetensors";
    struct checkpoint *checkpoint = NULL;
    struct safetensors *st = NULL;
    enum snug_status status;
    bool is_run = checkpoint_exists(folder);
    if (is_run) {
        TRY(checkpoint_open(folder, &checkpoint, err));
        st = checkpoint_find(checkpoint, file);
        status = st != NULL ? SNUG_OK : snug_fail(err, SNUG_BAD_FILE, "%s has no %s", folder, file);
    } else {
        char *path = path_join(folder, file, "");
        status = path == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory")
                              : safetensors_open(path, &st, err);
        free(path);
    }
    if (status == SNUG_OK)
        status = weights_load(session, exec, st, err);
    if (status == SNUG_OK && is_run)
        status = checkpoint_verify(checkpoint, file, err);
    if (!is_run)
        safetensors_close(st);
    checkpoint_close(checkpoint);
    return status;
}

const char *weights_find_nonfinite(const struct session *session, const struct exec *exec)
{
    const struct program *prog = &session->prog;
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        const void *data = exec_data(exec, id);
        if (!t->persistent || data == NULL || t->base != TENSOR_NONE || id == prog->scalars)
            continue;
        int64_t n = tensor_elems(prog, id), n_bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : n_bad)
        for (int64_t i = 0; i < n; i++)
            n_bad += !isfinite(dtype_load(t->dtype, data, i));
        if (n_bad > 0)
            return t->name;
    }
    return NULL;
}

/* ---- checkpoints ------------------------------------------------------------------------------------ */

static bool is_saved(const struct program *prog, const struct exec *exec, tensor_id id,
                     unsigned roles)
{
    const struct tensor *t = &prog->tensors[id];
    enum role role = is_of_model(t) ? ROLE_parameter : t->role;
    return (roles >> role & 1) != 0 && t->persistent && !t->frozen && exec_data(exec, id) != NULL;
}

enum snug_status weights_entries(const struct session *session, struct exec *exec, unsigned roles,
                                 struct st_entry **entries, int *n, struct snug_error *err)
{
    const struct program *prog = &session->prog;
    *n = 0;
    *entries = malloc(((size_t)prog->n_tensors + 1) * sizeof **entries);
    if (*entries == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
    for (int id = 0; id < prog->n_tensors; id++)
        if (is_saved(prog, exec, id, roles))
            (*entries)[(*n)++] = (struct st_entry){.name = prog->tensors[id].name,
                                                   .dtype = prog->tensors[id].dtype,
                                                   .shape = prog->tensors[id].shape,
                                                   .data = exec_data(exec, id)};
    return SNUG_OK;
}

void weights_use_averages(const struct session *averages, struct exec *exec,
                          struct st_entry *entries, int n)
{
    char name[512];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "average.%s", entries[i].name);
        tensor_id id = program_find(&averages->prog, name);
        if (id != TENSOR_NONE)
            entries[i].data = exec_data(exec, id);
    }
}

enum snug_status weights_restore(const struct session *session, struct exec *exec, unsigned roles,
                                 struct safetensors *st, struct snug_error *err)
{
    const struct program *prog = &session->prog;
    int n = 0;
    for (int id = 0; id < prog->n_tensors; id++)
        n += is_saved(prog, exec, id, roles);
    for (int k = 0; k < safetensors_count(st); k++) { /* in file order: the checksum is free */
        const struct st_entry *entry = safetensors_entry(st, k);
        tensor_id id = program_find(prog, peft_bare_name(entry->name));
        if (id == TENSOR_NONE || !is_saved(prog, exec, id, roles))
            return snug_fail(err, SNUG_MISMATCH,
                             "%s holds \"%s\", which this model and optimizer do not have",
                             safetensors_path(st), entry->name);
        if (entry->dtype != prog->tensors[id].dtype ||
            !shape_equal(&entry->shape, &prog->tensors[id].shape))
            return wrong_shape(st, entry, &prog->tensors[id].shape, prog->tensors[id].dtype, err);
        TRY(safetensors_read(st, entry, exec_data(exec, id), err));
        n--;
    }
    if (n > 0)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s lacks %d tensors that this model, precision and optimizer have",
                         safetensors_path(st), n);
    return SNUG_OK;
}
