/*
 * weights.c -- load, save and restore the persistent tensors.
 */
#include "checkpoint/weights.h"

#include "io/hf_config.h"
#include "checkpoint/adapter.h"
#include "checkpoint/config_hint.h"
#include "checkpoint/weight_form.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tensor_id weights_master_of(const struct program *prog, tensor_id parameter)
{
    return program_linked(prog, parameter, LINK_master);
}

/* Does model.safetensors have this tensor?  Adapters have a file of their own, scales belong to
 * quantized weights, a rank's shard of a weight is a view, and PipeDream's weight versions are
 * computed within a step. */
static bool is_in_model_file(const struct program *prog, tensor_id id)
{
    const struct tensor *t = &prog->tensors[id];
    bool is_made_in_step = t->base != TENSOR_NONE || (!t->persistent && t->init == INIT_none);
    return weights_is_of_model(t) && !is_made_in_step && !adapter_has(prog, id) &&
           !weight_form_is_scales(prog, id);
}

/* The number of elements of the piece that starts at `at`. */
static int64_t piece_at(int64_t n, int64_t at)
{
    return n - at < WEIGHT_PIECE ? n - at : WEIGHT_PIECE;
}

/* Reads n elements from `at` on, in the tensor's type. */
static enum snug_status get_piece(const struct compiled_step *compiled, const struct exec *exec,
                                  tensor_id id, int64_t at, int64_t n, void *to,
                                  struct snug_error *err)
{
    int64_t size = (int64_t)dtype_bytes(compiled->prog.tensors[id].dtype);
    return exec_read(exec, id, at * size, n * size, to, err);
}

/* Writes elements [at, at + n) of the whole tensor, as far as this rank holds them. */
static enum snug_status put_part(const struct compiled_step *compiled, struct exec *exec,
                                 tensor_id id, int64_t at, int64_t n, const void *from,
                                 struct snug_error *err)
{
    const struct tensor *t = &compiled->prog.tensors[id];
    int64_t begin = at > t->whole_from ? at : t->whole_from;
    int64_t end = t->whole_from + tensor_elems(&compiled->prog, id);
    end = at + n < end ? at + n : end;
    if (!exec_holds(exec, id) || begin >= end)
        return SNUG_OK;
    int64_t size = (int64_t)dtype_bytes(t->dtype);
    return exec_write(exec, id, (begin - t->whole_from) * size, (end - begin) * size,
                      (const char *)from + (begin - at) * size, err);
}

/* ---- from a file ------------------------------------------------------------------------- */

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
    text_add(&text, "%s: tensor \"%s\" ", safetensors_path_of(st, entry), entry->name);
    if (!shape_equal(&entry->shape, shape)) {
        text_add(&text, "has shape ");
        shape_text(&entry->shape, &text);
        text_add(&text, ", but the model needs ");
        shape_text(shape, &text);
        text_add(&text, ": use the weights of the same model");
    } else {
        text_add(&text, "has type %s, but the model needs %s", safetensors_dtype_name(st, entry),
                 dtype_safetensors_name(dtype));
    }
    snug_fail(err, SNUG_MISMATCH, "%s",
              text.data == NULL ? "a tensor has the wrong shape" : text.data);
    text_free(&text);
    return SNUG_MISMATCH;
}

/* Exponents of all ones are NaN or infinity.  Loops that the compiler vectorizes: reading a file is
 * slower. */
static bool is_finite(enum dtype dtype, const void *values, int64_t n)
{
    const char *bytes = values;
    uint16_t narrow, exponent = dtype == DTYPE_bf16 ? 0x7f80 : 0x7c00;
    uint32_t wide;
    int bad = 0;
    if (dtype == DTYPE_f32)
        for (int64_t i = 0; i < n; i++) {
            memcpy(&wide, bytes + i * 4, sizeof wide);
            bad |= (wide & 0x7f800000u) == 0x7f800000u;
        }
    else if (dtype == DTYPE_bf16 || dtype == DTYPE_f16)
        for (int64_t i = 0; i < n; i++) {
            memcpy(&narrow, bytes + i * 2, sizeof narrow);
            bad |= (narrow & exponent) == exponent;
        }
    else
        for (int64_t i = 0; i < n && dtype_is_float(dtype); i++)
            bad |= !isfinite(dtype_load(dtype, values, i));
    return bad == 0;
}

