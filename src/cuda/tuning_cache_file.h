/*
 * tuning_cache_file.h -- the file that keeps the chosen gemm algorithms from one run to the next.
 *
 * A file belongs to one library version on one GPU model, named by its first line (the title).
 * Every other line is one tuning.  The file is in snug's cache folder (base/cache.h), one file per
 * title. SNUG_TUNING_CACHE=FILE names another file, SNUG_TUNING_CACHE=off disables it.  A FILE with
 * a different title is left untouched.
 *
 * Several processes may use the file.  A write merges the file's content with the new tunings,
 * writes a temporary file and renames it over the old one, so the file is always complete.  Of two
 * simultaneous writes one may be lost; the next run then chooses those algorithms again, perhaps
 * differently.  What cannot be read is tuned again and what cannot be written is dropped; neither
 * is an error.  When memory runs out nothing is written, because an incomplete list would remove
 * tunings from the file.
 *
 * This file does not depend on CUDA, so that it can be tested on machines without it.
 */
#ifndef SNUG_CUDA_TUNING_CACHE_FILE_H
#define SNUG_CUDA_TUNING_CACHE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TUNING_KEY = 18, TUNING_WORDS = 8 };

struct tuning {
    int64_t key[TUNING_KEY]; /* the fields of the gemm shape */
    uint64_t algorithm[TUNING_WORDS];
    float ms; /* time measured when it was chosen; 0: not timed, and not written to files. With a
               * key of all zeros: the bytes that a copy moves per millisecond. */
    bool from_file; /* read from the file, not chosen by this process */
    bool replaces;  /* the entry of the file is no longer valid; not stored in files */
};

struct tuning_list { /* all zeros: the empty list */
    struct tuning *tunings;
    size_t n, capacity;
    bool failed; /* memory ran out: the list may be incomplete */
};

/* Returns NULL if no tuning has that key. */
struct tuning *tuning_list_find(const struct tuning_list *list, const int64_t key[TUNING_KEY]);
bool tuning_list_add(struct tuning_list *list, const struct tuning *tuning); /* false: out of
                                                                              * memory */
void tuning_list_free(struct tuning_list *list);

/* *path is NULL if the cache is disabled; the caller frees it.  Returns false if out of memory. */
bool tuning_cache_file_path(const char *title, char **path);
/* Returns false if there is no file with that title.  Lines that are not valid tunings are
 * skipped. */
bool tuning_cache_file_read(const char *path, const char *title, struct tuning_list *list);
/* Adds the tunings that the file lacks or that replace entries of it.  All others are overwritten
 * in `list` with the entries of the file: another process may have chosen differently. */
void tuning_cache_file_add(const char *path, const char *title, struct tuning_list *list);

#endif
