/*
 * args.c -- parses the flags of one command.
 *
 * A flag is `--name value` or `--name=value`.  Besides a command's own flags, every recipe key is a
 * flag.  Recipe files are read before flags are applied, so a flag overrides a file wherever it
 * appears on the line.
 */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MOST = 128 }; /* flag names to compare a misspelled flag with */

struct setting { /* a recipe flag; settings are in the order typed */
    const char *key, *value;
};

struct parser {
    struct args *args;
    char **argv;
    int argc, next;
    struct setting *settings; /* argc + 1 entries */
    int n_settings;
    struct snug_error err;
};

static bool wrong(struct parser *parser, int exit_status)
{
    parser->args->exit_status = exit_status;
    return false;
}

static struct flag *find_flag(const struct args *args, const char *name)
{
    for (int i = 0; i < args->n_flags; i++)
        if (strcmp(args->flags[i].name, name) == 0)
            return &args->flags[i];
    return NULL;
}

/* The flag of "-o" or "-0", or NULL. */
static struct flag *find_letter(const struct args *args, const char *word)
{
    for (int i = 0; i < args->n_flags; i++)
        if (args->flags[i].letter != '\0' && args->flags[i].letter == word[1] && word[2] == '\0')
            return &args->flags[i];
    return NULL;
}

bool args_given(const struct args *args, const char *flag_name)
{
    const struct flag *flag = find_flag(args, flag_name);
    return flag != NULL && flag->given;
}

static bool is_known(const struct args *args, const char *name)
{
    bool of_recipe = args->takes_recipe && snug_recipe_has_key(name);
    return find_flag(args, name) != NULL || of_recipe;
}

/* The command with our flag for a foreign one; train takes every recipe key. */
static const char *command_with(const char *flag)
{
    bool is_sampling = strcmp(flag, "tokens") == 0 || strcmp(flag, "temperature") == 0;
    return is_sampling ? "generate" : "train";
}

/* Suggests our flag for one that other programs use; NULL if it is unknown. */
static const char *foreign_words(const struct args *args, const char *name, char words[160])
{
    char dashed[64];
    if (snprintf(dashed, sizeof dashed, "%s", name) >= (int)sizeof dashed)
        return NULL;
    for (char *c = dashed; *c != '\0'; c++)
        *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
    const struct foreign_flag *foreign = suggest_foreign(dashed);
    if (is_known(args, dashed))
        snprintf(words, 160, "did you mean --%s?", dashed);
    else if (foreign == NULL)
        return NULL;
    else if (is_known(args, foreign->flag))
        snprintf(words, 160, "use %s", foreign->instead);
    else
        snprintf(words, 160, "snug %s has %s", command_with(foreign->flag), foreign->instead);
    return words;
}

static bool unknown_flag(struct parser *parser, const char *name)
{
    const struct args *args = parser->args;
    char instead[160];
    if (foreign_words(args, name, instead) != NULL)
        return wrong(parser,
                     cli_usage_error("snug %s has no flag --%s; %s", args->command, name, instead));
    const char *words[WORDS_MOST] = {"help", args->takes_recipe ? "recipe" : NULL};
    const char *key;
    int n_words = 2;
    for (int i = 0; i < args->n_flags && n_words < WORDS_MOST; i++)
        words[n_words++] = args->flags[i].name;
    for (int i = 0; args->takes_recipe && (key = snug_recipe_key(i)) != NULL; i++)
        if (n_words < WORDS_MOST)
            words[n_words++] = key;
    const char *near = snug_nearest(name, words, n_words);
    if (near != NULL)
        return wrong(parser, cli_usage_error("snug %s has no flag --%s; did you mean --%s?",
                                             args->command, name, near));
    return wrong(parser, cli_usage_error("snug %s has no flag --%s; snug help %s lists all flags",
                                         args->command, name, args->command));
}

/* The text after `=`, or the next argument, unless that is a flag.  An argument with a blank or
 * `;`, such as a list for --compare, is not a flag. */
static const char *take_value(struct parser *parser, const char *inline_value)
{
    if (inline_value != NULL)
        return inline_value;
    const char *word = parser->next < parser->argc ? parser->argv[parser->next] : "--";
    if (strncmp(word, "--", 2) == 0 && strpbrk(word, " ;") == NULL)
        return NULL;
    parser->next++;
    return word;
}

static bool parse_real(const char *text, double *value)
{
    char *end;
    if (*text == '\0' || *text == ' ')
        return false;
    *value = strtod(text, &end);
    return *end == '\0' && isfinite(*value);
}

static bool parse_count(const char *text, int64_t *count)
{
    double real;
    char *end;
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (*text != ' ' && end != text && *end == '\0' && errno == 0) {
        *count = whole;
        return true;
    }
    if (!parse_real(text, &real) || real != floor(real) || fabs(real) > 9e15)
        return false;
    *count = (int64_t)real; /* 1e6 */
    return true;
}

static bool set_flag(struct parser *parser, struct flag *flag, const char *text)
{
    int64_t count;
    double real;
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)flag->value = true;
        return true;
    case FLAG_TEXT:
        *(const char **)flag->value = text;
        return true;
    case FLAG_COUNT:
        if (!parse_count(text, &count) || (double)count < flag->least)
            break;
        *(int64_t *)flag->value = count;
        return true;
    case FLAG_REAL:
        if (!parse_real(text, &real) || real < flag->least)
            break;
        *(double *)flag->value = real;
        return true;
    }
    return wrong(parser,
                 cli_usage_error("--%s needs a%s number of at least %g, not \"%s\"", flag->name,
                                 flag->kind == FLAG_COUNT ? " whole" : "", flag->least, text));
}

