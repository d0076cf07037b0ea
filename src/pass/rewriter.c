/*
 * rewriter.c -- a new list of ops and the end of its body.
 *
 * body_end 0 means that all ops are in the body.  The new list gets a body_end if the old one had
 * one or if the pass ended the body.
 */
#include "pass/rewriter.h"

#include <assert.h>
#include <stdlib.h>

struct rewriter rewriter_begin(struct program *prog, const char *pass, struct snug_error *err)
{
    return (struct rewriter){.prog = prog, .pass = pass, .err = err};
}

void rewriter_end_body(struct rewriter *rw)
{
    if (!rw->body_has_ended)
        rw->body_end = rw->n_ops;
    rw->body_has_ended = true;
}

void rewriter_reach(struct rewriter *rw, int i)
{
    if (i >= program_body_end(rw->prog))
        rewriter_end_body(rw);
}

enum snug_status rewriter_add(struct rewriter *rw, const struct op *op)
{
    void *grown = rw->ops;
    bool ok = array_grow(&grown, &rw->capacity, rw->n_ops + 1, sizeof *rw->ops);
    rw->ops = grown;
    if (!ok)
        return snug_fail(rw->err, SNUG_NO_MEMORY, "%s: out of memory", rw->pass);
    rw->ops[rw->n_ops++] = *op;
    return SNUG_OK;
}

enum snug_status rewriter_replace(struct rewriter *rw, int i, const struct op *op)
{
    rewriter_reach(rw, i);
    return rewriter_add(rw, op);
}

enum snug_status rewriter_copy(struct rewriter *rw, int i)
{
    return rewriter_replace(rw, i, &rw->prog->ops[i]);
}

enum snug_status rewriter_emit(struct rewriter *rw, enum op_kind kind, const struct attrs *attrs,
                               int n_in, const tensor_id *in, const char *name, int n_out,
                               tensor_id *ids)
{
    struct op op = op_make(kind, attrs == NULL ? attrs_default(op_infos[kind].family) : *attrs,
                           n_in, in, 0, NULL);
    TRY(program_add_outputs(rw->prog, &op, name, n_out, rw->err));
    for (int k = 0; k < n_out; k++)
        ids[k] = op.out[k];
    return rewriter_add(rw, &op);
}

/* Checks the end of the body; program_verify checks the rest after the pass. */
static void check_body(const struct program *prog)
{
#ifdef SNUG_DEBUG
    int body_end = program_body_end(prog);
    assert(body_end <= prog->n_ops);
    for (int i = 0; i < prog->n_ops; i++) /* only body ops may be in_last */
        assert(!prog->ops[i].in_last || i < body_end);
#else
    (void)prog;
#endif
}

static void set_body_end(struct program *prog, int body_end)
{
    if (prog->body_end > 0 && body_end == 0)
        prog->n_repeat = 1; /* the body is empty */
    prog->body_end = body_end;
    check_body(prog);
}

void rewriter_free(struct rewriter *rw)
{
    free(rw->ops);
    rw->ops = NULL;
    rw->n_ops = rw->capacity = 0;
}

enum snug_status rewriter_finish(struct rewriter *rw, enum snug_status status)
{
    struct program *prog = rw->prog;
    if (status == SNUG_OK) {
        bool has_body_end = prog->body_end > 0 || rw->body_has_ended;
        rewriter_end_body(rw);
        program_set_ops(prog, rw->ops, rw->n_ops);
        set_body_end(prog, has_body_end ? rw->body_end : 0);
        rw->ops = NULL;
    }
    rewriter_free(rw);
    return status;
}

void rewriter_drop(struct program *prog, const bool *removed)
{
    int n_kept = 0, body_end = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        body_end += i < prog->body_end && !removed[i];
        if (!removed[i])
            prog->ops[n_kept++] = prog->ops[i];
    }
    prog->n_ops = n_kept;
    set_body_end(prog, body_end);
}
