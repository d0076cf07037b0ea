/*
 * layer_name.c -- a layer is named by the components of a tensor's name up to the first number.
 */
#include "pass/layer_name.h"

#include <string.h>

size_t layer_name_length(const char *name)
{
    for (const char *part = name; *part != '\0';) {
        size_t length = strcspn(part, ".");
        if (length > 0 && strspn(part, "0123456789") == length)
            return (size_t)(part - name) + length;
        part += length + (part[length] == '.');
    }
    return 0;
}
