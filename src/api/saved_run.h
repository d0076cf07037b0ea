/*
 * saved_run.h -- a run on disk, as eval and generate open it.
 */
#ifndef SNUG_API_SAVED_RUN_H
#define SNUG_API_SAVED_RUN_H

#include "compile/compile.h"
#include "exec/exec.h"
#include "io/json.h"

/* Reads state.json of a run; *state is NULL if the folder is not a run. */
enum snug_status saved_run_state(const char *run, json_t **state, struct snug_error *err);
/* Opens a folder with weights; it need not be a run. */
enum snug_status saved_run_open(const char *run, struct snug_model *model, struct snug_error *err);
/* A string in an object of the state, or NULL. */
const char *saved_run_text(const json_t *state, const char *object, const char *key);
/* Was the run trained on text as bytes? */
bool saved_run_is_bytes(const json_t *state);
/* Loads the weights of the run and merges the adapter of --lora-from.  Refuses weights that are not
 * finite, because the loss may hide them: relu turns NaN into 0. */
enum snug_status saved_run_load_weights(const struct compiled_step *compiled, struct exec *exec,
                                        const char *run, const char *adapter,
                                        struct snug_error *err);

#endif
