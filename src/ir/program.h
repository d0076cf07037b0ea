/*
 * program.h -- a training step as data: a list of tensors and a list of ops in execution order.
 *
 * A program is everything that one rank does in one optimizer step.  It has two sections:
 *
 *     [0 .. body_end)      the body: n_repeat times, forward and backward of one micro-batch
 *     [body_end .. n_ops)  once, after the body: gradient norm and updates
 *
 * An op of the body that is marked `in_last` runs in the last micro-batch only, when the sums over
 * all micro-batches are complete.  In a pipeline micro-batches overlap, so the body is unrolled:
 * n_repeat is 1 and `micro` is the micro-batch of each op.
 *
 * A tensor id is an index into `tensors` and never changes its meaning.  Passes add tensors, and
 * replace the list of ops.
 *
 * A tensor has one writer, with three exceptions (checked by verify.c): an op that updates a tensor
 * in place has it as an input and as an output; an output that accumulates (+=) adds to what an
 * earlier op wrote; views share the bytes of their base.
 */
#ifndef SNUG_IR_PROGRAM_H
#define SNUG_IR_PROGRAM_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "ir/op.h"

enum { MAX_DIMS = 6 };

/* What a tensor is for.  The ledger counts inputs with the activations, and buffers with the
 * parameters.  A buffer is saved with the model but not trained: a batchnorm's running averages. */
#define ROLE_LIST(X) \
    X(input)         \
    X(parameter)     \
    X(gradient)      \
    X(optimizer)     \
    X(activation)    \
    X(temporary)     \
    X(buffer)
enum role {
#define ROLE_ENUM(name) ROLE_##name,
    ROLE_LIST(ROLE_ENUM)
#undef ROLE_ENUM
        ROLE_COUNT
};

enum init {
    INIT_none,
    INIT_zeros,
    INIT_ones,
    INIT_normal,
    INIT_uniform,
    INIT_weight /* optimizer state: a copy of the weight that it is linked to */
};

/* How a tensor relates to a parameter.  Passes find related tensors by their link, not by name. */
#define LINK_LIST(X)                                                                  \
    X(gradient)      /* the accumulated gradient that the update reads */             \
    X(master)        /* the fp32 master copy of a 16-bit weight */                    \
    X(state)         /* any other optimizer state, including its quant scales */      \
    X(average_state) /* the state that the average for evaluation is computed from */ \
    X(average)       /* the averaged weight that is evaluated and saved */            \
    X(gathered)      /* the whole parameter, where each rank stores a shard */        \
    X(adapter)       /* a LoRA matrix */
enum tensor_link {
    LINK_none,
#define LINK_ENUM(name) LINK_##name,
    LINK_LIST(LINK_ENUM)
#undef LINK_ENUM
        LINK_COUNT
};

struct shape {
    int n_dims;
    int64_t dim[MAX_DIMS];
};

struct tensor {
    const char *name; /* unique in the program; owned by the program's arena */
    enum dtype dtype;
    enum role role;
    struct shape shape;
    tensor_id base;       /* of a view: the tensor that owns the bytes; else TENSOR_NONE */
    int64_t offset_elems; /* of a view: offset in its base, in elements of the view's own dtype */
    bool persistent;      /* lives from step to step: weights, states, the scalar table */
    bool offloaded;       /* in the offload pool, not in the arena; only copies may name it */
    bool is_output;       /* read after the program has run, so it must survive to the end */
    bool decays;          /* parameter: weight decay applies */
    bool recomputed;      /* the recomputed copy of an activation */
    bool frozen;          /* parameter, buffer: not trained, so it has no gradient and no states */
    enum init init;
    double init_scale; /* INIT_normal: standard deviation; INIT_uniform: bound */
    /* A shard holds the elements from whole_from on of a tensor with the shape `whole`.  n_dims is
     * 0 if the tensor is not a shard. */
    struct shape whole;
    int64_t whole_from;
    /* Set only by program_link. */
    enum tensor_link link;
    tensor_id of;                    /* the parameter it is linked to, or TENSOR_NONE */
    tensor_id first_link, next_link; /* list of the tensors linked to this one, ids ascending */
    int n_alike; /* names that were made from this one with a number: NAME.2, NAME.3... */
};

