/*
 * size.c -- reads the size and the part that the runner requests.  See size.h.
 */
#include "support/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool size_is_small(void)
{
    static bool said = false;
    const char *size = getenv("SNUG_TEST_SIZE");
    bool is_small = size != NULL && strcmp(size, "small") == 0;
    if (size != NULL && !is_small && strcmp(size, "full") != 0) {
        fprintf(stderr, "SNUG_TEST_SIZE is small or full, not \"%s\"\n", size);
        exit(2);
    }
    if (!said)
        printf("# size: %s\n", is_small ? "small" : "full");
    said = true;
    return is_small;
}

int sized(int small, int full)
{
    return size_is_small() ? small : full;
}

bool part_has(int index)
{
    const char *text = getenv("SNUG_TEST_PART");
    int part, n_parts;
    char end;
    if (text == NULL)
        return true;
    if (sscanf(text, "%d/%d%c", &part, &n_parts, &end) != 2 || part < 1 || part > n_parts) {
        fprintf(stderr, "SNUG_TEST_PART is I/N, not \"%s\"\n", text);
        exit(2);
    }
    return index % n_parts == part - 1;
}
