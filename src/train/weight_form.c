/*
 * weight_form.c -- numbers in and out of parameters, through the codes where they are kept in such.
 */
#include "train/weight_form.h"

_Static_assert(WEIGHT_PIECE % CODE_BLOCK_8 == 0 && WEIGHT_PIECE % CODE_BLOCK_4 == 0,
               "pieces begin where blocks do");

/* The op that makes the frozen matrix of what is kept of it; NULL: it is kept as it is. */
static const struct op *decoder_of(const struct program *prog, tensor_id id)
{
    for (int i = 0; prog->tensors[id].frozen && i < prog->n_ops; i++)
        if ((prog->ops[i].kind == OP_decode || prog->ops[i].kind == OP_cast) &&
            prog->ops[i].in[0] == id)
            return &prog->ops[i];
    return NULL;
}

struct weight_form weight_form_of(const struct program *prog, const struct exec *exec, tensor_id id)
{
    const struct tensor *t = &prog->tensors[id];
    const struct op *decoder = decoder_of(prog, id);
    struct weight_form s = {
        .dtype = t->dtype, .shape = t->shape, .kept = t->dtype, .data = exec_data(exec, id)};
    if (decoder == NULL)
        return s;
    s.dtype = prog->tensors[decoder->out[0]].dtype;
    s.shape = prog->tensors[decoder->out[0]].shape;
    if (decoder->kind == OP_decode) {
        s.scales = exec_data(exec, decoder->in[1]);
        code_map_make(&s.map, (int)decoder->attrs.state_bits, true);
    }
    return s;
}

bool weight_form_is_scales(const struct program *prog, tensor_id id)
{
    for (int i = 0; prog->tensors[id].frozen && i < prog->n_ops; i++)
        if (prog->ops[i].kind == OP_decode && prog->ops[i].in[1] == id)
            return true;
    return false;
}

void weight_form_put(const struct weight_form *s, int64_t at, int64_t n, const float *values)
{
    if (s->scales != NULL) {
        codes_store(&s->map, s->data, s->scales, at, n, values);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dtype_store(s->kept, s->data, at + i, (double)values[i]);
}

void weight_form_get(const struct weight_form *s, int64_t at, int64_t n, float *values)
{
    if (s->scales != NULL) {
        codes_load(&s->map, s->data, s->scales, at, n, values);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)dtype_load(s->kept, s->data, at + i);
}
