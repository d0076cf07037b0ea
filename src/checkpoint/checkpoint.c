/*
 * checkpoint.c -- open checkpoints; see checkpoint.h for the scheme.
 */
#include "checkpoint/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "checkpoint/identity.h"
#include "checkpoint/shards.h"

enum { OPEN_ATTEMPTS = 3 };

struct checkpoint {
    char *dir, *state;
    int n_files;
    struct opened {
        char *name;
        struct safetensors *st;
        uint32_t crc;
    } * files;
    struct safetensors *model; /* the set of its shards, or NULL */
};

enum snug_status checkpoint_exists(const char *dir, bool *exists, struct snug_error *err)
{
    return path_find(dir, STATE_NAME, exists, err);
}

enum snug_status checkpoint_refuse_begun(const char *dir, struct snug_error *err)
{
    static const char *const names[] = {"plan.json", "metrics.jsonl", STATE_NAME,
                                        "model.safetensors"};
    for (int i = 0; i < 4; i++) {
        bool found;
        TRY(path_find(dir, names[i], &found, err));
        if (found != (i < 2)) /* the first two must exist, the others must not */
            return SNUG_OK;
    }
    return snug_fail(err, SNUG_BAD_FILE,
                     "%s: this run has no checkpoint yet: wait for its first one (train "
                     "--save-every N saves earlier), or train again if the run has ended",
                     dir);
}

static enum snug_status open_described(const char *dir, const char *name,
                                       const struct identity *identity, struct safetensors **st,
                                       struct snug_error *err)
{
    enum snug_status status = identity_open(dir, name, "", identity, st, NULL, err);
    if (*st == NULL &&
        identity_open(dir, name, NEW_SUFFIX, identity, st, NULL, NULL) == SNUG_NO_MEMORY)
        return checkpoint_no_memory(dir, err);
    if (*st != NULL)
        return SNUG_OK;
    if (status != SNUG_OK) /* missing or damaged: err is set */
        return status;
    return snug_fail(err, SNUG_BAD_FILE,
                     "%s/%s: does not belong to this checkpoint, because state.json describes "
                     "another file: restore all files from one save",
                     dir, name);
}

static enum snug_status open_files(struct checkpoint *checkpoint, const char *state_path,
                                   json_t *records, struct snug_error *err)
{
    const char *name;
    json_t *record;
    checkpoint->files = calloc(json_object_size(records) + 1, sizeof *checkpoint->files);
    if (checkpoint->files == NULL)
        return checkpoint_no_memory(checkpoint->dir, err);
    json_object_foreach(records, name, record)
    {
        struct opened *file = &checkpoint->files[checkpoint->n_files];
        struct identity identity;
        TRY(identity_read(state_path, name, record, &identity, err));
        TRY(open_described(checkpoint->dir, name, &identity, &file->st, err));
        checkpoint->n_files++;
        file->crc = identity.crc;
        file->name = strdup(name);
        if (file->name == NULL)
            return checkpoint_no_memory(checkpoint->dir, err);
    }
    return SNUG_OK;
}

/* Makes one set of the shards. */
static enum snug_status join_shards(struct checkpoint *checkpoint, struct snug_error *err)
{
    struct safetensors **shards = calloc((size_t)checkpoint->n_files + 1, sizeof *shards);
    char *path = path_join(checkpoint->dir, SAFETENSORS_INDEX, "");
    int n = 0;
    enum snug_status status =
        shards == NULL || path == NULL ? checkpoint_no_memory(checkpoint->dir, err) : SNUG_OK;
    for (int i = 0; i < checkpoint->n_files && status == SNUG_OK; i++)
        if (shards_has_name(checkpoint->files[i].name))
            shards[n++] = checkpoint->files[i].st;
    if (n > 0)
        status = safetensors_join(shards, n, false, path, &checkpoint->model, err);
    free(shards);
    free(path);
    return status;
}

