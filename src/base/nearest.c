/*
 * nearest.c -- finds the word for a "did you mean" hint, by edit distance.
 */
#include "base/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { WORD_MAX = 31 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static bool is_other(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

/* The number of characters to insert, delete, replace or transpose (optimal string alignment). */
static int edit_distance(const char *a, const char *b)
{
    int table[WORD_MAX + 1][WORD_MAX + 1];
    int a_length = (int)strlen(a), b_length = (int)strlen(b);
    if (a_length > WORD_MAX || b_length > WORD_MAX)
        return WORD_MAX;
    for (int i = 0; i <= a_length; i++)
        for (int k = 0; k <= b_length; k++) {
            if (i == 0 || k == 0) {
                table[i][k] = i + k;
                continue;
            }
            int differs = is_other(a[i - 1], b[k - 1]);
            int best = smaller(table[i - 1][k], table[i][k - 1]) + 1;
            best = smaller(best, table[i - 1][k - 1] + differs);
            if (i > 1 && k > 1 && !is_other(a[i - 1], b[k - 2]) && !is_other(a[i - 2], b[k - 1]))
                best = smaller(best, table[i - 2][k - 2] + 1);
            table[i][k] = best;
        }
    return table[a_length][b_length];
}

const char *nearest_word(const char *typed, const char *const *words, int n_words)
{
    const char *nearest = NULL;
    int length = (int)strlen(typed);
    /* Twice the edit distance, so that a word that begins as typed comes before one with a
     * mistake.  At the initial value it is a different word. */
    int nearest_distance = 2 * (length / 3) + 1;
    for (int i = 0; i < n_words; i++) {
        if (words[i] == NULL)
            continue;
        bool is_beginning = length >= 2 && strncasecmp(typed, words[i], (size_t)length) == 0;
        bool is_same = is_beginning && words[i][length] == '\0';
        int distance = is_same ? 0 : is_beginning ? 1 : 2 * edit_distance(typed, words[i]);
        if (distance < nearest_distance && distance < 2 * (int)strlen(words[i])) {
            nearest_distance = distance;
            nearest = words[i];
        }
    }
    return nearest;
}
