/*
 * weights.c -- start values, loading and saving of persistent tensors.
 */
#include "train/weights.h"

#include "base/rng.h"
#include "io/hf_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tensor_id master_of(const struct program *prog, tensor_id parameter)
{
    char name[512];
    snprintf(name, sizeof name, "master.%s", prog->tensors[parameter].name);
    return program_find(prog, name);
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
        break;
    }
    return 0;
}

void weights_init(const struct session *session, struct exec *exec, uint64_t seed)
{
    const struct program *prog = &session->prog;
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        void *data = exec_data(exec, id);
        if (!t->persistent || data == NULL || t->base != TENSOR_NONE)
            continue;
        if (t->role != ROLE_parameter) {
            tensor_id starts_as_weight = t->init == INIT_none && t->role == ROLE_optimizer;
            if (!starts_as_weight)
                memset(data, 0, (size_t)tensor_bytes(prog, id));
            continue;
        }
        tensor_id master = master_of(prog, id);
        float *wide = master == TENSOR_NONE ? NULL : exec_data(exec, master);
        uint64_t stream = rng_hash_string(t->name);
        int64_t n = tensor_elems(prog, id);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < n; i++) {
            float value = (float)start_value(t, seed, stream, i);
            if (wide != NULL)
                wide[i] = value;
            dtype_store(t->dtype, data, i, (double)value);
        }
    }
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
                                    const struct tensor *t, struct snug_error *err)
{
    struct text text = {0};
    text_add(&text, "%s: tensor \"%s\" is %s ", safetensors_path(st), entry->name,
             entry->dtype < DTYPE_COUNT ? dtype_name(entry->dtype) : "of an unknown type");
    shape_text(&entry->shape, &text);
    text_add(&text, ", the model has %s ", dtype_name(t->dtype));
    shape_text(&t->shape, &text);
    snug_fail(err, SNUG_MISMATCH, "%s", text.data == NULL ? "shapes differ" : text.data);
    text_free(&text);
    return SNUG_MISMATCH;
}

/* Reads by pieces through a small buffer where the types differ. */
static enum snug_status read_as(struct safetensors *st, const struct st_entry *entry,
                                enum dtype dtype, void *out, struct snug_error *err)
{
    enum { PIECE_ELEMS = 8192 };
    double buffer[PIECE_ELEMS]; /* room for the widest type */
    if (entry->dtype == dtype)
        return safetensors_read(st, entry, out, err);
    int64_t size = (int64_t)dtype_bytes(entry->dtype), n = shape_elems(&entry->shape);
    for (int64_t at = 0; at < n; at += PIECE_ELEMS) {
        int64_t count = n - at < PIECE_ELEMS ? n - at : PIECE_ELEMS;
        struct st_entry piece = *entry;
        piece.offset_bytes += at * size;
        piece.n_bytes = count * size;
        TRY(safetensors_read(st, &piece, buffer, err));
        for (int64_t i = 0; i < count; i++)
            dtype_store(dtype, out, at + i, dtype_load(entry->dtype, buffer, i));
    }
    return SNUG_OK;
}

/* Hugging Face's older files hold the causal mask and the tied head as tensors: no news in them. */
static bool is_ignorable(const char *name)
{
    static const char *const endings[] = {".attn.bias", ".attn.masked_bias", "lm_head.weight"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(name), m = strlen(endings[i]);
        if (n >= m && strcmp(name + n - m, endings[i]) == 0)
            return true;
    }
    return false;
}

enum snug_status weights_load(const struct session *session, struct exec *exec,
                              struct safetensors *st, struct snug_error *err)
{
    const struct program *prog = &session->prog;
    int n_used = 0;
    for (int k = 0; k < safetensors_count(st); k++)
        n_used += is_ignorable(safetensors_entry(st, k)->name);
    for (int id = 0; id < prog->n_tensors; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (t->role != ROLE_parameter)
            continue;
        const struct st_entry *entry = hf_find_tensor(st, t->name);
        if (entry == NULL)
            return snug_fail(err, SNUG_MISMATCH, "%s has no tensor \"%s\", which the model needs",
                             safetensors_path(st), t->name);
        if (!shape_equal(&entry->shape, &t->shape) || entry->dtype >= DTYPE_COUNT ||
            !dtype_is_float(entry->dtype))
            return wrong_shape(st, entry, t, err);
        tensor_id master = master_of(prog, id);
        if (master != TENSOR_NONE)
            TRY(read_as(st, entry, DTYPE_f32, exec_data(exec, master), err));
        TRY(read_as(st, entry, t->dtype, exec_data(exec, id), err));
        n_used++;
    }
    for (int k = 0; k < safetensors_count(st) && n_used < safetensors_count(st); k++) {
        const char *name = safetensors_entry(st, k)->name;
        const char *bare = strncmp(name, "transformer.", 12) == 0 ? name + 12 : name;
        tensor_id id = program_find(prog, bare);
        if (!is_ignorable(name) && (id == TENSOR_NONE || prog->tensors[id].role != ROLE_parameter))
            return snug_fail(err, SNUG_MISMATCH,
                             "%s has a tensor \"%s\" that the model has no place for",
                             safetensors_path(st), name);
    }
    return SNUG_OK;
}

/* ---- checkpoints ------------------------------------------------------------------------------------ */

static bool is_saved(const struct program *prog, const struct exec *exec, tensor_id id,
                     enum role role)
{
    return prog->tensors[id].role == role && prog->tensors[id].persistent &&
           exec_data(exec, id) != NULL;
}

enum snug_status weights_entries(const struct session *session, struct exec *exec, enum role role,
                                 struct st_entry **entries, int *n, struct snug_error *err)
{
    const struct program *prog = &session->prog;
    *n = 0;
    *entries = malloc(((size_t)prog->n_tensors + 1) * sizeof **entries);
    if (*entries == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
    for (int id = 0; id < prog->n_tensors; id++)
        if (is_saved(prog, exec, id, role))
            (*entries)[(*n)++] = (struct st_entry){.name = prog->tensors[id].name,
                                                   .dtype = prog->tensors[id].dtype,
                                                   .shape = prog->tensors[id].shape,
                                                   .data = exec_data(exec, id)};
    return SNUG_OK;
}

enum snug_status weights_restore(const struct session *session, struct exec *exec, enum role role,
                                 struct safetensors *st, struct snug_error *err)
{
    const struct program *prog = &session->prog;
    int n = 0;
    for (int id = 0; id < prog->n_tensors; id++)
        n += is_saved(prog, exec, id, role);
    for (int k = 0; k < safetensors_count(st); k++) { /* in file order: the checksum is free */
        const struct st_entry *entry = safetensors_entry(st, k);
        tensor_id id = program_find(prog, entry->name);
        if (id == TENSOR_NONE || !is_saved(prog, exec, id, role))
            return snug_fail(err, SNUG_MISMATCH,
                             "%s holds \"%s\", which this model and optimizer do not have",
                             safetensors_path(st), entry->name);
        if (entry->dtype != prog->tensors[id].dtype ||
            !shape_equal(&entry->shape, &prog->tensors[id].shape))
            return wrong_shape(st, entry, &prog->tensors[id], err);
        TRY(safetensors_read(st, entry, exec_data(exec, id), err));
        n--;
    }
    if (n > 0)
        return snug_fail(err, SNUG_MISMATCH,
                         "%s lacks %d tensors that this model, precision and optimizer have",
                         safetensors_path(st), n);
    return SNUG_OK;
}
