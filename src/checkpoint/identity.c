/*
 * identity.c -- read how state.json describes a file, and open that file; see identity.h.
 */
#include "checkpoint/identity.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"

/* Does the name stay inside the run's folder?  "x" and "sub/x" do. */
static bool is_inside(const char *name)
{
    const char *slash = strchr(name, '/');
    return name[0] != '/' && name[0] != '.' &&
           (slash == NULL || (strchr(slash + 1, '/') == NULL && slash[1] != '.'));
}

enum snug_status identity_read(const char *where, const char *name, const json_t *record,
                               struct identity *identity, struct snug_error *err)
{
    const char *crc;
    char *end;
    if (!is_inside(name) || !json_is_object(record))
        return snug_fail(err, SNUG_BAD_FILE, "%s: the entry of file \"%s\" is not valid", where,
                         name);
    TRY(json_get_integer(record, where, "bytes", 0, INT64_MAX, &identity->n_bytes, err));
    TRY(json_get_string(record, where, "crc32", &crc, err));
    TRY(json_get_string(record, where, "save", &identity->save, err));
    errno = 0;
    unsigned long value = strtoul(crc, &end, 16);
    if (end == crc || *end != '\0' || errno != 0 || value > UINT32_MAX)
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"crc32\" of \"%s\" is not a hex CRC-32", where,
                         name);
    identity->crc = (uint32_t)value;
    return SNUG_OK;
}

static bool has_identity(const struct safetensors *st, const struct identity *identity)
{
    const char *save = safetensors_metadata(st, SAFETENSORS_SAVE);
    return save != NULL && strcmp(save, identity->save) == 0 &&
           safetensors_file_bytes(st) == identity->n_bytes;
}

enum snug_status identity_open(const char *dir, const char *name, const char *suffix,
                               const struct identity *identity, struct safetensors **st,
                               struct file_faults *faults, struct snug_error *err)
{
    char *path = path_join(dir, name, suffix);
    *st = NULL;
    if (path == NULL)
        return checkpoint_no_memory(dir, err);
    enum snug_status status = file_count_read(path, faults, err);
    if (status == SNUG_OK)
        status = safetensors_open(path, st, err);
    free(path);
    if (status == SNUG_OK && !has_identity(*st, identity)) {
        safetensors_close(*st);
        *st = NULL;
    }
    return status;
}
