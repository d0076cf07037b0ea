/*
 * safetensors.h -- named tensors in one file, as Hugging Face's libraries read and write them.
 *
 *     8 bytes   length of the header, little-endian
 *     header    JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}
 *     data      the tensors one after the other, without holes
 *
 * Opening validates everything, so that a tensor that is found can be read without a doubt about
 * its size.  Tensors are written straight from, and read straight into, where they live.
 */
#ifndef SNUG_IO_SAFETENSORS_H
#define SNUG_IO_SAFETENSORS_H

#include "io/file.h"
#include "ir/program.h"

/* Gives bytes of a tensor that is not in memory, and that its owner knows as `id`. */
typedef enum snug_status st_read_fn(const void *owner, int id, int64_t at_bytes, int64_t n_bytes,
                                    void *to, struct snug_error *err);

struct st_entry {
    const char *name;
    enum dtype dtype; /* DTYPE_COUNT: a type of the format that snug has no use for */
    struct shape shape;
    void *data;       /* writer: source, NULL: see read and fill; reader: NULL */
    st_read_fn *read; /* writer: source, if data is NULL */
    const void *owner;
    int id;
    int64_t offset_bytes, n_bytes; /* in the file, from its beginning; the writer ignores them */
    /* What lies nowhere as a whole is made as it is written: elements at .. at + n, in order. */
    enum snug_status (*fill)(const struct st_entry *entry, int64_t at, int64_t n, void *out,
                             struct snug_error *err);
    void *maker; /* for fill */
    bool shared; /* writer: the crew writes it, if there is one that can */
};

/* Others who write tensors into the file beside this process, each its own ranges. */
struct st_crew {
    /* The file is there, at its full length, with nothing in it; placed[i] begins data_begin + its
     * offset_bytes from the beginning.  *comes = false: the others cannot reach the file, and nothing is
     * left to them; the shared entries then have to be readable here.  From here to `end` the others write:
     * what is not shared has to be readable without them. */
    enum snug_status (*begin)(struct st_crew *crew, int fd, const char *path,
                              const struct st_entry *placed, int n, int64_t data_begin, bool *comes,
                              struct snug_error *err);
    /* Only after begin, if they come: returns when all bytes of what is shared are on the disk, with the
     * checksum of each shared entry in crcs[i]. */
    enum snug_status (*end)(struct st_crew *crew, uint32_t *crcs, struct snug_error *err);
};

struct safetensors;

enum snug_status safetensors_open(const char *path, struct safetensors **out,
                                  struct snug_error *err);
void safetensors_close(struct safetensors *st);

int safetensors_count(const struct safetensors *st);
const struct st_entry *safetensors_entry(const struct safetensors *st, int index); /* file order */
const struct st_entry *safetensors_find(const struct safetensors *st,
                                        const char *name);                       /* or NULL */
const char *safetensors_metadata(const struct safetensors *st, const char *key); /* or NULL */
const char *safetensors_path(const struct safetensors *st);
int64_t safetensors_file_bytes(const struct safetensors *st);

enum snug_status safetensors_read(struct safetensors *st, const struct st_entry *entry, void *out,
                                  struct snug_error *err);

/* The CRC-32 of the whole file.  What was read in file order was summed on the way and is not read
 * again; the rest is read now. */
enum snug_status safetensors_crc(struct safetensors *st, uint32_t *crc, struct snug_error *err);

/* Writes `path` in place and syncs it; removes it again if that fails.  `metadata` is key, value,
 * ..., NULL, or NULL.  The writer adds the key SAFETENSORS_SAVE, whose value is a checksum of the
 * data: two saves can be told apart by their headers alone.  Wide types come first, in the order
 * given otherwise, so that every tensor is aligned in the file.  The bytes do not depend on who writes
 * them: crew is NULL where nobody helps. */
#define SAFETENSORS_SAVE "snug_save"
enum snug_status safetensors_write(const char *path, const struct st_entry *entries, int n,
                                   const char *const *metadata, struct st_crew *crew, uint32_t *crc,
                                   struct file_faults *faults, struct snug_error *err);

/* shape x type, or false where that is more than an int64. */
bool safetensors_tensor_bytes(const struct shape *shape, int64_t elem_bytes, int64_t *n_bytes);

#endif
