/*
 * rewriter.h -- the one way in which a pass replaces the list of ops.
 *
 * A pass walks the old list and writes the new one, op after op.  The rewriter owns the new list and the marks
 * between its three sections (body_begin, body_end), which are right by construction: an op of the old list
 * opens the section that it is in, and a new op belongs to the section that is open.
 *
 *     struct rewriter rw = rewriter_begin(prog, "cast", env->err);
 *     for (int i = 0; status == SNUG_OK && i < prog->n_ops; i++) {
 *         rewriter_reach(&rw, i);                 what follows stands before op i, in its section
 *         status = rewriter_add(&rw, &new_op);    before op i
 *         status = rewriter_copy(&rw, i);         op i; an op that is not copied is dropped
 *         status = rewriter_add(&rw, &new_op);    after op i
 *     }
 *     return rewriter_finish(&rw, status);
 *
 * The program keeps its old ops until rewriter_finish: ids and indices stay valid while the pass walks.
 */
#ifndef SNUG_PASS_REWRITER_H
#define SNUG_PASS_REWRITER_H

#include "ir/program.h"

enum section { SECTION_before, SECTION_body, SECTION_after };

struct rewriter {
    struct program *prog;
    const char *pass; /* named in messages */
    struct snug_error *err;
    struct op *ops; /* the new list: read it, add to it with the functions below */
    int n_ops, capacity;
    enum section open;
    int begin[SECTION_after + 1]; /* where each section that was opened begins in the new list */
};

struct rewriter rewriter_begin(struct program *prog, const char *pass, struct snug_error *err);

/* Opens the section of op i of the old list, unless a later one is open. */
void rewriter_reach(struct rewriter *rw, int i);
/* Opens a section, for passes that do not walk the list in its order. */
void rewriter_open(struct rewriter *rw, enum section section);

/* Op i of the old list as it is, in its section.  To leave an op out, do not copy it. */
enum snug_status rewriter_copy(struct rewriter *rw, int i);
/* `op` in the place of op i. */
enum snug_status rewriter_replace(struct rewriter *rw, int i, const struct op *op);
/* A new op (op_make), or one that moves from another place, in the section that is open. */
enum snug_status rewriter_add(struct rewriter *rw, const struct op *op);
/* A new op, and its outputs: tensors as program_emit makes them.  ids gets n_out ids. */
enum snug_status rewriter_emit(struct rewriter *rw, enum op_kind kind, const struct attrs *attrs,
                               int n_in, const tensor_id *in, const char *name, int n_out,
                               tensor_id *ids);

/* The new list takes the place of the old one; after a failure it is freed and the old one stays. */
enum snug_status rewriter_finish(struct rewriter *rw, enum snug_status status);

/* Frees a list that was not finished; nothing to do otherwise. */
void rewriter_free(struct rewriter *rw);

/* For passes that change ops where they are: drops the ops with gone[i], no memory needed. */
void rewriter_drop(struct program *prog, const bool *gone);

#endif