/* Weights with such values are of no use, and a run would blame its learning rate for them. */
static enum snug_status check_finite(const struct safetensors *st, const struct st_entry *entry,
                                     const void *values, int64_t n, struct snug_error *err)
{
    if (is_finite(entry->dtype, values, n))
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_FILE,
                     "%s: tensor \"%s\" has values that are not finite (NaN or infinity): "
                     "download or save these weights again",
                     safetensors_path_of(st, entry), entry->name);
}

/* Elements [at, at + count) of an entry, in the file's type. */
static enum snug_status read_piece(struct safetensors *st, const struct st_entry *entry, int64_t at,
                                   int64_t count, double buffer[WEIGHT_PIECE],
                                   struct snug_error *err)
{
    int64_t size = (int64_t)dtype_bytes(entry->dtype);
    struct st_entry piece = *entry;
    piece.offset_bytes += at * size;
    piece.n_bytes = count * size;
    TRY(safetensors_read(st, &piece, buffer, err));
    return check_finite(st, entry, buffer, count, err);
}

/* Reads straight into the tensor, or piece by piece if the types differ, the tensor is a shard, or
 * it is not in host memory. */
static enum snug_status read_to(const struct compiled_step *compiled, struct exec *exec,
                                tensor_id id, struct safetensors *st, const struct st_entry *entry,
                                struct snug_error *err)
{
    double read[WEIGHT_PIECE], converted[WEIGHT_PIECE]; /* large enough for the widest type */
    enum dtype dtype = compiled->prog.tensors[id].dtype;
    int64_t n = shape_elems(&entry->shape);
    bool is_shard = compiled->prog.tensors[id].whole.n_dims > 0;
    if (entry->dtype == dtype && exec_data(exec, id) != NULL && !is_shard) {
        TRY(safetensors_read(st, entry, exec_data(exec, id), err));
        return check_finite(st, entry, exec_data(exec, id), n, err);
    }
    int64_t first = compiled->prog.tensors[id].whole_from / WEIGHT_PIECE * WEIGHT_PIECE;
    int64_t end = compiled->prog.tensors[id].whole_from + tensor_elems(&compiled->prog, id);
    for (int64_t at = first; at < n && at < end; at += WEIGHT_PIECE) {
        TRY(read_piece(st, entry, at, piece_at(n, at), read, err));
        for (int64_t i = 0; entry->dtype != dtype && i < piece_at(n, at); i++)
            dtype_store(dtype, converted, i, dtype_load(entry->dtype, read, i));
        TRY(put_part(compiled, exec, id, at, piece_at(n, at),
                     entry->dtype != dtype ? converted : read, err));
    }
    return SNUG_OK;
}

enum snug_status weights_read_f32(struct safetensors *st, const struct st_entry *entry, float *out,
                                  struct snug_error *err)
{
    double buffer[WEIGHT_PIECE];
    int64_t n = shape_elems(&entry->shape);
    for (int64_t at = 0; at < n; at += WEIGHT_PIECE) {
        TRY(read_piece(st, entry, at, piece_at(n, at), buffer, err));
        for (int64_t i = 0; i < piece_at(n, at); i++)
            out[at + i] = (float)dtype_load(entry->dtype, buffer, i);
    }
    return SNUG_OK;
}

/* Reads an entry as fp32 and quantizes it. */
static enum snug_status read_quantized(struct safetensors *st, const struct st_entry *entry,
                                       const struct weight_form *weight, struct snug_error *err)
{
    double buffer[WEIGHT_PIECE];
    float values[WEIGHT_PIECE];
    int64_t n = shape_elems(&entry->shape);
    for (int64_t at = 0; at < n; at += WEIGHT_PIECE) {
        TRY(read_piece(st, entry, at, piece_at(n, at), buffer, err));
        for (int64_t i = 0; i < piece_at(n, at); i++)
            values[i] = (float)dtype_load(entry->dtype, buffer, i);
        TRY(weight_form_put(weight, at, piece_at(n, at), values, err));
    }
    return SNUG_OK;
}

