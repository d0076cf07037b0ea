/*
 * safetensors.h -- Hugging Face's file format for named tensors.
 *
 *     8 bytes   length of the header, little-endian
 *     header    JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets"}, ...}
 *     data      the tensors one after the other, without gaps
 *
 * Opening a file validates its whole header, so callers can trust the size of every tensor they
 * find.  Tensors are read and written in place, without an intermediate copy.
 */
#ifndef SNUG_IO_SAFETENSORS_H
#define SNUG_IO_SAFETENSORS_H

#include "io/file.h"
#include "ir/program.h"

/* Reads bytes of a tensor that is not in memory.  `id` identifies the tensor to its owner. */
typedef enum snug_status st_read_fn(const void *owner, int id, int64_t at_bytes, int64_t n_bytes,
                                    void *to, struct snug_error *err);

struct st_entry {
    const char *name;
    enum dtype dtype; /* DTYPE_COUNT for a dtype that snug does not support */
    struct shape shape;
    void *data;       /* writer: the source, NULL if `read` or `fill` is set; reader: NULL */
    st_read_fn *read; /* writer: the source if data is NULL */
    const void *owner;
    int id;
    int64_t offset_bytes, n_bytes; /* reader: position from the start of the file */
    int file;                      /* reader: which file of a set; see safetensors_join */
    /* writer: computes elements at .. at + n of a tensor that is in no buffer; called in order */
    enum snug_status (*fill)(const struct st_entry *entry, int64_t at, int64_t n, void *out,
                             struct snug_error *err);
    void *maker; /* context of fill */
    bool shared; /* writer: the crew writes it, if there is a crew that can */
};

/* Other processes that help write a file, each its own byte ranges. */
struct st_crew {
    /* Starts the helpers.  The file exists at its full length and is still empty.  placed[i] starts
     * at data_begin + placed[i].offset_bytes.  *comes = false means that the helpers cannot reach
     * the file: this process then writes the shared entries too.  Between `begin` and `end` the
     * helpers are busy, so entries that are not shared must be readable without them. */
    enum snug_status (*begin)(struct st_crew *crew, int fd, const char *path,
                              const struct st_entry *placed, int n, int64_t data_begin, bool *comes,
                              struct snug_error *err);
    /* Called only if `begin` set *comes.  Waits until all shared entries are on disk and stores the
     * checksum of each in crcs[i]. */
    enum snug_status (*end)(struct st_crew *crew, uint32_t *crcs, struct snug_error *err);
};

struct safetensors;

enum snug_status safetensors_open(const char *path, struct safetensors **out,
                                  struct snug_error *err);
/* Opens a set of files as one: the tensors of all, under one lookup.  Refuses a tensor that two
 * files have.  The files must stay open as long as the set; if `owns` is set, closing the set
 * closes them, else their owner does.  `path` names the set in error messages. */
enum snug_status safetensors_join(struct safetensors *const *files, int n_files, bool owns,
                                  const char *path, struct safetensors **out,
                                  struct snug_error *err);

/* safetensors_folder.c: the weights of a folder, one file, or shards with an index that says which
 * tensor is in which. */
#define SAFETENSORS_MODEL "model.safetensors"
#define SAFETENSORS_INDEX "model.safetensors.index.json"
enum snug_status safetensors_has_model(const char *folder, bool *found, struct snug_error *err);
enum snug_status safetensors_open_folder(const char *folder, struct safetensors **out,
                                         struct snug_error *err);
void safetensors_close(struct safetensors *st);

int safetensors_count(const struct safetensors *st);
const struct st_entry *safetensors_entry(const struct safetensors *st, int index); /* file order */
const struct st_entry *safetensors_find(const struct safetensors *st,
                                        const char *name);                       /* or NULL */
const char *safetensors_metadata(const struct safetensors *st, const char *key); /* or NULL */
const char *safetensors_path(const struct safetensors *st);
/* The file that holds an entry. */
const char *safetensors_path_of(const struct safetensors *st, const struct st_entry *entry);
/* The type of an entry as the file spells it, also if snug does not read it: "F8_E4M3". */
const char *safetensors_dtype_name(const struct safetensors *st, const struct st_entry *entry);
int64_t safetensors_file_bytes(const struct safetensors *st); /* of a set: of all its files */

enum snug_status safetensors_read(struct safetensors *st, const struct st_entry *entry, void *out,
                                  struct snug_error *err);

/* The CRC-32 of the whole file, which is not a set.  Reads only the bytes that safetensors_read has
 * not yet covered in file order. */
enum snug_status safetensors_crc(struct safetensors *st, uint32_t *crc, struct snug_error *err);

/* safetensors_write.c */
/* Writes `path` in place and syncs it.  Removes it on failure.  `metadata` is NULL or a list: key,
 * value, ..., NULL.  The writer adds the key SAFETENSORS_SAVE, a checksum of the data, so that two
 * saves can be told apart by their headers.  Tensors of wide dtypes come first, otherwise in the
 * order given, so that every tensor is aligned.  The file is the same with and without a crew; crew
 * is NULL if this process writes alone. */
#define SAFETENSORS_SAVE "snug_save"
enum snug_status safetensors_write(const char *path, const struct st_entry *entries, int n,
                                   const char *const *metadata, struct st_crew *crew, uint32_t *crc,
                                   struct file_faults *faults, struct snug_error *err);

/* Bytes of a tensor.  Returns false if they overflow an int64. */
bool safetensors_tensor_bytes(const struct shape *shape, int64_t elem_bytes, int64_t *n_bytes);

#endif