/* The scalar table: a persistent f64 tensor of values that change from step to step. */
#define SCALAR_LIST(X)                                                                            \
    X(lr)                                                                                         \
    X(loss_scale)      /* 1 unless fp16 */                                                        \
    X(update_count)    /* updates so far, without skipped steps; Adam's t */                      \
    X(good_steps)      /* steps since the loss scale last changed */                              \
    X(grad_norm)       /* norm of the unscaled gradients, before clipping */                      \
    X(clip)            /* factor for the gradients: clipping times 1 / loss_scale */              \
    X(skip)            /* 1 if gradients are not finite: skip the update */                       \
    X(row)             /* the row that take_row reads */                                          \
    X(n_steps)         /* steps of the whole run */                                               \
    X(seed)            /* the run's seed, for stochastic rounding and dropout masks */            \
    X(step)            /* steps so far, for dropout masks */                                      \
    X(direction_lr)    /* learning rate of the next update, set by the op before it */            \
    X(direction_scale) /* factor for the direction of the next update, set likewise */            \
    X(lr_most)         /* the largest learning rate so far */                                     \
    X(average_sum)     /* sum of the weights of all steps in the average */                       \
    X(average_share)   /* weight of this step / average_sum */                                    \
    X(n_kept)          /* copies of the weights that were added to averages */                    \
    X(keeps)           /* 1 if this step adds a copy */                                           \
    X(d)               /* Prodigy: estimated distance from the initial weights to the solution */ \
    X(d_before)        /* Prodigy: d before this step's update */                                 \
    X(d_numerator)     /* Prodigy: numerator of the estimate */                                   \
    X(micro)           /* the current micro-batch; set only on a device */
enum scalar {
#define SCALAR_ENUM(name) SCALAR_##name,
    SCALAR_LIST(SCALAR_ENUM)
#undef SCALAR_ENUM
        SCALAR_COUNT
};

struct program {
    struct arena arena; /* owns the names */
    char *name;
    struct tensor *tensors;
    int n_tensors, tensor_capacity;
    struct op *ops;
    int n_ops, op_capacity;
    int body_end, n_repeat;  /* body_end 0 means n_ops: see program_body_end */
    tensor_id loss, scalars; /* or TENSOR_NONE */
    int32_t *name_table;     /* hash table: name -> tensor id + 1; private to program.c */
    int name_table_size;
};

/* program.c, up to op_shapes. */
enum snug_status program_init(struct program *prog, const char *name, struct snug_error *err);
void program_free(struct program *prog);
enum snug_status program_copy(struct program *to, const struct program *from,
                              struct snug_error *err);

/* Adds a copy of *tensor, without its link.  If the name is taken, a suffix ".2", ".3"... makes it
 * unique.  A tensor that is not a view must have base TENSOR_NONE: initialize with TENSOR_INIT. */
enum snug_status program_add_tensor(struct program *prog, const struct tensor *tensor,
                                    tensor_id *id, struct snug_error *err);
#define TENSOR_INIT .base = TENSOR_NONE

/* Returns an op with these operands.  Unused operands and `work` are TENSOR_NONE. */
struct op op_make(enum op_kind kind, struct attrs attrs, int n_in, const tensor_id *in, int n_out,
                  const tensor_id *out);

/* Appends an op whose outputs exist already.  attrs may be NULL, for the defaults. */
enum snug_status program_add_op(struct program *prog, enum op_kind kind, const struct attrs *attrs,
                                int n_in, const tensor_id *in, int n_out, const tensor_id *out,
                                struct snug_error *err);

/* Appends an op and creates its outputs: activations named NAME, NAME.1..., with the shapes that
 * the shape rule infers.  Their dtype is that of the first float input, unless ops.def fixes it
 * (keeps_f32, makes_u8).  Writes n_out ids to `ids`. */
enum snug_status program_emit(struct program *prog, enum op_kind kind, const struct attrs *attrs,
                              int n_in, const tensor_id *in, const char *name, int n_out,
                              tensor_id *ids, struct snug_error *err);

/* Creates the same outputs for an op that the caller adds to the program. */
enum snug_status program_add_outputs(struct program *prog, struct op *op, const char *name,
                                     int n_out, struct snug_error *err);

/* Returns the scalar table of the program, created on first use. */
enum snug_status program_scalars(struct program *prog, tensor_id *id, struct snug_error *err);

/* Replaces the list of ops and takes ownership of `ops`, which must be malloc'ed.  Passes use a
 * rewriter (pass/rewriter.h), which also keeps the sections consistent. */