enum snug_status weights_read_entry(const struct compiled_step *compiled, struct exec *exec,
                                    tensor_id id, struct safetensors *st,
                                    const struct st_entry *entry, struct snug_error *err)
{
    struct weight_form weight = weight_form_of(&compiled->prog, exec, id);
    tensor_id master = weights_master_of(&compiled->prog, id);
    if (compiled->prog.tensors[id].whole.n_dims > 0)
        weight.shape = compiled->prog.tensors[id].whole;
    if (!shape_equal(&entry->shape, &weight.shape) || entry->dtype >= DTYPE_COUNT ||
        !dtype_is_float(entry->dtype))
        return wrong_shape(st, entry, &weight.shape, weight.dtype, err);
    if (master != TENSOR_NONE)
        TRY(read_to(compiled, exec, master, st, entry, err));
    return weight.scales != TENSOR_NONE ? read_quantized(st, entry, &weight, err)
                                        : read_to(compiled, exec, id, st, entry, err);
}

/* Files may store a tied LM head as well.  It must equal the token embedding, which is what
 * runs. */
static enum snug_status check_tied_head(struct safetensors *st, const struct st_entry *head,
                                        const struct st_entry *table, struct snug_error *err)
{
    double a[WEIGHT_PIECE], b[WEIGHT_PIECE];
    bool same = head->dtype == table->dtype && head->dtype < DTYPE_COUNT &&
                shape_equal(&head->shape, &table->shape);
    int64_t n = same ? shape_elems(&head->shape) : 0;
    for (int64_t at = 0; at < n && same; at += WEIGHT_PIECE) {
        TRY(read_piece(st, head, at, piece_at(n, at), a, err));
        TRY(read_piece(st, table, at, piece_at(n, at), b, err));
        same = memcmp(a, b, (size_t)piece_at(n, at) * dtype_bytes(head->dtype)) == 0;
    }
    if (!same)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s has an LM head (\"%s\") that is not tied to the token embedding, but "
                         "the LM head of this model is tied: check \"tie_word_embeddings\" in "
                         "config.json",
                         safetensors_path(st), head->name);
    return SNUG_OK;
}

/* Redundant tensors: older Hugging Face files store the causal mask or the frequencies of the
 * rotation, PyTorch files a batch count for each norm. */
static bool is_ignorable(const char *name)
{
    return text_ends_in(name, ".attn.bias") || text_ends_in(name, ".attn.masked_bias") ||
           text_ends_in(name, ".rotary_emb.inv_freq") || text_ends_in(name, ".num_batches_tracked");
}

/* A tensor of the file that no parameter of the model was read from. */
static enum snug_status check_unused(const struct program *prog, struct safetensors *st,
                                     const struct st_entry *entry, struct snug_error *err)
{
    char hint[CONFIG_HINT_MAX];
    if (is_ignorable(entry->name))
        return SNUG_OK;
    const struct st_entry *table = hf_find_embedding(st);
    if (strcmp(hf_bare_name(entry->name), HF_HEAD_NAME) == 0 && table != NULL)
        return check_tied_head(st, entry, table, err);
    return snug_fail(err, SNUG_MISMATCH,
                     "%s has an unexpected tensor \"%s\", which the model does not have%s",
                     safetensors_path(st), entry->name, config_hint(prog, st, entry->name, hint));
}

enum snug_status weights_load(const struct compiled_step *compiled, struct exec *exec,
                              struct safetensors *st, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    bool *used = calloc((size_t)safetensors_count(st) + 1, sizeof *used);
    enum snug_status status =
        used != NULL ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory loading weights");
    for (int id = 0; id < prog->n_tensors && status == SNUG_OK; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (!is_in_model_file(prog, id))
            continue;
        const struct st_entry *entry = hf_find_tensor(st, t->name);
        if (entry == NULL) {
            char hint[CONFIG_HINT_MAX];
            status =
                snug_fail(err, SNUG_MISMATCH, "%s has no tensor \"%s\", which the model needs%s",
                          safetensors_path(st), t->name, config_hint(prog, st, t->name, hint));
            break;
        }
        used[entry - safetensors_entry(st, 0)] = true;
        if (t->persistent || t->whole.n_dims > 0) /* else it belongs to another stage */
            status = weights_read_entry(compiled, exec, id, st, entry, err);
    }
    for (int k = 0; k < safetensors_count(st) && status == SNUG_OK; k++)
        if (!used[k])
            status = check_unused(prog, st, safetensors_entry(st, k), err);
    free(used);
    return status == SNUG_OK ? weights_start_copies(compiled, exec, err) : status;
}

