/*
 * nearest.h -- the word that somebody may have meant.
 */
#ifndef SNUG_BASE_NEAREST_H
#define SNUG_BASE_NEAREST_H

/* The word nearest to `typed`, or NULL if none is near.  NULL words are skipped; case does not count. */
const char *nearest_word(const char *typed, const char *const *words, int n_words);

#endif
