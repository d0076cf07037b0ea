/*
 * watch.c -- the connections between rank 0 and the others; see watch.h.
 *
 * A star of TCP connections, and a thread that sleeps on them.  Frames are small and rare:
 *
 *     kind: bye | claim | yes | lost       the rank it is about       text, truncated to TEXT_MAX
 *
 * A rank that failed sends a claim to rank 0, which answers `yes` to the first; all other ranks get
 * `lost`.  A connection that ends without `bye` is a death.  Rank 0 reports it; if rank 0 died,
 * rank 1 does.
 */
#include "comm/watch.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_MAX = 400, CONNECT_MS = 5000, VERDICT_MS = 2000, SILENCE_S = 2, PROBES = 3 };

enum frame_kind { FRAME_BYE = 1, FRAME_CLAIM, FRAME_YES, FRAME_LOST };

struct frame {
    int32_t kind, rank;
    char text[TEXT_MAX];
};

struct address { /* of rank 0 */
    char host[256];
    int32_t port;   /* 0 if it could not listen */
    uint64_t token; /* a connecting rank must send it */
};

struct hello {
    uint64_t token;
    int32_t rank;
};

struct watch {
    int rank, n_ranks;
    int *peers; /* sockets: on rank 0 one per other rank, elsewhere one to rank 0; -1 if closed */
    int n_peers;
    int wake[2]; /* a pipe that ends the thread */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t mutex; /* protects the fields below */
    pthread_cond_t changed;
    atomic_bool is_lost; /* may be read without the mutex */
    bool must_report;    /* this rank reports the error to the user */
    bool may_claim, verdict;
    bool *said_bye;
    char text[TEXT_MAX];
};

/* ---- frames ---------------------------------------------------------------------------------- */

static bool write_all(int fd, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(fd, (const char *)data + done, n - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        done += (size_t)sent;
    }
    return true;
}

static bool read_all(int fd, void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = recv(fd, (char *)data + done, n - done, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

static void send_frame(int fd, enum frame_kind kind, int rank, const char *text)
{
    struct frame frame = {.kind = kind, .rank = rank};
    snprintf(frame.text, sizeof frame.text, "%s", text);
    if (fd >= 0)
        (void)write_all(fd, &frame, sizeof frame); /* a dead peer need not receive it */
}

/* ---- state; called with the mutex held ------------------------------------------------------- */

static void note_lost(struct watch *w, bool must_report, const char *text)
{
    if (!atomic_load(&w->is_lost)) {
        snprintf(w->text, sizeof w->text, "%s", text);
        w->must_report = must_report;
        atomic_store(&w->is_lost, true);
    }
    pthread_cond_broadcast(&w->changed);
}

/* Rank 0 informs all ranks except `about`. */
static void send_to_all(struct watch *w, int about, const char *text)
{
    for (int i = 0; i < w->n_peers; i++)
        if (i + 1 != about)
            send_frame(w->peers[i], FRAME_LOST, about, text);
}

static void handle_claim(struct watch *w, int peer, const char *text)
{
    bool is_first = !atomic_load(&w->is_lost);
    send_frame(w->peers[peer], is_first ? FRAME_YES : FRAME_LOST, peer + 1, text);
    if (is_first)
        send_to_all(w, peer + 1, text);
    note_lost(w, false, text);
}

static void handle_death(struct watch *w, int peer)
{
    char text[TEXT_MAX];
    int who = w->rank == 0 ? peer + 1 : 0;
    if (w->said_bye[peer])
        return;
    snprintf(text, sizeof text,
             "rank %d died without an error message: it was killed, or its machine went down", who);
    if (w->rank == 0 && !atomic_load(&w->is_lost))
        send_to_all(w, who, text);
    note_lost(w, w->rank <= 1, text);
}

static void handle_frame(struct watch *w, int peer)
{
    struct frame frame;
    bool is_alive = read_all(w->peers[peer], &frame, sizeof frame);
    pthread_mutex_lock(&w->mutex);
    if (!is_alive) {
        close(w->peers[peer]);
        w->peers[peer] = -1;
        handle_death(w, peer);
    } else {
        frame.text[TEXT_MAX - 1] = '\0';
        if (frame.kind == FRAME_BYE)
            w->said_bye[peer] = true;
        else if (frame.kind == FRAME_CLAIM)
            handle_claim(w, peer, frame.text);
        else if (frame.kind == FRAME_LOST)
            note_lost(w, false, frame.text);
        else
            w->may_claim = true;
        if (frame.kind != FRAME_BYE) {
            w->verdict = true;
            pthread_cond_broadcast(&w->changed);
        }
    }
    pthread_mutex_unlock(&w->mutex);
}

static void *work(void *argument)
{
    struct watch *w = argument;
    struct pollfd *fds = calloc((size_t)w->n_peers + 1, sizeof *fds);
    while (fds != NULL) {
        for (int i = 0; i < w->n_peers; i++)
            fds[i] = (struct pollfd){.fd = w->peers[i], .events = POLLIN};
        fds[w->n_peers] = (struct pollfd){.fd = w->wake[0], .events = POLLIN};
        if (poll(fds, (nfds_t)w->n_peers + 1, -1) < 0 && errno != EINTR)
            break;
        if (fds[w->n_peers].revents != 0)
            break;
        for (int i = 0; i < w->n_peers; i++)
            if (w->peers[i] >= 0 && fds[i].revents != 0)
                handle_frame(w, i);
    }
    free(fds);
    return NULL;
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* A machine that goes down closes nothing: keepalive probes detect it. */
static void keep_alive(int fd)
{
    int on = 1, idle = SILENCE_S, probes = PROBES;
    unsigned silence = SILENCE_S * (PROBES + 1) * 1000;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof silence);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int listen_anywhere(struct address *address)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}};
    socklen_t length = sizeof own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        (bind(fd, (struct sockaddr *)&own, sizeof own) != 0 || listen(fd, SOMAXCONN) != 0 ||
         getsockname(fd, (struct sockaddr *)&own, &length) != 0 ||
         gethostname(address->host, sizeof address->host - 1) != 0 ||
         getrandom(&address->token, sizeof address->token, 0) < 0)) {
        close(fd);
        fd = -1;
    }
    address->port = fd < 0 ? 0 : ntohs(own.sin_port);
    return fd;
}

