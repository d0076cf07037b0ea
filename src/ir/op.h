/*
 * op.h -- struct op: the kind, operands and attributes of one op, and struct op_info: the static
 * properties of each kind, expanded from ops.def.
 */
#ifndef SNUG_IR_OP_H
#define SNUG_IR_OP_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum { MAX_INPUTS = 12, MAX_OUTPUTS = 10, MAX_STATES = 4, MAX_OPTIONS = 8 };

typedef int32_t tensor_id;
enum { TENSOR_NONE = -1 };

/* ---- attributes: the types ------------------------------------------------------------------- */

/* gelu is the tanh approximation, as in GPT-2. */
enum act { ACT_none, ACT_relu, ACT_gelu, ACT_sigmoid, ACT_tanh };
/* The layout of a linear layer's weight matrix. */
enum weight_layout { LAYOUT_out_in, LAYOUT_in_out };
/* after_first: = in micro-batch 0, += in the others. */
enum accumulate { ACC_no, ACC_yes, ACC_after_first };
/* How the weights for evaluation are averaged. */
enum average {
    AVERAGE_none,
    AVERAGE_schedule_free, /* (W - (1 - beta1) z) / beta1 */
    AVERAGE_queue,         /* the mean of the most recent copies */
    AVERAGE_ema            /* an exponential moving average */
};
/* What the op update reads as g: see ops.def. */
enum direction { DIRECTION_none, DIRECTION_scaled, DIRECTION_as_is };
/* The rule that the op update applies. */
enum rule {
    RULE_none = -1,
#define RULE(name) RULE_##name,
#include "ir/rules.def"
#undef RULE
    RULE_COUNT
};
struct reals {
    double value[MAX_OPTIONS]; /* unset values are 0 */
};

typedef enum act attr_type_act;
typedef enum weight_layout attr_type_layout;
typedef enum direction attr_type_direction;
typedef enum accumulate attr_type_accumulate;
typedef enum average attr_type_average;
typedef enum rule attr_type_rule;
typedef int64_t attr_type_integer;
typedef int8_t attr_type_small; /* an integer in one byte */
typedef bool attr_type_flag;
typedef double attr_type_real;
typedef struct reals attr_type_reals;

/* ---- attributes: the list -------------------------------------------------------------------- */

/* The text form prints attributes in this order.
 *    type        name           default */
#define ATTR_LIST(X)                        \
    X(act, act, ACT_none)                   \
    X(accumulate, accumulate, ACC_no)       \
    X(integer, heads, 1)                    \
    X(layout, layout, LAYOUT_out_in)        \
    X(flag, dynamic_scale, false)           \
    X(integer, stride, 1)                   \
    X(integer, pad, 0)                      \
    X(integer, groups, 1)                   \
    X(integer, kernel_h, 1)                 \
    X(integer, kernel_w, 1)                 \
    X(integer, height, 0)                   \
    X(integer, width, 0)                    \
    X(flag, causal, true)                   \
    X(real, momentum, 0.1)                  \
    X(real, eps, 1e-5)                      \
    X(real, weight, 1.0)                    \
    X(real, max_norm, 0.0)                  \
    X(average, average, AVERAGE_none)       \
    X(rule, rule, RULE_none)                \
    X(reals, options, {{0}})                \
    X(real, decay, 0.0)                     \
    X(real, lr_factor, 1.0)                 \
    X(small, state_bits, 0)                 \
    X(small, positive, 0)                   \
    X(flag, stochastic, false)              \
    X(direction, direction, DIRECTION_none) \
    X(flag, relative, false)                \
    X(real, eta, 1.0)                       \
    X(real, dropout, 0.0)                   \
    X(integer, site, 0)                     \
    X(real, smoothing, 0.0)                 \
    X(integer, kv_heads, 0)                 \
    X(integer, window, 0)                   \
    X(flag, inverse, false)                 \
    X(real, theta, 10000.0)                 \
    X(real, rope_factor, 1.0)               \
    X(real, low_freq, 1.0)                  \
    X(real, high_freq, 4.0)                 \
    X(integer, rope_length, 0)

