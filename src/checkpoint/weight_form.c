/*
 * weight_form.c -- read and write parameters as fp32, quantizing and dequantizing where needed.
 */
#include "checkpoint/weight_form.h"

_Static_assert(WEIGHT_PIECE % QUANT_BLOCK_8 == 0 && WEIGHT_PIECE % QUANT_BLOCK_4 == 0,
               "pieces begin where blocks do");

/* The op that converts a stored frozen matrix for use; NULL if it is used as stored. */
static const struct op *dequantizer_of(const struct program *prog, tensor_id id)
{
    for (int i = 0; prog->tensors[id].frozen && i < prog->n_ops; i++)
        if (op_has(&prog->ops[i], TRAIT_converts) && prog->ops[i].in[0] == id)
            return &prog->ops[i];
    return NULL;
}

struct weight_form weight_form_of(const struct program *prog, const struct exec *exec, tensor_id id)
{
    const struct tensor *t = &prog->tensors[id];
    const struct op *dequantizer = dequantizer_of(prog, id);
    struct weight_form s = {.dtype = t->dtype,
                            .shape = t->shape,
                            .stored = t->dtype,
                            .exec = exec,
                            .id = id,
                            .scales = TENSOR_NONE};
    if (dequantizer == NULL)
        return s;
    s.dtype = prog->tensors[dequantizer->out[0]].dtype;
    s.shape = prog->tensors[dequantizer->out[0]].shape;
    if (dequantizer->n_in > 1) {
        s.scales = dequantizer->in[1];
        quant_map_make(&s.map, (int)attrs_of(dequantizer, quant)->state_bits, true);
    }
    return s;
}

bool weight_form_is_scales(const struct program *prog, tensor_id id)
{
    for (int i = 0; prog->tensors[id].frozen && i < prog->n_ops; i++)
        if (op_has(&prog->ops[i], TRAIT_converts) && prog->ops[i].n_in > 1 &&
            prog->ops[i].in[1] == id)
            return true;
    return false;
}

struct weight_extent weight_form_extent(const struct weight_form *s, int64_t at, int64_t n)
{
    int64_t size = (int64_t)dtype_bytes(s->stored);
    if (s->scales == TENSOR_NONE)
        return (struct weight_extent){.at_bytes = at * size, .n_bytes = n * size};
    int64_t scale = (int64_t)sizeof(float);
    return (struct weight_extent){.at_bytes = quant_bytes(s->map.bits, at),
                                  .n_bytes = quant_bytes(s->map.bits, n),
                                  .scales_at_bytes = at / quant_block_elems(s->map.bits) * scale,
                                  .scales_bytes = quant_blocks(s->map.bits, n) * scale};
}

enum { SCALES_MOST = WEIGHT_PIECE / QUANT_BLOCK_4 };

void weight_form_quantize(const struct weight_form *s, int64_t n, const float *values, void *stored,
                          float *scales)
{
    if (s->scales != TENSOR_NONE)
        quantize_elems(&s->map, stored, scales, 0, n, values);
    for (int64_t i = 0; i < n && s->scales == TENSOR_NONE; i++)
        dtype_store(s->stored, stored, i, (double)values[i]);
}

enum snug_status weight_form_put(const struct weight_form *s, int64_t at, int64_t n,
                                 const float *values, struct snug_error *err)
{
    double stored[WEIGHT_PIECE]; /* large enough for the widest type */
    float scales[SCALES_MOST];
    struct weight_extent piece = weight_form_extent(s, at, n);
    weight_form_quantize(s, n, values, stored, scales);
    if (s->scales != TENSOR_NONE)
        TRY(exec_write(s->exec, s->scales, piece.scales_at_bytes, piece.scales_bytes, scales, err));
    return exec_write(s->exec, s->id, piece.at_bytes, piece.n_bytes, stored, err);
}

enum snug_status weight_form_get(const struct weight_form *s, int64_t at, int64_t n, float *values,
                                 struct snug_error *err)
{
    double stored[WEIGHT_PIECE];
    float scales[SCALES_MOST];
    struct weight_extent piece = weight_form_extent(s, at, n);
    TRY(exec_read(s->exec, s->id, piece.at_bytes, piece.n_bytes, stored, err));
    if (s->scales != TENSOR_NONE) {
        TRY(exec_read(s->exec, s->scales, piece.scales_at_bytes, piece.scales_bytes, scales, err));
        dequantize_elems(&s->map, (const uint8_t *)stored, scales, 0, n, values);
    }
    for (int64_t i = 0; i < n && s->scales == TENSOR_NONE; i++)
        values[i] = (float)dtype_load(s->stored, stored, i);
    return SNUG_OK;
}
