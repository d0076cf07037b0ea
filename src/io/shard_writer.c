/*
 * shard_writer.c -- writes a stream of token ids as shards in a folder.
 *
 * Files are named NAME.part until all of them are complete, so nobody trains on half a data set.
 */
#include "io/shard_writer.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/text.h"
#include "io/file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are little-endian");

enum { BUFFER_TOKENS = 1 << 16, NAME_BYTES = 32, SHARD_TOKENS = 100000000 };

struct shard_writer {
    struct shard_writer_spec spec;
    char *folder;
    int n_files;       /* begun */
    int fd;            /* of the last file, or -1 */
    char *name, *part; /* room for paths, path_bytes each */
    size_t path_bytes;
    int64_t in_file;  /* tokens in the last file */
    int64_t n_tokens; /* in all */
    bool made_folder, is_finished;
    uint16_t narrow[BUFFER_TOKENS];
};

static enum snug_status no_memory(struct snug_error *err)
{
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory writing token shards");
}

/* FOLDER/train_000000.bin with a suffix, in one of two places: removing files must not need memory.
 * */
static const char *path_of(struct shard_writer *w, int index, const char *suffix)
{
    char *to = *suffix == '\0' ? w->name : w->part;
    snprintf(to, w->path_bytes, "%s/train_%06d.bin%s", w->folder, index, suffix);
    return to;
}

static const char *last_path(struct shard_writer *w)
{
    return path_of(w, w->n_files - 1, ".part");
}

static enum snug_status check_empty(const char *folder, struct snug_error *err)
{
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return snug_fail(err, SNUG_IO_ERROR, "%s: %s", folder, strerror(errno));
    enum snug_status status = SNUG_OK;
    struct dirent *item;
    while (status == SNUG_OK && (item = readdir(dir)) != NULL)
        if (text_ends_in(item->d_name, ".bin") || text_ends_in(item->d_name, ".bin.part"))
            status = snug_fail(
                err, SNUG_BAD_ARGUMENT, "%s has token shards already (%s): choose another folder%s",
                folder, item->d_name,
                text_ends_in(item->d_name, ".part") ? ", or remove what an interrupted run has left"
                                                    : "");
    closedir(dir);
    return status;
}

enum snug_status shard_writer_open(const struct shard_writer_spec *spec,
                                   struct shard_writer **writer, struct snug_error *err)
{
    *writer = NULL;
    struct shard_writer *w = calloc(1, sizeof *w);
    if (w == NULL)
        return no_memory(err);
    w->spec = *spec;
    w->fd = -1;
    w->spec.most_tokens = spec->most_tokens > 0 ? spec->most_tokens : SHARD_TOKENS;
    w->path_bytes = strlen(spec->folder) + NAME_BYTES;
    w->folder = strdup(spec->folder);
    w->name = malloc(w->path_bytes);
    w->part = malloc(w->path_bytes);
    bool has_room = w->folder != NULL && w->name != NULL && w->part != NULL;
    enum snug_status status = has_room ? SNUG_OK : no_memory(err);
    if (status == SNUG_OK) {
        w->made_folder = mkdir(spec->folder, 0777) == 0;
        if (!w->made_folder && errno != EEXIST)
            status = snug_fail(err, SNUG_IO_ERROR, "%s: cannot create the folder: %s", spec->folder,
                               strerror(errno));
    }
    if (status == SNUG_OK)
        status = check_empty(spec->folder, err);
    if (status == SNUG_OK)
        *writer = w;
    else
        shard_writer_free(w);
    return status;
}

/* Writes the header and closes the file. */
static enum snug_status end_file(struct shard_writer *w, struct snug_error *err)
{
    if (w->fd < 0)
        return SNUG_OK;
    uint32_t ints[SHARD_HEADER_INTS];
    struct shard_header header = {w->spec.token_bytes, w->in_file, w->spec.tokenizer};
    shard_header_write(&header, ints);
    enum snug_status status =
        file_write_at(w->fd, last_path(w), ints, sizeof ints, 0, NULL, NULL, err);
    if (status == SNUG_OK)
        status = file_finish(w->fd, last_path(w), NULL, err);
    else
        close(w->fd);
    w->fd = -1;
    return status;
}

static enum snug_status begin_file(struct shard_writer *w, struct snug_error *err)
{
    TRY(file_create(path_of(w, w->n_files, ".part"), &w->fd, NULL, err));
    w->n_files++;
    w->in_file = 0;
    return SNUG_OK;
}

static enum snug_status write_ids(struct shard_writer *w, const int32_t *ids, int64_t n,
                                  struct snug_error *err)
{
    int64_t size = w->spec.token_bytes, at = SHARD_HEADER_BYTES + w->in_file * size;
    const void *bytes = ids;
    if (size == 2) {
        for (int64_t i = 0; i < n; i++)
            w->narrow[i] = (uint16_t)ids[i];
        bytes = w->narrow;
    }
    TRY(file_write_at(w->fd, last_path(w), bytes, n * size, at, NULL, NULL, err));
    w->in_file += n;
    w->n_tokens += n;
    return SNUG_OK;
}

enum snug_status shard_writer_add(struct shard_writer *w, const int32_t *ids, int64_t n,
                                  struct snug_error *err)
{
    for (int64_t done = 0, now; done < n; done += now) {
        if (w->fd >= 0 && w->in_file == w->spec.most_tokens)
            TRY(end_file(w, err));
        if (w->fd < 0)
            TRY(begin_file(w, err));
        now = w->spec.most_tokens - w->in_file;
        now = now < BUFFER_TOKENS ? now : BUFFER_TOKENS;
        now = now < n - done ? now : n - done;
        TRY(write_ids(w, ids + done, now, err));
    }
    return SNUG_OK;
}

enum snug_status shard_writer_finish(struct shard_writer *w, struct snug_error *err)
{
    TRY(end_file(w, err));
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < w->n_files && status == SNUG_OK; i++)
        status = file_rename(path_of(w, i, ".part"), path_of(w, i, ""), NULL, err);
    if (status == SNUG_OK)
        status = file_sync_folder(w->folder, NULL, err);
    w->is_finished = status == SNUG_OK;
    return status;
}

int64_t shard_writer_n_tokens(const struct shard_writer *w)
{
    return w->n_tokens;
}

int shard_writer_n_files(const struct shard_writer *w)
{
    return w->n_files;
}

/* A shard may have its name already if a later one could not be renamed. */
static void remove_files(struct shard_writer *w)
{
    for (int i = 0; i < w->n_files; i++) {
        unlink(path_of(w, i, ".part"));
        unlink(path_of(w, i, ""));
    }
    if (w->made_folder)
        rmdir(w->folder);
}

void shard_writer_free(struct shard_writer *w)
{
    if (w == NULL)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (!w->is_finished && w->folder != NULL && w->name != NULL && w->part != NULL)
        remove_files(w);
    free(w->folder);
    free(w->name);
    free(w->part);
    free(w);
}
