/*
 * bpe.c -- byte-pair encoding of one word.
 *
 * Short words: an array of symbols and one of the ranks of neighboring pairs; each merge searches
 * the smallest rank and closes the gap.
 *
 * Without a pre-tokenizer a whole text is one word, and its merges, by rank, would jump all over
 * memory. So long words are merged window by window.  Ids are the encoding of a text if and only if
 * each pair of neighbors is the encoding of its own text: the first merge across a boundary would
 * also happen if the pair stood alone.  So we encode a window that begins with the text of the last
 * few ids, which did not see what follows, and append it if the last id before it and its first one
 * are such a pair; if not, the window begins earlier.
 *
 * If that does not end soon, as in long runs of one character, a list of symbols and a heap of
 * candidate pairs merge the whole word in n log n.
 */
#include "token/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "token/unicode.h"

/* In symbols, but for the last two. */
enum { SHORT_WORD = 64, WINDOW = 40, WINDOW_MOST = 256, N_DROPPED = 2, N_PAIRS = 1 << 14 };
#define NO_RANK UINT32_MAX

/* ---- merges --------------------------------------------------------------------------------- */

static struct bpe_merge *slot_of(struct bpe_merge *table, size_t size, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    size_t slot = (key ^ key >> 29) & (size - 1);
    while (table[slot].left != NO_TOKEN && (table[slot].left != left || table[slot].right != right))
        slot = (slot + 1) & (size - 1);
    return &table[slot];
}

static const struct bpe_merge *find(const struct bpe *bpe, int32_t left, int32_t right)
{
    if (bpe->table_size == 0)
        return NULL;
    const struct bpe_merge *merge = slot_of(bpe->table, bpe->table_size, left, right);
    return merge->left == NO_TOKEN ? NULL : merge;
}

static uint32_t rank_of(const struct bpe *bpe, int32_t left, int32_t right)
{
    const struct bpe_merge *merge = find(bpe, left, right);
    return merge == NULL ? NO_RANK : merge->rank;
}

static bool grow(struct bpe *bpe)
{
    if (bpe->table_size > 2 * bpe->n_merges + 2)
        return true;
    size_t size = bpe->table_size == 0 ? 1024 : 2 * bpe->table_size;
    struct bpe_merge *table = malloc(size * sizeof *table);
    if (table == NULL)
        return false;
    for (size_t i = 0; i < size; i++)
        table[i] = (struct bpe_merge){.left = NO_TOKEN};
    for (size_t i = 0; i < bpe->table_size; i++)
        if (bpe->table[i].left != NO_TOKEN)
            *slot_of(table, size, bpe->table[i].left, bpe->table[i].right) = bpe->table[i];
    free(bpe->table);
    bpe->table = table;
    bpe->table_size = size;
    return true;
}

bool bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t joined)
{
    if (!grow(bpe))
        return false;
    *slot_of(bpe->table, bpe->table_size, left, right) =
        (struct bpe_merge){left, right, (uint32_t)bpe->n_merges, joined};
    bpe->n_merges++;
    return true;
}

void bpe_free(struct bpe *bpe)
{
    free(bpe->table);
    free(bpe->n_symbols);
    bpe->table = NULL;
    bpe->n_symbols = NULL;
    bpe->table_size = bpe->n_merges = 0;
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    free(scratch->symbols.data);
    free(scratch->window.data);
    free(scratch->links.data);
    free(scratch->pairs);
    *scratch = (struct bpe_scratch){0};
}

/* ---- the symbols at first ------------------------------------------------------------------- */

/* Adds the bytes of a character if each has an id. */
static bool add_bytes(const struct bpe *bpe, struct token_ids *symbols, const char *bytes, int n)
{
    for (int i = 0; i < n; i++)
        if (bpe->byte_ids[(unsigned char)bytes[i]] == NO_TOKEN)
            return false;
    for (int i = 0; i < n; i++)
        symbols->data[symbols->n++] = bpe->byte_ids[(unsigned char)bytes[i]];
    return true;
}