void program_set_ops(struct program *prog, struct op *ops, int n_ops);

tensor_id program_find(const struct program *prog, const char *name); /* or TENSOR_NONE */

/* Links `id` to the parameter `of`, as its gradient, master...  LINK_none removes the link. */
void program_link(struct program *prog, tensor_id id, enum tensor_link link, tensor_id of);
/* Returns the first tensor with this link to `of`, or TENSOR_NONE.  `of` may be TENSOR_NONE. */
tensor_id program_linked(const struct program *prog, tensor_id of, enum tensor_link link);

static inline const struct tensor *program_tensor(const struct program *prog, tensor_id id)
{
    return &prog->tensors[id];
}

/* Products of dimensions saturate at INT64_MAX, which program_check_sizes rejects. */
int64_t shape_elems(const struct shape *shape);
int64_t shape_rows(const struct shape *shape); /* the product of all but the last dimension */
int64_t shape_last(const struct shape *shape);
bool shape_equal(const struct shape *a, const struct shape *b);
int64_t tensor_elems(const struct program *prog, tensor_id id);
int64_t tensor_bytes(const struct program *prog, tensor_id id);
tensor_id tensor_root(const struct program *prog, tensor_id id); /* the base of a view, else id */

/* Is one of the operands this tensor or a view of it? */
static inline bool op_names_root(const struct program *prog, int n, const tensor_id *ids,
                                 tensor_id root)
{
    for (int k = 0; k < n; k++)
        if (ids[k] != TENSOR_NONE && tensor_root(prog, ids[k]) == root)
            return true;
    return false;
}

/* More than any machine has.  Twice PROGRAM_BYTES_MAX still fits an int64, so code that sums the
 * tensors of a checked program need not test for overflow. */
#define TENSOR_ELEMS_MAX  INT64_C(100000000000000000)
#define PROGRAM_BYTES_MAX INT64_C(4000000000000000000)
/* Fails if a program exceeds these limits.  Call it before other code multiplies dimensions. */
enum snug_status program_check_sizes(const struct program *prog, struct snug_error *err);

/* shape.c: infers the shapes of an op's outputs.  `out` has MAX_OUTPUTS elements; n_dims is -1 for
 * an output that the rule does not determine. */
enum snug_status op_shapes(const struct program *prog, const struct op *op, struct shape *out,
                           struct snug_error *err);
/* Sets dimension 0 of all inputs to `batch`, infers all shapes again, and checks the new sizes. */
enum snug_status program_set_batch(struct program *prog, int64_t batch, struct snug_error *err);

/* verify.c: checks that a program is well-formed.  The error names the op and the tensor. */
enum snug_status program_verify(const struct program *prog, struct snug_error *err);

/* cost.c: one run of an op: floating-point operations, bytes read, and bytes read plus written. */
double op_flops(const struct program *prog, const struct op *op);
double op_read_bytes(const struct program *prog, const struct op *op);
double op_moved_bytes(const struct program *prog, const struct op *op);

/* dump.c, parse.c: the text form (docs/program.md).  parse(dump(p)) equals p. */
struct text;
void program_dump(const struct program *prog, struct text *out);
enum snug_status program_parse(const char *text, struct program *prog, struct snug_error *err);

/* Returns the index after the last op of the body. */
static inline int program_body_end(const struct program *prog)
{
    return prog->body_end == 0 ? prog->n_ops : prog->body_end;
}

/* Does this op of the body run in micro-batch `micro`? */
static inline bool op_runs_in(const struct program *prog, const struct op *op, int micro)
{
    return !op->in_last || micro == prog->n_repeat - 1;
}
/* Returns how often op i runs in one step. */
static inline int program_op_runs(const struct program *prog, int i)
{
    return i < program_body_end(prog) && !prog->ops[i].in_last ? prog->n_repeat : 1;
}

/* Returns the last op of the section that contains op i.
 *
 * Ops with TRAIT_copy run in order on the copy lane, concurrently with the other ops.  A copy
 * starts when the ops before it are done.  An op that reads the result of a copy waits for it and
 * for all copies before it.  The last op of a section waits for all copies of the section. */
static inline int program_section_last(const struct program *prog, int i)
{
    int body_end = program_body_end(prog);
    return i < body_end ? body_end - 1 : prog->n_ops - 1;
}

#endif
