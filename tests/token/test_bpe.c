/*
 * test_bpe.c -- short words, windows of long words and the heap merge as the definition does, for
 * random merges in any order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "token/bpe.h"

struct rng {
    uint64_t seed, n;
};

static struct rng rng_make(uint64_t seed, uint64_t n)
{
    return (struct rng){seed, n};
}

static uint64_t rng_below(struct rng *rng, uint64_t n)
{
    return rng_u64(rng->seed, 1, rng->n++) % n;
}

enum { N_LETTERS = 4, N_MERGES = 60 };

static struct bpe_table { /* random merges: ranks need not grow with the length of a piece */
    struct vocabulary vocabulary;
    struct bpe bpe;
    int32_t left[N_MERGES], right[N_MERGES], joined[N_MERGES];
    int n;
    int16_t byte_of[N_LETTERS + N_MERGES];
} table;

static void make_table(struct rng *rng)
{
    vocabulary_free(&table.vocabulary);
    bpe_free(&table.bpe);
    memset(&table, 0, sizeof table);
    table.bpe = (struct bpe){.vocabulary = &table.vocabulary,
                             .byte_of = table.byte_of,
                             .by_bytes = true,
                             .unknown = NO_TOKEN};
    memset(table.bpe.byte_ids, 0xFF, sizeof table.bpe.byte_ids);
    memset(table.byte_of, 0xFF, sizeof table.byte_of);
    for (int32_t i = 0; i < N_LETTERS; i++) {
        char letter = (char)('a' + i);
        assert_true(vocabulary_add(&table.vocabulary, i, &letter, 1, false));
        table.bpe.byte_ids[(unsigned char)letter] = i;
    }
    int32_t shuffled[N_MERGES][3];
    for (int k = 0; k < N_MERGES; k++) {
        int32_t n_ids = table.vocabulary.n_ids;
        int32_t left = (int32_t)rng_below(rng, (uint64_t)n_ids);
        int32_t right = (int32_t)rng_below(rng, (uint64_t)n_ids);
        size_t n_left, n_right;
        char piece[64];
        const char *a = vocabulary_piece(&table.vocabulary, left, &n_left);
        if (n_left > 12)
            continue;
        memcpy(piece, a, n_left);
        const char *b = vocabulary_piece(&table.vocabulary, right, &n_right);
        if (n_right > 12)
            continue;
        memcpy(piece + n_left, b, n_right);
        int32_t id = vocabulary_find(&table.vocabulary, piece, n_left + n_right);
        if (id == NO_TOKEN) {
            id = n_ids;
            assert_true(vocabulary_add(&table.vocabulary, id, piece, n_left + n_right, false));
        }
        bool is_new = true;
        for (int i = 0; i < table.n; i++)
            is_new = is_new && !(shuffled[i][0] == left && shuffled[i][1] == right);
        if (is_new)
            memcpy(shuffled[table.n++], (int32_t[]){left, right, id}, sizeof shuffled[0]);
    }
    for (int i = table.n - 1; i > 0; i--) { /* any order of ranks */
        int j = (int)rng_below(rng, (uint64_t)i + 1);
        int32_t kept[3];
        memcpy(kept, shuffled[i], sizeof kept);
        memcpy(shuffled[i], shuffled[j], sizeof kept);
        memcpy(shuffled[j], kept, sizeof kept);
    }
    for (int i = 0; i < table.n; i++) {
        table.left[i] = shuffled[i][0], table.right[i] = shuffled[i][1];
        table.joined[i] = shuffled[i][2];
        assert_true(bpe_add_merge(&table.bpe, table.left[i], table.right[i], table.joined[i]));
    }
    assert_true(bpe_count_symbols(&table.bpe));
    assert_non_null(table.bpe.n_symbols);
}

/* The definition: the first merge of the list that applies anywhere, at its leftmost place. */
static size_t merge_plainly(int32_t *ids, size_t n)
{
    for (int m = 0; m < table.n; m++)
        for (size_t i = 0; i + 1 < n; i++)
            if (ids[i] == table.left[m] && ids[i + 1] == table.right[m]) {
                ids[i] = table.joined[m];
                memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
                n--, m = -1;
                break;
            }
    return n;
}

