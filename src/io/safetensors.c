/*
 * safetensors.c -- read safetensors files; see safetensors.h.
 */
#include "io/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "io/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are stored little-endian");

enum { PREFIX_BYTES = 8, MAX_HEADER_BYTES = 100 * 1000 * 1000, PIECE_BYTES = 1 << 20 };
enum { SUM_BYTES = 1 << 16 };
#define METADATA_KEY "__metadata__"

struct safetensors {
    char *path;
    int fd;
    int64_t n_bytes, data_begin;
    json_t *header;                  /* owns the tensor names and the metadata */
    struct st_entry *entries;        /* in file order */
    const struct st_entry **by_name; /* sorted */
    int n;
    uint32_t crc; /* of the first crc_end bytes of the file */
    int64_t crc_end;
    /* A set of files.  It has no descriptor, header and checksum of its own. */
    struct safetensors **files;
    int n_files;
    bool owns_files;
};

bool safetensors_tensor_bytes(const struct shape *shape, int64_t elem_bytes, int64_t *n_bytes)
{
    *n_bytes = elem_bytes;
    for (int i = 0; i < shape->n_dims; i++)
        if (shape->dim[i] < 0 || __builtin_mul_overflow(*n_bytes, shape->dim[i], n_bytes))
            return false;
    return true;
}

/* ---- the header -------------------------------------------------------------------------- */

/* Element size of a dtype that snug skips: masks and counters in files from elsewhere. */
static int64_t skipped_dtype_bytes(const char *name)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = {{"BOOL", 1}, {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2},
                 {"U16", 2},  {"U32", 4}, {"I64", 8},     {"U64", 8},     {"C64", 8}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0)
            return types[i].bytes;
    return 0;
}

static enum snug_status bad_tensor(const struct safetensors *st, const char *name, const char *what,
                                   struct snug_error *err)
{
    return snug_fail(err, SNUG_BAD_FILE, "%s: tensor \"%s\": %s", st->path, name, what);
}

/* *bytes is the size of an element. */
static enum snug_status parse_dtype(const struct safetensors *st, const char *name,
                                    const json_t *value, enum dtype *dtype, int64_t *bytes,
                                    struct snug_error *err)
{
    const char *text = json_string_value(value);
    if (text == NULL)
        return bad_tensor(st, name, "\"dtype\" is missing or not a string", err);
    if (dtype_parse_safetensors(text, dtype)) {
        *bytes = (int64_t)dtype_bytes(*dtype);
        return SNUG_OK;
    }
    *dtype = DTYPE_COUNT;
    *bytes = skipped_dtype_bytes(text);
    if (*bytes == 0)
        return snug_fail(err, SNUG_BAD_FILE, "%s: tensor \"%s\": unknown dtype \"%.32s\"", st->path,
                         name, text);
    return SNUG_OK;
}

static enum snug_status parse_shape(const struct safetensors *st, const char *name,
                                    const json_t *value, struct shape *shape,
                                    struct snug_error *err)
{
    if (!json_is_array(value))
        return bad_tensor(st, name, "\"shape\" is missing or not an array", err);
    if (json_array_size(value) > MAX_DIMS)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: tensor \"%s\": %zu dimensions; snug reads up to %d", st->path, name,
                         json_array_size(value), MAX_DIMS);
    shape->n_dims = (int)json_array_size(value);
    for (int i = 0; i < shape->n_dims; i++) {
        const json_t *dim = json_array_get(value, (size_t)i);
        shape->dim[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || shape->dim[i] < 0)
            return bad_tensor(st, name, "a dimension in \"shape\" is not an integer >= 0", err);
    }
    return SNUG_OK;
}

