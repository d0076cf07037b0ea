/*
 * tokenizer.h -- text to token ids and back, with the ids that Hugging Face's tokenizers gives.
 *
 * A tokenizer is put together by a reader of files (src/io/hf_tokenizer.h): tokenizer_new with its
 * pipeline, then its pieces, merges and added tokens, then tokenizer_finish.
 *
 * Encoding (encoder.h), in this order: cut out the added tokens, normalize what is between them,
 * cut it into words (split.h), and merge the bytes or characters of each word (bpe.h).
 */
#ifndef SNUG_TOKEN_TOKENIZER_H
#define SNUG_TOKEN_TOKENIZER_H

#include "base/status.h"
#include "token/added_tokens.h"
#include "token/bpe.h"
#include "token/split.h"

/* Where a metaspace (U+2581) is put before a text. */
enum metaspace_prefix {
    PREFIX_never,
    PREFIX_first,      /* before the whole text, unless it begins with one */
    PREFIX_each,       /* before each text between added tokens, unless it begins with one */
    PREFIX_in_any_case /* before each text between added tokens */
};

struct tokenizer_spec {
    bool byte_level; /* pieces are bytes, in the file's alphabet of printable characters */
    bool nfc;        /* normalize */
    bool metaspace;  /* each space becomes U+2581 */
    bool metaspace_normalizes; /* before added tokens with `normalized` are searched, else after */
    enum metaspace_prefix prefix;
    bool space_prefix; /* byte_level: a space before each text that does not begin with one */
    enum split_rule split;
    bool byte_fallback, fuse_unknown, ignore_merges; /* see bpe.h */
    bool strips_space;                               /* decoding drops one space at the start */
};

struct tokenizer {
    struct tokenizer_spec spec;
    struct unicode *unicode;
    struct vocabulary vocabulary;
    struct bpe bpe;
    struct added_tokens added, added_normalized;
    bool *is_special;      /* by id */
    int16_t *byte_of;      /* see bpe.h */
    bool can_cut;          /* see encoder.c */
    int32_t begin_of_text; /* what the file puts before a text, or NO_TOKEN */
    int32_t end_of_text;   /* the special token that ends a text, by its usual names, or NO_TOKEN */
    uint64_t identity;     /* a hash of all that decides ids */
};

enum snug_status tokenizer_new(const struct tokenizer_spec *spec, struct tokenizer **tokenizer,
                               struct snug_error *err);
/* `where` is the file, for messages. */
enum snug_status tokenizer_add_piece(struct tokenizer *t, const char *where, int64_t id,
                                     const char *text, size_t n, struct snug_error *err);
/* The piece that stands for unknown characters; it exists already. */
enum snug_status tokenizer_set_unknown(struct tokenizer *t, const char *where, const char *text,
                                       struct snug_error *err);
enum snug_status tokenizer_add_merge(struct tokenizer *t, const char *where, const char *left,
                                     size_t n_left, const char *right, size_t n_right,
                                     struct snug_error *err);
/* Copies the content. */
enum snug_status tokenizer_add_token(struct tokenizer *t, const char *where,
                                     const struct added_token *token, struct snug_error *err);
enum snug_status tokenizer_finish(struct tokenizer *t, struct snug_error *err);
void tokenizer_free(struct tokenizer *t);

/* The special token that the file puts before each text: ids of texts do not have it. */
enum snug_status tokenizer_set_begin(struct tokenizer *t, const char *where, const char *content,
                                     struct snug_error *err);
/* The largest id + 1. */
int32_t tokenizer_size(const struct tokenizer *t);

/* Appends the text of one id, a space at its start included. */
enum snug_status tokenizer_add_text(const struct tokenizer *t, int32_t id, struct buffer *text,
                                    struct snug_error *err);
/* Appends the text of these ids.  Fails if an id does not exist. */
enum snug_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                                  struct buffer *text, struct snug_error *err);

#endif
