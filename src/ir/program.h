/*
 * program.h -- a training step as data: tensors, ops in execution order, nothing else.
 *
 * Ids are indices into the program's arrays and never change meaning; passes add tensors and ops
 * and rewrite the list of ops.  A program is all that one rank does in one optimizer step:
 *
 *     ops:  [0 .. body_begin)  once, before      (nothing, today)
 *           [body_begin .. body_end)  n_repeat times: forward and backward of one micro-batch
 *           [body_end .. n_ops)  once, after: gradient norm and updates
 *
 * Where micro-batches overlap, in a pipeline, the body is unrolled: n_repeat is 1, and each op says which
 * micro-batch it belongs to.
 *
 * An op of the body can be marked `in_last`: it runs in the last micro-batch only, when what was
 * summed over all of them is complete.
 *
 * A tensor has one writer, with three exceptions that verify.c knows: an op that updates a tensor
 * in place names it among its inputs and its outputs; an output that accumulates (+=) follows the
 * writer before it; views share the bytes of their base.
 */
#ifndef SNUG_IR_PROGRAM_H
#define SNUG_IR_PROGRAM_H

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "ir/op.h"

enum { MAX_DIMS = 6 };

/* The ledger's kinds, inputs (booked with the activations), and buffers (booked with the parameters):
 * what is saved with a model but moved by the forward pass, as running averages are. */
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
    INIT_weight /* a state that starts as the weight that it is linked to */
};              /* scale: deviation or bound */

/* What a tensor is to a parameter.  Passes find it by this, never by its name. */
#define LINK_LIST(X)                                                             \
    X(gradient)      /* the sum that updates read */                             \
    X(master)        /* the fp32 copy of 16 bits */                              \
    X(state)         /* another state of the optimizer, scales of states too */  \
    X(average_state) /* the state from which averages for evaluation are made */ \
    X(average)       /* such an average, beside a run */                         \
    X(gathered)      /* the whole, where ranks have shards */                    \
    X(adapter)       /* a thin matrix beside it */
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
    const char *name; /* unique in the program; owned by its arena */
    enum dtype dtype;
    enum role role;
    struct shape shape;
    tensor_id base;       /* a view: whose bytes these are (never itself a view), or TENSOR_NONE */
    int64_t offset_elems; /* of the view in its base, in elements of the view's own type */
    int lane;             /* 0 compute; tensors of different lanes never share bytes */
    bool persistent;      /* lives from step to step: weights, states, the scalar table */
    bool offloaded;       /* lies in the offload pool, outside the arena: only copies name it */
    bool is_output;       /* read by whoever runs the program */
    bool decays;          /* parameter: weight decay applies */
    bool recomputed;      /* a second copy of an activation, made by the op that made the first */
    bool frozen;          /* parameter, buffer: not trained, so it has no gradient and no states */
    enum init init;
    double init_scale;
    /* A shard: of which tensor this rank has the elements from whole_from on.  n_dims 0: it is whole. */
    struct shape whole;
    int64_t whole_from;
    /* Set by program_link alone. */
    enum tensor_link link;
    tensor_id of;                    /* the parameter, TENSOR_NONE: of none */
    tensor_id first_link, next_link; /* those that are linked to this one, in the order of ids */
};

