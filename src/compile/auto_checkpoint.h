/*
 * auto_checkpoint.h -- --checkpoint auto.
 */
#ifndef SNUG_COMPILE_AUTO_CHECKPOINT_H
#define SNUG_COMPILE_AUTO_CHECKPOINT_H

#include "compile/compile.h"

/* The plan with the least recomputation that fits --memory, or the smallest plan found if none
 * fits. */
enum snug_status compile_fitting(const struct compile_request *request, struct compiled_step *step,
                                 struct snug_error *err);

#endif
