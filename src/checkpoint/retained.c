/*
 * retained.c -- create and remove retained checkpoints; see retained.h.
 */
#include "checkpoint/retained.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/fd.h"
#include "checkpoint/checkpoint.h"
#include "io/json.h"
#include "checkpoint/run_lock.h"

#define FOLDER "checkpoints"
enum { NAME_MAX_BYTES = 48, COPY_BYTES = 1 << 16 };

static enum snug_status no_memory(const char *dir, struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory keeping a checkpoint", dir);
}

static enum snug_status failed(const char *path, const char *doing, struct snug_error *err)
{
    return snug_fail(err, SNUG_IO_ERROR, "%s: cannot %s: %s%s", path, doing, strerror(errno),
                     errno == ENOSPC || errno == EDQUOT ? "; free disk space" : "");
}

/* "DIR/checkpoints/step-000020" plus a suffix.  The caller frees it. */
static char *path_of(const char *dir, int64_t step, const char *suffix)
{
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, FOLDER "/step-%06lld", (long long)step);
    return path_join(dir, name, suffix);
}

static bool is_there(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool retained_has(const char *dir, int64_t step)
{
    char *path = path_of(dir, step, "");
    bool has = path != NULL && is_there(path);
    free(path);
    return has;
}

/* Parses "step-000020".  *rest points behind the digits.  Returns false for any other name. */
static bool parse_name(const char *name, int64_t *step, const char **rest)
{
    static const char head[] = "step-";
    char *end;
    if (strncmp(name, head, sizeof head - 1) != 0 || name[sizeof head - 1] < '0' ||
        name[sizeof head - 1] > '9')
        return false;
    errno = 0;
    *step = strtoll(name + sizeof head - 1, &end, 10);
    *rest = end;
    return errno == 0;
}

/* Cuts off the last path component and returns it.  What remains is "" for the root. */
static char *cut_name(char *path, bool *is_bare)
{
    char *slash = strrchr(path, '/');
    *is_bare = slash == NULL;
    if (*is_bare)
        return path;
    *slash = '\0';
    return slash + 1;
}

enum snug_status retained_is_one(const char *dir, bool *is_one, struct snug_error *err)
{
    char real[PATH_MAX];
    char *path = strdup(realpath(dir, real) != NULL ? real : dir); /* realpath fails if it is new */
    const char *rest;
    int64_t step;
    bool is_bare;
    enum snug_status status = SNUG_OK;
    *is_one = false;
    if (path == NULL)
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory resolving the path", dir);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    if (parse_name(cut_name(path, &is_bare), &step, &rest) && *rest == '\0' && !is_bare &&
        strcmp(cut_name(path, &is_bare), FOLDER) == 0)
        status = checkpoint_exists(is_bare ? "." : path, is_one, err);
    free(path);
    return status;
}

/* ---- removing ------------------------------------------------------------------------------- */

static enum snug_status remove_tree(const char *path, struct file_faults *faults,
                                    struct snug_error *err);

static enum snug_status remove_entries(DIR *folder, const char *path, struct file_faults *faults,
                                       struct snug_error *err)
{
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *inner = path_join(path, entry->d_name, "");
        if (inner == NULL)
            return no_memory(path, err);
        enum snug_status status = remove_tree(inner, faults, err);
        free(inner);
        TRY(status);
    }
    return SNUG_OK;
}

/* Removes recursively, without following links.  Succeeds if the path does not exist. */
static enum snug_status remove_tree(const char *path, struct file_faults *faults,
                                    struct snug_error *err)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? SNUG_OK : failed(path, "stat", err);
    TRY(file_count_read(path, faults, err));
    if (!S_ISDIR(info.st_mode))
        return unlink(path) == 0 ? SNUG_OK : failed(path, "remove", err);
    DIR *folder = opendir(path);
    if (folder == NULL)
        return failed(path, "open the folder", err);
    enum snug_status status = remove_entries(folder, path, faults, err);
    closedir(folder);
    if (status == SNUG_OK && rmdir(path) != 0)
        status = failed(path, "remove", err);
    return status;
}

/* Does its state.json still have the step of its name?  An unreadable state.json does not. */
static enum snug_status is_unchanged(const char *path, int64_t step, bool *unchanged,
                                     struct file_faults *faults, struct snug_error *err)
{
    char *state_path = path_join(path, "state.json", "");
    struct snug_error why = {0};
    json_t *state = NULL;
    int64_t found = -1;
    if (state_path == NULL)
        return no_memory(path, err);
    enum snug_status status = file_count_read(state_path, faults, err);
    if (status == SNUG_OK && json_read_object(state_path, &state, &why) == SNUG_NO_MEMORY)
        status = no_memory(path, err);
    *unchanged = status == SNUG_OK && state != NULL &&
                 json_get_integer(state, path, "step", 0, INT64_MAX, &found, &why) == SNUG_OK &&
                 found == step;
    json_decref(state);
    free(state_path);
    return status;
}