static enum snug_status parse_entry(const struct safetensors *st, const char *name,
                                    const json_t *value, struct st_entry *entry,
                                    struct snug_error *err)
{
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    int64_t elem_bytes, expected, data_bytes = st->n_bytes - st->data_begin;
    *entry = (struct st_entry){.name = name};
    if (!json_is_object(value))
        return bad_tensor(st, name, "its header entry is not a JSON object", err);
    TRY(parse_dtype(st, name, json_object_get(value, "dtype"), &entry->dtype, &elem_bytes, err));
    TRY(parse_shape(st, name, json_object_get(value, "shape"), &entry->shape, err));
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return bad_tensor(st, name, "\"data_offsets\" must be two integers", err);
    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || end > data_bytes)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: tensor \"%s\": data_offsets [%" PRId64 ", %" PRId64
                         "] are outside the %" PRId64 " bytes of data: is the file truncated?",
                         st->path, name, begin, end, data_bytes);
    if (!safetensors_tensor_bytes(&entry->shape, elem_bytes, &expected))
        return bad_tensor(st, name, "its shape is larger than any file can be", err);
    if (expected != end - begin)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: tensor \"%s\": shape and dtype need %" PRId64
                         " bytes, but data_offsets span %" PRId64,
                         st->path, name, expected, end - begin);
    entry->offset_bytes = st->data_begin + begin;
    entry->n_bytes = end - begin;
    return SNUG_OK;
}

static enum snug_status check_metadata(const struct safetensors *st, struct snug_error *err)
{
    json_t *metadata = json_object_get(st->header, METADATA_KEY), *value;
    const char *key;
    if (metadata != NULL && !json_is_object(metadata))
        return snug_fail(err, SNUG_BAD_FILE, "%s: %s is not a JSON object", st->path, METADATA_KEY);
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return snug_fail(
        err, SNUG_BAD_FILE, "%s: %s: \"%s\" is not a string", st->path, METADATA_KEY, key);
    return SNUG_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct st_entry *x = a, *y = b;
    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    if (x->n_bytes != y->n_bytes) /* empty tensors come before the one that starts there */
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct st_entry *const *)a)->name,
                  (*(const struct st_entry *const *)b)->name);
}

/* The tensors must cover every byte of the data exactly once. */
static enum snug_status check_cover(const struct safetensors *st, struct snug_error *err)
{
    int64_t covered = st->data_begin;
    for (int i = 0; i < st->n; i++) {
        const struct st_entry *entry = &st->entries[i];
        if (entry->offset_bytes < covered)
            return snug_fail(err, SNUG_BAD_FILE, "%s: tensor \"%s\" overlaps \"%s\"", st->path,
                             entry->name, st->entries[i - 1].name);
        if (entry->offset_bytes > covered)
            return snug_fail(err, SNUG_BAD_FILE,
                             "%s: a gap of %" PRId64 " bytes before tensor \"%s\"", st->path,
                             entry->offset_bytes - covered, entry->name);
        covered += entry->n_bytes;
    }
    if (covered != st->n_bytes)
        return snug_fail(err, SNUG_BAD_FILE, "%s: %" PRId64 " extra bytes after the last tensor",
                         st->path, st->n_bytes - covered);
    return SNUG_OK;
}

static void sort_by_name(struct safetensors *st)
{
    for (int i = 0; i < st->n; i++)
        st->by_name[i] = &st->entries[i];
    if (st->n > 0)
        qsort(st->by_name, (size_t)st->n, sizeof *st->by_name, compare_names);
}

static enum snug_status build_index(struct safetensors *st, struct snug_error *err)
{
    size_t n_members = json_object_size(st->header);
    const char *name;
    json_t *value;
    st->entries = calloc(n_members + 1, sizeof *st->entries);
    st->by_name = calloc(n_members + 1, sizeof *st->by_name);
    if (st->entries == NULL || st->by_name == NULL || n_members > INT32_MAX)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory indexing %zu tensors", st->path,
                         n_members);
    json_object_foreach(st->header, name, value) if (strcmp(name, METADATA_KEY) != 0)
        TRY(parse_entry(st, name, value, &st->entries[st->n++], err));
    if (st->n > 0)
        qsort(st->entries, (size_t)st->n, sizeof *st->entries, compare_offsets);
    sort_by_name(st);
    return check_cover(st, err);
}

