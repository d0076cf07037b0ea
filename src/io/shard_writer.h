/*
 * shard_writer.h -- writes a stream of token ids as shards in a folder.
 */
#ifndef SNUG_IO_SHARD_WRITER_H
#define SNUG_IO_SHARD_WRITER_H

#include "base/status.h"
#include "token/shard_header.h"

struct shard_writer;

struct shard_writer_spec {
    const char *folder;  /* is created if it does not exist */
    int token_bytes;     /* 2 or 4 */
    uint64_t tokenizer;  /* identity */
    int64_t most_tokens; /* per shard; 0: 100 million, as llm.c's */
};

/* Fails if the folder has shards already. */
enum snug_status shard_writer_open(const struct shard_writer_spec *spec,
                                   struct shard_writer **writer, struct snug_error *err);
enum snug_status shard_writer_add(struct shard_writer *writer, const int32_t *ids, int64_t n,
                                  struct snug_error *err);
/* Completes the files and gives them their names, train_000000.bin and so on. */
enum snug_status shard_writer_finish(struct shard_writer *writer, struct snug_error *err);
int64_t shard_writer_n_tokens(const struct shard_writer *writer);
int shard_writer_n_files(const struct shard_writer *writer);
/* Removes what was not finished. */
void shard_writer_free(struct shard_writer *writer);

#endif