enum attr_index {
#define ATTR_INDEX(type, name, value) ATTR_INDEX_##name,
    ATTR_LIST(ATTR_INDEX)
#undef ATTR_INDEX
        ATTR_COUNT
};
#define ATTR_BIT(name) (UINT64_C(1) << ATTR_INDEX_##name)

/* One value of each attribute. */
struct attr_values {
#define ATTR_FIELD(type, name, value) attr_type_##type name;
    ATTR_LIST(ATTR_FIELD)
#undef ATTR_FIELD
};
extern const struct attr_values attr_defaults;

/* ---- attributes: families -------------------------------------------------------------------- */

/* Every op stores the attributes `act` and `accumulate` and those of one family.  ops.def names the
 * family of an op and the attributes it reads.  To add a family, add an ATTRS_OF_ macro here, its
 * name to FAMILY_LIST, and an ATTRS_IN_ macro below. */
// clang-format off
#define ATTRS_OF_common(A, f)    A(f, act) A(f, accumulate)
#define ATTRS_OF_linear(A, f)    A(f, layout)
#define ATTRS_OF_dropout(A, f)   A(f, dropout) A(f, site)
#define ATTRS_OF_attention(A, f) A(f, heads) A(f, causal) A(f, dropout) A(f, site) A(f, kv_heads) \
                                 A(f, window)
#define ATTRS_OF_rope(A, f)      A(f, heads) A(f, inverse) A(f, theta) A(f, rope_factor) \
                                 A(f, low_freq) A(f, high_freq) A(f, rope_length)
#define ATTRS_OF_norm(A, f)      A(f, momentum) A(f, eps) A(f, dropout) A(f, site)
#define ATTRS_OF_loss(A, f)      A(f, weight) A(f, smoothing)
#define ATTRS_OF_image(A, f)     A(f, stride) A(f, pad) A(f, groups) A(f, kernel_h) A(f, kernel_w) \
                                 A(f, height) A(f, width)
#define ATTRS_OF_quant(A, f)     A(f, height) A(f, width) A(f, state_bits)
#define ATTRS_OF_grad_norm(A, f) A(f, max_norm) A(f, dynamic_scale)
#define ATTRS_OF_options(A, f)   A(f, options)
#define ATTRS_OF_direction(A, f) A(f, options) A(f, lr_factor) A(f, eta) A(f, relative)
#define ATTRS_OF_average(A, f)   A(f, options) A(f, average)
#define ATTRS_OF_update(A, f)    A(f, options) A(f, decay) A(f, lr_factor) A(f, rule) A(f, direction) \
                                 A(f, state_bits) A(f, positive) A(f, stochastic)
#define FAMILY_LIST(F) \
    F(linear) F(dropout) F(attention) F(norm) F(loss) F(image) F(quant) F(grad_norm) F(options) \
    F(direction) F(average) F(update) F(rope)
// clang-format on

#define ATTR_TYPE(type, name, value) typedef attr_type_##type attr_##name;
ATTR_LIST(ATTR_TYPE)
#undef ATTR_TYPE

/* struct linear_attrs, struct attention_attrs... */
#define FAMILY_FIELD(family, name) attr_##name name;
#define FAMILY_STRUCT(family)                   \
    struct family##_attrs {                     \
        ATTRS_OF_##family(FAMILY_FIELD, family) \
    };
FAMILY_LIST(FAMILY_STRUCT)
#undef FAMILY_STRUCT
#undef FAMILY_FIELD

enum attr_family {
    FAMILY_common, /* no attributes besides act and accumulate */
#define FAMILY_ENUM(family) FAMILY_##family,
    FAMILY_LIST(FAMILY_ENUM)
#undef FAMILY_ENUM
        FAMILY_COUNT
};

struct attrs {
    enum act act;
    enum accumulate accumulate;
    union { /* read it with attrs_of() */
#define FAMILY_MEMBER(family) struct family##_attrs family;
        FAMILY_LIST(FAMILY_MEMBER)
#undef FAMILY_MEMBER
    };
};

/* ATTRS(attention, .heads = 12): the attributes of a family; unnamed ones have their defaults.
 * ATTRS(common, .act = ACT_relu) sets act or accumulate.  ATTRS() is for ops without attributes. */
