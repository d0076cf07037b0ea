/*
 * data_api.c -- snug_data_fetch: downloads a named data set.
 */
#include "data/fetch.h"

enum snug_status snug_data_fetch(const char *name, const char *folder, const char *from,
                                 snug_say_fn *say, void *user, struct snug_error *err)
{
    const struct fetch_set *set = fetch_find(name, err);
    return set == NULL ? SNUG_BAD_ARGUMENT : fetch_set_to(set, folder, from, say, user, err);
}
