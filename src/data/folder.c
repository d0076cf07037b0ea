/*
 * folder.c -- list the files of a folder in an order that does not depend on the file system.
 *
 * Hidden files and folders are skipped and, in a tree, symbolic links too: a checked-out repository
 * is read without its .git, and no file is read twice.
 */
#include "data/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/fd.h"

enum { MAX_DEPTH = 64 };

void file_list_free(struct file_list *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->paths[i]);
    free(list->paths);
    *list = (struct file_list){0};
}

static enum snug_status walk(const char *folder, int depth, bool follow_links,
                             struct file_list *list, struct snug_error *err)
{
    enum snug_status status = SNUG_OK;
    struct dirent *item;
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return snug_fail(err, errno == ENOMEM ? SNUG_NO_MEMORY : SNUG_BAD_FILE,
                         "%s: cannot read the folder: %s", folder, strerror(errno));
    while (status == SNUG_OK && (item = readdir(dir)) != NULL) {
        struct stat info;
        if (item->d_name[0] == '.')
            continue;
        char *path = path_join(folder, item->d_name, "");
        if (path == NULL ||
            !array_grow((void **)&list->paths, &list->capacity, list->n + 1, sizeof *list->paths)) {
            status = snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory listing the files", folder);
        } else if ((follow_links ? stat(path, &info) : lstat(path, &info)) != 0) {
            /* removed since readdir: skip it */
        } else if (S_ISREG(info.st_mode)) {
            list->paths[list->n++] = path;
            path = NULL;
        } else if (S_ISDIR(info.st_mode) && depth > 1) {
            status = walk(path, depth - 1, follow_links, list, err);
        }
        free(path);
    }
    closedir(dir);
    return status;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum snug_status file_list_folder(const char *folder, bool recursive, struct file_list *list,
                                  struct snug_error *err)
{
    *list = (struct file_list){0};
    enum snug_status status = walk(folder, recursive ? MAX_DEPTH : 1, !recursive, list, err);
    if (status != SNUG_OK)
        file_list_free(list);
    else if (list->n > 1)
        qsort(list->paths, (size_t)list->n, sizeof *list->paths, compare_paths);
    return status;
}
