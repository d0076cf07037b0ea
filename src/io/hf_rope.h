/*
 * hf_rope.h -- the keys of rotary positions in config.json.
 *
 * transformers 4 writes rope_theta and rope_scaling (null without scaling), transformers 5 one
 * rope_parameters with both.  We read either, or both if they agree, and write the first, which
 * both versions read.
 */
#ifndef SNUG_IO_HF_ROPE_H
#define SNUG_IO_HF_ROPE_H

#include "io/json.h"
#include "ir/op.h"

enum snug_status hf_rope_read(const json_t *root, const char *path, struct rope_attrs *rope,
                              struct snug_error *err);
void hf_rope_put(json_t **root, const struct rope_attrs *rope);

#endif