enum snug_status weights_load_folder(const struct compiled_step *compiled, struct exec *exec,
                                     const char *folder, struct snug_error *err)
{
    static const char file[] = SAFETENSORS_MODEL;
    struct checkpoint *checkpoint = NULL;
    struct safetensors *st = NULL;
    enum snug_status status;
    bool is_run;
    TRY(checkpoint_exists(folder, &is_run, err));
    if (is_run) {
        TRY(checkpoint_open(folder, &checkpoint, err));
        st = checkpoint_find(checkpoint, file);
        status = st != NULL ? SNUG_OK : snug_fail(err, SNUG_BAD_FILE, "%s has no %s", folder, file);
    } else {
        status = safetensors_open_folder(folder, &st, err);
    }
    if (status == SNUG_OK)
        status = weights_load(compiled, exec, st, err);
    if (status == SNUG_OK && is_run)
        status = checkpoint_verify(checkpoint, file, err);
    if (!is_run)
        safetensors_close(st);
    checkpoint_close(checkpoint);
    return status;
}

static enum snug_status look_at_piece(const struct compiled_step *compiled, const struct exec *exec,
                                      tensor_id id, int64_t at, int64_t n, int64_t *n_bad,
                                      struct snug_error *err)
{
    enum dtype dtype = compiled->prog.tensors[id].dtype;
    double read[WEIGHT_PIECE];
    TRY(get_piece(compiled, exec, id, at, n, read, err));
    for (int64_t i = 0; i < n; i++)
        *n_bad += !isfinite(dtype_load(dtype, read, i));
    return SNUG_OK;
}

/* Counts the non-finite elements.  If several threads fail, one of the failures is reported. */
static enum snug_status look_at(const struct compiled_step *compiled, const struct exec *exec,
                                tensor_id id, int64_t *n_bad, struct snug_error *err)
{
    enum snug_status status = SNUG_OK;
    int64_t n = tensor_elems(&compiled->prog, id), bad = 0;
#pragma omp parallel for schedule(static) num_threads(compiled->facts.threads) reduction(+ : bad)
    for (int64_t at = 0; at < n; at += WEIGHT_PIECE) {
        struct snug_error error = {0};
        enum snug_status of_piece =
            look_at_piece(compiled, exec, id, at, piece_at(n, at), &bad, &error);
        if (of_piece != SNUG_OK) {
#pragma omp critical
            status = snug_fail(err, of_piece, "%s", error.message);
        }
    }
    *n_bad = bad;
    return status;
}

enum snug_status weights_find_nonfinite(const struct compiled_step *compiled, struct exec *exec,
                                        const char **name, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    *name = NULL;
    for (int id = 0; id < prog->n_tensors && *name == NULL; id++) {
        const struct tensor *t = &prog->tensors[id];
        if (!t->persistent || !exec_holds(exec, id) || t->base != TENSOR_NONE ||
            id == prog->scalars || !dtype_is_float(t->dtype))
            continue;
        int64_t n_bad = 0;
        TRY(look_at(compiled, exec, id, &n_bad, err));
        if (n_bad > 0)
            *name = t->name;
    }
    return SNUG_OK;
}

enum snug_status weights_read(const struct compiled_step *compiled, struct exec *exec, tensor_id id,
                              float *values, struct snug_error *err)
{
    enum dtype dtype = compiled->prog.tensors[id].dtype;
    double read[WEIGHT_PIECE];
    int64_t n = tensor_elems(&compiled->prog, id);
    for (int64_t at = 0; at < n; at += WEIGHT_PIECE) {
        TRY(get_piece(compiled, exec, id, at, piece_at(n, at), read, err));
        for (int64_t i = 0; i < piece_at(n, at); i++)
            values[at + i] = (float)dtype_load(dtype, read, i);
    }
    return SNUG_OK;
}

/* ---- checkpoints ------------------------------------------------------------------------- */

