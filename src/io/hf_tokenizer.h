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

/* Has the folder one of these files? */
bool hf_tokenizer_exists(const char *folder);
/* The ids after which a model of this folder stops, "eos_token_id" of generation_config.json or else of
 * config.json; *n is 0 if neither has it. */
enum { HF_END_IDS_MAX = 16 };
enum snug_status hf_end_ids(const char *folder, int64_t ids[HF_END_IDS_MAX], int *n,
                            struct snug_error *err);
/* Copies the files of a tokenizer, its templates and generation_config.json from one folder to
 * another, those that exist; `from` may also be a tokenizer.json. */
enum snug_status hf_tokenizer_copy(const char *from, const char *to, struct snug_error *err);

#endif