static bool is_readable(int fd)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int n;
    do
        n = poll(&ready, 1, CONNECT_MS);
    while (n < 0 && errno == EINTR);
    return n > 0;
}

/* Accepts until all ranks have connected or CONNECT_MS pass without a connection.  Rejects
 * others. */
static int accept_all(struct watch *w, int listener, uint64_t token)
{
    int n = 0;
    while (n < w->n_peers && is_readable(listener)) {
        struct hello hello;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if (is_readable(fd) && read_all(fd, &hello, sizeof hello) && hello.token == token &&
            hello.rank >= 1 && hello.rank < w->n_ranks && w->peers[hello.rank - 1] < 0) {
            keep_alive(fd);
            w->peers[hello.rank - 1] = fd;
            n++;
        } else {
            close(fd);
        }
    }
    return n;
}

static int connect_to(const struct address *address)
{
    char own[256] = "", port[16];
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    gethostname(own, sizeof own - 1);
    bool is_here = strcmp(own, address->host) == 0;
    snprintf(port, sizeof port, "%d", (int)address->port);
    if (getaddrinfo(is_here ? "127.0.0.1" : address->host, port, &hints, &found) != 0)
        return -1;
    int fd = -1;
    for (struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

/* Blocks all signals in the new thread: the main thread handles them. */
static void start_thread(struct watch *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    w->has_thread = pthread_create(&w->thread, NULL, work, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Did every rank connect?  Asked over comm, so that all ranks get the same answer. */
static enum snug_status agree(struct comm *comm, bool is_connected, struct snug_error *err)
{
    double is_cut_off = is_connected ? 0 : 1;
    TRY(comm_max(comm, &is_cut_off, err));
    if (is_cut_off != 0)
        return snug_fail(err, SNUG_IO_ERROR,
                         "ranks cannot connect to rank 0 over TCP to detect failures; check that "
                         "its host name resolves on the others and its ports are open");
    return SNUG_OK;
}

static enum snug_status join(struct watch *w, struct comm *comm, struct snug_error *err)
{
    struct address address = {0};
    int listener = comm->rank == 0 ? listen_anywhere(&address) : -1;
    enum snug_status status = comm_broadcast(comm, 0, &address, sizeof address, err);
    bool is_connected = false;
    if (status == SNUG_OK && address.port != 0 && comm->rank == 0) {
        is_connected = accept_all(w, listener, address.token) == w->n_peers;
    } else if (status == SNUG_OK && address.port != 0) {
        struct hello hello = {.token = address.token, .rank = comm->rank};
        w->peers[0] = connect_to(&address);
        is_connected = w->peers[0] >= 0 && write_all(w->peers[0], &hello, sizeof hello);
        if (is_connected)
            keep_alive(w->peers[0]);
    }
    if (listener >= 0)
        close(listener);
    return status == SNUG_OK ? agree(comm, is_connected, err) : status;
}

enum snug_status watch_open(struct comm *comm, struct watch **out, struct snug_error *err)
{
    struct watch *w = calloc(1, sizeof *w);
    int n_peers = comm->rank == 0 ? comm->n_ranks - 1 : 1;
    int *peers = malloc((size_t)n_peers * sizeof *peers);
    bool *said_bye = calloc((size_t)n_peers, sizeof *said_bye);
    *out = NULL;
    if (w == NULL || peers == NULL || said_bye == NULL) {
        free(w);
        free(peers);
        free(said_bye);
        return snug_fail(err, SNUG_NO_MEMORY, "out of memory");
    }
    for (int i = 0; i < n_peers; i++)
        peers[i] = -1;
    *w = (struct watch){.rank = comm->rank,
                        .n_ranks = comm->n_ranks,
                        .peers = peers,
                        .n_peers = n_peers,
                        .said_bye = said_bye,
                        .wake = {-1, -1}};
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    enum snug_status status = join(w, comm, err);
    if (status == SNUG_OK) {
        if (pipe(w->wake) == 0)
            start_thread(w);
        if (!w->has_thread)
            status = snug_fail(err, SNUG_NO_MEMORY, "cannot start the thread that watches ranks");
    }
    if (status != SNUG_OK) {
        watch_close(w);
        return status;
    }
    *out = w;
    return SNUG_OK;
}

void watch_close(struct watch *w)
{
    if (w == NULL)
        return;
    if (w->has_thread) {
        (void)!write(w->wake[1], "", 1);
        pthread_join(w->thread, NULL);
    }
    for (int i = 0; i < w->n_peers; i++)
        if (w->peers[i] >= 0) {
            send_frame(w->peers[i], FRAME_BYE, w->rank, "");
            close(w->peers[i]);
        }
    for (int i = 0; i < 2; i++)
        if (w->wake[i] >= 0)
            close(w->wake[i]);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w->peers);
    free(w->said_bye);
    free(w);
}

/* ---- checks and claims ----------------------------------------------------------------------- */

enum snug_status watch_check(struct watch *w, struct snug_error *err)
{
    if (w == NULL || !atomic_load(&w->is_lost))
        return SNUG_OK;
    pthread_mutex_lock(&w->mutex);
    enum snug_status status =
        snug_fail(err, w->must_report ? SNUG_IO_ERROR : SNUG_PEER_FAILED, "%s", w->text);
    pthread_mutex_unlock(&w->mutex);
    return status;
}

static void wait_for_verdict(struct watch *w)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += VERDICT_MS / 1000;
    while (!w->verdict && !atomic_load(&w->is_lost) &&
           pthread_cond_timedwait(&w->changed, &w->mutex, &until) == 0)
        ;
}

bool watch_claim(struct watch *w, const char *message)
{
    pthread_mutex_lock(&w->mutex);
    bool is_mine = !atomic_load(&w->is_lost) || w->must_report;
    if (is_mine && !w->must_report && w->rank == 0) {
        send_to_all(w, 0, message);
        note_lost(w, true, message);
    } else if (is_mine && !w->must_report) {
        send_frame(w->peers[0], FRAME_CLAIM, w->rank, message);
        wait_for_verdict(w);
        is_mine = w->may_claim || !w->verdict; /* no answer: better reported twice than never */
        note_lost(w, is_mine, message);
    }
    pthread_mutex_unlock(&w->mutex);
    return is_mine;
}
