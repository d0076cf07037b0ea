/*
 * data_sets.c -- see data_sets.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/data_sets.h"

struct data *open_data(const char *spec, const struct data_request *like)
{
    struct data_request request = *like;
    struct data *data;
    struct snug_error err = {0};
    request.spec = spec;
    if (data_open(&request, &data, &err) != SNUG_OK)
        fail_msg("cannot open '%s': %s", spec, err.message);
    return data;
}
