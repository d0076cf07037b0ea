/*
 * recipe_line.c -- a recipe in one line, as it is typed: read on top of another one, and written.
 */
#include "train/recipe.h"

#include <stdlib.h>
#include <string.h>

static enum snug_status missing_value(const char *name, struct snug_error *err)
{
    return snug_fail(err, SNUG_BAD_ARGUMENT,
                     "recipe: \"%.60s\" has no value; write --key value or key=value", name);
}

enum snug_status snug_recipe_set_line(snug_recipe *recipe, const char *line, struct snug_error *err)
{
    char *words = strdup(line), *place = NULL;
    enum snug_status status =
        words == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
    char *word = status == SNUG_OK ? strtok_r(words, " \t\n", &place) : NULL;
    for (; word != NULL && status == SNUG_OK; word = strtok_r(NULL, " \t\n", &place)) {
        bool is_flag = strncmp(word, "--", 2) == 0;
        char *name = is_flag ? word + 2 : word, *value = strchr(name, '=');
        if (value != NULL)
            *value++ = '\0';
        else if (is_flag)
            value = strtok_r(NULL, " \t\n", &place);
        status =
            value == NULL ? missing_value(word, err) : snug_recipe_set(recipe, name, value, err);
    }
    free(words);
    return status;
}

/* Whole units where the size is one: what a person would have typed. */
static void add_memory(const struct snug_recipe *recipe, struct text *out)
{
    const char *unit = recipe->memory % (1 << 30) == 0   ? "G"
                       : recipe->memory % (1 << 20) == 0 ? "M"
                                                         : "";
    int64_t divisor = *unit == 'G' ? 1 << 30 : *unit == 'M' ? 1 << 20 : 1;
    text_add(out, " --memory %lld%s", (long long)(recipe->memory / divisor), unit);
}

void recipe_write_flags(const struct snug_recipe *recipe, struct text *out)
{
    const char *name;
    for (int i = 0; (name = snug_recipe_key(i)) != NULL; i++) {
        struct text value = {0};
        if (!recipe_is_given(recipe, name))
            continue;
        recipe_get(recipe, name, &value);
        if (strcmp(name, "memory") == 0)
            add_memory(recipe, out);
        else if (value.length > 0)
            text_add(out, " --%s %s", name, value.data);
        text_free(&value);
    }
}
