/*
 * rewriter.h -- how a pass replaces the list of ops.
 *
 * A pass walks the old list and writes the new one op by op.  The rewriter owns the new list and
 * the end of its body (body_end), which is correct by construction: copying the first op after the
 * old body ends the body, and a new op goes into the open section.
 *
 *     struct rewriter rw = rewriter_begin(prog, "cast", env->err);
 *     for (int i = 0; status == SNUG_OK && i < prog->n_ops; i++) {
 *         rewriter_reach(&rw, i);                 open the section of op i
 *         status = rewriter_add(&rw, &new_op);    before op i
 *         status = rewriter_copy(&rw, i);         op i; an op that is not copied is removed
 *         status = rewriter_add(&rw, &new_op);    after op i
 *     }
 *     return rewriter_finish(&rw, status);
 *
 * The program keeps its old ops until rewriter_finish: ids and indices stay valid while the pass
 * walks.
 */
#ifndef SNUG_PASS_REWRITER_H
#define SNUG_PASS_REWRITER_H

#include "ir/program.h"

struct rewriter {
    struct program *prog;
    const char *pass; /* for error messages */
    struct snug_error *err;
    struct op *ops; /* the new list; read only, the functions below add to it */
    int n_ops, capacity;
    bool body_has_ended; /* the section after it is open */
    int body_end;        /* in the new list, if body_has_ended */
};

struct rewriter rewriter_begin(struct program *prog, const char *pass, struct snug_error *err);

/* Opens the section of op i of the old list.  The body does not open again once it has ended. */
void rewriter_reach(struct rewriter *rw, int i);
/* Opens the section after the body, for passes that do not walk the list in order. */
void rewriter_end_body(struct rewriter *rw);

/* Appends op i of the old list, in its section. */
enum snug_status rewriter_copy(struct rewriter *rw, int i);
/* Appends `op` in place of op i, in the section of op i. */
enum snug_status rewriter_replace(struct rewriter *rw, int i, const struct op *op);
/* Appends a new op (op_make) or a moved op in the open section. */
enum snug_status rewriter_add(struct rewriter *rw, const struct op *op);
/* Appends a new op and adds its output tensors, as program_emit does.  ids receives n_out ids. */
enum snug_status rewriter_emit(struct rewriter *rw, enum op_kind kind, const struct attrs *attrs,
                               int n_in, const tensor_id *in, const char *name, int n_out,
                               tensor_id *ids);

/* Replaces the old list by the new one.  If status is a failure, frees the new list instead. */
enum snug_status rewriter_finish(struct rewriter *rw, enum snug_status status);

/* Frees an unfinished list; does nothing after rewriter_finish. */
void rewriter_free(struct rewriter *rw);

/* For passes that change ops in place: removes op i if removed[i].  Allocates nothing. */
void rewriter_drop(struct program *prog, const bool *removed);

#endif
