/*
 * saved_run.c -- a run on disk, as eval and generate open it.
 */
#include "api/saved_run.h"

#include <string.h>

#include "api/model_api.h"
#include "checkpoint/adapter.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"
#include "data/data.h"

enum snug_status saved_run_state(const char *run, json_t **state, struct snug_error *err)
{
    struct checkpoint *checkpoint;
    bool exists;
    *state = NULL;
    TRY(checkpoint_exists(run, &exists, err));
    if (!exists)
        return SNUG_OK;
    TRY(checkpoint_open(run, &checkpoint, err));
    const char *text = checkpoint_state(checkpoint);
    enum snug_status status = json_parse(text, strlen(text), run, state, err);
    checkpoint_close(checkpoint);
    return status;
}

enum snug_status saved_run_open(const char *run, struct snug_model *model, struct snug_error *err)
{
    TRY(open_model_folder(run, model, err));
    return checkpoint_refuse_begun(run, err);
}

const char *saved_run_text(const json_t *state, const char *object, const char *key)
{
    return json_string_value(json_object_get(json_object_get(state, object), key));
}

bool saved_run_is_bytes(const json_t *state)
{
    return data_kind_is_bytes(saved_run_text(state, "data", "kind"));
}

enum snug_status saved_run_load_weights(const struct compiled_step *compiled, struct exec *exec,
                                        const char *run, const char *adapter,
                                        struct snug_error *err)
{
    const char *broken;
    TRY(weights_load_folder(compiled, exec, run, err));
    if (adapter[0] != '\0')
        TRY(adapter_merge(compiled, exec, adapter, err));
    TRY(weights_find_nonfinite(compiled, exec, &broken, err));
    return broken == NULL ? SNUG_OK
                          : snug_fail(err, SNUG_BAD_FILE,
                                      "%s: weights are not finite, first in \"%s\"; use an earlier "
                                      "checkpoint or train again with a lower --lr",
                                      run, broken);
}
