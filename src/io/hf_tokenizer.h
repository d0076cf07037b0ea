/*
 * hf_tokenizer.h -- tokenizers in Hugging Face's files: tokenizer.json, or GPT-2's two files.
 */
#ifndef SNUG_IO_HF_TOKENIZER_H
#define SNUG_IO_HF_TOKENIZER_H

#include "token/tokenizer.h"

/* `path` is a tokenizer.json, or a folder with one or with the two files of GPT-2: vocab.json or
 * encoder.json, and merges.txt or vocab.bpe.  Refuses what would give other ids, by name.  Free
 * with
 * tokenizer_free. */
enum snug_status hf_tokenizer_open(const char *path, struct tokenizer **tokenizer,
                                   struct snug_error *err);

#endif
