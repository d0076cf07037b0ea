/*
 * exec.h -- the executor: allocates the arena of a plan once, then runs the program op by op.
 */
#ifndef SNUG_EXEC_EXEC_H
#define SNUG_EXEC_EXEC_H

#include "exec/backend.h"
#include "plan/plan.h"

struct exec;

/* Allocates the arena and the offload pool of the plan and prepares the kernel of every op.  With
 * `shared`, uses the arena and pool of that exec instead (see plan_make_over).  The program and the
 * plan must outlive the exec, and so must what facts points to. */
enum snug_status exec_create(const struct program *prog, const struct plan *plan,
                             const struct backend *backend, const struct device_facts *facts,
                             struct exec *shared, struct exec **exec, struct snug_error *err);
void exec_free(struct exec *exec);

int64_t exec_allocated_bytes(const struct exec *exec);
/* The tensor's memory; NULL if it is not in the arena, or the arena is not host memory. */
void *exec_data(const struct exec *exec, tensor_id id);

/* Where the host writes an input, in a feed or before a run: in the arena, or in a staging buffer
 * for the device.  The address changes with every micro-batch. */
void *exec_input(const struct exec *exec, tensor_id id);
/* A host view of a tensor of the arena after a run: the tensor itself, or a copy that is valid
 * until the next run. */
enum snug_status exec_view(struct exec *exec, tensor_id id, const void **data,
                           struct snug_error *err);

/* Access to tensors in the arena or in the offload pool.  exec_holds: is it in either?  Not during
 * a run; otherwise from any thread. */
bool exec_holds(const struct exec *exec, tensor_id id);
enum snug_status exec_read(const struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                           void *to, struct snug_error *err);
enum snug_status exec_write(const struct exec *exec, tensor_id id, int64_t at_bytes,
                            int64_t n_bytes, const void *from, struct snug_error *err);

/* fill.c */
/* Fills large pieces of such a tensor from the host.  begin returns the address to write to, end
 * starts the copy; pieces are copied in the order of the calls.  At most three may be open.  After
 * the last piece, finish waits for all copies.  Not during a run.  One thread calls these; others
 * may help to fill a piece. */
enum { EXEC_FILL_BYTES = 4 << 20 }; /* largest piece */
struct exec_fill {
    tensor_id id;
    int64_t at_bytes, n_bytes;
    int buffer; /* for fill.c */
    unsigned char *to;
};
enum snug_status exec_fill_begin(struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                                 struct exec_fill *fill, struct snug_error *err);
enum snug_status exec_fill_end(struct exec *exec, const struct exec_fill *fill,
                               struct snug_error *err);
enum snug_status exec_fill_finish(struct exec *exec, struct snug_error *err);
/* fill.c.  Zeroes a tensor; asynchronous, like a piece. */
enum snug_status exec_clear(struct exec *exec, tensor_id id, struct snug_error *err);

/* The scalar table, or NULL if the program has none.  A run starts with the values that the host
 * wrote here, and leaves its own. */
double *exec_scalars(const struct exec *exec);

/* Fills the input tensors of micro-batch `micro`. */
typedef enum snug_status exec_feed(void *user, int micro, struct snug_error *err);

/* On a device: from now on, the host calls feed with micro = n_repeat while the device runs.  That
 * is the first micro-batch of the next run, which then does not call feed for it.  Any batch that
 * was already fed ahead is dropped. */
void exec_feed_ahead(struct exec *exec, bool ahead);

/* Runs the program once, without allocating.  Sets thread count and float modes, and restores the
 * caller's. */
enum snug_status exec_run(struct exec *exec, exec_feed *feed, void *user, struct snug_error *err);

/* Called before every op of a run; true stops the run with SNUG_INTERRUPTED.  CPU only: work
 * enqueued on a device cannot be taken back.  stop may be NULL. */
typedef bool exec_stop(void *user);
void exec_watch(struct exec *exec, exec_stop *stop, void *user);

/* nonfinite.c */
/* Runs the body again (forward and backward, no updates) and checks every result.  *name is the
 * first tensor with a non-finite element, or NULL.  For the error message of a run that
 * diverged. */
enum snug_status exec_find_nonfinite(struct exec *exec, exec_feed *feed, void *user,
                                     const char **name, struct snug_error *err);

/* From now on every run adds the seconds of op i to op_seconds[i]; NULL stops it.  With one thread
 * this is CPU time, otherwise wall-clock time. */
void exec_time_ops(struct exec *exec, double *op_seconds);

/* With ranks on GPUs: the GPU of a rank, by its number in its machine, and the transport in one
 * line.  -1 and NULL otherwise. */
int exec_rank_gpu(const struct exec *exec, int rank);
const char *exec_transport(const struct exec *exec);
/* Pinned host bytes used by collectives through the host, in addition to the plan; else 0. */
int64_t exec_collective_host_bytes(const struct exec *exec);
/* How long ops have waited for the copy lane, and through it for other ranks, in all runs so far.
 * Waits of device streams are not counted. */
double exec_waited_seconds(const struct exec *exec);

/* Resident bytes of the arena, as the operating system counts pages. */
int64_t exec_resident_bytes(const struct exec *exec);
/* Device memory in use outside the arena; -1 if the arena is host memory. */
int64_t exec_device_runtime_bytes(const struct exec *exec);

#endif
