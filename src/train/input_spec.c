/*
 * input_spec.c -- derive the data that a program needs from its loss op, so that presets and
 * hand-built networks are fed the same way.
 */
#include "train/input_spec.h"

#include "io/hf_tokenizer.h"
#include "io/hf_tokenizer_folder.h"

enum { SCANNED_TOKENS = 1 << 26 }; /* takes a fraction of a second */

static const struct op *loss_op(const struct program *prog)
{
    for (int i = 0; i < prog->n_ops; i++)
        for (int k = 0; k < prog->ops[i].n_out; k++)
            if (prog->loss != TENSOR_NONE && prog->ops[i].out[k] == prog->loss)
                return &prog->ops[i];
    return NULL;
}

enum snug_status input_spec_of(const struct program *prog, struct input_spec *input_spec,
                               struct snug_error *err)
{
    const struct op *op = loss_op(prog);
    int n_inputs = 0;
    *input_spec = (struct input_spec){
        .input = TENSOR_NONE, .target_input = TENSOR_NONE, .output = TENSOR_NONE};
    if (op == NULL)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s has no loss: it can be planned, but not trained or evaluated",
                         prog->name);
    bool head_fused = op_has(op, TRAIT_lm_head);
    input_spec->target_input = op->in[head_fused ? 2 : 1];
    if (head_fused) {
        input_spec->n_classes = prog->tensors[op->in[1]].shape.dim[0];
    } else {
        input_spec->output = op->in[0];
        input_spec->n_classes = shape_last(&prog->tensors[op->in[0]].shape);
    }
    for (int i = 0; i < prog->n_tensors; i++)
        if (prog->tensors[i].role == ROLE_input && i != input_spec->target_input) {
            input_spec->input = i;
            n_inputs++;
        }
    if (n_inputs != 1) {
        input_spec->input = TENSOR_NONE;
        return SNUG_OK;
    }
    bool tokens = prog->tensors[input_spec->input].dtype == DTYPE_i32;
    bool has_ids = op_infos[op->kind].ids.dimension != IDS_none;
    input_spec->target = !has_ids ? DATA_TARGET_REAL
                         : tokens && tensor_elems(prog, input_spec->target_input) ==
                                         tensor_elems(prog, input_spec->input)
                             ? DATA_TARGET_TOKENS
                             : DATA_TARGET_CLASS;
    return SNUG_OK;
}

struct tokenizer_place {
    const char *model_folder;
    const struct snug_recipe *recipe;
};

static enum snug_status open_tokenizer(void *user, struct tokenizer **tokenizer,
                                       struct snug_error *err)
{
    const struct tokenizer_place *place = user;
    if (place->recipe->tokenizer == TOKENIZER_path)
        return hf_tokenizer_open(place->recipe->tokenizer_path, tokenizer, err);
    bool found = place->model_folder != NULL && hf_tokenizer_exists(place->model_folder);
    return found ? hf_tokenizer_open(place->model_folder, tokenizer, err) : SNUG_OK;
}

/* Shards must be of the tokenizer that text would get. */
static enum snug_status check_tokenizer(const struct data *data, const char *spec,
                                        struct tokenizer_place *place, struct snug_error *err)
{
    bool is_given = place->recipe->tokenizer == TOKENIZER_path;
    const char *from = is_given ? place->recipe->tokenizer_path : place->model_folder;
    uint64_t of_data = data_tokenizer(data);
    struct tokenizer *t = NULL;
    if (of_data == 0 || data_is_text(data))
        return SNUG_OK;
    TRY(open_tokenizer(place, &t, err));
    bool is_same = t == NULL || t->identity == of_data;
    tokenizer_free(t);
    return is_same ? SNUG_OK
                   : snug_fail(err, SNUG_MISMATCH,
                               "%s has the tokens of another tokenizer than that of %s: tokenize "
                               "the text again, with --tokenizer %s",
                               spec, from, from);
}

enum snug_status input_spec_open_data(const struct compiled_step *compiled,
                                      const struct input_spec *input_spec,
                                      const struct input_source *source,
                                      const struct snug_recipe *recipe, struct data **data,
                                      struct snug_error *err)
{
    const struct program *prog = compiled_step_forward(compiled);
    if (input_spec->input == TENSOR_NONE)
        return snug_fail(err, SNUG_UNSUPPORTED,
                         "%s does not have exactly one input and one target: feed it with "
                         "snug_trainer_step",
                         prog->name);
    struct tokenizer_place tokenizer = {source->model_folder, recipe};
    struct data_request request = {
        .spec = source->spec,
        .whole = source->whole,
        .target = input_spec->target,
        .sample_elems = tensor_elems(prog, input_spec->input) / compiled->micro_batch,
        .target_elems = tensor_elems(prog, input_spec->target_input) / compiled->micro_batch,
        .n_classes = input_spec->n_classes,
        .seed = (uint64_t)recipe->seed,
        .augment = recipe->augment,
        .threads = compiled->facts.threads,
        .bytes_as_tokens = recipe->tokenizer == TOKENIZER_bytes,
        .open_tokenizer = open_tokenizer,
        .tokenizer_user = &tokenizer};
    const struct shape *input = &prog->tensors[input_spec->input].shape;
    if (input->n_dims == 4) { /* images; a single channel may be last (see model/vision.c) */
        bool plane_last = input->dim[3] == 1;
        request.channels = plane_last ? 1 : input->dim[1];
        request.height = input->dim[plane_last ? 1 : 2];
        request.width = input->dim[plane_last ? 2 : 3];
    }
    TRY(data_open(&request, data, err));
    TRY(check_tokenizer(*data, source->spec, &tokenizer, err));
    return data_scan(*data, SCANNED_TOKENS, err);
}
