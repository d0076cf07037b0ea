/*
 * fetch.h -- download data sets from their publishers.
 */
#ifndef SNUG_DATA_FETCH_H
#define SNUG_DATA_FETCH_H

#include "base/status.h"

enum { FETCH_FILES_MAX = 4 };

struct fetch_set {
    const char *name, *about; /* about: one line of description */
    const char *from;         /* URL of the files, without a trailing slash */
    struct {
        const char *name, *md5;
    } files[FETCH_FILES_MAX]; /* a NULL name ends the list early */
    /* Folder in the first file, a .tar.gz; NULL if nothing is to be unpacked. */
    const char *unpacks_to;
};

/* Finds a set by name.  Returns NULL and an error that lists the available names if unknown. */
const struct fetch_set *fetch_find(const char *name, struct snug_error *err);

/* One line per set: name and description. */
struct text;
void fetch_list(struct text *out);

/* Whether `snug data NAME` can download it. */
int fetch_knows(const char *name);

/* Downloads the missing files to `folder`, verifies them and reports each step through `say`.  NULL
 * for `folder` means the folder where data_open looks for the set by name; NULL for `from` means
 * the publisher.  A file gets its name only once it is complete and verified.  Interrupted
 * downloads resume. */
enum snug_status fetch_set_to(const struct fetch_set *set, const char *folder, const char *from,
                              snug_say_fn *say, void *user, struct snug_error *err);

#endif
