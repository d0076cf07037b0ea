/*
 * folder.h -- lists the files of a folder, in an order that does not depend on the file system.
 */
#ifndef SNUG_DATA_FOLDER_H
#define SNUG_DATA_FOLDER_H

#include <stdbool.h>

#include "base/status.h"

/* A sorted list of the regular files in a folder, or in its whole tree if `recursive`.  Skips
 * hidden files and, in a tree, symbolic links. */
struct file_list {
    char **paths;
    int n, capacity;
};
enum snug_status file_list_folder(const char *folder, bool recursive, struct file_list *list,
                                  struct snug_error *err);
void file_list_free(struct file_list *list);

#endif
