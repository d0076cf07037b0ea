/*
 * nccl_emulated.cc -- NCCL between processes of one machine that each emulate a GPU, for the tests.
 *
 * Ranks share a block of memory with one slot per rank.  A step of a collective is: some ranks
 * write their slots, barrier, some ranks read, barrier.  Sends and receives use a mailbox per pair
 * of ranks; a group sends before it receives.  Streams execute work at once (emulate.h), so a rank
 * that waits for others waits here, until a timeout.  Mailboxes hold several sends, because a real
 * send on its own stream would not block the other streams.
 */
extern "C" {
#include "base/dtype.h"
}
#include "cuda/nccl.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum { RANKS_MOST = 8, SLOT_BYTES = 1 << 16, TOO_LONG_S = 20, REMOTE_ERROR = 6, MAIL_MOST = 16 };

struct mailbox {
    std::atomic<unsigned> n_sent, n_received;
    unsigned char bytes[MAIL_MOST][SLOT_BYTES];
};

struct shared_memory { /* initially zero */
    std::atomic<int> n_arrived, n_barriers;
    unsigned char slot[RANKS_MOST][SLOT_BYTES];
    struct mailbox mail[RANKS_MOST][RANKS_MOST]; /* [to][from] */
};

struct ncclComm {
    struct shared_memory *memory;
    int rank, n_ranks, error;
};

/* ---- waiting -------------------------------------------------------------------------------- */

template <class Condition> static void wait_until(struct ncclComm *comm, Condition condition)
{
    time_t begin = time(nullptr);
    while (comm->error == NCCL_SUCCESS && !condition()) {
        sched_yield();
        if (time(nullptr) - begin > TOO_LONG_S)
            comm->error = REMOTE_ERROR;
    }
}

static void barrier(struct ncclComm *comm)
{
    struct shared_memory *m = comm->memory;
    int number = m->n_barriers.load();
    if (m->n_arrived.fetch_add(1) + 1 == comm->n_ranks) {
        m->n_arrived.store(0);
        m->n_barriers.store(number + 1);
    }
    wait_until(comm, [=] { return m->n_barriers.load() != number; });
}

/* ---- steps ---------------------------------------------------------------------------------- */

static enum dtype dtype_of(int type)
{
    return type == NCCL_F32    ? DTYPE_f32
           : type == NCCL_F64  ? DTYPE_f64
           : type == NCCL_BF16 ? DTYPE_bf16
           : type == NCCL_F16  ? DTYPE_f16
                               : DTYPE_u8;
}

/* Sums all slots, rank by rank; any order would do. */
static void sum_slots(struct ncclComm *comm, enum dtype dtype, void *to, size_t n)
{
    for (int64_t i = 0; i < (int64_t)n; i++) {
        double sum = 0;
        for (int rank = 0; rank < comm->n_ranks; rank++)
            sum += dtype_load(dtype, comm->memory->slot[rank], i);
        dtype_store(dtype, to, i, sum);
    }
}

/* Sums over all ranks to `root`, or to all ranks if root is -1. */
static void reduce_now(struct ncclComm *comm, const void *from, void *to, size_t n, int type,
                       int root)
{
    enum dtype dtype = dtype_of(type);
    size_t size = dtype_bytes(dtype), most = SLOT_BYTES / size;
    for (size_t at = 0; at < n; at += most) {
        size_t run = n - at < most ? n - at : most;
        memcpy(comm->memory->slot[comm->rank], (const char *)from + at * size, run * size);
        barrier(comm);
        if (root < 0 || root == comm->rank)
            sum_slots(comm, dtype, (char *)to + at * size, run);
        barrier(comm);
    }
}

static void broadcast_now(struct ncclComm *comm, const void *from, void *to, size_t n_bytes,
                          int root)
{
    for (size_t at = 0; at < n_bytes; at += SLOT_BYTES) {
        size_t run = n_bytes - at < SLOT_BYTES ? n_bytes - at : (size_t)SLOT_BYTES;
        if (root == comm->rank)
            memcpy(comm->memory->slot[root], (const char *)from + at, run);
        barrier(comm);
        memmove((char *)to + at, comm->memory->slot[root], run);
        barrier(comm);
    }
}

/* ---- groups --------------------------------------------------------------------------------- */

struct step {
    cudaStream_t stream;
    std::function<void()> work;
};

static int group_depth; /* not locked: one thread calls */
static std::vector<struct step> group, group_receives;

static int end_group(void)
{
    if (--group_depth > 0)
        return NCCL_SUCCESS;
    for (auto &step : group)
        emulated_submit(step.stream, step.work);
    for (auto &step : group_receives)
        emulated_submit(step.stream, step.work);
    group.clear();
    group_receives.clear();
    return NCCL_SUCCESS;
}

static int start_group(void)
{
    group_depth++;
    return NCCL_SUCCESS;
}

static int enqueue(std::vector<struct step> *steps, cudaStream_t stream, std::function<void()> work)
{
    start_group();
    steps->push_back({stream, work});
    return end_group();
}

/* ---- the calls ------------------------------------------------------------------------------ */

