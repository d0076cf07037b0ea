/*
 * json.h -- jansson with messages that name the file and the key.
 *
 * `where` is the name that messages begin with, usually the path.
 */
#ifndef SNUG_IO_JSON_H
#define SNUG_IO_JSON_H

#include <jansson.h>

#include "io/file.h"

/* An object or a list of the given text; keys that occur twice are refused.  Free with
 * json_decref(). */
enum snug_status json_parse(const char *text, size_t n_bytes, const char *where, json_t **value,
                            struct snug_error *err);
/* A file that must hold an object. */
enum snug_status json_read_object(const char *path, json_t **object, struct snug_error *err);
/* Making values.  One that there was no memory for is NULL, and so is one that it was put into: the
 * maker looks once, at the end.  Both take the value. */
void json_put(json_t **object, const char *key, json_t *value);
void json_push(json_t **array, json_t *value);
/* The text of a value with jansson's flags, the caller's to free(); NULL: out of memory, be it here
 * or when the value was made. */
char *json_to_text(const json_t *value, size_t flags);
/* Indented, with a newline at the end, atomic. */
enum snug_status json_write(const char *path, const json_t *value, struct file_faults *faults,
                            struct snug_error *err);

/* Members that must be there, of the right type and in range. */
enum snug_status json_get_integer(const json_t *object, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *value, struct snug_error *err);
enum snug_status json_get_real(const json_t *object, const char *where, const char *key,
                               double *value, struct snug_error *err); /* whole numbers too */
enum snug_status json_get_bool(const json_t *object, const char *where, const char *key,
                               bool *value, struct snug_error *err);
/* *value lives as long as the object. */
enum snug_status json_get_string(const json_t *object, const char *where, const char *key,
                                 const char **value, struct snug_error *err);
enum snug_status json_get_object(const json_t *object, const char *where, const char *key,
                                 json_t **value, struct snug_error *err);

/* There and not null: what a caller asks before one of the above where a default exists. */
bool json_has(const json_t *object, const char *key);

#endif
