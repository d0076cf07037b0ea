/*
 * identity.h -- how state.json describes a file of a checkpoint, and opening the file it describes.
 */
#ifndef SNUG_CHECKPOINT_IDENTITY_H
#define SNUG_CHECKPOINT_IDENTITY_H

#include "io/json.h"
#include "io/safetensors.h"

#define STATE_NAME "state.json"
#define FILES_KEY  "files"
#define NEW_SUFFIX ".new"

struct identity {
    int64_t n_bytes;
    uint32_t crc;
    const char *save;
};

/* `where` is the path of state.json. */
enum snug_status identity_read(const char *where, const char *name, const json_t *record,
                               struct identity *identity, struct snug_error *err);
/* Opens DIR/NAME plus suffix.  *st is NULL if it is not the file that `identity` describes. */
enum snug_status identity_open(const char *dir, const char *name, const char *suffix,
                               const struct identity *identity, struct safetensors **st,
                               struct file_faults *faults, struct snug_error *err);

static inline enum snug_status checkpoint_no_memory(const char *dir, struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory handling the checkpoint", dir);
}

#endif
