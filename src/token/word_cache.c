/*
 * word_cache.c -- a hash table of words and their ids.
 */
#include "token/word_cache.h"

#include <stdlib.h>
#include <string.h>

enum { N_ENTRIES = 1 << 16, ENTRIES_MOST = N_ENTRIES / 2, WORD_MOST = 128 };

static struct word_cache_entry *slot_of(const struct word_cache *cache, const char *word,
                                        size_t n_word, uint64_t hash)
{
    size_t slot = hash & (N_ENTRIES - 1);
    for (;; slot = (slot + 1) & (N_ENTRIES - 1)) {
        struct word_cache_entry *entry = &cache->entries[slot];
        if (entry->n_word == 0 || (entry->hash == hash && entry->n_word == n_word &&
                                   memcmp(cache->words.data + entry->word_at, word, n_word) == 0))
            return entry;
    }
}

const int32_t *word_cache_find(const struct word_cache *cache, const char *word, size_t n_word,
                               uint64_t hash, size_t *n)
{
    if (cache->entries == NULL || n_word > WORD_MOST)
        return NULL;
    const struct word_cache_entry *entry = slot_of(cache, word, n_word, hash);
    *n = entry->n_ids;
    return entry->n_word == 0 ? NULL : cache->ids.data + entry->ids_at;
}

void word_cache_add(struct word_cache *cache, const char *word, size_t n_word, uint64_t hash,
                    const int32_t *ids, size_t n_ids)
{
    if (n_word == 0 || n_word > WORD_MOST || n_ids == 0)
        return;
    if (cache->entries == NULL)
        cache->entries = calloc(N_ENTRIES, sizeof *cache->entries);
    if (cache->entries == NULL)
        return;
    if (cache->n == ENTRIES_MOST) {
        memset(cache->entries, 0, N_ENTRIES * sizeof *cache->entries);
        cache->n = cache->words.n = cache->ids.n = 0;
    }
    if (!buffer_reserve(&cache->words, n_word) || !token_ids_reserve(&cache->ids, n_ids))
        return;
    *slot_of(cache, word, n_word, hash) = (struct word_cache_entry){
        hash, (uint32_t)cache->words.n, (uint32_t)cache->ids.n, (uint16_t)n_word, (uint16_t)n_ids};
    cache->n++;
    buffer_add(&cache->words, word, n_word);
    memcpy(cache->ids.data + cache->ids.n, ids, n_ids * sizeof *ids);
    cache->ids.n += n_ids;
}

void word_cache_free(struct word_cache *cache)
{
    free(cache->entries);
    free(cache->words.data);
    free(cache->ids.data);
    *cache = (struct word_cache){0};
}
