/*
 * status.h -- error handling in the library.
 *
 * A function that can fail returns enum snug_status and takes a snug_error that the caller owns.
 * snug_fail() writes the one line that the user will read: what is wrong, where, what to do.
 * Callers return the status of a failed call and do not overwrite its message.
 */
#ifndef SNUG_BASE_STATUS_H
#define SNUG_BASE_STATUS_H

#include "snug.h"

/* Formats the message into err, which may be NULL, and returns status:
 *     return snug_fail(err, SNUG_BAD_FILE, "%s: ...", path); */
enum snug_status snug_fail(struct snug_error *err, enum snug_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define TRY(call)                              \
    do {                                       \
        enum snug_status try_status_ = (call); \
        if (try_status_ != SNUG_OK)            \
            return try_status_;                \
    } while (0)

#endif