/* As in tokenizers, an unknown character waits for the next that has an id, and bytes pass it. */
static bool begin_word(const struct bpe *bpe, struct token_ids *symbols, const char *word, size_t n)
{
    bool is_waiting = false;
    symbols->n = 0;
    if (!token_ids_reserve(symbols, n + 1))
        return false;
    for (size_t at = 0; at < n;) {
        uint32_t code;
        int length = bpe->by_bytes ? 1 : unicode_decode(word + at, n - at, &code);
        int32_t id = bpe->by_bytes ? bpe->byte_ids[(unsigned char)word[at]]
                                   : vocabulary_find(bpe->vocabulary, word + at, (size_t)length);
        at += (size_t)length;
        if (id == NO_TOKEN && bpe->byte_fallback &&
            add_bytes(bpe, symbols, word + at - length, length))
            continue;
        if (is_waiting && !(id == NO_TOKEN && bpe->fuse_unknown))
            symbols->data[symbols->n++] = bpe->unknown;
        is_waiting = id == NO_TOKEN && bpe->unknown != NO_TOKEN;
        if (id != NO_TOKEN)
            symbols->data[symbols->n++] = id;
    }
    if (is_waiting)
        symbols->data[symbols->n++] = bpe->unknown;
    return true;
}

/* ---- merging -------------------------------------------------------------------------------- */

static void merge_short(const struct bpe *bpe, struct token_ids *symbols)
{
    int32_t *ids = symbols->data;
    uint32_t ranks[WINDOW_MOST]; /* of the pair (i, i + 1) */
    int n = (int)symbols->n;
    for (int i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(bpe, ids[i], ids[i + 1]);
    for (;;) {
        int best = -1;
        uint32_t least = NO_RANK;
        for (int i = 0; i + 1 < n; i++)
            if (ranks[i] < least)
                least = ranks[i], best = i;
        if (best < 0)
            break;
        ids[best] = find(bpe, ids[best], ids[best + 1])->joined;
        n--;
        memmove(ids + best + 1, ids + best + 2, (size_t)(n - best - 1) * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, (size_t)(n - best) * sizeof *ranks);
        if (best + 1 < n)
            ranks[best] = rank_of(bpe, ids[best], ids[best + 1]);
        if (best > 0)
            ranks[best - 1] = rank_of(bpe, ids[best - 1], ids[best]);
    }
    symbols->n = (size_t)n;
}

struct candidate {
    uint32_t rank;
    int32_t at, joined;
};

struct list {
    int32_t *next, *before; /* index of the neighbor, or -1 */
    struct candidate *heap; /* smallest rank first, then leftmost */
    size_t n_heap;
};

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(struct list *list, struct candidate candidate)
{
    size_t at = list->n_heap++;
    for (; at > 0 && is_before(&candidate, &list->heap[(at - 1) / 2]); at = (at - 1) / 2)
        list->heap[at] = list->heap[(at - 1) / 2];
    list->heap[at] = candidate;
}

static struct candidate pop(struct list *list)
{
    struct candidate first = list->heap[0], last = list->heap[--list->n_heap];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < list->n_heap; at = child) {
        if (child + 1 < list->n_heap && is_before(&list->heap[child + 1], &list->heap[child]))
            child++;
        if (!is_before(&list->heap[child], &last))
            break;
        list->heap[at] = list->heap[child];
    }
    list->heap[at] = last;
    return first;
}

static void push_pair(const struct bpe *bpe, struct list *list, const int32_t *ids, int32_t at)
{
    int32_t next = at < 0 ? -1 : list->next[at];
    const struct bpe_merge *merge = next < 0 ? NULL : find(bpe, ids[at], ids[next]);
    if (merge != NULL)
        push(list, (struct candidate){merge->rank, at, merge->joined});
}

