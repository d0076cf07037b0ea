/*
 * dtype.c -- names, sizes and exact conversions of element types.
 */
#include "base/dtype.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name, *safetensors;
    size_t bytes;
} infos[DTYPE_COUNT] = {
#define DTYPE_INFO(name, bytes, st) [DTYPE_##name] = {#name, st, bytes},
    DTYPE_LIST(DTYPE_INFO)
#undef DTYPE_INFO
};

size_t dtype_bytes(enum dtype dtype)
{
    return infos[dtype].bytes;
}

const char *dtype_name(enum dtype dtype)
{
    return infos[dtype].name;
}

const char *dtype_safetensors_name(enum dtype dtype)
{
    return infos[dtype].safetensors;
}

bool dtype_parse(const char *name, enum dtype *dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(name, infos[i].name) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    return false;
}

bool dtype_parse_safetensors(const char *name, enum dtype *dtype)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(name, infos[i].safetensors) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    return false;
}

bool dtype_is_float(enum dtype dtype)
{
    return dtype <= DTYPE_f16;
}

double dtype_load(enum dtype dtype, const void *data, int64_t index)
{
    switch (dtype) {
    case DTYPE_f64:
        return ((const double *)data)[index];
    case DTYPE_f32:
        return (double)((const float *)data)[index];
    case DTYPE_bf16:
        return (double)bf16_to_f32(((const uint16_t *)data)[index]);
    case DTYPE_f16:
        return (double)f16_to_f32(((const uint16_t *)data)[index]);
    case DTYPE_i32:
        return (double)((const int32_t *)data)[index];
    case DTYPE_u8:
        return (double)((const uint8_t *)data)[index];
    case DTYPE_COUNT:
        break;
    }
    return NAN;
}

/* Rounds a double to float so that rounding the result again, to 16 bits, is correct: if value is
 * not a float, the result is the neighbouring float whose last bit is 1.  Rounding to nearest twice
 * would be wrong for some values. */
static float round_to_odd(double value)
{
    float nearest = (float)value;
    if ((double)nearest == value || !isfinite(nearest) || isnan(value))
        return nearest;
    uint32_t bits = dtype_f32_bits(nearest);
    if (fabs((double)nearest) > fabs(value))
        bits--;
    return dtype_f32_of(bits | 1u);
}

void dtype_store(enum dtype dtype, void *data, int64_t index, double value)
{
    switch (dtype) {
    case DTYPE_f64:
        ((double *)data)[index] = value;
        break;
    case DTYPE_f32:
        ((float *)data)[index] = (float)value;
        break;
    case DTYPE_bf16:
        ((uint16_t *)data)[index] = bf16_from_f32(round_to_odd(value));
        break;
    case DTYPE_f16:
        ((uint16_t *)data)[index] = f16_from_f32(round_to_odd(value));
        break;
    case DTYPE_i32:
        ((int32_t *)data)[index] = (int32_t)value;
        break;
    case DTYPE_u8:
        ((uint8_t *)data)[index] = (uint8_t)value;
        break;
    case DTYPE_COUNT:
        break;
    }
}
