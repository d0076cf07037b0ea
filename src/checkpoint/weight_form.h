/*
 * weight_form.h -- how the numbers of a parameter lie in the arena: as they are, or, of a frozen matrix, in
 * fewer bits.
 */
#ifndef SNUG_CHECKPOINT_WEIGHT_FORM_H
#define SNUG_CHECKPOINT_WEIGHT_FORM_H

#include "base/quant_map.h"
#include "exec/exec.h"

struct weight_form {
    enum dtype dtype; /* of the parameter as the model knows it; its shape */
    struct shape shape;
    enum dtype kept; /* as it lies; u8 with scales: quantized elements */
    const struct exec *exec;
    tensor_id id, scales; /* TENSOR_NONE: numbers */
    struct quant_map map;
};

struct weight_form weight_form_of(const struct program *prog, const struct exec *exec,
                                  tensor_id parameter);
/* Are these the scales of quantized elements?  They go with the quantized elements. */
bool weight_form_is_scales(const struct program *prog, tensor_id id);

/* Elements at .. at + n, at most WEIGHT_PIECE; quantized elements: from the begin of a block on, and whole blocks but
 * at the end. */
enum snug_status weight_form_put(const struct weight_form *stored, int64_t at, int64_t n,
                                 const float *values, struct snug_error *err);
enum snug_status weight_form_get(const struct weight_form *stored, int64_t at, int64_t n,
                                 float *values, struct snug_error *err);

/* Where the bytes and the scales of elements at .. at + n lie. */
struct weight_extent {
    int64_t at_bytes, n_bytes, scales_at_bytes, scales_bytes;
};
struct weight_extent weight_form_extent(const struct weight_form *stored, int64_t at, int64_t n);
/* What weight_form_put puts there: n elements as they are kept, and their scales if they have some. */
void weight_form_quantize(const struct weight_form *stored, int64_t n, const float *values,
                          void *kept, float *scales);

/* So many elements are whole quant blocks, whatever their bits. */
enum { WEIGHT_PIECE = 8192 };

#endif