static enum snug_status read_header(struct safetensors *st, struct snug_error *err)
{
    uint64_t length;
    if (st->n_bytes < PREFIX_BYTES)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: %" PRId64 " bytes are too few for a safetensors file", st->path,
                         st->n_bytes);
    TRY(fd_read_at(st->fd, st->path, &length, PREFIX_BYTES, 0, err));
    if (memcmp(&length, "version ", PREFIX_BYTES) == 0)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: this is a Git LFS pointer, not the file: get it with git lfs pull",
                         st->path);
    if (length > (uint64_t)(st->n_bytes - PREFIX_BYTES))
        return snug_fail(
            err, SNUG_BAD_FILE,
            "%s: not a safetensors file, or truncated: it declares a header of %" PRIu64
            " bytes, but the file has %" PRId64,
            st->path, length, st->n_bytes);
    if (length > MAX_HEADER_BYTES)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: the header has %" PRIu64 " bytes; at most %d are allowed", st->path,
                         length, MAX_HEADER_BYTES);
    char *text = malloc((size_t)length + 1);
    if (text == NULL)
        return snug_fail(err, SNUG_NO_MEMORY,
                         "%s: out of memory reading a header of %" PRIu64 " bytes", st->path,
                         length);
    enum snug_status status =
        fd_read_at(st->fd, st->path, text, (int64_t)length, PREFIX_BYTES, err);
    if (status == SNUG_OK)
        status = json_parse(text, (size_t)length, st->path, &st->header, err);
    if (status == SNUG_OK && !json_is_object(st->header))
        status = snug_fail(err, SNUG_BAD_FILE, "%s: the header is not a JSON object", st->path);
    st->crc = file_crc32(file_crc32(0, &length, PREFIX_BYTES), text, (size_t)length);
    st->crc_end = st->data_begin = PREFIX_BYTES + (int64_t)length;
    free(text);
    return status;
}

enum snug_status safetensors_open(const char *path, struct safetensors **out,
                                  struct snug_error *err)
{
    *out = NULL;
    struct safetensors *st = calloc(1, sizeof *st);
    char *copy = strdup(path);
    if (st == NULL || copy == NULL) {
        free(st);
        free(copy);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory opening the file", path);
    }
    st->path = copy;
    enum snug_status status = fd_open_read(path, &st->fd, &st->n_bytes, err);
    if (status == SNUG_OK)
        status = read_header(st, err);
    if (status == SNUG_OK)
        status = check_metadata(st, err);
    if (status == SNUG_OK)
        status = build_index(st, err);
    if (status == SNUG_OK)
        *out = st;
    else
        safetensors_close(st);
    return status;
}

void safetensors_close(struct safetensors *st)
{
    if (st == NULL)
        return;
    for (int i = 0; i < st->n_files && st->owns_files; i++)
        safetensors_close(st->files[i]);
    free(st->files);
    if (st->fd >= 0)
        close(st->fd);
    json_decref(st->header);
    free(st->entries);
    free(st->by_name);
    free(st->path);
    free(st);
}

/* ---- several files ------------------------------------------------------------------------ */

static enum snug_status check_once(const struct safetensors *st, struct snug_error *err)
{
    for (int i = 1; i < st->n; i++) {
        const struct st_entry *a = st->by_name[i - 1], *b = st->by_name[i];
        if (strcmp(a->name, b->name) == 0)
            return snug_fail(err, SNUG_BAD_FILE, "%s: tensor \"%s\" is in two files, %s and %s",
                             st->path, a->name, st->files[a->file]->path, st->files[b->file]->path);
    }
    return SNUG_OK;
}

