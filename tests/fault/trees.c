/*
 * trees.c -- folders of a few small files; see trees.h.
 */
#include "fault/trees.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <dirent.h>

#include "support/files.h"

/* A lock is the business of processes that are gone. */
static bool is_passed_over(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strstr(name, "lock") != NULL;
}

static int list(const char *dir, struct dirent ***names)
{
    int n = scandir(dir, names, NULL, alphasort);
    assert_true(n >= 2);
    for (int i = n - 1; i >= 0; i--)
        if (is_passed_over((*names)[i]->d_name)) {
            free((*names)[i]);
            memmove(*names + i, *names + i + 1, (size_t)(--n - i) * sizeof **names);
        }
    return n;
}

static void free_list(struct dirent **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static void path_of(const char *dir, const char *name, char path[FILES_PATH_MAX])
{
    assert_true(snprintf(path, FILES_PATH_MAX, "%s/%s", dir, name) < FILES_PATH_MAX);
}

static bool is_folder(const char *path)
{
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    return S_ISDIR(info.st_mode);
}

static void write_file(const char *path, const char *bytes, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

void tree_copy(const char *from, const char *to)
{
    struct dirent **names;
    char a[FILES_PATH_MAX], b[FILES_PATH_MAX];
    int n = list(from, &names);
    assert_int_equal(mkdir(to, 0777), 0);
    for (int i = 0; i < n; i++) {
        path_of(from, names[i]->d_name, a);
        path_of(to, names[i]->d_name, b);
        if (is_folder(a)) {
            tree_copy(a, b);
            continue;
        }
        size_t n_bytes;
        char *bytes = files_read(a, &n_bytes);
        write_file(b, bytes, n_bytes);
        free(bytes);
    }
    free_list(names, n);
}

size_t tree_blot(char *text, size_t n_bytes)
{
    static const char *const keys[] = {"\"ms\": ",
                                       "\"tokens_per_s\": ",
                                       "\"samples_per_s\": ",
                                       "\"runtime_bytes\": ",
                                       "\"measured_peak_bytes\": ",
                                       "\"seconds\": "};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char *end = text + n_bytes, *at = text;
        while ((at = memmem(at, (size_t)(end - at), keys[i], strlen(keys[i]))) != NULL)
            for (at += strlen(keys[i]); at < end && strchr(",}\n", *at) == NULL; at++)
                *at = '#';
    }
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++)
        if (text[i] != '#' || n == 0 || text[n - 1] != '#')
            text[n++] = text[i];
    text[n] = '\0';
    return n;
}

static bool same_files(const char *a, const char *b)
{
    size_t n_a, n_b;
    char *in_a = files_read(a, &n_a), *in_b = files_read(b, &n_b);
    n_a = tree_blot(in_a, n_a);
    n_b = tree_blot(in_b, n_b);
    bool same = n_a == n_b && memcmp(in_a, in_b, n_a) == 0;
    free(in_a);
    free(in_b);
    return same;
}

const char *tree_difference(const char *a, const char *b)
{
    static char words[2 * FILES_PATH_MAX];
    struct dirent **in_a, **in_b;
    char of_a[FILES_PATH_MAX], of_b[FILES_PATH_MAX];
    int n_a = list(a, &in_a), n_b = list(b, &in_b);
    const char *found = "";
    for (int i = 0; (i < n_a || i < n_b) && *found == '\0'; i++) {
        const char *name = i < n_a ? in_a[i]->d_name : in_b[i]->d_name;
        if (i >= n_a || i >= n_b || strcmp(name, in_b[i]->d_name) != 0) {
            const char *other = i < n_b ? in_b[i]->d_name : "nothing more";
            snprintf(words, sizeof words, "%s has %s where %s has %s", a,
                     i < n_a ? name : "nothing more", b, other);
            found = words;
            break;
        }
        path_of(a, name, of_a);
        path_of(b, name, of_b);
        if (is_folder(of_a)) {
            found = tree_difference(of_a, of_b);
        } else if (!same_files(of_a, of_b)) {
            snprintf(words, sizeof words, "%.200s and %.200s differ", of_a, of_b);
            found = words;
        }
    }
    free_list(in_a, n_a);
    free_list(in_b, n_b);
    return found;
}