static bool is_saved(const struct program *prog, const struct exec *exec, tensor_id id,
                     unsigned roles)
{
    const struct tensor *t = &prog->tensors[id];
    enum role role = weights_is_of_model(t) ? ROLE_parameter : t->role;
    return (roles >> role & 1) != 0 && t->persistent && !t->frozen && exec_holds(exec, id);
}

/* Does another rank hold this tensor, and this one no part of it?  States of other stages are not
 * even known here by name. */
static bool is_on_another_rank(const struct compiled_step *compiled, const struct exec *exec,
                               tensor_id id, unsigned roles)
{
    const struct program *prog = &compiled->prog;
    if (id == TENSOR_NONE)
        return compiled->n_stages > 1;
    const struct tensor *t = &prog->tensors[id];
    enum role role = weights_is_of_model(t) ? ROLE_parameter : t->role;
    return (roles >> role & 1) != 0 && t->base == TENSOR_NONE && !t->persistent &&
           !exec_holds(exec, id) && !t->frozen;
}

static enum snug_status read_anywhere(const void *owner, int id, int64_t at_bytes, int64_t n_bytes,
                                      void *to, struct snug_error *err)
{
    return exec_read(owner, id, at_bytes, n_bytes, to, err);
}

void weights_point(struct st_entry *entry, struct exec *exec, tensor_id id)
{
    entry->data = exec_data(exec, id);
    entry->read = entry->data == NULL ? read_anywhere : NULL;
    entry->owner = exec;
    entry->id = id;
    entry->shared = false;
}

enum snug_status weights_entries(const struct compiled_step *compiled, struct exec *exec,
                                 unsigned roles, struct st_entry **entries, int *n,
                                 struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    *n = 0;
    *entries = malloc(((size_t)prog->n_tensors + 1) * sizeof **entries);
    if (*entries == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory while saving");
    for (int id = 0; id < prog->n_tensors; id++)
        if (is_saved(prog, exec, id, roles)) {
            struct st_entry *entry = &(*entries)[(*n)++];
            *entry = (struct st_entry){.name = prog->tensors[id].name,
                                       .dtype = prog->tensors[id].dtype,
                                       .shape = prog->tensors[id].shape};
            weights_point(entry, exec, id);
        }
    return SNUG_OK;
}

void weights_use_averages(const struct compiled_step *averages, struct exec *exec,
                          struct st_entry *entries, int n)
{
    const struct program *prog = &averages->prog;
    for (int i = 0; i < n; i++) {
        tensor_id id = program_linked(prog, program_find(prog, entries[i].name), LINK_average);
        if (id != TENSOR_NONE)
            weights_point(&entries[i], exec, id);
    }
}

enum snug_status weights_restore(const struct compiled_step *compiled, struct exec *exec,
                                 unsigned roles, struct safetensors *st, struct snug_error *err)
{
    const struct program *prog = &compiled->prog;
    int n = 0;
    for (int id = 0; id < prog->n_tensors; id++)
        n += is_saved(prog, exec, id, roles);
    for (int k = 0; k < safetensors_count(st); k++) { /* in file order: the checksum is free */
        const struct st_entry *entry = safetensors_entry(st, k);
        tensor_id id = program_find(prog, peft_bare_name(entry->name));
        if (is_on_another_rank(compiled, exec, id, roles))
            continue;
        if (id == TENSOR_NONE || !is_saved(prog, exec, id, roles))
            return snug_fail(
                err, SNUG_MISMATCH,
                "%s has \"%s\", which this model and optimizer do not have: use the recipe "
                "of the saved run, or reset the optimizer with --resume-weights-only",
                safetensors_path(st), entry->name);
        const struct tensor *t = &prog->tensors[id];
        const struct shape *shape = t->whole.n_dims > 0 ? &t->whole : &t->shape;
        if (entry->dtype != t->dtype || !shape_equal(&entry->shape, shape))
            return wrong_shape(st, entry, shape, t->dtype, err);
        TRY(read_to(compiled, exec, id, st, entry, err));
        n--;
    }
    if (n > 0)
        return snug_fail(
            err, SNUG_MISMATCH,
            "%s lacks %d tensors that this model, precision and optimizer have: use the "
            "recipe of the saved run, or reset the optimizer with "
            "--resume-weights-only",
            safetensors_path(st), n);
    return SNUG_OK;
}
