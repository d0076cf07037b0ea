/*
 * safetensors_write.c -- write safetensors files; see safetensors.h.
 *
 * The data is written first and the header last, because the header contains a checksum of the
 * data.  That field has a fixed width, so the length of the header is known beforehand.  An
 * unfinished file starts with zeros and is not valid safetensors.
 */
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "io/json.h"

enum { PREFIX_BYTES = 8, ALIGN_BYTES = 8, PIECE_BYTES = 1 << 16, PIECE_ELEMS = 8192 };

/* Checks the sizes and assigns the offsets: wide dtypes first. */
static enum snug_status lay_out(const char *path, const struct st_entry *entries, int n,
                                struct st_entry *placed, struct snug_error *err)
{
    int64_t at = 0, n_bytes;
    int n_placed = 0;
    for (size_t width = 8; width > 0; width /= 2)
        for (int i = 0; i < n; i++) {
            if (dtype_bytes(entries[i].dtype) != width)
                continue;
            if (!safetensors_tensor_bytes(&entries[i].shape, (int64_t)width, &n_bytes))
                return snug_fail(err, SNUG_BAD_ARGUMENT,
                                 "%s: tensor \"%s\" is larger than any file can be", path,
                                 entries[i].name);
            placed[n_placed] = entries[i];
            placed[n_placed].offset_bytes = at; /* from the start of the data */
            placed[n_placed++].n_bytes = n_bytes;
            if (__builtin_add_overflow(at, n_bytes, &at))
                return snug_fail(err, SNUG_BAD_ARGUMENT,
                                 "%s: the tensors together are larger than any file can be", path);
        }
    return SNUG_OK;
}

static json_t *shape_json(const struct shape *shape)
{
    json_t *dims = json_array();
    for (int i = 0; i < shape->n_dims; i++)
        json_push(&dims, json_integer(shape->dim[i]));
    return dims;
}

