/*
 * files.c -- temporary folders and files for tests; see files.h.
 */
#include "support/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <ftw.h>

void files_make_dir(char dir[FILES_PATH_MAX])
{
    const char *place = getenv("TMPDIR");
    snprintf(dir, FILES_PATH_MAX, "%s/snug-test-XXXXXX", place == NULL ? "/tmp" : place);
    assert_non_null(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info, (void)kind, (void)place;
    return remove(path);
}

void files_remove_dir(const char *dir)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *files_path(const char *dir, const char *name)
{
    static char paths[8][FILES_PATH_MAX + 128];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof *paths, "%s/%s", dir, name);
    return path;
}

void files_make_subdir(const char *dir, const char *name)
{
    assert_int_equal(mkdir(files_path(dir, name), 0777), 0);
}

void files_write(const char *dir, const char *name, const void *bytes, size_t n_bytes)
{
    FILE *file = fopen(files_path(dir, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

void files_write_text(const char *dir, const char *name, const char *text)
{
    files_write(dir, name, text, strlen(text));
}

char *files_read(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n_bytes = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*n_bytes + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n_bytes, file), *n_bytes);
    bytes[*n_bytes] = '\0';
    fclose(file);
    return bytes;
}
