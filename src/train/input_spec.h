/*
 * input_spec.h -- the data that a program needs, derived from its loss op.
 */
#ifndef SNUG_TRAIN_INPUT_SPEC_H
#define SNUG_TRAIN_INPUT_SPEC_H

#include "compile/compile.h"
#include "data/data.h"

struct input_spec {
    enum data_target target;
    tensor_id input; /* TENSOR_NONE unless the model has exactly one input besides the target */
    tensor_id target_input;
    tensor_id output; /* what the loss reads, logits or values; TENSOR_NONE with a fused LM head */
    int64_t n_classes;
};
enum snug_status input_spec_of(const struct program *prog, struct input_spec *input_spec,
                               struct snug_error *err);
struct input_source {
    const char *spec;         /* see data.h */
    const char *model_folder; /* has the tokenizer of text, and of shards; may be NULL */
    bool whole;               /* hold out all of it, to evaluate on */
};
enum snug_status input_spec_open_data(const struct compiled_step *compiled,
                                      const struct input_spec *input_spec,
                                      const struct input_source *source,
                                      const struct snug_recipe *recipe, struct data **data,
                                      struct snug_error *err);

#endif
