/*
 * json.c -- typed reads and atomic writes of JSON; see json.h.
 */
#include "io/json.h"

#include <stdlib.h>

#include "base/text.h"

static const int64_t MAX_JSON_BYTES = 64 << 20;

enum snug_status json_read_object(const char *path, json_t **object, struct snug_error *err)
{
    char *text;
    size_t n_bytes;
    *object = NULL;
    TRY(file_read_all(path, MAX_JSON_BYTES, &text, &n_bytes, err));
    enum snug_status status = json_parse(text, n_bytes, path, object, err);
    free(text);
    if (status == SNUG_OK && !json_is_object(*object)) {
        json_decref(*object);
        *object = NULL;
        status = snug_fail(err, SNUG_BAD_FILE, "%s: the file must contain a JSON object", path);
    }
    return status;
}

void json_put(json_t **object, const char *key, json_t *value)
{
    if (*object == NULL)
        json_decref(value);
    else if (json_object_set_new(*object, key, value) != 0) {
        json_decref(*object);
        *object = NULL;
    }
}

void json_push(json_t **array, json_t *value)
{
    if (*array == NULL)
        json_decref(value);
    else if (json_array_append_new(*array, value) != 0) {
        json_decref(*array);
        *array = NULL;
    }
}

static int add_piece(const char *bytes, size_t n_bytes, void *text)
{
    text_add_bytes(text, bytes, n_bytes);
    return ((struct text *)text)->failed ? -1 : 0;
}

char *json_to_text(const json_t *value, size_t flags)
{
    struct text text = {0};
    /* jansson continues after some failed callbacks, but text.failed stays set */
    if (value == NULL || json_dump_callback(value, add_piece, &text, flags) != 0)
        text.failed = true;
    return text_take(&text);
}

enum snug_status json_write(const char *path, const json_t *value, struct file_faults *faults,
                            struct snug_error *err)
{
    char *dumped = json_to_text(value, JSON_INDENT(2));
    struct text text = {0};
    if (dumped != NULL)
        text_add(&text, "%s\n", dumped);
    enum snug_status status =
        dumped == NULL || text.failed
            ? snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory writing the file", path)
            : file_write_atomic(path, text.data, text.length, faults, err);
    free(dumped);
    text_free(&text);
    return status;
}

bool json_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value != NULL && !json_is_null(value);
}

/* The member; or NULL, with an error that names the expected type. */
static json_t *member(const json_t *object, const char *where, const char *key, const char *wanted,
                      bool (*is_right)(const json_t *), struct snug_error *err)
{
    json_t *value = json_object_get(object, key);
    if (value == NULL)
        snug_fail(err, SNUG_BAD_FILE, "%s: \"%s\" is missing; it must be %s", where, key, wanted);
    else if (!is_right(value))
        snug_fail(err, SNUG_BAD_FILE, "%s: \"%s\" must be %s", where, key, wanted);
    else
        return value;
    return NULL;
}

static bool is_integer(const json_t *value)
{
    return json_is_integer(value);
}
static bool is_number(const json_t *value)
{
    return json_is_number(value);
}
static bool is_boolean(const json_t *value)
{
    return json_is_boolean(value);
}
static bool is_string(const json_t *value)
{
    return json_is_string(value);
}
static bool is_object(const json_t *value)
{
    return json_is_object(value);
}

enum snug_status json_get_integer(const json_t *object, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *value, struct snug_error *err)
{
    const json_t *found = member(object, where, key, "an integer", is_integer, err);
    if (found == NULL)
        return SNUG_BAD_FILE;
    *value = json_integer_value(found);
    if (*value < min || *value > max)
        return snug_fail(err, SNUG_BAD_FILE, "%s: \"%s\" is %lld; it must be from %lld to %lld",
                         where, key, (long long)*value, (long long)min, (long long)max);
    return SNUG_OK;
}

enum snug_status json_get_real(const json_t *object, const char *where, const char *key,
                               double *value, struct snug_error *err)
{
    const json_t *found = member(object, where, key, "a number", is_number, err);
    if (found == NULL)
        return SNUG_BAD_FILE;
    *value = json_number_value(found);
    return SNUG_OK;
}

enum snug_status json_get_bool(const json_t *object, const char *where, const char *key,
                               bool *value, struct snug_error *err)
{
    const json_t *found = member(object, where, key, "true or false", is_boolean, err);
    if (found == NULL)
        return SNUG_BAD_FILE;
    *value = json_is_true(found);
    return SNUG_OK;
}

enum snug_status json_get_string(const json_t *object, const char *where, const char *key,
                                 const char **value, struct snug_error *err)
{
    const json_t *found = member(object, where, key, "a string", is_string, err);
    if (found == NULL)
        return SNUG_BAD_FILE;
    *value = json_string_value(found);
    return SNUG_OK;
}

enum snug_status json_get_object(const json_t *object, const char *where, const char *key,
                                 json_t **value, struct snug_error *err)
{
    *value = member(object, where, key, "an object", is_object, err);
    return *value == NULL ? SNUG_BAD_FILE : SNUG_OK;
}
