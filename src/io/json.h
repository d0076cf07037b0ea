/*
 * json.h -- helpers around jansson whose error messages name the file and the key.
 *
 * `where` is the prefix of error messages, usually the path.
 */
#ifndef SNUG_IO_JSON_H
#define SNUG_IO_JSON_H

#include <jansson.h>

#include "io/file.h"

/* json_parse.c */
/* Parses an object or an array.  Refuses duplicate keys.  Free with json_decref(). */
enum snug_status json_parse(const char *text, size_t n_bytes, const char *where, json_t **value,
                            struct snug_error *err);
/* Reads a file that must contain an object. */
enum snug_status json_read_object(const char *path, json_t **object, struct snug_error *err);
/* For building values.  Out of memory turns a value into NULL, and adding a NULL value turns the
 * container into NULL, so the caller checks once, at the end.  Both functions take ownership of
 * `value`. */
void json_put(json_t **object, const char *key, json_t *value);
void json_push(json_t **array, json_t *value);
/* Prints a value with jansson's flags.  The caller frees the text.  Returns NULL if memory ran out,
 * here or when the value was built. */
char *json_to_text(const json_t *value, size_t flags);
/* Writes indented JSON with a final newline, atomically. */
enum snug_status json_write(const char *path, const json_t *value, struct file_faults *faults,
                            struct snug_error *err);

/* These fail unless the member exists, has the right type and is in range. */
enum snug_status json_get_integer(const json_t *object, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *value, struct snug_error *err);
enum snug_status json_get_real(const json_t *object, const char *where, const char *key,
                               double *value, struct snug_error *err); /* accepts integers too */
enum snug_status json_get_bool(const json_t *object, const char *where, const char *key,
                               bool *value, struct snug_error *err);
/* *value lives as long as the object. */
enum snug_status json_get_string(const json_t *object, const char *where, const char *key,
                                 const char **value, struct snug_error *err);
enum snug_status json_get_object(const json_t *object, const char *where, const char *key,
                                 json_t **value, struct snug_error *err);

/* Whether the member exists and is not null.  Call it first where a default exists. */
bool json_has(const json_t *object, const char *key);

#endif
