/*
 * op.c -- expands ops.def into op_infos[], and the default values of attributes.
 */
#include "ir/op.h"

_Static_assert(ATTR_COUNT <= 64, "op_info.attrs has one bit per attribute");
_Static_assert(TRAIT_COUNT <= 31, "op_info.traits has one bit per trait");
_Static_assert(MAX_INPUTS <= 32 && MAX_OUTPUTS <= 32, "op_info has one bit per operand");
_Static_assert(sizeof(struct op) <= 224,
               "passes copy hundreds of thousands of ops: keep struct op small");

const struct attr_values attr_defaults = {
#define ATTR_DEFAULT(type, name, value) .name = value,
    ATTR_LIST(ATTR_DEFAULT)
#undef ATTR_DEFAULT
};

struct attrs attrs_default(enum attr_family family)
{
    switch (family) {
#define CASE(which)      \
    case FAMILY_##which: \
        return ATTRS(which);
        FAMILY_LIST(CASE)
#undef CASE
    default:
        return ATTRS();
    }
}

/* The columns of ops.def that go into op_infos[]. */
#define IN(min, max)            .min_in = min, .max_in = max
#define OUT(min, max)           .min_out = min, .max_out = max
#define INPUT(k)                (1u << (k))
#define OUTPUT(k)               (1u << (k))
#define EVERY_OUTPUT            ((1u << MAX_OUTPUTS) - 1)
#define IDS(input, table, by)   .ids = {input, table, IDS_##by}
#define COLUMN_SUMS(k)          .column_sums = k
#define A(name)                 ATTR_BIT(name)
#define OR_A(f, name)           | A(name)
#define BITS_OF(which)          (0 ATTRS_OF_common(OR_A, common) ATTRS_OF_##which(OR_A, which))
#define ATTRIBUTES(which, bits) .family = FAMILY_##which, .attrs = (bits) + MUST_BE_IN(which, bits)
#define MUST_BE_IN(which, bits)                                                  \
    (0 * sizeof(struct {                                                         \
         _Static_assert(((bits) & ~BITS_OF(which)) == 0,                         \
                        "ops.def: an op reads an attribute outside its family"); \
         int unused;                                                             \
     }))

const struct op_info op_infos[OP_COUNT] = {
#define OP(kind, in, out, shape, gradient, cost, ...) \
    [OP_##kind] = {.name = #kind, in, out, __VA_ARGS__},
#include "ir/ops.def"
#undef OP
};
