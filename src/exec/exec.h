/*
 * exec.h -- run a planned program: one allocation, then op after op.
 */
#ifndef SNUG_EXEC_EXEC_H
#define SNUG_EXEC_EXEC_H

#include "exec/backend.h"
#include "plan/plan.h"

struct exec;

/* Allocates the arena and the offload pool of the plan, prepares the kernel of every op.  The program,
 * plan and facts must outlive it.  `shared`: run in those of another exec instead (plan_make_over).
 */
enum snug_status exec_create(const struct program *prog, const struct plan *plan,
                             const struct backend *backend, const struct device_facts *facts,
                             struct exec *shared, struct exec **exec, struct snug_error *err);
void exec_free(struct exec *exec);

int64_t exec_allocated_bytes(const struct exec *exec);
/* NULL: it is not in the arena, or that is not the host's memory. */
void *exec_data(const struct exec *exec, tensor_id id);

/* Where the host puts the numbers of an input, in a feed or before a run: in the arena, or in memory from
 * where a run takes them to the device.  Another place for every micro-batch. */
void *exec_input(const struct exec *exec, tensor_id id);
/* The numbers that a run left in a tensor of the arena, for the host: there, or a copy that is good until
 * the next run. */
enum snug_status exec_view(struct exec *exec, tensor_id id, const void **data,
                           struct snug_error *err);

/* For tensors that may be anywhere: does it lie in the arena or in the offload pool; bytes of it from there, and
 * to there. Not while a run is under way; otherwise from any thread. */
bool exec_holds(const struct exec *exec, tensor_id id);
enum snug_status exec_read(const struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                           void *to, struct snug_error *err);
enum snug_status exec_write(const struct exec *exec, tensor_id id, int64_t at_bytes,
                            int64_t n_bytes, const void *from, struct snug_error *err);

/* Large pieces of such a tensor, made by the host: begin says where, end puts them on their way, in the order
 * of the calls; three may be open at a time.  After the last piece finish waits until all are there.  Not
 * while a run is under way, and one thread calls; others may help to make a piece. */
enum { EXEC_FILL_BYTES = 4 << 20 }; /* of one piece, at most */
struct exec_fill {
    tensor_id id;
    int64_t at_bytes, n_bytes;
    int room; /* fill.c's */
    unsigned char *to;
};
enum snug_status exec_fill_begin(struct exec *exec, tensor_id id, int64_t at_bytes, int64_t n_bytes,
                                 struct exec_fill *fill, struct snug_error *err);
enum snug_status exec_fill_end(struct exec *exec, const struct exec_fill *fill,
                               struct snug_error *err);
enum snug_status exec_fill_finish(struct exec *exec, struct snug_error *err);
/* Zeros, all of it; on their way like a piece. */
enum snug_status exec_clear(struct exec *exec, tensor_id id, struct snug_error *err);

/* NULL if the program has none.  Runs begin with what the host wrote here, and leave theirs here. */
double *exec_scalars(const struct exec *exec);

/* Fills the input tensors of micro-batch `micro`. */
typedef enum snug_status exec_feed(void *user, int micro, struct snug_error *err);

/* On a device, from now on: while a run is under way, the host calls feed with micro = n_repeat, which is
 * the first micro-batch of the next run, and that one does not call it.  Not ahead: what was fed so is
 * forgotten. */
void exec_feed_ahead(struct exec *exec, bool ahead);

/* One run of the program; no allocation happens in it.  It sets thread count and float modes for
 * itself and gives the caller's back. */
enum snug_status exec_run(struct exec *exec, exec_feed *feed, void *user, struct snug_error *err);

/* Asked before every op of a run whether to abandon it, which then fails with SNUG_INTERRUPTED.  Only on the
 * host: what is on its way to a device is not called back.  NULL: nobody is asked. */
typedef bool exec_stop(void *user);
void exec_watch(struct exec *exec, exec_stop *stop, void *user);

/* The body once more (forward and backward, no updates), looking at every result: *name is the
 * first tensor that holds a number that is not finite, or NULL.  For the message of a run that
 * diverged. */
enum snug_status exec_find_nonfinite(struct exec *exec, exec_feed *feed, void *user,
                                     const char **name, struct snug_error *err);

/* From now on every run adds the seconds that op i took to op_seconds[i]; NULL: no longer.  With one
 * thread they are seconds of the processor, else of the clock. */
void exec_time_ops(struct exec *exec, double *op_seconds);

/* Of ranks on GPUs: the one that a rank has, by its number in its machine; which way they exchange, in a
 * line.  -1, NULL: not on GPUs, or alone. */
int exec_rank_gpu(const struct exec *exec, int rank);
const char *exec_transport(const struct exec *exec);
/* Of the host, beside the plan's bucket in the arena, where collectives go through it; else 0. */
int64_t exec_collective_host_bytes(const struct exec *exec);
/* Of all runs so far: how long ops have waited for the lane of copies, and with that for other
 * ranks.  A device's streams wait by themselves and are not counted. */
double exec_waited_seconds(const struct exec *exec);

/* Bytes of the arena that are in memory now, as the kernel counts pages. */
int64_t exec_resident_bytes(const struct exec *exec);
/* What is in use of the device's memory beside the arena; -1: the arena is the host's memory. */
int64_t exec_device_runtime_bytes(const struct exec *exec);

#endif
