/*
 * comm.h -- what ranks say to each other.
 *
 *     self.c        one rank: nothing to say
 *     comm.c        the ranks that this process is one of; MPI through mpi_plugin.h
 *     launcher.c    who started it, and which MPI goes with that
 *     collectives.c     sums and collections out of messages, in a fixed order
 *     group.c       some of the ranks, as if they were all
 *     watch.c       finds out that another rank has failed or died, without MPI
 *
 * Calls wait until they are done.  That they run beside other work is for the caller to arrange, as
 * the executor does with its lane of copies.  One thread at a time calls.
 *
 * After a failure on any rank every call fails on every rank, soon: comm_claim decides which of them
 * tells the user.
 */
#ifndef SNUG_COMM_COMM_H
#define SNUG_COMM_COMM_H

#include "base/cut.h"
#include "base/dtype.h"
#include "base/status.h"
#include "comm/mpi_plugin.h"

struct comm;

/* Tensors that do not lie in the host's memory: how runs of them come into a bucket that does, and back.
 * All but settle only set off. */
struct comm_reach {
    enum snug_status (*get)(struct comm_reach *reach, void *bucket, const void *tensor,
                            int64_t n_bytes, struct snug_error *err);
    enum snug_status (*put)(struct comm_reach *reach, void *tensor, const void *bucket,
                            int64_t n_bytes, struct snug_error *err);
    enum snug_status (*add)(struct comm_reach *reach, enum dtype dtype, void *tensor,
                            const void *bucket, int64_t n_elems, struct snug_error *err);
    enum snug_status (*settle)(struct comm_reach *reach, struct snug_error *err);
};

/* A tensor that ranks share.  `whole` are all its numbers; `piece` those of this rank's range, or NULL:
 * they lie in the whole. */
struct comm_tensor {
    void *whole, *piece;
    enum dtype dtype; /* the same for all tensors of a call */
    int64_t n_elems;
    struct cut cut;
    struct comm_reach *reach; /* NULL: the host's memory; the same for all tensors of a call */
};

struct comm_table {
    const char *name;
    /* Messages in both directions, all of them under way at once. */
    enum snug_status (*transfer)(struct comm *comm, const struct comm_message *messages, int n,
                                 struct snug_error *err);
    /* whole = the sum of all ranks' */
    enum snug_status (*all_reduce)(struct comm *comm, const struct comm_tensor *tensors, int n,
                                   void *work, struct snug_error *err);
    /* piece (+)= this rank's range of the sum of all ranks' whole */
    enum snug_status (*reduce_scatter)(struct comm *comm, const struct comm_tensor *tensors, int n,
                                       bool add, void *work, struct snug_error *err);
    /* whole = all ranks' pieces */
    enum snug_status (*all_gather)(struct comm *comm, const struct comm_tensor *tensors, int n,
                                   void *work, struct snug_error *err);
    /* NULL where there is no such thing: a message that is on its way when this returns, while others come
     * and go.  Its numbers must not change until `settle` says that they have left. */
    enum snug_status (*post)(struct comm *comm, int to, const void *data, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*settle)(struct comm *comm, const void *data, struct snug_error *err);
    /* Helps what was posted along; false: nothing is on its way. */
    bool (*progress)(struct comm *comm);
    void (*close)(struct comm *comm, bool in_peace);
};

struct comm {
    const struct comm_table *table;
    int rank, n_ranks;
    struct comm_message *messages; /* 2 x n_ranks, for the collective under way; NULL: one rank */
};

/* The ranks that this process is one of: those that its launcher started.  n_ranks > 1 fails where there is
 * no launcher. */
enum snug_status comm_open(int64_t n_ranks, struct comm **comm, struct snug_error *err);
/* Where this rank fails before comm_open: the others, who wait for it, find out. */
void comm_abandon(void);
/* in_peace: all ranks come to it; else what is under way is left as it is. */
void comm_close(struct comm *comm, bool in_peace);

/* Ranks of `comm`, in this order, among which this one is, as a comm of their own for sums and collections.
 * Closed before the other, by each on its own. */
enum snug_status comm_open_group(struct comm *comm, const int *ranks, int n_ranks,
                                 struct comm **group, struct snug_error *err);

/* Has another rank failed?  Cheap; from any thread. */
enum snug_status comm_check(const struct comm *comm, struct snug_error *err);
/* To be called by a rank whose run has failed, with why.  The first to call, over all ranks, is the one
 * whose message counts; on the others the error becomes SNUG_PEER_FAILED. */
void comm_claim(struct comm *comm, struct snug_error *err);

/* Bytes of `work` for the three that take it; shards of tensors are cut the same everywhere. */
int64_t comm_work_bytes(const struct comm_tensor *tensors, int n, int n_ranks);

/* Small things, for the start and the end of a run. */
enum snug_status comm_send(struct comm *comm, int to, const void *data, int64_t n_bytes,
                           struct snug_error *err);
enum snug_status comm_recv(struct comm *comm, int from, void *data, int64_t n_bytes,
                           struct snug_error *err);
enum snug_status comm_broadcast(struct comm *comm, int from, void *data, int64_t n_bytes,
                                struct snug_error *err);
/* n_bytes of every rank, one after the other, in `all` of rank `to`; NULL elsewhere. */
enum snug_status comm_gather(struct comm *comm, int to, const void *data, int64_t n_bytes,
                             void *all, struct snug_error *err);
/* The largest of all ranks, on each of them. */
enum snug_status comm_max(struct comm *comm, double *value, struct snug_error *err);
enum snug_status comm_barrier(struct comm *comm, struct snug_error *err);

/* collectives.c: the three made of transfer, for kinds that have nothing better. */
enum snug_status collect_all_reduce(struct comm *comm, const struct comm_tensor *tensors, int n,
                                    void *work, struct snug_error *err);
enum snug_status collect_reduce_scatter(struct comm *comm, const struct comm_tensor *tensors, int n,
                                        bool add, void *work, struct snug_error *err);
enum snug_status collect_all_gather(struct comm *comm, const struct comm_tensor *tensors, int n,
                                    void *work, struct snug_error *err);

/* For `snug --version`: one line, which plugins are there. */
struct text;
void comm_describe(struct text *out);

/* self.c */
enum snug_status comm_open_self(struct comm **comm, struct snug_error *err);

#endif
