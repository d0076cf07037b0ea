/*
 * update_range.c -- the inputs of `update` from UPDATE_STATES on are pairs: a state and, if it is
 * quantized, its scales.
 */
#include "ir/update_range.h"

#include "base/quant_map.h"

struct cut_range update_range(const struct op *op, int k, struct cut_range elems)
{
    int bits = (int)attrs_of(op, update)->state_bits;
    if (k < UPDATE_STATES)
        return elems;
    if ((k - UPDATE_STATES) % 2 == 1)
        return (struct cut_range){elems.from / quant_block_elems(bits),
                                  quant_blocks(bits, elems.count)};
    if (k + 1 < op->n_in && op->in[k + 1] != TENSOR_NONE)
        return (struct cut_range){quant_bytes(bits, elems.from), quant_bytes(bits, elems.count)};
    return elems;
}
