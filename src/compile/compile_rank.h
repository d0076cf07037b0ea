/*
 * compile_rank.h -- compile one rank, or the rank with the largest plan.
 */
#ifndef SNUG_COMPILE_COMPILE_RANK_H
#define SNUG_COMPILE_COMPILE_RANK_H

#include "compile/compile.h"

/* Compiles and plans one rank. */
enum snug_status compile_rank(const struct compile_request *request, struct compiled_step *step,
                              struct snug_error *err);
/* If the request names no rank: plans one rank of each kind and returns the largest plan.  An
 * estimate only plans the rank with the most weights and states. */
enum snug_status compile_fullest_rank(const struct compile_request *request,
                                      struct compiled_step *step, struct snug_error *err);
/* Replaces *step by the largest plan of another stage if that is larger.  A failure frees *step. */
enum snug_status compile_fuller_rank(const struct compile_request *request,
                                     struct compiled_step *step, struct snug_error *err);
/* Books and plans request->program. */
enum snug_status compile_finished(const struct compile_request *request, struct compiled_step *step,
                                  struct snug_error *err);

#endif
