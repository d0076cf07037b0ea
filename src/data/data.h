/*
 * data.h -- training and evaluation samples, from files or random.
 *
 * A data set is never loaded into memory: each sample is read from its file straight into the input
 * tensor of the step.  The samples of a step are a pure function of the seed and of the number of
 * samples before it, so a run can be resumed at any step from that count alone.
 *
 *     random           random samples, for benchmarks
 *     text             a file or a folder of files, tokenized when it is opened; or each byte is
 *                      a token (for vocabularies of at most 256 tokens without a tokenizer, or if
 *                      the request asks for it)
 *     token shards     *.bin in llm.c's layouts of 16- and 32-bit ids, or in nanoGPT's (nothing but
 *                      ids: of 16 bits up to a vocabulary of 65,536, of 32 bits above)
 *     IDX images       MNIST's format: a folder with four files, plain or gzip
 *     CIFAR-10         the binary version: a folder with data_batch_*.bin and test_batch.bin
 *
 * Images are channels x height x width floats, as in PyTorch.  For a model with real-valued targets
 * (mean squared error) the target of an image is one-hot.
 */
#ifndef SNUG_DATA_DATA_H
#define SNUG_DATA_DATA_H

#include <stdbool.h>

#include "base/strategies.h"
#include "base/status.h"

enum data_split { DATA_TRAIN, DATA_HELD_OUT };
enum data_target { DATA_TARGET_TOKENS, DATA_TARGET_CLASS, DATA_TARGET_REAL };

struct tokenizer;

struct data_request {
    const char *spec; /* "random", "fashion-mnist" or a path; NULL means random */
    enum data_target
        target;           /* language model: next tokens; classifier: class; regression: floats */
    int64_t sample_elems; /* tokens per sequence (T), or floats per sample (784) */
    int64_t target_elems; /* TOKENS: T; CLASS: 1; REAL: floats per target */
    int64_t n_classes;    /* vocabulary size or number of classes */
    uint64_t seed;
    int64_t channels, height, width; /* of an image; 0 if any shape of sample_elems will do */
    int augment;                     /* enum data_augment; applies to training images only */
    int threads;                     /* that fill a batch; 0 means one */
    bool whole;           /* text and tokens: all is held out, unless a file is named *val* */
    bool bytes_as_tokens; /* read text as bytes for any vocabulary size */
    /* Opens the tokenizer for text; *tokenizer is NULL if there is none.  Called for text only, and
     * not if bytes_as_tokens.  May be NULL. */
    enum snug_status (*open_tokenizer)(void *user, struct tokenizer **tokenizer,
                                       struct snug_error *err);
    void *tokenizer_user;
};

/* The image shape of a data set.  channels is 0 if it has no images or any size will do
 * (random). */
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
bool data_kind_is_bytes(const char *kind);      /* kind of a saved run; NULL if it has none */

/* Whether targets are classes, as an index or one-hot, so that accuracy can be measured. */
bool data_has_classes(const struct data *data);

/* Samples per epoch.  For token streams, the number of non-overlapping windows.  The held-out split
 * may have none. */
int64_t data_n_samples(const struct data *data, enum data_split split);

/* Writes samples [first, first + n) into input and target: i32 tokens and classes, f32 elements.
 * `first` counts samples from the start of training; the order is endless.  Images are reshuffled
 * every epoch.  Token windows start at random positions, as in nanoGPT.  The held-out split comes
 * in file order and wraps around. */
enum snug_status data_fill(struct data *data, enum data_split split, int64_t first, int64_t n,
                           void *input, void *target, struct snug_error *err);

/* Looks for token ids outside the vocabulary among at most `most` tokens, the held-out ones first:
 * once, before a run. */
enum snug_status data_scan(struct data *data, int64_t most, struct snug_error *err);
/* Fails if tokens of these samples cannot be read or are outside the vocabulary.  Reads them, which
 * is cheap beside a step.  Does nothing for images, which are checked when they are opened. */
enum snug_status data_check(struct data *data, enum data_split split, int64_t first, int64_t n,
                            struct snug_error *err);

/* A hash of kind and sizes, but not of paths.  A resumed run uses it to detect another data set. */
uint64_t data_fingerprint(const struct data *data);

bool data_is_text(const struct data *data); /* tokenized when it was opened */

/* The identity of the tokenizer that made the ids (token/tokenizer.h); 0: unknown. */
uint64_t data_tokenizer(const struct data *data);

#endif