static bool take_own_flag(struct parser *parser, struct flag *flag, const char *inline_value)
{
    const char *value = NULL;
    if (flag->given)
        return wrong(parser, cli_usage_error("--%s is given twice; keep one", flag->name));
    if (flag->kind == FLAG_SWITCH && inline_value != NULL)
        return wrong(parser, cli_usage_error("--%s takes no value", flag->name));
    if (flag->kind != FLAG_SWITCH && (value = take_value(parser, inline_value)) == NULL)
        return wrong(parser, cli_usage_error("--%s needs a value; see snug help %s", flag->name,
                                             parser->args->command));
    flag->given = true;
    return set_flag(parser, flag, value);
}

/* --recipe may be repeated (a later file wins); other keys may not. */
static bool take_recipe_flag(struct parser *parser, const char *name, const char *inline_value)
{
    const char *value = take_value(parser, inline_value);
    bool is_file = strcmp(name, "recipe") == 0;
    if (value == NULL)
        return wrong(parser, cli_usage_error("--%s needs a value; see snug help %s", name,
                                             parser->args->command));
    for (int i = 0; i < parser->n_settings && !is_file; i++)
        if (strcmp(parser->settings[i].key, name) == 0)
            return wrong(parser, cli_usage_error("--%s is given twice; keep one", name));
    parser->settings[parser->n_settings++] = (struct setting){name, value};
    return true;
}

static bool take_flag(struct parser *parser, char *word)
{
    struct args *args = parser->args;
    char *name = word + 2;
    char *equals = strchr(name, '=');
    const char *inline_value = NULL;
    if (equals != NULL) {
        *equals = '\0';
        inline_value = equals + 1;
    }
    if (strcmp(name, "help") == 0)
        return wrong(parser, help_print(stdout, args->command));
    struct flag *flag = find_flag(args, name);
    if (flag != NULL)
        return take_own_flag(parser, flag, inline_value);
    if (args->takes_recipe && (strcmp(name, "recipe") == 0 || snug_recipe_has_key(name)))
        return take_recipe_flag(parser, name, inline_value);
    return unknown_flag(parser, name);
}

static bool take_operand(struct parser *parser, const char *word)
{
    struct args *args = parser->args;
    if (args->n_operands == args->most_operands) {
        if (args->most_operands == 0)
            return wrong(parser, cli_usage_error("snug %s takes no operand: remove \"%s\"",
                                                 args->command, word));
        return wrong(parser, cli_usage_error("snug %s takes only %s: remove \"%s\"", args->command,
                                             args->operand_names, word));
    }
    args->operands[args->n_operands++] = word;
    return true;
}

static bool take_words(struct parser *parser)
{
    bool flags_ended = false;
    while (parser->next < parser->argc) {
        char *word = parser->argv[parser->next++];
        bool is_flag = !flags_ended && word[0] == '-' && word[1] != '\0';
        bool ok;
        if (is_flag && strcmp(word, "--") == 0) {
            flags_ended = true;
            continue;
        }
        if (is_flag && strcmp(word, "-h") == 0)
            ok = wrong(parser, help_print(stdout, parser->args->command));
        else if (is_flag && find_letter(parser->args, word) != NULL)
            ok = take_own_flag(parser, find_letter(parser->args, word), NULL);
        else if (is_flag && word[1] != '-')
            ok = wrong(parser,
                       cli_usage_error("snug %s has no flag %s; write long flags such as --%s",
                                       parser->args->command, word,
                                       parser->args->takes_recipe ? "batch" : "help"));
        else if (is_flag)
            ok = take_flag(parser, word);
        else
            ok = take_operand(parser, word);
        if (!ok)
            return false;
    }
    return true;
}

static bool apply_settings(struct parser *parser)
{
    struct args *args = parser->args;
    enum snug_status status = SNUG_OK;
    for (int files = 1; files >= 0; files--)
        for (int i = 0; i < parser->n_settings && status == SNUG_OK; i++) {
            const struct setting *setting = &parser->settings[i];
            bool is_file = strcmp(setting->key, "recipe") == 0;
            if (is_file != (files == 1))
                continue;
            status =
                is_file ? snug_recipe_read(args->recipe, setting->value, &parser->err)
                        : snug_recipe_set(args->recipe, setting->key, setting->value, &parser->err);
        }
    return status == SNUG_OK || wrong(parser, cli_fail(&parser->err));
}

bool args_parse(struct args *args, int argc, char **argv)
{
    struct parser parser = {.args = args, .argv = argv, .argc = argc, .next = 1};
    bool ok = false;
    parser.settings = calloc((size_t)argc + 1, sizeof *parser.settings);
    args->recipe = args->takes_recipe ? snug_recipe_new() : NULL;
    if (parser.settings == NULL || (args->takes_recipe && args->recipe == NULL)) {
        parser.err.status = SNUG_NO_MEMORY;
        args->exit_status = cli_fail(&parser.err);
        goto done;
    }
    if (!take_words(&parser))
        goto done;
    if (args->n_operands < args->least_operands) {
        args->exit_status = cli_usage_error("snug %s needs %s; see snug help %s", args->command,
                                            args->operand_names, args->command);
        goto done;
    }
    ok = apply_settings(&parser);
done:
    free(parser.settings);
    return ok;
}

void args_free(struct args *args)
{
    snug_recipe_free(args->recipe);
    args->recipe = NULL;
}
