/*
 * rank_write.c -- every rank writes its ranges into one shared file; see rank_save.h.
 *
 *     rank 0                                   other ranks
 *     creates the file at its full length
 *     marks it, broadcasts path and mark       open it: is it the same file?
 *     if all see it: sends each its ranges     write them, compute checksums, sync
 *     writes its own ranges                    send the checksum of each range
 *     combines the checksums
 *
 * The file has the same bytes as if rank 0 had written it alone.  A tensor that several ranks hold
 * as equal copies (ddp, the weights with zero 1 and 2, ps) is divided between them in whole pieces,
 * so a small tensor is written by one rank.
 *
 * The mark tells a rank on another machine whether it sees rank 0's folder or a local one of the
 * same name.  It is the file's modification time, set to a random value, with its inode number and
 * length.  The file is not read for this: some network file systems write a page that was read back
 * as a whole, over what another rank has written next to it.  If a rank does not see the file,
 * rank_save.c sends the bytes through rank 0.
 *
 * If a rank dies, the others stop writing at the next piece; the next save does not use that file.
 */
#include "checkpoint/rank_save.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STRIDE_BYTES = 1 << 20 };

struct file_mark {
    int64_t number, n_bytes, seconds, nanoseconds;
};

struct write_order {
    int64_t id, at_bytes, n_bytes; /* bytes of the rank's part of a tensor */
    int64_t to_bytes;              /* offset in the file */
};

struct write_job {
    struct write_order order;
    int rank, entry;
    uint32_t crc;
    int next; /* next job of the same rank, or -1 */
};

/* ---- the same file? -------------------------------------------------------------------------- */

static bool read_mark(int fd, struct file_mark *mark)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return false;
    *mark = (struct file_mark){(int64_t)info.st_ino, (int64_t)info.st_size,
                               (int64_t)info.st_mtim.tv_sec, (int64_t)info.st_mtim.tv_nsec};
    return true;
}

/* False if this file system cannot set the time of a file. */
static bool set_mark(int fd, struct file_mark *mark)
{
    enum { SECONDS_BITS = 31, SECOND = 1000000000 };
    uint32_t random[2];
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return false;
    struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = random[0] >> (32 - SECONDS_BITS), .tv_nsec = random[1] % SECOND}};
    return futimens(fd, times) == 0 && read_mark(fd, mark);
}

