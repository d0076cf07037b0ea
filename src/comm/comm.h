/*
 * comm.h -- communication between ranks.
 *
 *     self.c          a single rank
 *     comm.c          the ranks of this run; MPI through mpi_plugin.h
 *     launcher.c      which launcher started this process, and which MPI it uses
 *     collectives.c   deterministic collectives, built from point-to-point messages
 *     group.c         a process group: a subset of the ranks
 *     watch.c         detects that another rank has failed or died, without MPI
 *
 * Calls block until they are done.  To overlap them with other work is up to the caller; the
 * executor does it with its copy lane.  Only one thread may call at a time.
 *
 * After a failure on any rank, every call on every rank fails soon.  comm_claim decides which rank
 * reports the error to the user.
 */
#ifndef SNUG_COMM_COMM_H
#define SNUG_COMM_COMM_H

#include "base/cut.h"
#include "base/dtype.h"
#include "base/status.h"
#include "comm/mpi_plugin.h"

struct comm;

/* For tensors outside host memory: how to copy parts of them into a host bucket and back.  get, put
 * and add are asynchronous; finish waits for them. */
struct comm_staging {
    enum snug_status (*get)(struct comm_staging *staging, void *bucket, const void *tensor,
                            int64_t n_bytes, struct snug_error *err);
    enum snug_status (*put)(struct comm_staging *staging, void *tensor, const void *bucket,
                            int64_t n_bytes, struct snug_error *err);
    enum snug_status (*add)(struct comm_staging *staging, enum dtype dtype, void *tensor,
                            const void *bucket, int64_t n_elems, struct snug_error *err);
    enum snug_status (*finish)(struct comm_staging *staging, struct snug_error *err);
};

/* An operand of a collective.  `whole` has all elements; `piece` has this rank's range, or is NULL
 * if the range is inside `whole`. */
struct comm_tensor {
    void *whole, *piece;
    enum dtype dtype; /* the same for all tensors of a call */
    int64_t n_elems;
    struct cut cut;
    struct comm_staging *staging; /* NULL: host memory; the same for all tensors of a call */
};

struct comm_table {
    const char *name;
    /* Sends and receives, all of them in flight at once. */
    enum snug_status (*transfer)(struct comm *comm, const struct comm_message *messages, int n,
                                 struct snug_error *err);
    /* whole = sum of all ranks' wholes */
    enum snug_status (*all_reduce)(struct comm *comm, const struct comm_tensor *tensors, int n,
                                   void *work, struct snug_error *err);
    /* piece = (or +=) this rank's range of the sum of all ranks' wholes */
    enum snug_status (*reduce_scatter)(struct comm *comm, const struct comm_tensor *tensors, int n,
                                       bool add, void *work, struct snug_error *err);
    /* whole = all ranks' pieces */
    enum snug_status (*all_gather)(struct comm *comm, const struct comm_tensor *tensors, int n,
                                   void *work, struct snug_error *err);
    /* A non-blocking send, or NULL if not supported.  Other messages may be sent and received
     * meanwhile.  data must not change until wait_post returns. */
    enum snug_status (*post)(struct comm *comm, int to, const void *data, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*wait_post)(struct comm *comm, const void *data, struct snug_error *err);
    /* Makes progress on posted sends; false if none is in flight. */
    bool (*progress)(struct comm *comm);
    void (*close)(struct comm *comm, bool orderly);
};

struct comm {
    const struct comm_table *table;
    int rank, n_ranks;
    struct comm_message *messages; /* 2 x n_ranks, for the current collective; NULL for one rank */
};

/* Connects to the ranks that the launcher started.  n_ranks > 1 fails without a launcher. */
enum snug_status comm_open(int64_t n_ranks, struct comm **comm, struct snug_error *err);
/* For a rank that fails before comm_open: tells the others, who would wait for it. */
void comm_abandon(void);
/* orderly: all ranks call it and wait for each other.  Otherwise messages in flight are
 * abandoned. */
void comm_close(struct comm *comm, bool orderly);

/* A process group of these ranks of `comm`, in this order; this rank must be one of them.  Each
 * rank closes it on its own, before comm. */
enum snug_status comm_open_group(struct comm *comm, const int *ranks, int n_ranks,
                                 struct comm **group, struct snug_error *err);

/* Fails if another rank has failed.  Cheap; from any thread. */
enum snug_status comm_check(const struct comm *comm, struct snug_error *err);
/* Called by a rank whose run has failed, with the error.  The first rank to call it reports its
 * message; on the other ranks the error becomes SNUG_PEER_FAILED. */
void comm_claim(struct comm *comm, struct snug_error *err);

/* The size of `work` for the three collectives; the same on every rank. */
int64_t comm_work_bytes(const struct comm_tensor *tensors, int n, int n_ranks);

/* For small data, at the start and the end of a run. */
enum snug_status comm_send(struct comm *comm, int to, const void *data, int64_t n_bytes,
                           struct snug_error *err);
enum snug_status comm_recv(struct comm *comm, int from, void *data, int64_t n_bytes,
                           struct snug_error *err);
enum snug_status comm_broadcast(struct comm *comm, int from, void *data, int64_t n_bytes,
                                struct snug_error *err);
/* Gathers n_bytes of every rank, in rank order, into `all` on rank `to`; others may pass NULL. */
enum snug_status comm_gather(struct comm *comm, int to, const void *data, int64_t n_bytes,
                             void *all, struct snug_error *err);
/* Sets *value to the maximum over all ranks. */
enum snug_status comm_max(struct comm *comm, double *value, struct snug_error *err);
enum snug_status comm_barrier(struct comm *comm, struct snug_error *err);

/* collectives.c: the three collectives, built on transfer. */
enum snug_status collect_all_reduce(struct comm *comm, const struct comm_tensor *tensors, int n,
                                    void *work, struct snug_error *err);
enum snug_status collect_reduce_scatter(struct comm *comm, const struct comm_tensor *tensors, int n,
                                        bool add, void *work, struct snug_error *err);
enum snug_status collect_all_gather(struct comm *comm, const struct comm_tensor *tensors, int n,
                                    void *work, struct snug_error *err);

/* For `snug --version`: one line that lists the MPI plugins found. */
struct text;
void comm_describe(struct text *out);

/* self.c */
enum snug_status comm_open_self(struct comm **comm, struct snug_error *err);

#endif
