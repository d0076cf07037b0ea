/*
 * dtype.h -- the element types of tensors and the exact conversion of one element.
 *
 * f64 exists so that the reference kernels can be checked against finite differences; no recipe
 * trains in it.  Rounding is to nearest even, overflow goes to infinity, NaN stays NaN.
 */
#ifndef SNUG_BASE_DTYPE_H
#define SNUG_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

uint16_t bf16_from_f32(float value);
float bf16_to_f32(uint16_t bits);
uint16_t f16_from_f32(float value);
float f16_to_f32(uint16_t bits);

/* One element, any float or integer type, through double: what the reference kernels compute with. */
double dtype_load(enum dtype dtype, const void *data, int64_t index);
void dtype_store(enum dtype dtype, void *data, int64_t index, double value);

#endif
