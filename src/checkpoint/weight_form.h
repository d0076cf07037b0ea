/*
 * weight_form.h -- the storage of a parameter: in its own type, or, for a frozen matrix, in a
 * smaller type or quantized.
 */
#ifndef SNUG_CHECKPOINT_WEIGHT_FORM_H
#define SNUG_CHECKPOINT_WEIGHT_FORM_H

#include "base/quant_map.h"
#include "exec/exec.h"

struct weight_form {
    enum dtype dtype; /* type and shape of the parameter in the model */
    struct shape shape;
    enum dtype stored; /* type in memory; u8 with scales if quantized */
    const struct exec *exec;
    tensor_id id, scales; /* scales is TENSOR_NONE unless quantized */
    struct quant_map map;
};

struct weight_form weight_form_of(const struct program *prog, const struct exec *exec,
                                  tensor_id parameter);
/* Does this tensor hold the scales of a quantized parameter? */
bool weight_form_is_scales(const struct program *prog, tensor_id id);

/* Writes or reads elements at .. at + n, at most WEIGHT_PIECE.  If quantized, `at` must be the
 * start of a quant block, and n whole blocks except at the end of the tensor. */
enum snug_status weight_form_put(const struct weight_form *form, int64_t at, int64_t n,
                                 const float *values, struct snug_error *err);
enum snug_status weight_form_get(const struct weight_form *form, int64_t at, int64_t n,
                                 float *values, struct snug_error *err);

/* Where the bytes and the scales of elements at .. at + n are. */
struct weight_extent {
    int64_t at_bytes, n_bytes, scales_at_bytes, scales_bytes;
};
struct weight_extent weight_form_extent(const struct weight_form *form, int64_t at, int64_t n);
/* Converts n elements to the stored form, and computes their scales if quantized. */
void weight_form_quantize(const struct weight_form *form, int64_t n, const float *values,
                          void *stored, float *scales);

/* A multiple of the quant block, whatever the bits. */
enum { WEIGHT_PIECE = 8192 };

#endif
