/*
 * offload.h -- what the two halves of the pass offload share; nobody else includes it.
 */
#ifndef SNUG_PASS_OFFLOAD_H
#define SNUG_PASS_OFFLOAD_H

#include "pass/op_list.h"
#include "pass/pass.h"

/* A program that is being written anew, op after op. */
struct rewrite {
    struct program *prog;
    struct pass_env *env;
    struct op_list list;
    int body_begin, body_end; /* of the new list; set by rewrite_reach */
};

enum snug_status rewrite_no_memory(const struct rewrite *r);
enum snug_status rewrite_append(struct rewrite *r, const struct op *op);
/* prefetch, evict (from, to), or wait_copy (from, TENSOR_NONE) */
enum snug_status rewrite_append_copy(struct rewrite *r, enum op_kind kind, tensor_id from,
                                     tensor_id to, bool in_last);
/* To be called before anything is appended that belongs before op i of the old list, or to it:
 * sections begin where they did. */
void rewrite_reach(struct rewrite *r, int i);
/* The new list takes the place of the old one, or is thrown away after a failure. */
enum snug_status rewrite_finish(struct rewrite *r, enum snug_status status);

/* A tensor PREFIX.NAME like `like`, of no views and not persistent. */
enum snug_status rewrite_add_like(struct rewrite *r, const char *prefix, tensor_id like,
                                  enum role role, bool offloaded, tensor_id *id);

enum snug_status offload_states(struct program *prog, struct pass_env *env);
enum snug_status offload_activations(struct program *prog, struct pass_env *env);

#endif