/* Numbers that change from step to step: a persistent f64 tensor that kernels read. */
#define SCALAR_LIST(X)                                                                             \
    X(lr)                                                                                          \
    X(loss_scale)      /* 1 unless fp16 */                                                         \
    X(update_count)    /* updates made so far, skipped steps not counted; Adam's t */              \
    X(good_steps)      /* since the loss scale last changed */                                     \
    X(grad_norm)       /* of the unscaled gradients, before clipping */                            \
    X(clip)            /* multiply gradients by this: clipping and 1 / loss_scale together */      \
    X(skip)            /* 1: gradients are not finite, make no update */                           \
    X(row)             /* for take_row */                                                          \
    X(n_steps)         /* of the whole run */                                                      \
    X(seed)            /* of the run: keys the stochastic rounding and the masks of dropout */     \
    X(step)            /* its steps so far: the masks' as well */                                  \
    X(direction_lr)    /* of the tensor that is updated next: by the op that made its direction */ \
    X(direction_scale) /* and what its numbers are multiplied with */                              \
    X(lr_most)         /* the largest learning rate so far */                                      \
    X(average_sum)     /* of the weights with which steps count in the average */                  \
    X(average_share)   /* of this step in it */                                                    \
    X(n_kept)          /* copies of the weights that went into averages */                         \
    X(keeps)           /* 1: this step makes one more */                                           \
    X(d)               /* Prodigy's: how far the start is from the solution, estimated */          \
    X(d_before)        /* this step's update */                                                    \
    X(d_numerator)     /* of its estimate */                                                       \
    X(micro)           /* which micro-batch runs: only on a device, whose kernels read it here */
enum scalar {
#define SCALAR_ENUM(name) SCALAR_##name,
    SCALAR_LIST(SCALAR_ENUM)
#undef SCALAR_ENUM
        SCALAR_COUNT
};

struct program {
    struct arena arena; /* names */
    char *name;
    struct tensor *tensors;
    int n_tensors, tensor_capacity;
    struct op *ops;
    int n_ops, op_capacity;
    int body_begin, body_end, n_repeat; /* body_end 0: all ops are the body */
    tensor_id loss, scalars;            /* TENSOR_NONE where there is none */
    int32_t *name_table;                /* hash of names -> tensor id + 1; owned by program.c */
    int name_table_size;
};

enum snug_status program_init(struct program *prog, const char *name, struct snug_error *err);
void program_free(struct program *prog);
enum snug_status program_copy(struct program *to, const struct program *from,
                              struct snug_error *err);

/* Copies *tensor in, without its link; its name is made unique by a suffix ".2", ".3"... if it is taken.
 * Zero-initialised fields of interest: base must be set to TENSOR_NONE (use TENSOR_INIT). */
enum snug_status program_add_tensor(struct program *prog, const struct tensor *tensor,
                                    tensor_id *id, struct snug_error *err);
#define TENSOR_INIT .base = TENSOR_NONE

/* An op with these operands.  Places that are left are TENSOR_NONE, and so is work. */
struct op op_make(enum op_kind kind, struct attrs attrs, int n_in, const tensor_id *in, int n_out,
                  const tensor_id *out);

/* Appends an op with outputs that exist already; attrs NULL: all by default. */
enum snug_status program_add_op(struct program *prog, enum op_kind kind, const struct attrs *attrs,
                                int n_in, const tensor_id *in, int n_out, const tensor_id *out,
                                struct snug_error *err);

/* Appends an op and makes its outputs: activations named NAME, NAME.1..., shapes by the shape rule,
 * type of input 0 (its first float input) or fp32 where the row keeps it.  ids gets n_out ids. */
enum snug_status program_emit(struct program *prog, enum op_kind kind, const struct attrs *attrs,
                              int n_in, const tensor_id *in, const char *name, int n_out,
                              tensor_id *ids, struct snug_error *err);

/* Makes those outputs for an op that is not in the list. */
enum snug_status program_add_outputs(struct program *prog, struct op *op, const char *name,
                                     int n_out, struct snug_error *err);

/* The scalar table of the program, made on first use. */
enum snug_status program_scalars(struct program *prog, tensor_id *id, struct snug_error *err);

/* Takes over a malloc'ed list of ops in place of the present one.  A pass does so through its rewriter
 * (pass/rewriter.h), which keeps the sections right. */
void program_set_ops(struct program *prog, struct op *ops, int n_ops);

tensor_id program_find(const struct program *prog, const char *name); /* or TENSOR_NONE */

