/*
 * checkpoint_save.c -- save checkpoints; see checkpoint.h for the scheme.
 */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "checkpoint/identity.h"
#include "checkpoint/shards.h"

enum snug_status checkpoint_make_dir(const char *dir, struct snug_error *err)
{
    struct stat info;
    char *path = strdup(dir);
    if (path == NULL)
        return checkpoint_no_memory(dir, err);
    int error = 0;
    for (char *slash = path; error == 0 && slash != NULL && *path != '\0';) {
        slash = strchr(slash + 1, '/');
        if (slash != NULL)
            *slash = '\0';
        error = mkdir(path, 0777) == 0 || errno == EEXIST || errno == EISDIR ? 0 : errno;
        if (slash != NULL)
            *slash = '/';
    }
    free(path);
    if (stat(dir, &info) != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "%s: cannot create this folder: %s", dir,
                         strerror(error != 0 ? error : errno));
    if (!S_ISDIR(info.st_mode))
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "%s: this is a file, not a folder: choose another folder for the run",
                         dir);
    if (access(dir, W_OK | X_OK) != 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "%s: cannot write to this folder: %s", dir,
                         strerror(errno));
    return SNUG_OK;
}

enum snug_status checkpoint_make_inner_dir(const char *dir, struct snug_error *err)
{
    struct stat info;
    if (lstat(dir, &info) == 0 && S_ISLNK(info.st_mode))
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "%s: snug does not write through a symbolic link: remove it", dir);
    return checkpoint_make_dir(dir, err);
}

enum snug_status checkpoint_write_text(const char *dir, const char *name, const char *text,
                                       struct file_faults *faults, struct snug_error *err)
{
    char *path = path_join(dir, name, "");
    if (path == NULL)
        return checkpoint_no_memory(dir, err);
    enum snug_status status = file_write_atomic(path, text, strlen(text), faults, err);
    free(path);
    return status;
}

/* NAME.new, NAME and their subfolder of the run, which is NULL for files of the run's folder. */
struct move {
    char *from, *to, *folder;
};

static void free_move(struct move *move)
{
    free(move->from);
    free(move->to);
    free(move->folder);
    *move = (struct move){0};
}

static enum snug_status make_move(const char *dir, const char *name, struct move *move,
                                  struct snug_error *err)
{
    bool is_below = strchr(name, '/') != NULL;
    *move = (struct move){path_join(dir, name, NEW_SUFFIX), path_join(dir, name, ""),
                          is_below ? path_join(dir, name, "") : NULL};
    if (move->from == NULL || move->to == NULL || (is_below && move->folder == NULL)) {
        free_move(move);
        return checkpoint_no_memory(dir, err);
    }
    if (is_below)
        *strrchr(move->folder, '/') = '\0';
    return SNUG_OK;
}

/* A new or renamed file is durable once its folder is synced.  This syncs a subfolder; the run's
 * own folder is synced once, after all files. */
static enum snug_status sync_subfolder(const struct move *move, struct file_faults *faults,
                                       struct snug_error *err)
{
    return move->folder == NULL ? SNUG_OK : file_sync_folder(move->folder, faults, err);
}

/* Allocates nothing, so a save that has started renaming cannot run out of memory. */
static enum snug_status move_into_place(const struct move *move, struct file_faults *faults,
                                        struct snug_error *err)
{
    TRY(file_rename(move->from, move->to, faults, err));
    return sync_subfolder(move, faults, err);
}

/* True only if the file certainly does not exist: one that cannot be examined may be valuable. */
static enum snug_status is_absent(const char *dir, const char *name, const char *suffix,
                                  bool *absent, struct snug_error *err)
{
    struct stat info;
    char *path = path_join(dir, name, suffix);
    if (path == NULL)
        return checkpoint_no_memory(dir, err);
    *absent = lstat(path, &info) != 0 && errno == ENOENT;
    free(path);
    return SNUG_OK;
}

/* Renames NAME.new to NAME if it is the file that `identity` describes.  On SNUG_OK a remaining
 * NAME.new may be overwritten. */
static enum snug_status finish_rename(const char *dir, const char *name,
                                      const struct identity *identity, bool *moved,
                                      struct file_faults *faults, struct snug_error *err)
{
    struct safetensors *st;
    enum snug_status status = identity_open(dir, name, "", identity, &st, faults, err);
    bool is_in_place = st != NULL;
    safetensors_close(st);
    if (is_in_place || (status != SNUG_OK && status != SNUG_BAD_FILE))
        return status;
    bool absent;
    TRY(is_absent(dir, name, NEW_SUFFIX, &absent, err));
    if (absent)
        return SNUG_OK; /* there is no NAME.new to protect */
    TRY(identity_open(dir, name, NEW_SUFFIX, identity, &st, faults, err));
    if (st == NULL)
        return SNUG_OK;
    safetensors_close(st);
    *moved = true;
    struct move move;
    TRY(make_move(dir, name, &move, err));
    enum snug_status finished = move_into_place(&move, faults, err);
    free_move(&move);
    return finished;
}

