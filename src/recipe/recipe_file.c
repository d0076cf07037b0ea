/*
 * recipe_file.c -- reads a recipe file: lines `key = value`, with # comments.
 */
#include "io/file.h"
#include "recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_MOST = 1022, FILE_MOST = 1 << 20 }; /* bytes */

static char *trim(char *text)
{
    while (*text == ' ' || *text == '\t')
        text++;
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL)
        text[--length] = '\0';
    return text;
}

static enum snug_status read_line(snug_recipe *recipe, char *line, struct snug_error *err)
{
    if (strlen(line) > LINE_MOST)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "the line is too long: at most %d bytes",
                         LINE_MOST);
    line[strcspn(line, "#")] = '\0';
    char *name = trim(line), *equals = strchr(name, '=');
    if (*name == '\0')
        return SNUG_OK;
    if (equals == NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "expected key = value");
    *equals = '\0';
    return snug_recipe_set(recipe, trim(name), trim(equals + 1), err);
}

static enum snug_status read_lines(snug_recipe *recipe, const char *path, char *text,
                                   struct snug_error *err)
{
    struct snug_error inner;
    char *line;
    for (int number = 1; (line = strsep(&text, "\n")) != NULL; number++) {
        enum snug_status status = read_line(recipe, line, &inner);
        if (status != SNUG_OK)
            return snug_fail(err, status, "recipe %s, line %d: %.300s", path, number,
                             inner.message);
    }
    return SNUG_OK;
}

enum snug_status snug_recipe_read(snug_recipe *recipe, const char *path, struct snug_error *err)
{
    struct snug_error inner;
    char *text;
    size_t n_bytes;
    enum snug_status status = file_read_all(path, FILE_MOST, &text, &n_bytes, &inner);
    if (status != SNUG_OK)
        return snug_fail(err, status, "recipe %.450s", inner.message);
    if (memchr(text, '\0', n_bytes) != NULL)
        status =
            snug_fail(err, SNUG_BAD_FILE, "recipe %s is not a text file: it has a NUL byte", path);
    else
        status = read_lines(recipe, path, text, err);
    free(text);
    return status;
}
