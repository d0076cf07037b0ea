/*
 * bpe.h -- byte-pair encoding of one word: merge the pair of the lowest rank, the leftmost first,
 * until no pair can be merged.
 */
#ifndef SNUG_TOKEN_BPE_H
#define SNUG_TOKEN_BPE_H

#include "token/vocabulary.h"

struct bpe_merge {
    int32_t left, right; /* left is NO_TOKEN in an empty slot */
    uint32_t rank;
    int32_t joined;
};

struct bpe {
    const struct vocabulary *vocabulary;
    struct bpe_merge *table; /* hash table by (left, right) */
    size_t table_size, n_merges;
    int32_t byte_ids[256];  /* of a single byte, or NO_TOKEN */
    const int16_t *byte_of; /* by id: the byte that <0x00> to <0xFF> stand for, else -1 */
    /* Words begin as bytes, else as characters; characters without an id become bytes if
     * byte_fallback, else `unknown`, or are left out if that is NO_TOKEN. */
    uint32_t *n_symbols; /* by id: how many symbols are merged into it; see bpe_count_symbols */
    bool by_bytes, byte_fallback;
    bool fuse_unknown;  /* neighbors become one */
    bool ignore_merges; /* a word that is a piece becomes that piece */
    int32_t unknown;
};

struct bpe_pair {
    int32_t left, right;
    bool stays;
};

struct bpe_scratch { /* of a thread; all zeros at first */
    struct token_ids symbols, window;
    struct buffer links;
    struct bpe_pair *pairs; /* a cache of pairs of ids, see bpe.c */
};

/* The later of two merges of a pair replaces the first.  false: out of memory. */
bool bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t joined);
/* After the last merge: counts symbols.  If an id can be made of different numbers of them, as in
 * no file that a trainer wrote, long words are merged as a whole.  false: out of memory. */
bool bpe_count_symbols(struct bpe *bpe);
/* Appends the ids of a word of at most INT32_MAX / 2 bytes.  false: out of memory. */
bool bpe_word(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t n,
              struct token_ids *out);
void bpe_free(struct bpe *bpe);
void bpe_scratch_free(struct bpe_scratch *scratch);

#endif