static int all_reduce(const void *from, void *to, size_t n, int type, int, struct ncclComm *comm,
                      cudaStream_t stream)
{
    return enqueue(&group, stream, [=] { reduce_now(comm, from, to, n, type, -1); });
}

static int reduce(const void *from, void *to, size_t n, int type, int, int root,
                  struct ncclComm *comm, cudaStream_t stream)
{
    return enqueue(&group, stream, [=] { reduce_now(comm, from, to, n, type, root); });
}

static int reduce_scatter(const void *from, void *to, size_t n, int type, int,
                          struct ncclComm *comm, cudaStream_t stream)
{
    size_t bytes = n * dtype_bytes(dtype_of(type));
    return enqueue(&group, stream, [=] {
        for (int root = 0; root < comm->n_ranks; root++)
            reduce_now(comm, (const char *)from + (size_t)root * bytes, to, n, type, root);
    });
}

static int broadcast(const void *from, void *to, size_t n, int type, int root,
                     struct ncclComm *comm, cudaStream_t stream)
{
    size_t bytes = n * dtype_bytes(dtype_of(type));
    return enqueue(&group, stream, [=] { broadcast_now(comm, from, to, bytes, root); });
}

static int all_gather(const void *from, void *to, size_t n, int type, struct ncclComm *comm,
                      cudaStream_t stream)
{
    size_t bytes = n * dtype_bytes(dtype_of(type));
    return enqueue(&group, stream, [=] {
        for (int root = 0; root < comm->n_ranks; root++)
            broadcast_now(comm, from, (char *)to + (size_t)root * bytes, bytes, root);
    });
}

enum { INVALID_ARGUMENT = 4 };

static int send(const void *from, size_t n, int type, int peer, struct ncclComm *comm,
                cudaStream_t stream)
{
    size_t bytes = n * dtype_bytes(dtype_of(type));
    struct mailbox *box = &comm->memory->mail[peer][comm->rank];
    if (bytes > SLOT_BYTES)
        return INVALID_ARGUMENT;
    return enqueue(&group, stream, [=] {
        wait_until(comm, [=] { return box->n_sent.load() - box->n_received.load() < MAIL_MOST; });
        memcpy(box->bytes[box->n_sent.load() % MAIL_MOST], from, bytes);
        box->n_sent.fetch_add(1);
    });
}

static int recv(void *to, size_t n, int type, int peer, struct ncclComm *comm, cudaStream_t stream)
{
    size_t bytes = n * dtype_bytes(dtype_of(type));
    struct mailbox *box = &comm->memory->mail[comm->rank][peer];
    if (bytes > SLOT_BYTES)
        return INVALID_ARGUMENT;
    return enqueue(&group_receives, stream, [=] {
        wait_until(comm, [=] { return box->n_sent.load() != box->n_received.load(); });
        memcpy(to, box->bytes[box->n_received.load() % MAIL_MOST], bytes);
        box->n_received.fetch_add(1);
    });
}

/* ---- ranks ---------------------------------------------------------------------------------- */

static int get_version(int *version)
{
    *version = 20000;
    return NCCL_SUCCESS;
}

static int get_id(struct nccl_id *id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(id->bytes, sizeof id->bytes, "/snug-emulated-%ld-%ld", (long)getpid(),
             (long)now.tv_nsec);
    return NCCL_SUCCESS;
}

static int init_rank(struct ncclComm **out, int n_ranks, struct nccl_id id, int rank)
{
    int file = n_ranks > RANKS_MOST ? -1 : shm_open(id.bytes, O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct shared_memory)) != 0)
        return INVALID_ARGUMENT;
    void *memory =
        mmap(nullptr, sizeof(struct shared_memory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
        return INVALID_ARGUMENT;
    *out = new ncclComm{(struct shared_memory *)memory, rank, n_ranks, NCCL_SUCCESS};
    barrier(*out);
    if (rank == 0)
        shm_unlink(id.bytes);
    return (*out)->error;
}

static int destroy(struct ncclComm *comm)
{
    munmap(comm->memory, sizeof *comm->memory);
    delete comm;
    return NCCL_SUCCESS;
}

static int async_error(struct ncclComm *comm, int *error)
{
    *error = comm->error;
    return NCCL_SUCCESS;
}

static const char *error_text(int error)
{
    return error == REMOTE_ERROR ? "timed out waiting for another rank" : "invalid argument";
}

static const char *last_error(struct ncclComm *)
{
    return "";
}

/* SNUG_EMULATED_NCCL=missing acts as if NCCL were not installed. */
const struct nccl_calls *nccl_find(char why[DEVICE_TEXT_MAX])
{
    static const struct nccl_calls calls = {
        get_version,    get_id,     init_rank,   destroy,   destroy,    async_error,
        error_text,     last_error, start_group, end_group, all_reduce, reduce,
        reduce_scatter, broadcast,  all_gather,  send,      recv};
    const char *setting = getenv("SNUG_EMULATED_NCCL");
    if (setting != nullptr && strcmp(setting, "missing") == 0) {
        snprintf(why, DEVICE_TEXT_MAX, "hidden by SNUG_EMULATED_NCCL");
        return nullptr;
    }
    return &calls;
}