/* Opens the file; -1 if it does not exist or has another mark. */
static int open_marked(const char *path, const struct file_mark *mark)
{
    struct file_mark found;
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -1;
    if (read_mark(fd, &found) && memcmp(&found, mark, sizeof found) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Does every rank see the file? */
static enum snug_status agree_all_see(struct comm *comm, bool sees, bool *all_see,
                                      struct snug_error *err)
{
    double is_blind = sees ? 0 : 1;
    TRY(comm_max(comm, &is_blind, err));
    *all_see = is_blind == 0;
    return SNUG_OK;
}

/* On rank 0: announces the file and finds out whether all ranks see it. */
static enum snug_status announce_file(struct rank_crew *c, bool *all_see, struct snug_error *err)
{
    struct comm *comm = c->state->comm;
    struct rank_request request = {.ask = ASK_write};
    struct file_mark mark = {0};
    int64_t path_bytes = (int64_t)strlen(c->path) + 1;
    bool own = set_mark(c->fd, &mark);
    TRY(comm_broadcast(comm, 0, &request, sizeof request, err));
    TRY(comm_broadcast(comm, 0, &mark, sizeof mark, err));
    TRY(comm_broadcast(comm, 0, &path_bytes, sizeof path_bytes, err));
    TRY(comm_broadcast(comm, 0, (void *)c->path, path_bytes, err));
    return agree_all_see(comm, own, all_see, err);
}

/* On the other ranks: opens the announced file; *fd is -1 unless all ranks see it. */
static enum snug_status open_announced(struct comm *comm, char **path, int *fd,
                                       struct snug_error *err)
{
    struct file_mark mark;
    int64_t path_bytes;
    TRY(comm_broadcast(comm, 0, &mark, sizeof mark, err));
    TRY(comm_broadcast(comm, 0, &path_bytes, sizeof path_bytes, err));
    if ((*path = malloc((size_t)path_bytes)) == NULL)
        return rank_save_no_memory(err);
    TRY(comm_broadcast(comm, 0, *path, path_bytes, err));
    *fd = open_marked(*path, &mark);
    bool all_see;
    TRY(agree_all_see(comm, *fd >= 0, &all_see, err));
    if (*fd >= 0 && !all_see) {
        close(*fd);
        *fd = -1;
    }
    return SNUG_OK;
}

/* ---- who writes what ------------------------------------------------------------------------- */

/* Adds n jobs for the caller to fill in. */
static enum snug_status add_jobs(struct rank_crew *c, int n, struct write_job **jobs,
                                 struct snug_error *err)
{
    void *grown = c->jobs;
    if (!array_grow(&grown, &c->capacity, c->n_jobs + n, sizeof *c->jobs))
        return rank_save_no_memory(err);
    c->jobs = grown;
    *jobs = c->jobs + c->n_jobs;
    c->n_jobs += n;
    return SNUG_OK;
}

static int count_copies(const struct rank_parts *p, int tensor)
{
    int n = 0;
    for (int i = p->tensors[tensor].first; i >= 0; i = p->pieces[i].next)
        n += rank_parts_is_copy(p, tensor, &p->pieces[i]);
    return n;
}

/* Divides a tensor between the ranks that hold copies.  The rank that writes the first piece
 * changes from tensor to tensor, so that no rank writes all the small ones. */
static enum snug_status divide(struct rank_crew *c, const struct st_entry *entry, int at,
                               int64_t data_begin, int n_copies, struct snug_error *err)
{
    const struct rank_parts *p = entry->owner;
    const struct rank_tensor *t = &p->tensors[entry->id];
    struct write_job *jobs;
    int k = entry->id % n_copies;
    struct cut cut = {.unit = RANK_PIECE_BYTES, .owner = CUT_OVER_ALL};
    TRY(add_jobs(c, n_copies, &jobs, err));
    for (int i = t->first; i >= 0; i = p->pieces[i].next) {
        const struct rank_piece *piece = &p->pieces[i];
        if (!rank_parts_is_copy(p, entry->id, piece))
            continue;
        struct cut_range range = cut_of(cut, entry->n_bytes, n_copies, k);
        int64_t to = data_begin + entry->offset_bytes + range.from;
        jobs[k] = (struct write_job){
            .order = {piece->id, range.from, range.count, to}, .rank = piece->rank, .entry = at};
        k = (k + 1) % n_copies;
    }
    return SNUG_OK;
}

static enum snug_status plan_entry(struct rank_crew *c, const struct st_entry *entry, int at,
                                   int64_t data_begin, struct snug_error *err)
{
    int n_copies = count_copies(entry->owner, entry->id), piece = -1;
    struct rank_run run;
    struct write_job *job;
    if (n_copies > 0)
        return divide(c, entry, at, data_begin, n_copies, err);
    for (int64_t done = 0; done < entry->n_bytes; done += run.n_bytes) {
        TRY(rank_parts_find(entry->owner, entry->id, done, entry->n_bytes - done, &piece, &run,
                            err));
        TRY(add_jobs(c, 1, &job, err));
        int64_t to = data_begin + entry->offset_bytes + done;
        *job = (struct write_job){
            .order = {run.id, run.at_bytes, run.n_bytes, to}, .rank = run.rank, .entry = at};
    }
    return SNUG_OK;
}

/* Links each rank's jobs into a list; empty jobs are left out. */
static enum snug_status sort_jobs(struct rank_crew *c, struct snug_error *err)
{
    int n_ranks = c->state->comm->n_ranks;
    free(c->first_of);
    c->first_of = malloc((size_t)n_ranks * sizeof *c->first_of);
    if (c->first_of == NULL)
        return rank_save_no_memory(err);
    for (int rank = 0; rank < n_ranks; rank++)
        c->first_of[rank] = -1;
    for (int i = c->n_jobs - 1; i >= 0; i--)
        if (c->jobs[i].order.n_bytes > 0) {
            c->jobs[i].next = c->first_of[c->jobs[i].rank];
            c->first_of[c->jobs[i].rank] = i;
        }
    return SNUG_OK;
}

static enum snug_status plan_jobs(struct rank_crew *c, const struct st_entry *placed, int n,
                                  int64_t data_begin, struct snug_error *err)
{
    c->n_jobs = 0;
    for (int i = 0; i < n; i++)
        if (placed[i].shared)
            TRY(plan_entry(c, &placed[i], i, data_begin, err));
    return sort_jobs(c, err);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Tensors outside host memory are read piece by piece. */
static enum snug_status write_range(const struct rank_state *t, int fd, const char *path,
                                    const struct write_order *order, uint32_t *crc,
                                    struct snug_error *err)
{
    char piece[RANK_PIECE_BYTES];
    tensor_id id = (tensor_id)order->id;
    const char *data = exec_data(t->exec, id);
    int64_t stride = data == NULL ? RANK_PIECE_BYTES : STRIDE_BYTES;
    *crc = 0;
    for (int64_t at = 0; at < order->n_bytes; at += stride) {
        int64_t left = order->n_bytes - at, n = left < stride ? left : stride;
        TRY(comm_check(t->comm, err));
        if (data == NULL)
            TRY(exec_read(t->exec, id, order->at_bytes + at, n, piece, err));
        TRY(file_write_at(fd, path, data == NULL ? piece : data + order->at_bytes + at, n,
                          order->to_bytes + at, crc, NULL, err));
    }
    return SNUG_OK;
}

static int count_jobs(const struct rank_crew *c, int rank)
{
    int n = 0;
    for (int i = c->first_of[rank]; i >= 0; i = c->jobs[i].next)
        n++;
    return n;
}

static enum snug_status send_orders(const struct rank_crew *c, int rank, struct snug_error *err)
{
    int64_t n = count_jobs(c, rank);
    struct write_order *orders = malloc(((size_t)n + 1) * sizeof *orders);
    if (orders == NULL)
        return rank_save_no_memory(err);
    for (int i = c->first_of[rank], k = 0; i >= 0; i = c->jobs[i].next)
        orders[k++] = c->jobs[i].order;
    enum snug_status status = comm_send(c->state->comm, rank, &n, sizeof n, err);
    if (status == SNUG_OK)
        status = comm_send(c->state->comm, rank, orders, n * (int64_t)sizeof *orders, err);
    free(orders);
    return status;
}

static enum snug_status recv_crcs(struct rank_crew *c, int rank, struct snug_error *err)
{
    int64_t n = count_jobs(c, rank);
    uint32_t *crcs = malloc(((size_t)n + 1) * sizeof *crcs);
    if (crcs == NULL)
        return rank_save_no_memory(err);
    /* one extra element, so that a rank without jobs also confirms that its data is on disk */
    enum snug_status status =
        comm_recv(c->state->comm, rank, crcs, (n + 1) * (int64_t)sizeof *crcs, err);
    for (int i = c->first_of[rank], k = 0; i >= 0 && status == SNUG_OK; i = c->jobs[i].next)
        c->jobs[i].crc = crcs[k++];
    free(crcs);
    return status;
}

static enum snug_status begin(struct st_crew *crew, int fd, const char *path,
                              const struct st_entry *placed, int n, int64_t data_begin, bool *comes,
                              struct snug_error *err)
{
    struct rank_crew *c = (struct rank_crew *)crew;
    c->fd = fd;
    c->path = path;
    *comes = false;
    TRY(plan_jobs(c, placed, n, data_begin, err));
    if (c->n_jobs == 0)
        return SNUG_OK;
    TRY(announce_file(c, comes, err));
    for (int rank = 1; rank < c->state->comm->n_ranks && *comes; rank++)
        TRY(send_orders(c, rank, err));
    return SNUG_OK;
}

static enum snug_status end(struct st_crew *crew, uint32_t *crcs, struct snug_error *err)
{
    struct rank_crew *c = (struct rank_crew *)crew;
    for (int i = c->first_of[0]; i >= 0; i = c->jobs[i].next)
        TRY(write_range(c->state, c->fd, c->path, &c->jobs[i].order, &c->jobs[i].crc, err));
    for (int rank = 1; rank < c->state->comm->n_ranks; rank++)
        TRY(recv_crcs(c, rank, err));
    for (int i = 0; i < c->n_jobs; i++)
        crcs[c->jobs[i].entry] = 0;
    for (int i = 0; i < c->n_jobs; i++) {
        uint32_t *crc = &crcs[c->jobs[i].entry];
        *crc = file_crc32_join(*crc, c->jobs[i].crc, c->jobs[i].order.n_bytes);
    }
    return SNUG_OK;
}

void rank_crew_make(struct rank_crew *c, const struct rank_state *t)
{
    *c = (struct rank_crew){.crew = {.begin = begin, .end = end}, .state = t, .fd = -1};
}

void rank_crew_free(struct rank_crew *c)
{
    free(c->jobs);
    free(c->first_of);
}

/* ---- the other ranks ------------------------------------------------------------------------- */

/* Always closes the file. */
static enum snug_status write_orders(const struct rank_state *t, int fd, const char *path,
                                     const struct write_order *orders, int64_t n, uint32_t *crcs,
                                     struct snug_error *err)
{
    enum snug_status status = SNUG_OK;
    for (int64_t i = 0; i < n && status == SNUG_OK; i++)
        status = write_range(t, fd, path, &orders[i], &crcs[i], err);
    if (status == SNUG_OK)
        return file_finish(fd, path, NULL, err);
    close(fd);
    return status;
}

static enum snug_status serve_orders(const struct rank_state *t, int fd, const char *path,
                                     struct snug_error *err)
{
    int64_t n = 0;
    enum snug_status status = comm_recv(t->comm, 0, &n, sizeof n, err);
    struct write_order *orders = calloc((size_t)n + 1, sizeof *orders);
    uint32_t *crcs = calloc((size_t)n + 1, sizeof *crcs);
    if (status == SNUG_OK && (orders == NULL || crcs == NULL))
        status = rank_save_no_memory(err);
    if (status == SNUG_OK)
        status = comm_recv(t->comm, 0, orders, n * (int64_t)sizeof *orders, err);
    if (status == SNUG_OK)
        status = write_orders(t, fd, path, orders, n, crcs, err);
    else
        close(fd);
    if (status == SNUG_OK)
        status = comm_send(t->comm, 0, crcs, (n + 1) * (int64_t)sizeof *crcs, err);
    free(orders);
    free(crcs);
    return status;
}

enum snug_status rank_write_help(const struct rank_state *t, struct snug_error *err)
{
    char *path = NULL;
    int fd = -1;
    enum snug_status status = open_announced(t->comm, &path, &fd, err);
    if (status == SNUG_OK && fd >= 0)
        status = serve_orders(t, fd, path, err);
    else if (fd >= 0)
        close(fd);
    free(path);
    return status;
}
