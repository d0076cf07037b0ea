/*
 * checkpoint.c -- save and open checkpoints; see checkpoint.h for the scheme.
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
#include "io/json.h"

#define STATE_NAME "state.json"
#define FILES_KEY  "files"
#define NEW_SUFFIX ".new"
enum { OPEN_ATTEMPTS = 3 };

static enum snug_status no_memory(const char *dir, struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory handling the checkpoint", dir);
}

/* ---- finding the file that state.json describes -------------------------------------------- */

struct identity { /* how state.json describes a file */
    int64_t n_bytes;
    uint32_t crc;
    const char *save;
};

/* Does the name stay inside the run's folder?  "x" and "sub/x" do. */
static bool is_inside(const char *name)
{
    const char *slash = strchr(name, '/');
    return name[0] != '/' && name[0] != '.' &&
           (slash == NULL || (strchr(slash + 1, '/') == NULL && slash[1] != '.'));
}

static enum snug_status read_identity(const char *where, const char *name, const json_t *record,
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

/* Opens DIR/NAME plus suffix.  *st is NULL if it is not the file that `identity` describes. */
static enum snug_status open_if_match(const char *dir, const char *name, const char *suffix,
                                      const struct identity *identity, struct safetensors **st,
                                      struct file_faults *faults, struct snug_error *err)
{
    char *path = path_join(dir, name, suffix);
    *st = NULL;
    if (path == NULL)
        return no_memory(dir, err);
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

/* ---- saving ------------------------------------------------------------------------------ */

enum snug_status checkpoint_make_dir(const char *dir, struct snug_error *err)
{
    struct stat info;
    char *path = strdup(dir);
    if (path == NULL)
        return no_memory(dir, err);
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
        return no_memory(dir, err);
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
        return no_memory(dir, err);
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
        return no_memory(dir, err);
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
    enum snug_status status = open_if_match(dir, name, "", identity, &st, faults, err);
    bool is_in_place = st != NULL;
    safetensors_close(st);
    if (is_in_place || (status != SNUG_OK && status != SNUG_BAD_FILE))
        return status;
    bool absent;
    TRY(is_absent(dir, name, NEW_SUFFIX, &absent, err));
    if (absent)
        return SNUG_OK; /* there is no NAME.new to protect */
    TRY(open_if_match(dir, name, NEW_SUFFIX, identity, &st, faults, err));
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
 * reason an unreadable state.json stops the save: the `.new` files may be the only checkpoint. */
static enum snug_status finish_renames(const char *dir, struct file_faults *faults,
                                       struct snug_error *err)
{
    json_t *state = NULL, *records, *record;
    const char *name;
    bool moved = false, absent;
    TRY(is_absent(dir, STATE_NAME, "", &absent, err));
    if (absent)
        return SNUG_OK;
    char *path = path_join(dir, STATE_NAME, "");
    if (path == NULL)
        return no_memory(dir, err);
    enum snug_status status = file_count_read(path, faults, err);
    if (status != SNUG_OK || (status = json_read_object(path, &state, err)) != SNUG_OK ||
        (status = json_get_object(state, path, FILES_KEY, &records, err)) != SNUG_OK)
        goto done;
    json_object_foreach(records, name, record)
    {
        struct identity identity;
        if ((status = read_identity(path, name, record, &identity, err)) != SNUG_OK ||
            (status = finish_rename(dir, name, &identity, &moved, faults, err)) != SNUG_OK)
            goto done;
    }
    if (moved)
        status = file_sync_folder(dir, faults, err);
done:
    json_decref(state);
    free(path);
    return status;
}

enum snug_status checkpoint_settle(const char *dir, struct file_faults *faults,
                                   struct snug_error *err)
{
    return finish_renames(dir, faults, err);
}

/* Secures the existing checkpoint before any file is overwritten. */
static enum snug_status prepare(const char *dir, struct file_faults *faults, struct snug_error *err)
{
    struct snug_error why = {0};
    enum snug_status status = finish_renames(dir, faults, &why);
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
            status = no_memory(dir, err);
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
    enum snug_status status = records == NULL ? no_memory(dir, err) : SNUG_OK;
    for (int i = 0; i < n_files && status == SNUG_OK; i++)
        status = write_new(dir, &files[i], &moves[i], crew, records, faults, err);
    if (status == SNUG_OK)
        status = file_sync_folder(dir, faults, err);
    if (status == SNUG_OK && json_object_set(root, FILES_KEY, records) != 0)
        status = no_memory(dir, err);
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

enum snug_status checkpoint_save(const char *dir, const struct checkpoint_file *files, int n_files,
                                 const char *state, struct st_crew *crew,
                                 struct file_faults *faults, struct snug_error *err)
{
    json_t *root = NULL;
    char *state_path = path_join(dir, STATE_NAME, "");
    struct move *moves = calloc((size_t)n_files + 1, sizeof *moves);
    enum snug_status status = parse_state(dir, state, &root, err);
    if (status == SNUG_OK && (state_path == NULL || moves == NULL))
        status = no_memory(dir, err);
    for (int i = 0; i < n_files && status == SNUG_OK; i++)
        status = make_move(dir, files[i].name, &moves[i], err);
    if (status == SNUG_OK)
        status = prepare(dir, faults, err);
    if (status == SNUG_OK)
        status = save_by(dir, files, n_files, moves, state_path, root, crew, faults, err);
    for (int i = 0; i < n_files && moves != NULL; i++)
        free_move(&moves[i]);
    free(moves);
    json_decref(root);
    free(state_path);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------- */

struct checkpoint {
    char *dir, *state;
    int n_files;
    struct opened {
        char *name;
        struct safetensors *st;
        uint32_t crc;
    } * files;
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
    enum snug_status status = open_if_match(dir, name, "", identity, st, NULL, err);
    if (*st == NULL &&
        open_if_match(dir, name, NEW_SUFFIX, identity, st, NULL, NULL) == SNUG_NO_MEMORY)
        return no_memory(dir, err);
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
        return no_memory(checkpoint->dir, err);
    json_object_foreach(records, name, record)
    {
        struct opened *file = &checkpoint->files[checkpoint->n_files];
        struct identity identity;
        TRY(read_identity(state_path, name, record, &identity, err));
        TRY(open_described(checkpoint->dir, name, &identity, &file->st, err));
        checkpoint->n_files++;
        file->crc = identity.crc;
        file->name = strdup(name);
        if (file->name == NULL)
            return no_memory(checkpoint->dir, err);
    }
    return SNUG_OK;
}

static enum snug_status open_once(const char *dir, struct checkpoint **out, struct snug_error *err)
{
    json_t *state = NULL, *records;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    char *path = path_join(dir, STATE_NAME, "");
    enum snug_status status = SNUG_OK;
    if (checkpoint == NULL || path == NULL || (checkpoint->dir = strdup(dir)) == NULL) {
        status = no_memory(dir, err);
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
        (status = open_files(checkpoint, path, records, err)) != SNUG_OK)
        goto done;
    json_object_del(state, FILES_KEY);
    checkpoint->state = json_to_text(state, JSON_COMPACT);
    if (checkpoint->state == NULL)
        status = no_memory(dir, err);
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

struct safetensors *checkpoint_find(const struct checkpoint *checkpoint, const char *name)
{
    const struct opened *file = find_opened(checkpoint, name);
    return file == NULL ? NULL : file->st;
}

enum snug_status checkpoint_verify(const struct checkpoint *checkpoint, const char *name,
                                   struct snug_error *err)
{
    uint32_t crc;
    const struct opened *file = find_opened(checkpoint, name);
    if (file == NULL)
        return snug_fail(err, SNUG_BAD_FILE, "%s: the checkpoint has no %s", checkpoint->dir, name);
    TRY(safetensors_crc(file->st, &crc, err));
    if (crc != file->crc)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: the file is damaged: its CRC-32 is %08" PRIx32
                         ", state.json has %08" PRIx32 "; restore it or use another checkpoint",
                         safetensors_path(file->st), crc, file->crc);
    return SNUG_OK;
}
