/*
 * offload.h -- shared by the files of the offload pass; no other file includes it.
 */
#ifndef SNUG_PASS_OFFLOAD_H
#define SNUG_PASS_OFFLOAD_H

#include "pass/pass.h"
#include "pass/rewriter.h"

static inline enum snug_status offload_no_memory(const struct rewriter *rw)
{
    return snug_fail(rw->err, SNUG_NO_MEMORY, "offload: out of memory");
}

/* Adds a prefetch or evict (from, to), or a wait_copy (from, TENSOR_NONE). */
enum snug_status offload_add_copy(struct rewriter *rw, enum op_kind kind, tensor_id from,
                                  tensor_id to, bool in_last);

/* Adds a tensor PREFIX.NAME with the shape and dtype of `like`; not a view, not persistent. */
enum snug_status offload_add_like(struct rewriter *rw, struct arena *scratch, const char *prefix,
                                  tensor_id like, enum role role, bool offloaded, tensor_id *id);

/* offload_states.c, offload_activations.c */
enum snug_status offload_states(struct program *prog, struct pass_env *env);
enum snug_status offload_activations(struct program *prog, struct pass_env *env);

#endif