/* May it be removed, or has it become a run of its own?  The caller holds *lock until done. */
static enum snug_status is_removable(const char *path, int64_t step, bool *removable,
                                     struct run_lock **lock, struct file_faults *faults,
                                     struct snug_error *err)
{
    struct snug_error why = {0};
    enum snug_status status = run_lock_take(path, false, lock, faults, &why);
    *removable = false;
    if (status == SNUG_BUSY || status == SNUG_BAD_FILE)
        return SNUG_OK;
    if (status != SNUG_OK)
        return snug_fail(err, status, "%s", why.message);
    return is_unchanged(path, step, removable, faults, err);
}

/* Renames the folder, then removes it.  Sets *is_gone unless it has become a run of its own. */
static enum snug_status remove_kept(const char *dir, int64_t step, bool *is_gone,
                                    struct file_faults *faults, struct snug_error *err)
{
    char *path = path_of(dir, step, ""), *old = path_of(dir, step, ".old");
    struct run_lock *lock = NULL;
    enum snug_status status = SNUG_OK;
    *is_gone = path != NULL && !is_there(path);
    if (path == NULL || old == NULL)
        status = no_memory(dir, err);
    else if (!*is_gone)
        status = is_removable(path, step, is_gone, &lock, faults, err);
    if (status == SNUG_OK && *is_gone && is_there(path) &&
        (status = remove_tree(old, faults, err)) == SNUG_OK &&
        (status = file_rename(path, old, faults, err)) == SNUG_OK)
        status = remove_tree(old, faults, err);
    run_lock_give_back(lock);
    free(path);
    free(old);
    return status;
}

/* ---- creating ------------------------------------------------------------------------------- */

static enum snug_status copy_bytes(int from, const char *path, int64_t n_bytes, int to,
                                   const char *to_path, struct file_faults *faults,
                                   struct snug_error *err)
{
    char piece[COPY_BYTES];
    for (int64_t at = 0; at < n_bytes; at += COPY_BYTES) {
        int64_t left = n_bytes - at, n = left < COPY_BYTES ? left : COPY_BYTES;
        TRY(fd_read_at(from, path, piece, n, at, err));
        TRY(file_write_at(to, to_path, piece, n, at, NULL, faults, err));
    }
    return SNUG_OK;
}

static enum snug_status copy_file(const char *path, const char *to_path, struct file_faults *faults,
                                  struct snug_error *err)
{
    int from, to;
    int64_t n_bytes;
    TRY(fd_open_read(path, &from, &n_bytes, err));
    enum snug_status status = file_create(to_path, &to, faults, err);
    if (status == SNUG_OK) {
        status = copy_bytes(from, path, n_bytes, to, to_path, faults, err);
        if (status == SNUG_OK)
            status = file_finish(to, to_path, faults, err);
        else
            close(to);
    }
    close(from);
    return status;
}

static bool has_no_links(int error)
{
    return error == EPERM || error == ENOTSUP || error == ENOSYS || error == EMLINK ||
           error == EXDEV;
}

static enum snug_status link_or_copy(const char *path, const char *to, struct file_faults *faults,
                                     struct snug_error *err)
{
    TRY(file_count_read(to, faults, err));
    if (link(path, to) == 0)
        return SNUG_OK;
    return has_no_links(errno) ? copy_file(path, to, faults, err)
                               : failed(to, "create a hard link", err);
}

static enum snug_status make_folder(const char *path, struct file_faults *faults,
                                    struct snug_error *err)
{
    TRY(file_count_read(path, faults, err));
    return mkdir(path, 0777) == 0 || errno == EEXIST ? SNUG_OK
                                                     : failed(path, "create this folder", err);
}

/* Links or copies one file.  Creates and syncs the subfolder of a name such as "adapter/x". */
static enum snug_status add_file(const char *dir, const char *fresh, const char *name,
                                 struct file_faults *faults, struct snug_error *err)
{
    char *from = path_join(dir, name, ""), *to = path_join(fresh, name, "");
    char *folder = to == NULL ? NULL : strdup(to);
    bool is_inner = strchr(name, '/') != NULL;
    enum snug_status status = SNUG_OK;
    if (from == NULL || to == NULL || folder == NULL) {
        status = no_memory(dir, err);
        goto done;
    }
    *strrchr(folder, '/') = '\0';
    if (is_inner)
        status = make_folder(folder, faults, err);
    if (status == SNUG_OK)
        status = link_or_copy(from, to, faults, err);
    if (status == SNUG_OK && is_inner)
        status = file_sync_folder(folder, faults, err);
done:
    free(from);
    free(to);
    free(folder);
    return status;
}

