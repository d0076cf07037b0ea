/*
 * update_range.h -- the part of an optimizer state that belongs to a range of its weight.
 */
#ifndef SNUG_IR_UPDATE_RANGE_H
#define SNUG_IR_UPDATE_RANGE_H

#include "base/cut.h"
#include "ir/op.h"

/* Returns the elements of operand k of an `update` op that belong to these elements of the weight.
 * For quantized states `elems` begins at a quant block. */
struct cut_range update_range(const struct op *op, int k, struct cut_range elems);

#endif
