/*
 * shard_header.h -- the header of token shards in llm.c's layout, with the tokenizer in a place
 * that llm.c leaves empty.
 *
 *     | 0 magic | 1 version | 2 tokens | 3 our mark | 4, 5 identity of the tokenizer | ... 255 |
 *
 * 256 little-endian integers of 32 bits; then the ids, of 16 bits (GPT-2's layout) or 32 bits (that
 * of Llama 3).
 */
#ifndef SNUG_TOKEN_SHARD_HEADER_H
#define SNUG_TOKEN_SHARD_HEADER_H

#include <stdint.h>

enum { SHARD_HEADER_INTS = 256, SHARD_HEADER_BYTES = 4 * SHARD_HEADER_INTS };

struct shard_format {
    uint32_t magic, version;
    int token_bytes;
};
const struct shard_format *shard_format_of(uint32_t magic);        /* NULL: not a shard */
const struct shard_format *shard_format_of_width(int token_bytes); /* 2 or 4 */

struct shard_header {
    int token_bytes;
    int64_t n_tokens;
    uint64_t tokenizer; /* 0: unknown */
};

/* For a header whose magic and version are right. */
struct shard_header shard_header_parse(const uint32_t ints[SHARD_HEADER_INTS]);
void shard_header_write(const struct shard_header *header, uint32_t ints[SHARD_HEADER_INTS]);

#endif