enum snug_status retained_check_home(const char *dir, struct snug_error *err)
{
    struct stat info;
    char *home = path_join(dir, FOLDER, "");
    enum snug_status status = SNUG_OK;
    if (home == NULL)
        return no_memory(dir, err);
    if (lstat(home, &info) != 0)
        status = errno == ENOENT || errno == ENOTDIR ? SNUG_OK : failed(home, "stat", err);
    else if (S_ISLNK(info.st_mode))
        status = snug_fail(err, SNUG_BAD_FILE,
                           "%s: --keep does not follow symbolic links: move this one away", home);
    else if (!S_ISDIR(info.st_mode))
        status = snug_fail(
            err, SNUG_BAD_FILE,
            "%s: --keep needs this path for a folder of checkpoints: move the file away", home);
    else if (access(home, W_OK | X_OK) != 0)
        status = failed(home, "write to the folder", err);
    free(home);
    return status;
}

/* Creates DIR/checkpoints if needed.  Refuses a symbolic link. */
static enum snug_status make_home(const char *dir, char **home, struct file_faults *faults,
                                  struct snug_error *err)
{
    *home = path_join(dir, FOLDER, "");
    if (*home == NULL)
        return no_memory(dir, err);
    bool is_new = !is_there(*home);
    TRY(make_folder(*home, faults, err));
    TRY(retained_check_home(dir, err));
    return is_new ? file_sync_folder(dir, faults, err) : SNUG_OK;
}

enum snug_status retained_add(const char *dir, int64_t step, const char *const *names, int n_names,
                              struct file_faults *faults, struct snug_error *err)
{
    char *home = NULL, *path = path_of(dir, step, ""), *fresh = path_of(dir, step, ".new");
    bool is_free = false;
    enum snug_status status =
        path == NULL || fresh == NULL ? no_memory(dir, err) : make_home(dir, &home, faults, err);
    if (status == SNUG_OK)
        status = remove_tree(fresh, faults, err);
    if (status == SNUG_OK)
        status = make_folder(fresh, faults, err);
    for (int i = 0; i < n_names && status == SNUG_OK; i++)
        status = add_file(dir, fresh, names[i], faults, err);
    if (status == SNUG_OK)
        status = file_sync_folder(fresh, faults, err);
    if (status == SNUG_OK)
        status = remove_kept(dir, step, &is_free, faults, err);
    if (status == SNUG_OK)
        status = is_free ? file_rename(fresh, path, faults, err) : remove_tree(fresh, faults, err);
    if (status == SNUG_OK)
        status = file_sync_folder(home, faults, err);
    free(home);
    free(path);
    free(fresh);
    return status;
}

/* ---- trimming ------------------------------------------------------------------------------- */

struct list {
    int64_t *steps;
    int n, capacity;
};

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Lists the checkpoints up to `step`.  Removes leftovers that end in .new or .old. */
static enum snug_status list_kept(DIR *folder, const char *home, int64_t step, struct list *list,
                                  struct file_faults *faults, struct snug_error *err)
{
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int64_t found;
        const char *rest;
        if (!parse_name(entry->d_name, &found, &rest))
            continue;
        if (strcmp(rest, ".new") == 0 || strcmp(rest, ".old") == 0) {
            char *path = path_join(home, entry->d_name, "");
            enum snug_status status =
                path == NULL ? no_memory(home, err) : remove_tree(path, faults, err);
            free(path);
            TRY(status);
        } else if (*rest == '\0' && found <= step) {
            void *grown = list->steps;
            if (!array_grow(&grown, &list->capacity, list->n + 1, sizeof *list->steps))
                return no_memory(home, err);
            list->steps = grown;
            list->steps[list->n++] = found;
        }
    }
    return SNUG_OK;
}

enum snug_status retained_trim(const char *dir, int64_t step, int64_t n_keep,
                               struct file_faults *faults, struct snug_error *err)
{
    struct list list = {0};
    bool is_gone;
    char *home = path_join(dir, FOLDER, "");
    if (home == NULL)
        return no_memory(dir, err);
    DIR *folder = opendir(home);
    enum snug_status status = folder == NULL ? failed(home, "open the folder", err)
                                             : list_kept(folder, home, step, &list, faults, err);
    if (folder != NULL)
        closedir(folder);
    if (list.n > 0)
        qsort(list.steps, (size_t)list.n, sizeof *list.steps, descending);
    for (int i = (int)(n_keep < list.n ? n_keep : list.n); i < list.n && status == SNUG_OK; i++)
        status = remove_kept(dir, list.steps[i], &is_gone, faults, err);
    free(list.steps);
    free(home);
    return status;
}
