/*
 * local.h -- the internals of the executor, for the files of this folder.
 */
#ifndef SNUG_EXEC_LOCAL_H
#define SNUG_EXEC_LOCAL_H

#include "exec/copies.h"
#include "exec/collective.h"
#include "exec/exec.h"
#include "exec/device_assignment.h"

/* All sections of one kind enqueue the same work: one recording serves them. */
enum part { PART_first, PART_middle, PART_last, PART_epilogue, N_PARTS };

struct exec {
    const struct program *prog;
    const struct plan *plan;
    const struct backend *backend;
    struct device_facts facts;
    unsigned char *arena;
    int64_t arena_bytes;
    bool owns_arena;
    struct kernel_call *calls; /* per op */
    const struct kernel **kernels;
    double *op_seconds; /* NULL: ops are not timed */
    exec_stop *stop;    /* may be NULL */
    void *stop_user;
    double waited_seconds;
    struct offload_pool *pool;
    struct rank_collectives collective_runner;
    struct device_assignment *device_assignment; /* NULL: single rank, CPU, or another exec's */
    struct copies *copies;                       /* NULL: no copies, or they are on a stream */
    /* Per tensor: the offloaded tensor that it is a prefetched copy of, or TENSOR_NONE. */
    tensor_id *fetched;
    /* Per op, the copy that it waits for, or -1 (ir/program_waits.h).  [1] is for the last
     * micro-batch, [0] for those before it (NULL if there are none).  waits_for is the current
     * one. */
    int *waits_in[2];
    const int *waits_for;
    int64_t *number; /* per copy: its last issue number, from copies.h or n_issued */
    struct fill_buffers *fill_buffers; /* for fill.c; NULL: no piece is in flight */
    /* For a backend with hooks; the fields below are used by exec_device.c. */
    const struct device_hooks *hooks;
    struct staging *staging;
    bool feeds_ahead;
    void *forked;        /* event: the kernels before a copy, which its stream waits for */
    void **copied;       /* events, per copy: it is done */
    int newest_fetch;    /* in this section: the last copy on the copy stream, or -1 */
    int newest_eviction; /* the last eviction that no prefetch has waited for, or -1 */
    int64_t n_issued;    /* copies enqueued on streams */
    int64_t n_joined;    /* how many of these the kernel stream has waited for */
    void **timed;        /* events, per op: its end; the last one: the start of a section */
    bool has_recorded;   /* recording was done or attempted */
    struct recording *recordings[N_PARTS];
};

/* exec.c.  The tensor's address in the arena, on host or device; NULL if it is not in the arena. */
void *exec_place_of(const struct exec *exec, tensor_id id);
/* The number of a micro-batch over all ranks, so that random numbers do not depend on the rank. */
int exec_micro_number(const struct exec *exec, int micro);
enum snug_status exec_run_op(struct exec *exec, int i, int micro, struct snug_error *err);
/* Runs ops [begin, end), a whole section, and waits for all its copies. */
enum snug_status exec_run_section(struct exec *exec, int begin, int end, int micro,
                                  struct snug_error *err);

/* staging.c: pinned host buffers: two for each input, the scalar table, the loss. */
enum snug_status staging_make(struct exec *exec, const struct exec *shared, struct snug_error *err);
void staging_free(struct exec *exec);
enum snug_status staging_push_scalars(struct exec *exec, struct snug_error *err);
/* Feeds a micro-batch and enqueues the copies of its inputs to the device. */
enum snug_status staging_feed(struct exec *exec, exec_feed *feed, void *user, int micro,
                              struct snug_error *err);
/* Feeds the first micro-batch of the next run. */
void staging_feed_ahead(struct exec *exec, exec_feed *feed, void *user);
void staging_forget_ahead(struct exec *exec);
enum snug_status staging_pull(struct exec *exec, struct snug_error *err);
void *staging_input(const struct exec *exec, tensor_id id);
double *staging_scalars(const struct exec *exec);
enum snug_status staging_view(struct exec *exec, tensor_id id, const void **data,
                              struct snug_error *err);

/* check_ids.c: the host checks that ids are below the limit of the ops that read them, because a
 * device kernel cannot report an error.  INT64_MAX: the input does not hold ids. */
int64_t ids_limit(const struct program *prog, tensor_id input);
enum snug_status ids_check(const struct tensor *t, int64_t limit, const int32_t *ids,
                           struct snug_error *err);

/* exec_device.c: runs on a backend with hooks. */
enum snug_status device_open_lane(struct exec *exec, struct snug_error *err);
/* Runs a copy in the copy thread. */
enum snug_status device_run_copy(struct exec *exec, int i, struct snug_error *err);
void device_close(struct exec *exec);
enum snug_status device_issue_copy(struct exec *exec, int i, struct snug_error *err);
enum snug_status device_wait_for_copy(struct exec *exec, int copy, struct snug_error *err);
/* At the end of a section. */
enum snug_status device_join_copies(struct exec *exec, int newest, struct snug_error *err);
/* Runs a single op and waits for it.  A send is only started: its receiver may be waiting for this
 * rank to receive something first. */
enum snug_status device_run_alone(struct exec *exec, int i, int micro, struct snug_error *err);
void *device_stream_of(const struct exec *exec, const struct op *op);
enum snug_status device_mark_op(struct exec *exec, int i,
                                struct snug_error *err); /* records its end */
enum snug_status device_run_all(struct exec *exec, exec_feed *feed, void *user,
                                struct snug_error *err);

/* device_wait.c: the host waits for the device.  If the device waits for a rank that has died, the
 * wait fails. */
enum snug_status device_finish(struct exec *exec, struct snug_error *err);
enum snug_status device_finish_event(struct exec *exec, void *event, struct snug_error *err);
/* After a failure of this rank: aborts work that waits for other ranks. */
void device_give_up(struct exec *exec);

#endif
