/*
 * recipe_file.c -- a recipe from a file: a line `key = value` each, and # before what is not read.
 */
#include "train/recipe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LINE_MOST = 1024 };

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
    if (strlen(line) == LINE_MOST - 1 && line[LINE_MOST - 2] != '\n')
        return snug_fail(err, SNUG_BAD_ARGUMENT, "a line has at most %d bytes", LINE_MOST - 2);
    line[strcspn(line, "#")] = '\0';
    char *name = trim(line), *equals = strchr(name, '=');
    if (*name == '\0')
        return SNUG_OK;
    if (equals == NULL)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "write key = value");
    *equals = '\0';
    return snug_recipe_set(recipe, trim(name), trim(equals + 1), err);
}

enum snug_status snug_recipe_read(snug_recipe *recipe, const char *path, struct snug_error *err)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return snug_fail(err, SNUG_BAD_FILE, "recipe %s: %s", path, strerror(errno));
    char line[LINE_MOST];
    struct snug_error inner;
    enum snug_status status = SNUG_OK;
    for (int number = 1; status == SNUG_OK && fgets(line, sizeof line, file) != NULL; number++) {
        status = read_line(recipe, line, &inner);
        if (status != SNUG_OK)
            snug_fail(err, status, "recipe %s, line %d: %.300s", path, number, inner.message);
    }
    if (status == SNUG_OK && ferror(file)) /* a folder can be opened */
        status = snug_fail(err, SNUG_BAD_FILE, "recipe %s: %s", path, strerror(errno));
    fclose(file);
    return status;
}