#define ATTRS(family, ...)       ((struct attrs){ATTRS_IN_##family(__VA_ARGS__)})
#define ATTR_BY_DEFAULT(f, name) .name = attr_defaults.name,
#define ATTRS_IN_FAMILY(f, ...)  .f = {ATTRS_OF_##f(ATTR_BY_DEFAULT, f) __VA_ARGS__}
#define ATTRS_IN_(...)           ATTRS_IN_common(__VA_ARGS__)
#define ATTRS_IN_common(...)     .act = ACT_none, __VA_ARGS__
#define ATTRS_IN_linear(...)     ATTRS_IN_FAMILY(linear, __VA_ARGS__)
#define ATTRS_IN_dropout(...)    ATTRS_IN_FAMILY(dropout, __VA_ARGS__)
#define ATTRS_IN_attention(...)  ATTRS_IN_FAMILY(attention, __VA_ARGS__)
#define ATTRS_IN_rope(...)       ATTRS_IN_FAMILY(rope, __VA_ARGS__)
#define ATTRS_IN_norm(...)       ATTRS_IN_FAMILY(norm, __VA_ARGS__)
#define ATTRS_IN_loss(...)       ATTRS_IN_FAMILY(loss, __VA_ARGS__)
#define ATTRS_IN_image(...)      ATTRS_IN_FAMILY(image, __VA_ARGS__)
#define ATTRS_IN_quant(...)      ATTRS_IN_FAMILY(quant, __VA_ARGS__)
#define ATTRS_IN_grad_norm(...)  ATTRS_IN_FAMILY(grad_norm, __VA_ARGS__)
#define ATTRS_IN_options(...)    ATTRS_IN_FAMILY(options, __VA_ARGS__)
#define ATTRS_IN_direction(...)  ATTRS_IN_FAMILY(direction, __VA_ARGS__)
#define ATTRS_IN_average(...)    ATTRS_IN_FAMILY(average, __VA_ARGS__)
#define ATTRS_IN_update(...)     ATTRS_IN_FAMILY(update, __VA_ARGS__)

/* The attributes of a family, all with their default values. */
struct attrs attrs_default(enum attr_family family);

/* ---- ops ------------------------------------------------------------------------------------- */

enum op_kind {
#define OP(kind, ...) OP_##kind,
#include "ir/ops.def"
#undef OP
    OP_COUNT
};

struct op {
    enum op_kind kind;
    int n_in, n_out;
    tensor_id in[MAX_INPUTS], out[MAX_OUTPUTS]; /* TENSOR_NONE if left out */
    tensor_id work;                             /* the kernel's workspace, or TENSOR_NONE */
    int micro;     /* the op's micro-batch if the body is unrolled (pass/unroll.c), else 0 */
    bool in_last;  /* runs in the last micro-batch only; set only in the body */
    bool no_alias; /* output 0 must not alias an input, even where .inplace allows it */
    int kernel;    /* chosen by pass/book.c (kernel_choice.h); 0 if none */
    struct attrs attrs;
};

/* Classes of ops.  Code tests for a trait instead of listing the ops that have it. */
#define TRAIT_LIST(X)                                                                           \
    X(effect)           /* has side effects (weights, the scalar table): never dead code */     \
    X(copy)             /* runs on the copy lane, concurrently with compute */                  \
    X(leaves)           /* a copy out of the arena: to the offload pool or to another rank */   \
    X(collective)       /* runs together with all ranks of a group */                           \
    X(reduces)          /* a collective that sums; its full tensors are the inputs */           \
    X(gathers)          /* a collective whose results are full tensors on every rank */         \
    X(p2p)              /* exchanges data with one other rank */                                \
    X(gemm)             /* its flops are those of matmuls or convolutions */                    \
    X(linear)           /* a linear layer, or one of its gradients */                           \
    X(conv)             /* a convolution, or one of its gradients */                            \
    X(attention)        /* attention, or its gradient */                                        \
    X(batch_statistics) /* normalizes over the samples of a micro-batch */                      \
    X(loss)             /* a loss; the predictions are input 0 */                               \
    X(lm_head)          /* the LM head fused with the loss; never materializes the logits */    \
    X(table)            /* inputs 1 and up are embedding or position tables */                  \
    X(converts)         /* output 0 is input 0 in another dtype; input 1, if any, its scales */ \
    X(matrix)           /* an optimizer direction that needs the whole matrix */                \
    X(blocks)           /* a matrix direction that preconditions blocks */                      \
    X(lapack)           /* a matrix direction that needs eigenvectors or matrix roots */        \
    X(grad)             /* belongs to backward: the gradient of another op */
