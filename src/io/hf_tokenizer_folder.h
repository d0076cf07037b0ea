/*
 * hf_tokenizer_folder.h -- the files of a tokenizer in a model folder.
 */
#ifndef SNUG_IO_HF_TOKENIZER_FOLDER_H
#define SNUG_IO_HF_TOKENIZER_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { HF_PATH_MAX = 4096 };
/* Writes the path of the first of two names in the folder that is a file; false if none is. */
bool hf_find_file(const char *folder, const char *name, const char *other, char *path,
                  size_t path_bytes);

/* Has the folder a tokenizer.json, or the two files of GPT-2? */
bool hf_tokenizer_exists(const char *folder);
/* The ids after which a model of this folder stops, "eos_token_id" of generation_config.json or
 * else of config.json; *n is 0 if neither has it. */
enum { HF_END_IDS_MAX = 16 };
enum snug_status hf_end_ids(const char *folder, int64_t ids[HF_END_IDS_MAX], int *n,
                            struct snug_error *err);
/* Copies the files of a tokenizer, its templates and generation_config.json from one folder to
 * another, those that exist; `from` may also be a tokenizer.json. */
enum snug_status hf_tokenizer_copy(const char *from, const char *to, struct snug_error *err);

#endif