/* Says that `id` is the gradient of `of`, its master...  LINK_none: of nothing. */
void program_link(struct program *prog, tensor_id id, enum tensor_link link, tensor_id of);
/* The first tensor that is linked so to `of`; TENSOR_NONE: none is, or `of` is TENSOR_NONE. */
tensor_id program_linked(const struct program *prog, tensor_id of, enum tensor_link link);

static inline const struct tensor *program_tensor(const struct program *prog, tensor_id id)
{
    return &prog->tensors[id];
}

/* Products of dimensions stop at INT64_MAX; program_check_sizes refuses them. */
int64_t shape_elems(const struct shape *shape);
int64_t shape_rows(const struct shape *shape); /* all but the last dimension together */
int64_t shape_last(const struct shape *shape);
bool shape_equal(const struct shape *a, const struct shape *b);
int64_t tensor_elems(const struct program *prog, tensor_id id);
int64_t tensor_bytes(const struct program *prog, tensor_id id);
tensor_id tensor_root(const struct program *prog, tensor_id id); /* its base, or itself */

/* Is one of the operands this tensor, or a part of it? */
static inline bool op_names_root(const struct program *prog, int n, const tensor_id *ids,
                                 tensor_id root)
{
    for (int k = 0; k < n; k++)
        if (ids[k] != TENSOR_NONE && tensor_root(prog, ids[k]) == root)
            return true;
    return false;
}

/* No machine holds more.  Twice as much still fits an int64, so that whoever adds up the tensors of a
 * program that was checked need not look at each sum. */
#define TENSOR_ELEMS_MAX  INT64_C(100000000000000000)
#define PROGRAM_BYTES_MAX INT64_C(4000000000000000000)
/* Refuses larger programs.  To be asked before products of dimensions are taken elsewhere. */
enum snug_status program_check_sizes(const struct program *prog, struct snug_error *err);

/* shape.c: what the outputs of an op must look like.  out has MAX_OUTPUTS places. */
enum snug_status op_shapes(const struct program *prog, const struct op *op, struct shape *out,
                           struct snug_error *err);
/* Re-derives every shape from the inputs after dimension 0 of the inputs became `batch`; checks the
 * sizes that come of it. */
enum snug_status program_set_batch(struct program *prog, int64_t batch, struct snug_error *err);

/* verify.c: all rules that a program must obey; the message names op and tensor. */
enum snug_status program_verify(const struct program *prog, struct snug_error *err);

/* cost.c: floating-point operations of one execution, bytes read, and bytes read and written. */
double op_flops(const struct program *prog, const struct op *op);
double op_read_bytes(const struct program *prog, const struct op *op);
double op_moved_bytes(const struct program *prog, const struct op *op);

/* dump.c, parse.c: the text form.  parse(dump(p)) is p. */
struct text;
void program_dump(const struct program *prog, struct text *out);
enum snug_status program_parse(const char *text, struct program *prog, struct snug_error *err);

/* True once the body's ops are passed: used by every walk that has to know the three sections. */
static inline int program_body_end(const struct program *prog)
{
    return prog->body_end == 0 ? prog->n_ops : prog->body_end;
}

/* Does an op run in this micro-batch?  And how often does op i run in a step? */
static inline bool op_runs_in(const struct program *prog, const struct op *op, int micro)
{
    return !op->in_last || micro == prog->n_repeat - 1;
}
static inline int program_op_runs(const struct program *prog, int i)
{
    bool repeats = i >= prog->body_begin && i < program_body_end(prog) && !prog->ops[i].in_last;
    return repeats ? prog->n_repeat : 1;
}

/* The last op of the section that op i is in.
 *
 * Ops whose row says TRAIT_copy run on a lane of their own, in their order, beside the others.  Such an
 * op begins when the ops before it are done.  It is done when an op that reads what it or a later
 * copy wrote begins, or the last op of its section; after that one, nothing is under way. */
static inline int program_section_last(const struct program *prog, int i)
{
    int body_end = program_body_end(prog);
    return i < prog->body_begin ? prog->body_begin - 1
           : i < body_end       ? body_end - 1
                                : prog->n_ops - 1;
}

#endif
