/*
 * status.c -- names of status codes, and snug_fail.
 */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

enum snug_status snug_fail(struct snug_error *err, enum snug_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        snug_printable(err->message); /* it may contain names from files and command lines */
        err->status = status;
    }
    return status;
}

const char *snug_status_name(enum snug_status status)
{
    static const char *const names[] = {
#define NAME(name, value, text) [SNUG_##name] = #name,
        SNUG_STATUS_LIST(NAME)
#undef NAME
    };
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "?";
}

const char *snug_status_text(enum snug_status status)
{
    static const char *const texts[] = {
#define TEXT(name, value, text) [SNUG_##name] = text,
        SNUG_STATUS_LIST(TEXT)
#undef TEXT
    };
    return (unsigned)status < sizeof texts / sizeof *texts ? texts[status] : "unknown status";
}
