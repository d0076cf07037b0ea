/*
 * files.h -- temporary folders and files for tests.
 */
#ifndef TESTS_SUPPORT_FILES_H
#define TESTS_SUPPORT_FILES_H

#include <stddef.h>
#include <stdint.h>

enum { FILES_PATH_MAX = 512 };

void files_make_dir(char dir[FILES_PATH_MAX]); /* creates an empty folder, or fails the test */
void files_remove_dir(const char *dir);        /* recursively */

/* "DIR/NAME", in a static buffer that is reused eight calls later. */
const char *files_path(const char *dir, const char *name);
void files_make_subdir(const char *dir, const char *name);
void files_write(const char *dir, const char *name, const void *bytes, size_t n_bytes);
void files_write_text(const char *dir, const char *name, const char *text);
char *files_read(const char *path, size_t *n_bytes); /* NUL-terminated; the caller frees it */

#endif
