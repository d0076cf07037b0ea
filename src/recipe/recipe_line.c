/*
 * recipe_line.c -- reads and writes a recipe as one line of flags.
 */
#include "recipe/recipe.h"

#include <stdio.h>
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

/* Writes the budget as a user would type it: with the fewest decimals that give the same bytes. */
static void add_memory(const struct snug_recipe *recipe, struct text *out)
{
    enum { DECIMALS_MOST = 4 };
    double gibi = (double)recipe->memory / (double)(1 << 30);
    for (int decimals = 0; decimals <= DECIMALS_MOST; decimals++)
        for (int unit = 0; unit < 2; unit++) {
            char typed[32];
            int64_t bytes;
            snprintf(typed, sizeof typed, "%.*f%c", decimals, unit == 0 ? gibi : gibi * 1024,
                     unit == 0 ? 'G' : 'M');
            if (text_parse_size(typed, &bytes) && bytes == recipe->memory) {
                text_add(out, " --memory %s", typed);
                return;
            }
        }
    text_add(out, " --memory %lld", (long long)recipe->memory);
}

void recipe_write_flags(const struct snug_recipe *recipe, struct text *out)
{
    const char *name;
    for (int i = 0; (name = snug_recipe_key(i)) != NULL; i++) {
        struct text value = {0};
        if (!recipe_is_given(recipe, name))
            continue;
        recipe_get(recipe, name, &value);
        const char *words = text_part(out, &value);
        if (strcmp(name, "memory") == 0)
            add_memory(recipe, out);
        else if (*words != '\0') {
            text_add(out, " --%s ", name);
            text_add_word(out, words);
        }
        text_free(&value);
    }
}
