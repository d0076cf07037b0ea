/*
 * compile_internal.h -- the layers below compile_step; compile.c has the overview.
 */
#ifndef SNUG_COMPILE_COMPILE_INTERNAL_H
#define SNUG_COMPILE_COMPILE_INTERNAL_H

#include "compile/compile.h"

/* auto_checkpoint.c: --checkpoint auto.  The plan with the least recomputation that fits --memory,
 * or the smallest plan found if none fits. */
enum snug_status compile_fitting(const struct compile_request *request, struct compiled_step *step,
                                 struct snug_error *err);
/* If the request names no rank: plans one rank of each kind and returns the largest plan.  An
 * estimate only plans the rank with the most weights and states. */
enum snug_status compile_fullest(const struct compile_request *request, struct compiled_step *step,
                                 struct snug_error *err);
/* Compiles and plans one rank.  With --checkpoint auto, request->room_bytes is the limit. */
enum snug_status compile_once(const struct compile_request *request, struct compiled_step *step,
                              struct snug_error *err);
#endif
