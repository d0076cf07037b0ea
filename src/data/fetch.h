/*
 * fetch.h -- data sets from their publishers.
 */
#ifndef SNUG_DATA_FETCH_H
#define SNUG_DATA_FETCH_H

#include "base/status.h"

enum { FETCH_FILES_MAX = 4 };

struct fetch_set {
    const char *name, *about; /* what it is called, what it is */
    const char *from;         /* where its files are, without a slash at the end */
    struct {
        const char *name, *md5;
    } files[FETCH_FILES_MAX]; /* ends early in a NULL name */
    const char
        *unpacks_to; /* the first file is a .tar.gz that holds this folder; NULL: as they are */
};

/* By name; NULL and the names there are in the message if there is none. */
const struct fetch_set *fetch_find(const char *name, struct snug_error *err);

/* A line for each set: its name, what it is. */
struct text;
void fetch_list(struct text *out);

/* Whether `snug data NAME` can get it. */
int fetch_knows(const char *name);

/* Downloads what is missing into `folder` (NULL: where the set is looked for by name), checks it, and
 * says each thing it does.  A file appears under its name whole and checked or not at all; what a
 * broken download left is gone on with.  `from` NULL: the publisher. */
enum snug_status fetch_set_to(const struct fetch_set *set, const char *folder, const char *from,
                              snug_say_fn *say, void *user, struct snug_error *err);

#endif