/* Finishes step 3 of an interrupted save, whose `.new` files must not be overwritten.  For the same
 * reason an unreadable state.json stops the save: the `.new` files may be the only checkpoint.
 * *old is what state.json says about the files, NULL if there is none; the caller releases it. */
static enum snug_status finish_renames(const char *dir, json_t **old, struct file_faults *faults,
                                       struct snug_error *err)
{
    json_t *state = NULL, *records, *record;
    const char *name;
    bool moved = false, absent;
    *old = NULL;
    TRY(is_absent(dir, STATE_NAME, "", &absent, err));
    if (absent)
        return SNUG_OK;
    char *path = path_join(dir, STATE_NAME, "");
    if (path == NULL)
        return checkpoint_no_memory(dir, err);
    enum snug_status status = file_count_read(path, faults, err);
    if (status != SNUG_OK || (status = json_read_object(path, &state, err)) != SNUG_OK ||
        (status = json_get_object(state, path, FILES_KEY, &records, err)) != SNUG_OK)
        goto done;
    json_object_foreach(records, name, record)
    {
        struct identity identity;
        if ((status = identity_read(path, name, record, &identity, err)) != SNUG_OK ||
            (status = finish_rename(dir, name, &identity, &moved, faults, err)) != SNUG_OK)
            goto done;
    }
    if (moved)
        status = file_sync_folder(dir, faults, err);
    if (status == SNUG_OK)
        *old = json_incref(records);
done:
    json_decref(state);
    free(path);
    return status;
}

static bool has_shards(const json_t *records)
{
    const char *name;
    const json_t *record;
    json_object_foreach((json_t *)(uintptr_t)records, name,
                        record) if (shards_has_name(name)) return true;
    return false;
}

/* Writes the index of the shards, or removes that of an earlier checkpoint. */
static enum snug_status finish_index(const char *dir, const json_t *records,
                                     struct file_faults *faults, struct snug_error *err)
{
    struct checkpoint *checkpoint;
    if (!has_shards(records))
        return shards_write_index(dir, NULL, faults, err);
    TRY(checkpoint_open(dir, &checkpoint, err));
    enum snug_status status =
        shards_write_index(dir, checkpoint_find(checkpoint, SAFETENSORS_MODEL), faults, err);
    checkpoint_close(checkpoint);
    return status;
}

/* The old checkpoint may have had another number of shards, or none. */
static enum snug_status finish_shards(const char *dir, json_t *old, const json_t *records,
                                      struct file_faults *faults, struct snug_error *err)
{
    const char *name;
    json_t *record;
    if (!has_shards(old) && !has_shards(records))
        return SNUG_OK;
    TRY(finish_index(dir, records, faults, err)); /* never an index of files that are gone */
    json_object_foreach(old, name, record)
    {
        if (!shards_has_name(name) || json_object_get(records, name) != NULL)
            continue;
        char *path = path_join(dir, name, "");
        if (path == NULL)
            return checkpoint_no_memory(dir, err);
        file_remove(path, faults);
        free(path);
    }
    return SNUG_OK;
}

enum snug_status checkpoint_settle(const char *dir, struct file_faults *faults,
                                   struct snug_error *err)
{
    json_t *records;
    enum snug_status status = finish_renames(dir, &records, faults, err);
    if (status == SNUG_OK && has_shards(records))
        status = finish_index(dir, records, faults, err);
    json_decref(records);
    return status;
}

/* Secures the existing checkpoint before any file is overwritten. */
static enum snug_status prepare(const char *dir, json_t **old, struct file_faults *faults,
                                struct snug_error *err)
{
    struct snug_error why = {0};
    enum snug_status status = finish_renames(dir, old, faults, &why);
    if (status == SNUG_OK)
        return SNUG_OK;
    const char *advice = status == SNUG_BAD_FILE
                             ? "; nothing was saved: move these files away, or use another folder"
                             : "";
    return snug_fail(err, status, "%.400s%s", why.message, advice);
}