/* A merge makes two new pairs, so at most 3 n candidates are ever pushed. */
static bool merge_long(const struct bpe *bpe, struct bpe_scratch *scratch)
{
    int32_t *ids = scratch->symbols.data;
    size_t n = scratch->symbols.n;
    scratch->links.n = 0;
    if (!buffer_reserve(&scratch->links, n * (2 * sizeof(int32_t) + 3 * sizeof(struct candidate))))
        return false;
    struct list list = {.heap = (struct candidate *)(void *)scratch->links.data};
    list.next = (int32_t *)(void *)(list.heap + 3 * n);
    list.before = list.next + n;
    for (size_t i = 0; i < n; i++) {
        list.next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        list.before[i] = (int32_t)i - 1;
    }
    for (size_t i = 0; i < n; i++)
        push_pair(bpe, &list, ids, (int32_t)i);
    while (list.n_heap > 0) {
        struct candidate best = pop(&list);
        int32_t at = best.at, gone = ids[at] == NO_TOKEN ? -1 : list.next[at];
        const struct bpe_merge *merge = gone < 0 ? NULL : find(bpe, ids[at], ids[gone]);
        if (merge == NULL || merge->joined != best.joined)
            continue; /* one of the two has been merged since */
        ids[at] = best.joined;
        ids[gone] = NO_TOKEN;
        list.next[at] = list.next[gone];
        if (list.next[at] >= 0)
            list.before[list.next[at]] = at;
        push_pair(bpe, &list, ids, list.before[at]);
        push_pair(bpe, &list, ids, at);
    }
    size_t n_left = 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] != NO_TOKEN)
            ids[n_left++] = ids[i];
    scratch->symbols.n = n_left;
    return true;
}

/* ---- long words, window by window ----------------------------------------------------------- */

/* Is the piece what a word may begin as? */
static bool is_symbol(const struct bpe *bpe, int32_t id)
{
    size_t n;
    uint32_t code;
    const char *piece = vocabulary_piece(bpe->vocabulary, id, &n);
    if (piece == NULL || n == 0)
        return false;
    if (id == bpe->unknown || bpe->byte_of[id] >= 0)
        return true;
    return bpe->by_bytes ? n == 1 : (size_t)unicode_decode(piece, n, &code) == n;
}

/* Adds up the parts of merges.  *changed: some count is new.  false: an id has two counts. */
static bool add_up(struct bpe *bpe, bool *changed)
{
    *changed = false;
    for (size_t i = 0; i < bpe->table_size; i++) {
        const struct bpe_merge *merge = &bpe->table[i];
        if (merge->left == NO_TOKEN)
            continue;
        uint32_t left = bpe->n_symbols[merge->left], right = bpe->n_symbols[merge->right];
        uint32_t *joined = &bpe->n_symbols[merge->joined];
        if (left == 0 || right == 0) /* not made so far */
            continue;
        if (left + right > WINDOW_MOST || (*joined != 0 && *joined != left + right))
            return false;
        *changed |= *joined == 0;
        *joined = left + right;
    }
    return true;
}

bool bpe_count_symbols(struct bpe *bpe)
{
    int32_t n_ids = bpe->vocabulary->n_ids;
    bpe->n_symbols = calloc((size_t)n_ids + 1, sizeof *bpe->n_symbols);
    if (bpe->n_symbols == NULL)
        return false;
    for (int32_t id = 0; id < n_ids; id++)
        bpe->n_symbols[id] = is_symbol(bpe, id);
    bool changed = true, is_plain = true;
    for (int round = 0; round < WINDOW_MOST && changed && is_plain; round++)
        is_plain = add_up(bpe, &changed);
    if (is_plain && !changed)
        return true;
    free(bpe->n_symbols);
    bpe->n_symbols = NULL; /* no windows */
    return true;
}

/* Merges symbols[0, n) in scratch->window. */
static bool merge_window(const struct bpe *bpe, struct bpe_scratch *scratch, const int32_t *symbols,
                         size_t n)
{
    scratch->window.n = 0;
    if (!token_ids_reserve(&scratch->window, n))
        return false;
    memcpy(scratch->window.data, symbols, n * sizeof *symbols);
    scratch->window.n = n;
    merge_short(bpe, &scratch->window);
    return true;
}

