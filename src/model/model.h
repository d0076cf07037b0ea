/*
 * model.h -- struct snug_model, and the functions that build its forward program.
 */
#ifndef SNUG_MODEL_MODEL_H
#define SNUG_MODEL_MODEL_H

#include "ir/decoder_shape.h"
#include "ir/dropout_rates.h"
#include "ir/program.h"

enum model_family { MODEL_mlp, MODEL_decoder, MODEL_psi, MODEL_custom, MODEL_vision };
enum model_loss { LOSS_cross_entropy, LOSS_mse };

enum { MLP_SIZES_MAX = 64 };
struct mlp_shape {
    int n_sizes;
    int64_t sizes[MLP_SIZES_MAX];
    enum act activation;
    enum model_loss loss;
};

enum vision_net { VISION_cnn, VISION_resnet18, VISION_resnet50, VISION_vit_tiny };
struct vision_shape {
    enum vision_net net;
    int64_t channels, height, width, n_classes;
    bool given; /* sizes from the user or a file; else the preset's, which the data may override */
};

struct snug_model {
    enum model_family family;
    char name[128];
    struct decoder_shape decoder;
    struct mlp_shape mlp;
    struct vision_shape vision;
    int64_t psi;
    struct dropout_rates config_dropout; /* from config.json, for --dropout config */
    bool has_config_dropout;
    char *config_source;   /* the config.json that a decoder was read from, or NULL */
    char *folder;          /* of config.json; NULL for presets */
    char *weights_folder;  /* a run or Hugging Face folder to start from; NULL for random weights */
    struct program built;  /* custom: the forward program of one sample */
    bool finished;         /* custom: snug_model_finish succeeded */
    struct snug_error err; /* custom: the first error */
};

enum model_purpose {
    MODEL_FOR_LOSS,  /* ends in the loss */
    MODEL_FOR_LOGITS /* language model: the logits of one position; others: the same as for loss */
};

/* registry.c */
/* Builds the forward program for `batch` samples.  seq 0 selects the model's own length. */
enum snug_status model_forward(const struct snug_model *model, enum model_purpose purpose,
                               int64_t batch, int64_t seq, struct program *prog,
                               struct snug_error *err);
/* Replaces the loss of the program. */
enum snug_status model_set_loss(struct program *prog, enum model_loss loss, struct snug_error *err);
bool model_is_language(const struct snug_model *model);
/* Prints one line per preset: its name and sizes. */
struct text;
void model_list(struct text *out);
int64_t model_count_parameters(const struct program *prog);

/* One file per family: decoder.c, mlp.c, vision.c. */
enum snug_status decoder_forward(const struct decoder_shape *shape, enum model_purpose purpose,
                                 int64_t seq, struct program *prog, struct snug_error *err);
/* decoder_presets.c: a preset by name; decoder_preset(i) is NULL after the last. */
const struct decoder_preset {
    const char *name;
    struct decoder_shape shape;
} *decoder_preset(int i);
bool decoder_find(const char *name, struct decoder_shape *shape);
enum snug_status mlp_forward(const struct mlp_shape *shape, struct program *prog,
                             struct snug_error *err);

enum snug_status vision_forward(const struct vision_shape *shape, struct program *prog,
                                struct snug_error *err);
const char *vision_name(enum vision_net net);                   /* "resnet18" */
bool vision_find(const char *name, struct vision_shape *shape); /* a preset, with its own sizes */
/* Checks that the image sizes and the number of classes are in range. */
enum snug_status vision_check(const struct vision_shape *shape, struct snug_error *err);

/* Looks up a preset or parses "mlp:..." or "psi:...".  The error for an unknown name lists all. */
enum snug_status model_from_name(const char *spec, struct snug_model *model,
                                 struct snug_error *err);
/* Is this a preset, or does it begin with "mlp:", "psi:" or "resnet18:"... ? */
bool model_is_name(const char *spec);

/* build.c: each function adds one layer and its parameters to a program. */
struct linear_spec {
    const char *name; /* parameters NAME.weight and NAME.bias */
    int64_t n_out;
    enum weight_layout layout; /* GPT-2's checkpoints are [in, out] */
    enum init init;
    double init_scale, bias_scale; /* bias_scale 0 initializes the bias to zeros */
    bool no_bias;
};
enum snug_status build_parameter(struct program *prog, const char *name, const struct shape *shape,
                                 enum init init, double scale, tensor_id *id,
                                 struct snug_error *err);
enum snug_status build_linear(struct program *prog, tensor_id x, const struct linear_spec *spec,
                              tensor_id *y, struct snug_error *err);
enum snug_status build_layernorm(struct program *prog, tensor_id x, const char *name, double eps,
                                 tensor_id *y, struct snug_error *err);
/* gamma, of `width` elements, covers a row of x or a head of it. */
enum snug_status build_rmsnorm(struct program *prog, tensor_id x, const char *name, int64_t width,
                               double eps, tensor_id *y, struct snug_error *err);
struct conv_spec {
    const char *name; /* parameters NAME.weight and, if has_bias, NAME.bias (zeros) */
    int64_t n_out, kernel_h, kernel_w, stride, pad;
    bool has_bias;
    enum init init;
    double init_scale;
};
enum snug_status build_conv(struct program *prog, tensor_id x, const struct conv_spec *spec,
                            tensor_id *y, struct snug_error *err);
/* Parameters NAME.weight and NAME.bias, buffers NAME.running_mean and NAME.running_var; r may be
 * TENSOR_NONE. */
enum snug_status build_batchnorm(struct program *prog, tensor_id x, const char *name, enum act act,
                                 tensor_id r, tensor_id *y, struct snug_error *err);
enum snug_status build_input(struct program *prog, const char *name, enum dtype dtype,
                             const struct shape *shape, tensor_id *id, struct snug_error *err);
/* Ends a classifier: adds the input "target" and the cross-entropy of `logits` [batch, classes]. */
enum snug_status build_class_loss(struct program *prog, tensor_id logits, struct snug_error *err);

#endif