/* Short words, windows and the heap, against the definition. */
static void test_merges(void **state)
{
    (void)state;
    struct rng rng = rng_make(11, 1);
    struct bpe_scratch scratch = {0};
    struct token_ids ids = {0};
    for (int k = 0; k < 400; k++) {
        if (k % 4 == 0) {
            make_table(&rng);
            bpe_scratch_free(&scratch); /* it has seen other merges */
        }
        char word[1500];
        int32_t plain[sizeof word];
        size_t most = k % 3 == 0 ? 64 : sizeof word, n = 1 + (size_t)rng_below(&rng, most);
        int n_letters = 1 + (int)rng_below(&rng, N_LETTERS); /* 1: a run, for the heap */
        for (size_t i = 0; i < n; i++) {
            plain[i] = (int32_t)rng_below(&rng, (uint64_t)n_letters);
            word[i] = (char)('a' + plain[i]);
        }
        size_t n_plain = merge_plainly(plain, n);
        ids.n = 0;
        assert_true(bpe_word(&table.bpe, &scratch, word, n, &ids));
        if (ids.n != n_plain || memcmp(ids.data, plain, n_plain * sizeof *plain) != 0)
            fail_msg("word %d, %zu letters of %d: %zu ids, not %zu", k, n, n_letters, ids.n,
                     n_plain);
    }
    bpe_scratch_free(&scratch);
    free(ids.data);
    vocabulary_free(&table.vocabulary);
    bpe_free(&table.bpe);
}

/* a a ... a b, where every merge begins at the b: windows would have to reach back to the start, so
 * the heap merges the word.  Of equal ranks, the leftmost is first. */
static void test_cascade(void **state)
{
    (void)state;
    enum { A, B, C, CC, CHAIN = 250, N_RUN = 400, LAST = CC + CHAIN };
    static int16_t byte_of[LAST + 1];
    char word[CHAIN + N_RUN];
    struct vocabulary vocabulary = {0};
    struct bpe bpe = {
        .vocabulary = &vocabulary, .byte_of = byte_of, .by_bytes = true, .unknown = NO_TOKEN};
    memset(byte_of, 0xFF, sizeof byte_of);
    memset(bpe.byte_ids, 0xFF, sizeof bpe.byte_ids);
    for (int32_t id = A; id <= C; id++) {
        assert_true(vocabulary_add(&vocabulary, id, &"abc"[id], 1, false));
        bpe.byte_ids['a' + id] = id;
    }
    assert_true(vocabulary_add(&vocabulary, CC, "cc", 2, false));
    assert_true(bpe_add_merge(&bpe, C, C, CC));
    memset(word, 'a', sizeof word);
    word[CHAIN] = 'b';
    for (int k = 1; k <= CHAIN; k++) { /* a^k b */
        assert_true(vocabulary_add(&vocabulary, CC + k, word + CHAIN - k, (size_t)k + 1, false));
        assert_true(bpe_add_merge(&bpe, A, k == 1 ? B : CC + k - 1, CC + k));
    }
    assert_true(bpe_count_symbols(&bpe));
    assert_non_null(bpe.n_symbols);
    memset(word, 'a', sizeof word);
    memcpy(word, "ccccc", 5);
    memcpy(word + 5 + N_RUN, "bccc", 4);
    struct bpe_scratch scratch = {0};
    struct token_ids ids = {0};
    assert_true(bpe_word(&bpe, &scratch, word, 5 + N_RUN + 4, &ids));
    assert_int_equal(ids.n, 3 + (N_RUN - CHAIN) + 1 + 2);
    assert_memory_equal(ids.data, ((int32_t[]){CC, CC, C, A}), 4 * sizeof *ids.data);
    assert_memory_equal(ids.data + ids.n - 4, ((int32_t[]){A, LAST, CC, C}), 4 * sizeof *ids.data);
    free(ids.data);
    bpe_scratch_free(&scratch);
    bpe_free(&bpe);
    vocabulary_free(&vocabulary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_cascade),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
