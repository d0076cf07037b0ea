/*
 * tuning_cache_file.h -- the algorithms of matmuls, kept from one run to the next.
 *
 * A file is for one version of the library on one kind of GPU, which its first line names; each of the
 * others is a pin.  It lies in snug's cache (base/cache.h), one for each such title, or where
 * SNUG_CUDA_PINS=FILE says; SNUG_CUDA_PINS=off: there is none.  A FILE with another title is left alone.
 *
 * Several processes may have it in use: a write takes what is there and what is new to a file of
 * its own, which then replaces it.  Of two writes at the same instant one may be lost, and its pins
 * are chosen again by the next run, perhaps otherwise; what is there is whole at any time.  What
 * cannot be read is chosen anew, what cannot be written is not kept, and neither is a mistake.  But where
 * memory runs out nothing is written: a list that lacks pins would take them from the file.
 *
 * There is nothing of CUDA in here, so that it is tested where there is none.
 */
#ifndef SNUG_CUDA_TUNING_CACHE_FILE_H
#define SNUG_CUDA_TUNING_CACHE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TUNING_KEY = 18, TUNING_WORDS = 8 };

struct tuning {
    int64_t key[TUNING_KEY]; /* the numbers of a matmul's shape */
    uint64_t algorithm[TUNING_WORDS];
    float ms; /* what it took when it was chosen; 0: chosen without a timing, and not kept in files.
                      With a key of zeros: the bytes that a copy moves in a millisecond. */
    bool from_file; /* and not chosen by this process */
    bool replaces;  /* the file's, which no longer serves; not kept in files */
};

struct tuning_list { /* all zeros is the empty list */
    struct tuning *tunings;
    size_t n, capacity;
    bool failed; /* memory ran out: it may lack what the file has */
};

/* NULL: there is none with that key. */
struct tuning *tuning_list_find(const struct tuning_list *list, const int64_t key[TUNING_KEY]);
bool tuning_list_add(struct tuning_list *list, const struct tuning *tuning); /* false: no memory */
void tuning_list_free(struct tuning_list *list);

/* *path is the caller's; NULL: pins are not kept.  False: no memory. */
bool tuning_cache_file_path(const char *title, char **path);
/* False: there is no file of that title.  A line that is no pin is passed over. */
bool tuning_cache_file_read(const char *path, const char *title, struct tuning_list *list);
/* Adds those of the list that the file does not have yet, or that replace what it has.  Of the others the
 * list gets what the file has: another process may have chosen otherwise meanwhile. */
void tuning_cache_file_add(const char *path, const char *title, struct tuning_list *list);

#endif
