/*
 * nearest.c -- "did you mean": the known word that is fewest typing slips away.
 */
#include "base/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { WORD_MOST = 31 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static bool is_other(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

/* Letters to add, drop, change or swap with their neighbour (optimal string alignment). */
static int typing_slips(const char *a, const char *b)
{
    int table[WORD_MOST + 1][WORD_MOST + 1];
    int a_length = (int)strlen(a), b_length = (int)strlen(b);
    if (a_length > WORD_MOST || b_length > WORD_MOST)
        return WORD_MOST;
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
    int fewest = length / 3 + 1; /* as many slips as that is another word */
    for (int i = 0; i < n_words; i++) {
        if (words[i] == NULL)
            continue;
        bool is_beginning = length >= 2 && strncasecmp(typed, words[i], (size_t)length) == 0;
        int slips = is_beginning ? 1 : typing_slips(typed, words[i]);
        if (slips < fewest && slips < (int)strlen(words[i])) {
            fewest = slips;
            nearest = words[i];
        }
    }
    return nearest;
}
