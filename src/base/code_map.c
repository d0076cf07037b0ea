/*
 * code_map.c -- makes the map of codes from its definition.
 */
#include "base/code_map.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void code_map_make(struct code_map *map, int bits, bool is_signed)
{
    int n_decades = bits - 1, n = 0;
    map->bits = bits;
    for (int e = 0; e < n_decades; e++) {
        int n_parts = 1 << (is_signed ? e : e + 1);
        for (int part = 0; part < n_parts; part++) {
            double middle = 0.1 + 0.9 * (part + 0.5) / n_parts;
            float value = (float)(middle * pow(10, e - n_decades + 1));
            map->value[n++] = value;
            if (is_signed)
                map->value[n++] = -value;
        }
    }
    map->value[n++] = 0.0f;
    map->value[n++] = 1.0f;
    qsort(map->value, (size_t)n, sizeof *map->value, by_value);
    for (int c = 0; c + 1 < n; c++)
        map->bound[c] = (map->value[c] + map->value[c + 1]) / 2;
    map->bound[n - 1] = INFINITY;
    if (!is_signed)
        map->bound[0] = 0.0f; /* above 0 is never 0 */
}
