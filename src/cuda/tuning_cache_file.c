/*
 * tuning_cache_file.c -- tunings as lines of text: the key, the words of the algorithm in hex, and
 * the time in milliseconds.  See tuning_cache_file.h.
 */
#include "cuda/tuning_cache_file.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/fd.h"
#include "base/text.h"

enum { LINE_MOST = 1024 }; /* a line has about 530 characters at most */

/* ---- lists ----------------------------------------------------------------------------------- */

struct tuning *tuning_list_find(const struct tuning_list *list, const int64_t key[TUNING_KEY])
{
    for (size_t i = 0; i < list->n; i++)
        if (memcmp(list->tunings[i].key, key, sizeof list->tunings[i].key) == 0)
            return &list->tunings[i];
    return NULL;
}

bool tuning_list_add(struct tuning_list *list, const struct tuning *tuning)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        struct tuning *tunings = realloc(list->tunings, capacity * sizeof *tunings);
        if (tunings == NULL) {
            list->failed = true;
            return false;
        }
        list->tunings = tunings;
        list->capacity = capacity;
    }
    list->tunings[list->n++] = *tuning;
    return true;
}

void tuning_list_free(struct tuning_list *list)
{
    free(list->tunings);
    *list = (struct tuning_list){0};
}

/* ---- the path of the file
 * --------------------------------------------------------------------- */

static bool is_named_by_user(const char **value)
{
    *value = getenv("SNUG_TUNING_CACHE");
    return *value != NULL && **value != '\0';
}

bool tuning_cache_file_path(const char *title, char **path)
{
    const char *value = NULL;
    char *folder;
    *path = NULL;
    if (is_named_by_user(&value) && strcmp(value, "off") == 0)
        return true;
    if (is_named_by_user(&value))
        return (*path = strdup(value)) != NULL;
    if (cache_folder(&folder, NULL) != SNUG_OK)
        return false;
    if (folder == NULL)
        return true;
    struct text name = {0};
    text_add(&name, "%s/", folder);
    for (const char *c = title; *c != '\0'; c++)
        text_add(&name, "%c", isalnum((unsigned char)*c) || *c == '.' ? *c : '-');
    text_add(&name, ".tuning");
    free(folder);
    *path = text_take(&name);
    return *path != NULL;
}

/* ---- reading and writing --------------------------------------------------------------------- */

/* Parses the number at *at and moves *at past it. */
static bool take_word(const char **at, int base, uint64_t *word)
{
    char *end = NULL;
    *word = strtoull(*at, &end, base);
    bool ok = end != *at && (*end == ' ' || *end == '\n');
    *at = end;
    return ok;
}

/* A line that is truncated, or runs into another one, has too few numbers or too many. */
static bool read_tuning(const char *line, struct tuning *tuning)
{
    char *end = NULL;
    *tuning = (struct tuning){.from_file = true};
    bool ok = strchr(line, '\n') != NULL;
    for (int i = 0; i < TUNING_KEY && ok; i++) {
        uint64_t word = 0;
        ok = take_word(&line, 10, &word);
        tuning->key[i] = (int64_t)word;
    }
    for (int i = 0; i < TUNING_WORDS && ok; i++)
        ok = take_word(&line, 16, &tuning->algorithm[i]);
    if (!ok)
        return false;
    tuning->ms = strtof(line, &end);
    return end != line && *end == '\n';
}

static void add_tuning(struct text *out, const struct tuning *tuning)
{
    for (int i = 0; i < TUNING_KEY; i++)
        text_add(out, "%" PRId64 " ", tuning->key[i]);
    for (int i = 0; i < TUNING_WORDS; i++)
        text_add(out, "%" PRIx64 " ", tuning->algorithm[i]);
    text_add(out, "%.9g\n", (double)tuning->ms);
}

bool tuning_cache_file_read(const char *path, const char *title, struct tuning_list *list)
{
    char line[LINE_MOST] = "";
    int64_t n_bytes;
    int fd;
    enum snug_status status = fd_open_read(path, &fd, &n_bytes, NULL);
    list->failed |= status == SNUG_NO_MEMORY;
    if (status != SNUG_OK)
        return false;
    FILE *file = fdopen(fd, "r");
    if (file == NULL) {
        list->failed |= errno == ENOMEM;
        close(fd);
        return false;
    }
    bool is_ours = fgets(line, sizeof line, file) != NULL;
    line[strcspn(line, "\n")] = '\0';
    is_ours = is_ours && strcmp(line, title) == 0;
    struct tuning tuning;
    while (is_ours && fgets(line, sizeof line, file) != NULL)
        if (read_tuning(line, &tuning) && !tuning_list_add(list, &tuning))
            break;
    fclose(file);
    return is_ours;
}

/* Writes a temporary file, then renames it over the old one. */
static void replace(const char *path, const struct text *bytes)
{
    struct text own = {0};
    text_add(&own, "%s.XXXXXX", path);
    int fd = own.failed ? -1 : mkstemp(own.data);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (file != NULL) {
        bool ok = fwrite(bytes->data, 1, bytes->length, file) == bytes->length;
        ok = fclose(file) == 0 && ok;
        if (!ok || rename(own.data, path) != 0)
            (void)unlink(own.data);
    } else if (fd >= 0) {
        close(fd);
        (void)unlink(own.data);
    }
    text_free(&own);
}

static bool make_folder_of_cache(void)
{
    char *folder;
    bool ok = cache_folder(&folder, NULL) == SNUG_OK && folder != NULL &&
              cache_make_folder(folder, NULL) == SNUG_OK;
    free(folder);
    return ok;
}

/* Is there a file at `path` that must not be overwritten: one with another title, or unreadable? */
static bool belongs_to_other(const char *path, bool named)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return false;
    return named ? info.st_size > 0 : access(path, R_OK) != 0;
}

static bool merge(struct tuning_list *all, struct tuning_list *list)
{
    bool ok = true;
    for (size_t i = 0; i < list->n && ok; i++) {
        struct tuning *own = &list->tunings[i], *there = tuning_list_find(all, own->key);
        if (there == NULL)
            ok = own->ms == 0.0f || tuning_list_add(all, own);
        else if (own->replaces)
            *there = *own;
        else
            *own = *there;
    }
    return ok;
}

void tuning_cache_file_add(const char *path, const char *title, struct tuning_list *list)
{
    const char *value = NULL;
    struct tuning_list all = {0};
    struct text out = {0};
    bool named = is_named_by_user(&value);
    if (!tuning_cache_file_read(path, title, &all) && belongs_to_other(path, named))
        return;
    bool ok = !all.failed && merge(&all, list);
    text_add(&out, "%s\n", title);
    for (size_t i = 0; i < all.n; i++)
        add_tuning(&out, &all.tunings[i]);
    if (ok && !out.failed && (named || make_folder_of_cache()))
        replace(path, &out);
    text_free(&out);
    tuning_list_free(&all);
}
