/*
 * local.h -- the inside of an executor, for the files of this folder.
 */
#ifndef SNUG_EXEC_LOCAL_H
#define SNUG_EXEC_LOCAL_H

#include "exec/copies.h"
#include "exec/collective.h"
#include "exec/exec.h"
#include "exec/device_assignment.h"

/* Sections of one kind are alike: one recording serves them. */
enum part { PART_prologue, PART_first, PART_middle, PART_last, PART_epilogue, N_PARTS };

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
    double *op_seconds; /* NULL: nobody asks how long ops take */
    exec_stop *stop;    /* NULL: nobody asks for the end of a run */
    void *stop_user;
    double waited_seconds;
    struct offload_pool *pool;
    struct rank_collectives collective_runner;
    struct device_assignment
        *device_assignment; /* NULL: alone, or not on a device, or another exec's */
    struct copies *copies;  /* NULL: the program has none, or they are on a stream */
    tensor_id *fetched;     /* per tensor: of which it is a copy in staging, or TENSOR_NONE */
    /* Per op, the copy that must be done before it, or -1 (ir/program_waits.h): in the last round, [1], and in those
     * before it, [0], NULL where there are none; and in the round that runs. */
    int *waits_in[2];
    const int *waits_for;
    int64_t *number;               /* per copy: when it was last issued, by copies.h or n_issued */
    struct fill_rooms *fill_rooms; /* fill.c's; NULL: no piece is on its way */
    /* Of a backend with hooks; the rest is exec_device.c's. */
    const struct device_hooks *hooks;
    struct staging *staging;
    bool feeds_ahead;
    void *forked;        /* event: kernels before the copy that is put on its stream */
    void **copied;       /* events, per copy: it is done */
    int newest_fetch;    /* of this section: the last copy on the stream of copies, or -1 */
    int newest_eviction; /* the last one that no prefetch has waited for, or -1 */
    int64_t n_issued;    /* copies that were put on streams */
    int64_t n_joined;    /* of these, those that the kernels' stream has waited for */
    void **timed;        /* events, per op: its end; the last: the begin of a section */
    bool has_recorded;   /* or tried to */
    struct recording *recordings[N_PARTS];
};

/* The tensor's bytes in the arena, wherever that lies; NULL: it is not there. */
void *exec_place_of(const struct exec *exec, tensor_id id);
/* Micro-batches are counted over all ranks: what is random in them does not depend on who has them. */
int exec_micro_number(const struct exec *exec, int micro);
enum snug_status exec_run_op(struct exec *exec, int i, int micro, struct snug_error *err);
/* Ops [begin, end), a whole section; its last op waits for all copies of it. */
enum snug_status exec_run_section(struct exec *exec, int begin, int end, int micro,
                                  struct snug_error *err);

/* staging.c: where host and device meet: two places for each input, the scalar table, the loss. */
enum snug_status staging_make(struct exec *exec, const struct exec *shared, struct snug_error *err);
void staging_free(struct exec *exec);
enum snug_status staging_push_scalars(struct exec *exec, struct snug_error *err);
/* Feeds a micro-batch and puts its inputs on the way to the device. */
enum snug_status staging_feed(struct exec *exec, exec_feed *feed, void *user, int micro,
                              struct snug_error *err);
/* The first micro-batch of the next run. */
void staging_feed_ahead(struct exec *exec, exec_feed *feed, void *user);
void staging_forget_ahead(struct exec *exec);
enum snug_status staging_pull(struct exec *exec, struct snug_error *err);
void *staging_input(const struct exec *exec, tensor_id id);
double *staging_scalars(const struct exec *exec);
enum snug_status staging_view(struct exec *exec, tensor_id id, const void **data,
                              struct snug_error *err);

/* check_ids.c: every id of an input must lie below what the ops that read it take: a kernel of a device cannot
 * refuse one.  INT64_MAX: these are no ids. */
int64_t ids_limit(const struct program *prog, tensor_id input);
enum snug_status ids_check(const struct tensor *t, int64_t limit, const int32_t *ids,
                           struct snug_error *err);

/* exec_device.c: runs on a backend with hooks. */
enum snug_status device_open_lane(struct exec *exec, struct snug_error *err);
enum snug_status device_run_copy(struct exec *exec, int i,
                                 struct snug_error *err); /* by a thread */
void device_close(struct exec *exec);
enum snug_status device_issue_copy(struct exec *exec, int i, struct snug_error *err);
enum snug_status device_wait_for_copy(struct exec *exec, int copy, struct snug_error *err);
enum snug_status device_join_copies(struct exec *exec, int newest,
                                    struct snug_error *err); /* at a section's end */
/* An op by itself, done when this returns.  A message that leaves is only set off: who receives it
 * may have one that this rank has to receive first. */
enum snug_status device_run_alone(struct exec *exec, int i, int micro, struct snug_error *err);
void *device_stream_of(const struct exec *exec, const struct op *op);
enum snug_status device_mark_op(struct exec *exec, int i, struct snug_error *err); /* its end */
enum snug_status device_run_all(struct exec *exec, exec_feed *feed, void *user,
                                struct snug_error *err);

/* device_wait.c: the host waits for the device.  Where that waits for other ranks, theirs ending ends the
 * wait. */
enum snug_status device_finish(struct exec *exec, struct snug_error *err);
enum snug_status device_finish_event(struct exec *exec, void *event, struct snug_error *err);
/* After a failure of this rank: what waits for others is given up. */
void device_give_up(struct exec *exec);

#endif
