/*
 * lower.h -- lower a model and a recipe to the program of one rank.  The lowest layer of the
 * compiler; compile.c has the overview.
 */
#ifndef SNUG_COMPILE_LOWER_H
#define SNUG_COMPILE_LOWER_H

#include "compile/compile.h"

/* Runs the passes up to and including request->last_pass; the plan of *step stays empty.  Without
 * last_pass it also checks that every op has a kernel.  With --checkpoint auto,
 * request->room_bytes is the limit. */
enum snug_status lower_program(const struct compile_request *request, struct compiled_step *step,
                               struct snug_error *err);

/* Takes over request->program and books its workspaces. */
enum snug_status lower_finished(const struct compile_request *request, struct compiled_step *step,
                                struct snug_error *err);

#endif
