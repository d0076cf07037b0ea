/*
 * compile_internal.h -- the layers below compile_step; see the picture in compile.c.
 */
#ifndef SNUG_COMPILE_COMPILE_INTERNAL_H
#define SNUG_COMPILE_COMPILE_INTERNAL_H

#include "compile/compile.h"

/* auto_checkpoint.c: --checkpoint auto: program and plan with the least recomputation that fit --memory; if none
 * do, the smallest plan that was found. */
enum snug_status compile_fitting(const struct compile_request *request, struct compiled_step *step,
                                 struct snug_error *err);
/* Where no rank is asked for, of the rank whose plan has most bytes: one of each kind is planned.  An estimate is
 * that of the rank with most weights and states. */
enum snug_status compile_fullest(const struct compile_request *request, struct compiled_step *step,
                                 struct snug_error *err);
/* One program and its plan; auto: with request->room_bytes. */
enum snug_status compile_once(const struct compile_request *request, struct compiled_step *step,
                              struct snug_error *err);
#endif
