/*
 * dtype.h -- the element types of tensors, and conversion of single elements.
 *
 * f64 exists so that the reference kernels can be checked against finite differences; no recipe
 * trains in it.  Conversions round to nearest even, overflow to infinity, and preserve NaN.
 */
#ifndef SNUG_BASE_DTYPE_H
#define SNUG_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/device_fn.h"

/*        name  bytes  safetensors */
#define DTYPE_LIST(X)  \
    X(f64, 8, "F64")   \
    X(f32, 4, "F32")   \
    X(bf16, 2, "BF16") \
    X(f16, 2, "F16")   \
    X(i32, 4, "I32")   \
    X(u8, 1, "U8")

enum dtype {
#define DTYPE_ENUM(name, bytes, st) DTYPE_##name,
    DTYPE_LIST(DTYPE_ENUM)
#undef DTYPE_ENUM
        DTYPE_COUNT
};

size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype);             /* "bf16" */
const char *dtype_safetensors_name(enum dtype dtype); /* "BF16" */
bool dtype_parse(const char *name, enum dtype *dtype);
bool dtype_parse_safetensors(const char *name, enum dtype *dtype);
bool dtype_is_float(enum dtype dtype);

DEVICE_FN uint32_t dtype_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DEVICE_FN float dtype_f32_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

DEVICE_FN uint16_t bf16_from_f32(float value)
{
    uint32_t bits = dtype_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) /* NaN: return a quiet NaN */
        return (uint16_t)((bits >> 16) | 0x40u);
    bits += 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(bits >> 16);
}

DEVICE_FN float bf16_to_f32(uint16_t bits)
{
    return dtype_f32_of((uint32_t)bits << 16);
}

DEVICE_FN uint16_t f16_from_f32(float value)
{
    uint32_t bits = dtype_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (mag >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (mag <
        0x38800000u) { /* below 2^-14: a multiple of 2^-24; adding 0.5 rounds to nearest even */
        float shifted = dtype_f32_of(mag) + 0.5f;
        return (uint16_t)(sign | (dtype_f32_bits(shifted) - dtype_f32_bits(0.5f)));
    }
    mag += 0xfffu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

DEVICE_FN float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = (bits >> 10) & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f)
        return dtype_f32_of(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
        float magnitude = (float)mantissa * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return dtype_f32_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* Load and store one element of any type as double, for the reference kernels. */
double dtype_load(enum dtype dtype, const void *data, int64_t index);
void dtype_store(enum dtype dtype, void *data, int64_t index, double value);

#endif
