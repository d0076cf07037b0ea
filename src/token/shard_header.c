/*
 * shard_header.c -- the header of token shards.
 */
#include "token/shard_header.h"

#include <stddef.h>
#include <string.h>

static const struct shard_format formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum { N_FORMATS = (int)(sizeof formats / sizeof *formats) };

static const uint32_t mark = 0x67756E73; /* "snug" */

const struct shard_format *shard_format_of(uint32_t magic)
{
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i].magic == magic)
            return &formats[i];
    return NULL;
}

const struct shard_format *shard_format_of_width(int token_bytes)
{
    return &formats[token_bytes == 4];
}

struct shard_header shard_header_parse(const uint32_t ints[SHARD_HEADER_INTS])
{
    const struct shard_format *format = shard_format_of(ints[0]);
    struct shard_header header = {.token_bytes = format == NULL ? 0 : format->token_bytes,
                                  .n_tokens = ints[2]};
    if (ints[3] == mark)
        header.tokenizer = (uint64_t)ints[5] << 32 | ints[4];
    return header;
}

void shard_header_write(const struct shard_header *header, uint32_t ints[SHARD_HEADER_INTS])
{
    const struct shard_format *format = shard_format_of_width(header->token_bytes);
    memset(ints, 0, SHARD_HEADER_BYTES);
    ints[0] = format->magic;
    ints[1] = format->version;
    ints[2] = (uint32_t)header->n_tokens;
    ints[3] = mark;
    ints[4] = (uint32_t)header->tokenizer;
    ints[5] = (uint32_t)(header->tokenizer >> 32);
}