/* Writes NAME.new and adds its description to `records`. */
static enum snug_status write_new(const char *dir, const struct checkpoint_file *file,
                                  const struct move *move, struct st_crew *crew, json_t *records,
                                  struct file_faults *faults, struct snug_error *err)
{
    /* Hugging Face's loader requires "format" */
    static const char *const metadata[] = {"format", "pt", NULL};
    struct safetensors *st = NULL;
    char crc_text[16];
    uint32_t crc;
    enum snug_status status =
        safetensors_write(move->from, file->entries, file->n, metadata, crew, &crc, faults, err);
    if (status == SNUG_OK)
        status = safetensors_open(move->from, &st, err);
    if (status == SNUG_OK) {
        snprintf(crc_text, sizeof crc_text, "%08" PRIx32, crc);
        json_t *record =
            json_pack("{s:I, s:s, s:s}", "bytes", (json_int_t)safetensors_file_bytes(st), "crc32",
                      crc_text, "save", safetensors_metadata(st, SAFETENSORS_SAVE));
        if (json_object_set_new(records, file->name, record) != 0)
            status = checkpoint_no_memory(dir, err);
    }
    safetensors_close(st);
    return status == SNUG_OK ? sync_subfolder(move, faults, err) : status;
}

static enum snug_status parse_state(const char *dir, const char *text, json_t **state,
                                    struct snug_error *err)
{
    TRY(json_parse(text, strlen(text), dir, state, err));
    if (!json_is_object(*state) || json_object_get(*state, FILES_KEY) != NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT,
                         "%s: internal error: the state to save is not a JSON object, or has the "
                         "reserved key \"%s\"",
                         dir, FILES_KEY);
    return SNUG_OK;
}

static enum snug_status save_by(const char *dir, const struct checkpoint_file *files, int n_files,
                                const struct move *moves, const char *state_path, json_t *root,
                                struct st_crew *crew, struct file_faults *faults,
                                struct snug_error *err)
{
    json_t *records = json_object();
    enum snug_status status = records == NULL ? checkpoint_no_memory(dir, err) : SNUG_OK;
    for (int i = 0; i < n_files && status == SNUG_OK; i++)
        status = write_new(dir, &files[i], &moves[i], crew, records, faults, err);
    if (status == SNUG_OK)
        status = file_sync_folder(dir, faults, err);
    if (status == SNUG_OK && json_object_set(root, FILES_KEY, records) != 0)
        status = checkpoint_no_memory(dir, err);
    json_decref(records);
    if (status != SNUG_OK) {
        for (int i = 0; i < n_files; i++)
            file_remove(moves[i].from, faults);
        return status;
    }

    /* On failure the `.new` files stay: the rename may have reached the disk despite the error. */
    status = json_write(state_path, root, faults, err);
    for (int i = 0; i < n_files && status == SNUG_OK; i++)
        status = move_into_place(&moves[i], faults, err);
    return status == SNUG_OK ? file_sync_folder(dir, faults, err) : status;
}

enum snug_status checkpoint_save_sharded(const char *dir, const struct checkpoint_file *files,
                                         int n_files, int64_t shard_bytes, const char *state,
                                         struct st_crew *crew, struct file_faults *faults,
                                         struct snug_error *err)
{
    json_t *root = NULL, *old = NULL;
    struct shards all = {0};
    char *state_path = path_join(dir, STATE_NAME, "");
    struct move *moves = NULL;
    enum snug_status status = parse_state(dir, state, &root, err);
    if (status == SNUG_OK)
        status = shards_split(files, n_files, shard_bytes, &all, err);
    if (status == SNUG_OK)
        moves = calloc((size_t)all.n + 1, sizeof *moves);
    if (status == SNUG_OK && (state_path == NULL || moves == NULL))
        status = checkpoint_no_memory(dir, err);
    for (int i = 0; i < all.n && status == SNUG_OK; i++)
        status = make_move(dir, all.files[i].name, &moves[i], err);
    if (status == SNUG_OK)
        status = prepare(dir, &old, faults, err);
    if (status == SNUG_OK)
        status = save_by(dir, all.files, all.n, moves, state_path, root, crew, faults, err);
    if (status == SNUG_OK)
        status = finish_shards(dir, old, json_object_get(root, FILES_KEY), faults, err);
    for (int i = 0; i < all.n && moves != NULL; i++)
        free_move(&moves[i]);
    free(moves);
    shards_free(&all);
    json_decref(old);
    json_decref(root);
    free(state_path);
    return status;
}

enum snug_status checkpoint_save(const char *dir, const struct checkpoint_file *files, int n_files,
                                 const char *state, struct st_crew *crew,
                                 struct file_faults *faults, struct snug_error *err)
{
    return checkpoint_save_sharded(dir, files, n_files, SHARDS_MOST_BYTES, state, crew, faults,
                                   err);
}