/* Prefix and header, padded with spaces so that the data starts aligned. */
static enum snug_status make_header(const char *path, const struct st_entry *placed, int n,
                                    const char *const *metadata, uint32_t data_crc,
                                    struct text *out, struct snug_error *err)
{
    char save[16];
    json_t *header = json_object(), *notes = json_object();
    bool bad_name = false;
    snprintf(save, sizeof save, "%08" PRIx32, data_crc);
    for (int i = 0; metadata != NULL && metadata[i] != NULL; i += 2)
        json_put(&notes, metadata[i], json_string(metadata[i + 1]));
    json_put(&notes, SAFETENSORS_SAVE, json_string(save));
    json_put(&header, "__metadata__", notes);
    for (int i = 0; i < n && !bad_name; i++) {
        const struct st_entry *entry = &placed[i];
        bad_name = !text_is_utf8(entry->name) || json_object_get(header, entry->name) != NULL;
        json_t *item = json_pack(
            "{s:s, s:o, s:[I, I]}", "dtype", dtype_safetensors_name(entry->dtype), "shape",
            shape_json(&entry->shape), "data_offsets", (json_int_t)entry->offset_bytes,
            (json_int_t)(entry->offset_bytes + entry->n_bytes));
        json_put(&header, entry->name, item);
    }
    enum snug_status status = SNUG_OK;
    char *dumped = json_to_text(header, JSON_COMPACT);
    uint64_t length = dumped == NULL ? 0 : strlen(dumped);
    uint64_t padded = (length + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    text_add_bytes(out, (const char *)&padded, PREFIX_BYTES);
    if (dumped != NULL)
        text_add(out, "%s%*s", dumped, (int)(padded - length), "");
    if (bad_name)
        status = snug_fail(err, SNUG_BAD_ARGUMENT,
                           "%s: two tensors have the same name, or a name is not UTF-8", path);
    else if (dumped == NULL || out->failed)
        status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory building the header", path);
    free(dumped);
    json_decref(header);
    return status;
}

/* A file being written. */
struct writer {
    const char *path;
    int fd;
    struct st_entry *placed;
    uint32_t *crcs; /* one per tensor */
    int n;
    int64_t data_begin;
    struct st_crew *crew; /* NULL if this process writes alone */
    struct file_faults *faults;
};

/* Copies a tensor that is not in memory through a small buffer. */
static enum snug_status write_from_owner(const struct writer *w, const struct st_entry *entry,
                                         int64_t begin, uint32_t *crc, struct snug_error *err)
{
    unsigned char piece[PIECE_BYTES];
    for (int64_t at = 0; at < entry->n_bytes; at += PIECE_BYTES) {
        int64_t left = entry->n_bytes - at, n = left < PIECE_BYTES ? left : PIECE_BYTES;
        TRY(entry->read(entry->owner, entry->id, at, n, piece, err));
        TRY(file_write_at(w->fd, w->path, piece, n, begin + at, crc, w->faults, err));
    }
    return SNUG_OK;
}

/* Computes a tensor piece by piece and writes it. */
static enum snug_status write_computed(const struct writer *w, const struct st_entry *entry,
                                       int64_t begin, uint32_t *crc, struct snug_error *err)
{
    double piece[PIECE_ELEMS]; /* large enough for the widest dtype */
    int64_t width = (int64_t)dtype_bytes(entry->dtype), n = entry->n_bytes / width;
    for (int64_t at = 0; at < n; at += PIECE_ELEMS) {
        int64_t count = n - at < PIECE_ELEMS ? n - at : PIECE_ELEMS;
        TRY(entry->fill(entry, at, count, piece, err));
        TRY(file_write_at(w->fd, w->path, piece, count * width, begin + at * width, crc, w->faults,
                          err));
    }
    return SNUG_OK;
}

static enum snug_status write_tensor(const struct writer *w, int i, struct snug_error *err)
{
    const struct st_entry *entry = &w->placed[i];
    int64_t begin = w->data_begin + entry->offset_bytes;
    w->crcs[i] = 0;
    if (entry->fill != NULL)
        return write_computed(w, entry, begin, &w->crcs[i], err);
    if (entry->read != NULL)
        return write_from_owner(w, entry, begin, &w->crcs[i], err);
    return file_write_at(w->fd, w->path, entry->data, entry->n_bytes, begin, &w->crcs[i], w->faults,
                         err);
}

/* Sets the full length first.  Otherwise a network file system might treat the range after one
 * writer's bytes as empty and fill it with zeros. */
static enum snug_status begin_crew(const struct writer *w, bool *comes, struct snug_error *err)
{
    *comes = false;
    if (w->crew == NULL || w->n == 0)
        return SNUG_OK;
    const struct st_entry *last = &w->placed[w->n - 1];
    TRY(file_set_length(w->fd, w->path, w->data_begin + last->offset_bytes + last->n_bytes,
                        w->faults, err));
    return w->crew->begin(w->crew, w->fd, w->path, w->placed, w->n, w->data_begin, comes, err);
}

static enum snug_status write_tensors(const struct writer *w, uint32_t *crc, int64_t *n_bytes,
                                      struct snug_error *err)
{
    bool crew_comes;
    TRY(begin_crew(w, &crew_comes, err));
    for (int i = 0; i < w->n; i++)
        if (!crew_comes || !w->placed[i].shared)
            TRY(write_tensor(w, i, err));
    if (crew_comes)
        TRY(w->crew->end(w->crew, w->crcs, err));
    *crc = 0;
    *n_bytes = 0;
    for (int i = 0; i < w->n; i++) {
        *crc = file_crc32_join(*crc, w->crcs[i], w->placed[i].n_bytes);
        *n_bytes += w->placed[i].n_bytes;
    }
    return SNUG_OK;
}

enum snug_status safetensors_write(const char *path, const struct st_entry *entries, int n,
                                   const char *const *metadata, struct st_crew *crew, uint32_t *crc,
                                   struct file_faults *faults, struct snug_error *err)
{
    struct text header = {0};
    struct writer w = {.path = path,
                       .fd = -1,
                       .placed = calloc((size_t)n + 1, sizeof *w.placed),
                       .crcs = calloc((size_t)n + 1, sizeof *w.crcs),
                       .n = n,
                       .crew = crew,
                       .faults = faults};
    bool created = false;
    uint32_t data_crc;
    int64_t data_bytes;
    enum snug_status status = SNUG_OK;
    if (w.placed == NULL || w.crcs == NULL) {
        status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory indexing the tensors", path);
        goto done;
    }
    if ((status = lay_out(path, entries, n, w.placed, err)) != SNUG_OK ||
        (status = make_header(path, w.placed, n, metadata, 0, &header, err)) != SNUG_OK ||
        (status = file_create(path, &w.fd, faults, err)) != SNUG_OK)
        goto done;
    created = true;
    w.data_begin = (int64_t)header.length;
    if ((status = write_tensors(&w, &data_crc, &data_bytes, err)) != SNUG_OK)
        goto done;
    text_free(&header);
    if ((status = make_header(path, w.placed, n, metadata, data_crc, &header, err)) != SNUG_OK ||
        (status = file_write_at(w.fd, path, header.data, (int64_t)header.length, 0, NULL, faults,
                                err)) != SNUG_OK)
        goto done;
    status = file_finish(w.fd, path, faults, err);
    w.fd = -1;
    if (crc != NULL)
        *crc = file_crc32_join(file_crc32(0, header.data, header.length), data_crc, data_bytes);
done:
    if (w.fd >= 0)
        close(w.fd);
    if (status != SNUG_OK && created)
        file_remove(path, faults);
    text_free(&header);
    free(w.placed);
    free(w.crcs);
    return status;
}
