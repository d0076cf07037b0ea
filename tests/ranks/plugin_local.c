/*
 * plugin_local.c -- ranks of one machine without MPI, for tests on machines that have none.
 *
 * A script starts the processes itself, each with
 *
 *     PMI_SIZE=N PMI_RANK=r SNUG_MPI=.../libsnug_local.so SNUG_LOCAL_RANKS=FOLDER
 *
 * and they meet in the folder: rank r listens at FOLDER/r and connects to all ranks below it.  Each
 * pair has one byte stream, which carries messages in the order in which they were sent.
 */
#include "comm/mpi_plugin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MOST = 16, LETTERS_MOST = 8 * RANKS_MOST, PATIENCE_MS = 20000 };

struct letter { /* a message that is under way */
    struct comm_message message;
    int64_t done;   /* bytes */
    int64_t number; /* in the order in which they were given; 0: this place is free */
    bool is_posted; /* by itself; else it is one of those that were started together */
};

static struct {
    int rank, n_ranks, peers[RANKS_MOST];
    struct letter letters[LETTERS_MOST];
    int64_t n_given;
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

/* Its place, or -1. */
static int give(const struct comm_message *message, bool is_posted, char why[COMM_WHY_MAX])
{
    int at = 0;
    while (at < LETTERS_MOST && local.letters[at].number != 0)
        at++;
    if (at == LETTERS_MOST) {
        errno = E2BIG;
        (void)say(why, "messages");
        return -1;
    }
    local.letters[at] =
        (struct letter){.message = *message, .number = ++local.n_given, .is_posted = is_posted};
    return at;
}

static bool start(const struct comm_message *messages, int n, char why[COMM_WHY_MAX])
{
    for (int i = 0; i < n; i++)
        if (give(&messages[i], false, why) < 0)
            return false;
    return true;
}

static bool post(const struct comm_message *message, int *number, char why[COMM_WHY_MAX])
{
    *number = give(message, true, why);
    return *number >= 0;
}

static bool is_under_way(const struct letter *letter)
{
    return letter->number != 0 && letter->done < letter->message.n_bytes;
}

/* Of a peer and a direction, the first message that was given comes first. */
static bool is_next(const struct letter *letter)
{
    for (int i = 0; i < LETTERS_MOST; i++) {
        const struct letter *other = &local.letters[i];
        if (is_under_way(other) && other->number < letter->number &&
            other->message.peer == letter->message.peer &&
            other->message.receives == letter->message.receives)
            return false;
    }
    return true;
}

/* Helps all along. */
static bool move_all(char why[COMM_WHY_MAX])
{
    for (int i = 0; i < LETTERS_MOST; i++) {
        struct letter *letter = &local.letters[i];
        const struct comm_message *m = &letter->message;
        if (!is_under_way(letter) || !is_next(letter))
            continue;
        char *at = (char *)m->data + letter->done;
        size_t left = (size_t)(m->n_bytes - letter->done);
        ssize_t moved = m->receives
                            ? recv(local.peers[m->peer], at, left, MSG_DONTWAIT)
                            : send(local.peers[m->peer], at, left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR))
            return say(why, m->receives ? "receiving" : "sending");
        letter->done += moved > 0 ? moved : 0;
    }
    return true;
}

static bool test(bool *done, char why[COMM_WHY_MAX])
{
    bool works = move_all(why);
    *done = works;
    for (int i = 0; i < LETTERS_MOST; i++)
        *done = *done && (local.letters[i].is_posted || !is_under_way(&local.letters[i]));
    for (int i = 0; i < LETTERS_MOST && *done; i++)
        if (!local.letters[i].is_posted)
            local.letters[i].number = 0;
    return works;
}

static bool test_post(int number, bool *done, char why[COMM_WHY_MAX])
{
    bool works = move_all(why);
    *done = works && !is_under_way(&local.letters[number]);
    if (*done)
        local.letters[number].number = 0;
    return works;
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
                                              .post = post,
                                              .test_post = test_post,
                                              .end = end};
    return &plugin;
}
