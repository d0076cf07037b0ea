/*
 * plugin_local.c -- ranks of one machine without any MPI, for tests where there is none.
 *
 * A script starts the processes itself, each with
 *
 *     PMI_SIZE=N PMI_RANK=r SNUG_MPI=.../libsnug_local.so SNUG_LOCAL_RANKS=FOLDER
 *
 * and they meet in the folder: rank r listens at FOLDER/r and connects to all below it.  Each pair has one
 * stream of bytes; messages go through it in the order in which they were given.
 */
#include "comm/plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MOST = 16, MESSAGES_MOST = 4 * RANKS_MOST, PATIENCE_MS = 20000 };

static struct {
    int rank, n_ranks, peers[RANKS_MOST];
    struct comm_message messages[MESSAGES_MOST];
    int64_t done[MESSAGES_MOST]; /* bytes */
    int n;
} local;

static bool say(char why[COMM_WHY_MAX], const char *what)
{
    snprintf(why, COMM_WHY_MAX, "%s: %s", what, strerror(errno));
    return false;
}

static struct sockaddr_un address_of(int rank)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *folder = getenv("SNUG_LOCAL_RANKS");
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%d", folder == NULL ? "." : folder,
             rank);
    return address;
}

/* The other may not be there yet. */
static int connect_to(int rank)
{
    struct sockaddr_un address = address_of(rank);
    int32_t own = local.rank;
    for (int ms = 0; ms < PATIENCE_MS; ms += 10) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return write(fd, &own, sizeof own) == sizeof own ? fd : -1;
        close(fd);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return -1;
}

static bool accept_one(int listener)
{
    int32_t rank = -1;
    int fd = accept(listener, NULL, NULL);
    if (fd < 0 || recv(fd, &rank, sizeof rank, MSG_WAITALL) != sizeof rank || rank <= local.rank ||
        rank >= local.n_ranks)
        return false;
    local.peers[rank] = fd;
    return true;
}

static bool begin(int *rank, int *n_ranks, char why[COMM_WHY_MAX])
{
    const char *size = getenv("PMI_SIZE"), *own = getenv("PMI_RANK");
    local.n_ranks = size == NULL ? 1 : atoi(size);
    local.rank = own == NULL ? 0 : atoi(own);
    if (local.n_ranks > RANKS_MOST) {
        errno = E2BIG;
        return say(why, "ranks");
    }
    struct sockaddr_un address = address_of(local.rank);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, RANKS_MOST) != 0)
        return say(why, address.sun_path);
    for (int peer = 0; peer < local.rank; peer++)
        if ((local.peers[peer] = connect_to(peer)) < 0)
            return say(why, "connecting");
    for (int n = local.rank + 1; n < local.n_ranks; n++)
        if (!accept_one(listener))
            return say(why, "waiting for the others");
    close(listener);
    *rank = local.rank;
    *n_ranks = local.n_ranks;
    return true;
}

static bool start(const struct comm_message *messages, int n, char why[COMM_WHY_MAX])
{
    if (n > MESSAGES_MOST) {
        errno = E2BIG;
        return say(why, "messages");
    }
    memcpy(local.messages, messages, (size_t)n * sizeof *messages);
    memset(local.done, 0, sizeof local.done);
    local.n = n;
    return true;
}

/* Of a peer and a direction, the first message that is not done comes first. */
static bool is_next(int i)
{
    for (int k = 0; k < i; k++)
        if (local.messages[k].peer == local.messages[i].peer &&
            local.messages[k].receives == local.messages[i].receives &&
            local.done[k] < local.messages[k].n_bytes)
            return false;
    return true;
}

static bool test(bool *done, char why[COMM_WHY_MAX])
{
    *done = true;
    for (int i = 0; i < local.n; i++) {
        const struct comm_message *m = &local.messages[i];
        int64_t left = m->n_bytes - local.done[i];
        if (left == 0)
            continue;
        if (is_next(i)) {
            char *at = (char *)m->data + local.done[i];
            ssize_t moved = m->receives ? recv(local.peers[m->peer], at, (size_t)left, MSG_DONTWAIT)
                                        : send(local.peers[m->peer], at, (size_t)left,
                                               MSG_DONTWAIT | MSG_NOSIGNAL);
            if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR))
                return say(why, m->receives ? "receiving" : "sending");
            local.done[i] += moved > 0 ? moved : 0;
        }
        *done = *done && local.done[i] == m->n_bytes;
    }
    return true;
}

static void end(void)
{
    for (int peer = 0; peer < local.n_ranks; peer++)
        if (peer != local.rank)
            close(local.peers[peer]);
}

comm_plugin_fn snug_comm_plugin;
const struct comm_plugin *snug_comm_plugin(void)
{
    static const struct comm_plugin plugin = {.version = COMM_PLUGIN_VERSION,
                                              .name = "local ranks",
                                              .begin = begin,
                                              .start = start,
                                              .test = test,
                                              .end = end};
    return &plugin;
}