/* Is the pair, which these symbols were merged to, what they merge to when they stand together? */
static bool merges_to_pair(const struct bpe *bpe, struct bpe_scratch *scratch,
                           const int32_t *symbols, size_t n, int32_t left, int32_t right)
{
    uint32_t slot = ((uint32_t)left * 0x9E3779B1u ^ (uint32_t)right * 0x85EBCA77u) >> 18;
    struct bpe_pair *pair = &scratch->pairs[slot];
    if (pair->left != left || pair->right != right) {
        if (n > WINDOW_MOST || !merge_window(bpe, scratch, symbols, n))
            return false;
        const struct token_ids *ids = &scratch->window;
        *pair = (struct bpe_pair){left, right,
                                  ids->n == 2 && ids->data[0] == left && ids->data[1] == right};
    }
    return pair->stays;
}

/* Returns 1 if done, 0 if a window would have to be too large, -1 if out of memory. */
static int merge_by_windows(const struct bpe *bpe, struct bpe_scratch *scratch,
                            struct token_ids *out)
{
    const int32_t *symbols = scratch->symbols.data;
    size_t n = scratch->symbols.n, base = out->n;
    size_t end = 0; /* out[base..] is the encoding of symbols[0, end) */
    if (scratch->pairs == NULL) {
        scratch->pairs = malloc(N_PAIRS * sizeof *scratch->pairs);
        if (scratch->pairs == NULL)
            return -1;
        for (int i = 0; i < N_PAIRS; i++)
            scratch->pairs[i].left = NO_TOKEN;
    }
    if (!token_ids_reserve(out, n))
        return -1;
    while (end < n) {
        size_t begin = end;
        end = n - end <= WINDOW ? n : end + WINDOW;
        for (int n_dropped = 0;; n_dropped++) {
            if (n_dropped < N_DROPPED && out->n > base) {
                begin -= bpe->n_symbols[out->data[--out->n]];
                continue;
            }
            if (end - begin > WINDOW_MOST)
                return 0;
            if (!merge_window(bpe, scratch, symbols + begin, end - begin))
                return -1;
            struct token_ids *ids = &scratch->window;
            int32_t first = ids->data[0], last = out->n > base ? out->data[out->n - 1] : NO_TOKEN;
            memcpy(out->data + out->n, ids->data, ids->n * sizeof *ids->data);
            size_t n_ids = ids->n, n_last = last == NO_TOKEN ? 0 : bpe->n_symbols[last];
            if (last == NO_TOKEN || merges_to_pair(bpe, scratch, symbols + begin - n_last,
                                                   n_last + bpe->n_symbols[first], last, first)) {
                out->n += n_ids;
                break;
            }
            begin -= n_last;
            out->n--;
        }
    }
    return 1;
}

/* ---- words ---------------------------------------------------------------------------------- */

static bool append(struct token_ids *out, const struct token_ids *ids)
{
    if (!token_ids_reserve(out, ids->n))
        return false;
    if (ids->n > 0)
        memcpy(out->data + out->n, ids->data, ids->n * sizeof *ids->data);
    out->n += ids->n;
    return true;
}

bool bpe_word(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t n,
              struct token_ids *out)
{
    struct token_ids *symbols = &scratch->symbols;
    int32_t id = bpe->ignore_merges ? vocabulary_find(bpe->vocabulary, word, n) : NO_TOKEN;
    if (id != NO_TOKEN)
        return token_ids_add(out, id);
    if (!begin_word(bpe, symbols, word, n))
        return false;
    if (symbols->n <= SHORT_WORD) {
        merge_short(bpe, symbols);
        return append(out, symbols);
    }
    size_t before = out->n;
    if (symbols->n > INT32_MAX / 4)
        return false;
    int is_done = bpe->n_symbols == NULL ? 0 : merge_by_windows(bpe, scratch, out);
    if (is_done != 0)
        return is_done > 0;
    out->n = before;
    return merge_long(bpe, scratch) && append(out, symbols);
}