enum op_trait_index {
#define TRAIT_INDEX(name) TRAIT_INDEX_##name,
    TRAIT_LIST(TRAIT_INDEX)
#undef TRAIT_INDEX
        TRAIT_COUNT
};
enum op_trait {
#define TRAIT_BIT(name) TRAIT_##name = 1 << TRAIT_INDEX_##name,
    TRAIT_LIST(TRAIT_BIT)
#undef TRAIT_BIT
};

/* Input `in` holds ids; the first or last dimension of input `of` is their upper bound. */
enum ids_dimension { IDS_none, IDS_first, IDS_last };
struct op_ids {
    int in, of;
    enum ids_dimension dimension;
};

/* What a layer with a weight (linear, conv2d) computes: its result, or the gradient of its input or
 * weight. */
enum layer_part { LAYER_none, LAYER_forward, LAYER_grad_x, LAYER_grad_w };

struct op_info {
    const char *name;
    int min_in, max_in, min_out, max_out;
    unsigned inplace, accumulates, keeps_f32, makes_u8; /* one bit per operand */
    unsigned reads_pool, writes_pool, unread;
    unsigned traits;
    enum attr_family family;
    uint64_t attrs; /* one ATTR_BIT per attribute that it reads */
    struct op_ids ids;
    enum layer_part layer;
    int column_sums; /* this output holds the column sums of output 0; 0 if none does */
};
extern const struct op_info op_infos[OP_COUNT];

static inline bool kind_has(enum op_kind kind, enum op_trait trait)
{
    return (op_infos[kind].traits & (unsigned)trait) != 0;
}
static inline bool op_has(const struct op *op, enum op_trait trait)
{
    return kind_has(op->kind, trait);
}

static inline enum layer_part op_layer(const struct op *op)
{
    return op_infos[op->kind].layer;
}

/* kind_reads(OP_linear, layout): do ops of this kind read this attribute? */
#define kind_reads(kind, name) ((op_infos[kind].attrs & ATTR_BIT(name)) != 0)

/* op_reads_attrs(op, update): does the op read the attributes of this family? */
#define op_reads_attrs(op, which) (op_infos[(op)->kind].family == FAMILY_##which)

/* attrs_of(op, attention)->heads: the attributes of an op.  The family must be that of the op's
 * kind; debug builds assert this. */
#ifdef SNUG_DEBUG
#define attrs_of(op, which) \
    (assert(op_infos[(op)->kind].family == FAMILY_##which), &(op)->attrs.which)
#else
#define attrs_of(op, which) (&(op)->attrs.which)
#endif

/* The output with the column sums of output 0; TENSOR_NONE if it is left out, or if the op has
 * none. */
static inline tensor_id op_column_sums(const struct op *op)
{
    int k = op_infos[op->kind].column_sums;
    return k > 0 && k < op->n_out ? op->out[k] : TENSOR_NONE;
}

/* The dropout rate of an op of any family, 0 if it has none, and the site of its mask. */
static inline struct dropout_attrs op_dropout(const struct op *op)
{
    struct dropout_attrs none = {0.0, 0};
    switch (op_infos[op->kind].family) {
    case FAMILY_dropout:
        return op->attrs.dropout;
    case FAMILY_attention:
        none.dropout = op->attrs.attention.dropout, none.site = op->attrs.attention.site;
        return none;
    case FAMILY_norm:
        none.dropout = op->attrs.norm.dropout, none.site = op->attrs.norm.site;
        return none;
    default:
        return none;
    }
}

/* The inputs of update.  Output k is input k + UPDATE_WEIGHT. */
enum { UPDATE_GRADIENT, UPDATE_SCALARS, UPDATE_WEIGHT, UPDATE_MASTER, UPDATE_STATES };
static inline int update_n_states(const struct op *op)
{
    return op->n_in > UPDATE_STATES ? (op->n_in - UPDATE_STATES + 1) / 2 : 0;
}

#endif
