/*
 * data.h -- samples for training and for measuring, from files or made up.
 *
 * A data set is never held in memory: a sample is read from its file when it is asked for, into
 * the place where the step will read it.  Which samples a step gets is a pure function of the seed
 * and of how many samples came before, so a run can be resumed at any step by that count alone.
 *
 *     random           made up, for measuring
 *     text             a file, or a folder of files: bytes are tokens, of a model with at most 256 of
 *                      them or where the request says so
 *     token shards     *.bin as llm.c or nanoGPT write them
 *     IDX images       MNIST's format: a folder with four files, plain or gzip
 *     CIFAR-10         the binary version: a folder with data_batch_*.bin and test_batch.bin
 *
 * Images are channels x height x width floats, as PyTorch has them.  Where a model wants numbers and
 * not a class (mean squared error), the target of an image is one-hot.
 */
#ifndef SNUG_DATA_DATA_H
#define SNUG_DATA_DATA_H

#include <stdbool.h>

#include "base/strategies.h"
#include "base/status.h"

enum data_split { DATA_TRAIN, DATA_HELD_OUT };
enum data_target { DATA_TARGET_TOKENS, DATA_TARGET_CLASS, DATA_TARGET_REAL };

struct data_request {
    const char *spec; /* "random", "fashion-mnist", a path; NULL is random */
    enum data_target
        target;           /* language model: next tokens; classifier: class; regression: floats */
    int64_t sample_elems; /* tokens per sequence (T), or floats per sample (784) */
    int64_t target_elems; /* TOKENS: T; CLASS: 1; REAL: floats per target */
    int64_t n_classes;    /* vocabulary or classes */
    uint64_t seed;
    int64_t channels, height, width; /* of an image; 0: the model takes any of sample_elems */
    int augment;                     /* enum data_augment; of training images only */
    int threads;                     /* that fill a batch, where several can; 0: one */
    bool bytes_as_tokens;            /* of text, whatever the vocabulary */
};

/* The images of a set; channels 0: it has none, or they are as large as one likes (random). */
struct data_image {
    int64_t channels, height, width, n_classes;
};
enum snug_status data_find_image(const char *spec, struct data_image *image,
                                 struct snug_error *err);

struct data;

enum snug_status data_open(const struct data_request *request, struct data **data,
                           struct snug_error *err);
void data_close(struct data *data);

const char *data_kind(const struct data *data); /* "text bytes", "token shards (llm.c)"... */
bool data_kind_is_bytes(const char *kind);      /* of a saved run; NULL: it does not say */

/* Targets are classes, whether as numbers or one-hot: a right answer can be told from a wrong one. */
bool data_has_classes(const struct data *data);

/* Per epoch; of token streams the windows that do not overlap.  Held out, there may be none. */
int64_t data_n_samples(const struct data *data, enum data_split split);

/* Writes samples [first, first + n) of the endless order into input and target: i32 tokens and
 * classes, f32 numbers.  `first` counts samples from the start of training.  Tables of samples are
 * shuffled anew each epoch; token windows start anywhere, as nanoGPT's do.  The held-out split
 * comes in the file's order and starts again at its end. */
enum snug_status data_fill(struct data *data, enum data_split split, int64_t first, int64_t n,
                           void *input, void *target, struct snug_error *err);

/* Kind and sizes, not paths: lets a resumed run notice that it was given another data set. */
uint64_t data_fingerprint(const struct data *data);

#endif