enum snug_status safetensors_join(struct safetensors *const *files, int n_files, bool owns,
                                  const char *path, struct safetensors **out,
                                  struct snug_error *err)
{
    int64_t n = 0;
    *out = NULL;
    for (int i = 0; i < n_files; i++)
        n += files[i]->n;
    struct safetensors *st = calloc(1, sizeof *st);
    if (st != NULL) {
        st->fd = -1;
        st->path = strdup(path);
        st->files = malloc(((size_t)n_files + 1) * sizeof *st->files);
        st->entries = malloc(((size_t)n + 1) * sizeof *st->entries);
        st->by_name = malloc(((size_t)n + 1) * sizeof *st->by_name);
    }
    if (st == NULL || st->path == NULL || st->files == NULL || st->entries == NULL ||
        st->by_name == NULL || n > INT32_MAX) {
        safetensors_close(st);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory indexing %lld tensors", path,
                         (long long)n);
    }
    for (int i = 0; i < n_files; i++) {
        st->files[st->n_files++] = files[i];
        st->n_bytes += files[i]->n_bytes;
        for (int k = 0; k < files[i]->n; k++) {
            st->entries[st->n] = files[i]->entries[k];
            st->entries[st->n++].file = i;
        }
    }
    sort_by_name(st);
    enum snug_status status = check_once(st, err);
    if (status != SNUG_OK) {
        safetensors_close(st);
        return status;
    }
    st->owns_files = owns;
    *out = st;
    return SNUG_OK;
}

/* ---- access ------------------------------------------------------------------------------ */

int safetensors_count(const struct safetensors *st)
{
    return st->n;
}

const struct st_entry *safetensors_entry(const struct safetensors *st, int index)
{
    return &st->entries[index];
}

const struct st_entry *safetensors_find(const struct safetensors *st, const char *name)
{
    const struct st_entry key = {.name = name}, *wanted = &key;
    const struct st_entry **found =
        st->n == 0 ? NULL
                   : bsearch(&wanted, st->by_name, (size_t)st->n, sizeof wanted, compare_names);
    return found == NULL ? NULL : *found;
}

const char *safetensors_metadata(const struct safetensors *st, const char *key)
{
    const json_t *header = st->n_files > 0 ? st->files[0]->header : st->header;
    return json_string_value(json_object_get(json_object_get(header, METADATA_KEY), key));
}

const char *safetensors_path(const struct safetensors *st)
{
    return st->path;
}

const char *safetensors_path_of(const struct safetensors *st, const struct st_entry *entry)
{
    return st->n_files > 0 ? st->files[entry->file]->path : st->path;
}

const char *safetensors_dtype_name(const struct safetensors *st, const struct st_entry *entry)
{
    const json_t *header = st->n_files > 0 ? st->files[entry->file]->header : st->header;
    return json_string_value(json_object_get(json_object_get(header, entry->name), "dtype"));
}

int64_t safetensors_file_bytes(const struct safetensors *st)
{
    return st->n_bytes;
}

enum snug_status safetensors_read(struct safetensors *st, const struct st_entry *entry, void *out,
                                  struct snug_error *err)
{
    if (entry->dtype == DTYPE_COUNT)
        return snug_fail(err, SNUG_UNSUPPORTED, "%s: tensor \"%s\": dtype %s is not supported",
                         safetensors_path_of(st, entry), entry->name,
                         safetensors_dtype_name(st, entry));
    if (st->n_files > 0)
        st = st->files[entry->file];
    for (int64_t done = 0, n; done < entry->n_bytes; done += n) {
        char *to = (char *)out + done;
        int64_t at = entry->offset_bytes + done;
        n = entry->n_bytes - done < PIECE_BYTES ? entry->n_bytes - done : PIECE_BYTES;
        TRY(fd_read_at(st->fd, st->path, to, n, at, err));
        if (st->crc_end == at) {
            st->crc = file_crc32(st->crc, to, (size_t)n);
            st->crc_end += n;
        }
    }
    return SNUG_OK;
}

enum snug_status safetensors_crc(struct safetensors *st, uint32_t *crc, struct snug_error *err)
{
    char piece[SUM_BYTES];
    while (st->crc_end < st->n_bytes) {
        int64_t left = st->n_bytes - st->crc_end, n = left < SUM_BYTES ? left : SUM_BYTES;
        TRY(fd_read_at(st->fd, st->path, piece, n, st->crc_end, err));
        st->crc = file_crc32(st->crc, piece, (size_t)n);
        st->crc_end += n;
    }
    *crc = st->crc;
    return SNUG_OK;
}
