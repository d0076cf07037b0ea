/*
 * quant_map.c -- builds a quantization map.
 */
#include "base/quant_map.h"

#include <math.h>

void quant_map_make(struct quant_map *map, int bits, bool is_signed)
{
    int n_decades = bits - 1, n = 1; /* n counts the values above 0, from 1 */
    struct quant_finder *f = &map->finder;
    f->zero = is_signed ? (1 << n_decades) - 1 : 0;
    map->bits = bits;
    float *value = map->value + f->zero;
    value[0] = 0.0f;
    for (int e = 0; e < n_decades; e++) {
        int n_parts = 1 << (is_signed ? e : e + 1);
        double decade = pow(10, e - n_decades + 1), part = 0.9 * decade / n_parts;
        double first = 0.1 * decade + 0.5 * part;
        f->from[e] = (float)((first + (e == 0 ? 0 : (double)value[n - 1])) / 2);
        f->scale[e] = (float)(1 / part);
        f->start[e] = (float)(n - 0.1 * decade / part);
        f->last[e] = (float)(n + n_parts - 1);
        for (int k = 0; k < n_parts; k++, n++) {
            value[n] = (float)(first + k * part);
            if (is_signed)
                value[-n] = -value[n];
        }
    }
    value[n] = 1.0f;
    f->one = (value[n - 1] + 1.0f) / 2;
    if (!is_signed)
        f->from[0] = 0.0f; /* an element above 0 never becomes 0 */
}
