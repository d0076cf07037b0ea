/*
 * nearest.h -- the known word that is nearest to a mistyped one.
 */
#ifndef SNUG_BASE_NEAREST_H
#define SNUG_BASE_NEAREST_H

/* Returns the word nearest to `typed`, or NULL if none is near.  Ignores case; skips NULL words. */
const char *nearest_word(const char *typed, const char *const *words, int n_words);

#endif