static enum snug_status open_once(const char *dir, struct checkpoint **out, struct snug_error *err)
{
    json_t *state = NULL, *records;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    char *path = path_join(dir, STATE_NAME, "");
    enum snug_status status = SNUG_OK;
    if (checkpoint == NULL || path == NULL || (checkpoint->dir = strdup(dir)) == NULL) {
        status = checkpoint_no_memory(dir, err);
        goto done;
    }
    bool exists;
    if ((status = checkpoint_exists(dir, &exists, err)) != SNUG_OK)
        goto done;
    if (!exists) {
        status =
            snug_fail(err, SNUG_BAD_FILE,
                      "%s: no saved run here (%s is missing): give a folder that snug train --out "
                      "has written",
                      dir, STATE_NAME);
        goto done;
    }
    if ((status = json_read_object(path, &state, err)) != SNUG_OK ||
        (status = json_get_object(state, path, FILES_KEY, &records, err)) != SNUG_OK ||
        (status = open_files(checkpoint, path, records, err)) != SNUG_OK ||
        (status = join_shards(checkpoint, err)) != SNUG_OK)
        goto done;
    json_object_del(state, FILES_KEY);
    checkpoint->state = json_to_text(state, JSON_COMPACT);
    if (checkpoint->state == NULL)
        status = checkpoint_no_memory(dir, err);
done:
    json_decref(state);
    free(path);
    if (status == SNUG_OK)
        *out = checkpoint;
    else
        checkpoint_close(checkpoint);
    return status;
}

enum snug_status checkpoint_open(const char *dir, struct checkpoint **checkpoint,
                                 struct snug_error *err)
{
    enum snug_status status = SNUG_OK;
    *checkpoint = NULL;
    /* retry: the run may be saving right now and renaming files under us */
    for (int attempt = 0; attempt < OPEN_ATTEMPTS; attempt++) {
        status = open_once(dir, checkpoint, err);
        if (status == SNUG_OK)
            break;
    }
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    safetensors_close(checkpoint->model);
    for (int i = 0; i < checkpoint->n_files; i++) {
        safetensors_close(checkpoint->files[i].st);
        free(checkpoint->files[i].name);
    }
    free(checkpoint->files);
    free(checkpoint->dir);
    free(checkpoint->state);
    free(checkpoint);
}

const char *checkpoint_state(const struct checkpoint *checkpoint)
{
    return checkpoint->state;
}

static struct opened *find_opened(const struct checkpoint *checkpoint, const char *name)
{
    for (int i = 0; i < checkpoint->n_files; i++)
        if (strcmp(checkpoint->files[i].name, name) == 0)
            return &checkpoint->files[i];
    return NULL;
}

int checkpoint_count(const struct checkpoint *checkpoint)
{
    return checkpoint->n_files;
}

const char *checkpoint_name(const struct checkpoint *checkpoint, int index)
{
    return checkpoint->files[index].name;
}

struct safetensors *checkpoint_find(const struct checkpoint *checkpoint, const char *name)
{
    const struct opened *file = find_opened(checkpoint, name);
    if (file == NULL && strcmp(name, SAFETENSORS_MODEL) == 0)
        return checkpoint->model;
    return file == NULL ? NULL : file->st;
}

static enum snug_status verify_file(const struct opened *file, struct snug_error *err)
{
    uint32_t crc;
    TRY(safetensors_crc(file->st, &crc, err));
    if (crc != file->crc)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: the file is damaged: its CRC-32 is %08" PRIx32
                         ", state.json has %08" PRIx32 "; restore it or use another checkpoint",
                         safetensors_path(file->st), crc, file->crc);
    return SNUG_OK;
}

enum snug_status checkpoint_verify(const struct checkpoint *checkpoint, const char *name,
                                   struct snug_error *err)
{
    const struct opened *file = find_opened(checkpoint, name);
    bool is_split =
        file == NULL && checkpoint->model != NULL && strcmp(name, SAFETENSORS_MODEL) == 0;
    if (file != NULL)
        return verify_file(file, err);
    if (!is_split)
        return snug_fail(err, SNUG_BAD_FILE, "%s: the checkpoint has no %s", checkpoint->dir, name);
    for (int i = 0; i < checkpoint->n_files; i++)
        if (shards_has_name(checkpoint->files[i].name))
            TRY(verify_file(&checkpoint->files[i], err));
    return SNUG_OK;
}
