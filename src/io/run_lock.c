/*
 * run_lock.c -- the lock of a run's folder; see run_lock.h.
 *
 * The file is opened without following links, and only one that is empty or has our mark is written to:
 * whatever else somebody put under its name stays as it is.
 */
#include "io/run_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"

#define MARK "snug: process "
enum { HOLDER_MAX = 320, ATTEMPTS = 100 };

struct run_lock {
    char *path;
    int fd;
    bool held;
};

bool run_lock_is_held(const struct run_lock *lock)
{
    return lock != NULL && lock->held;
}

static void lock_free(struct run_lock *lock)
{
    if (lock == NULL)
        return;
    if (lock->fd >= 0)
        close(lock->fd); /* and with that the lock */
    free(lock->path);
    free(lock);
}

/* Is the open file the one that has the name now?  Its last holder may have removed it. */
static bool has_its_name(const struct run_lock *lock)
{
    struct stat open_file, named;
    return fstat(lock->fd, &open_file) == 0 && lstat(lock->path, &named) == 0 &&
           open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

/* After kill -9 of its holder the name in the file is an old one: it is read only where the lock is taken. */
static enum snug_status refuse(const struct run_lock *lock, const char *dir, struct snug_error *err)
{
    char text[HOLDER_MAX] = "";
    ssize_t n = pread(lock->fd, text, sizeof text - 1, 0);
    bool is_named = n > 0 && strncmp(text, MARK, strlen(MARK)) == 0;
    text[is_named ? strcspn(text, "\n") : 0] = '\0';
    return snug_fail(
        err, SNUG_BUSY,
        "%s: %s%s is training in this folder: wait until it has ended, or choose another "
        "--out",
        dir, is_named ? "process " : "another process", is_named ? text + strlen(MARK) : "");
}

/* Who we are.  A full disk keeps the name out of the file, not the lock from being held. */
static void sign(const struct run_lock *lock)
{
    char host[256] = "", text[HOLDER_MAX];
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    int n = snprintf(text, sizeof text, MARK "%ld on %s\n", (long)getpid(),
                     host[0] == '\0' ? "this host" : host);
    if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, text, (size_t)n, 0) != n)
        (void)!ftruncate(lock->fd, 0);
}

static enum snug_status is_ours(const struct run_lock *lock, struct snug_error *err)
{
    struct stat info;
    char mark[sizeof MARK] = "";
    if (fstat(lock->fd, &info) == 0 && S_ISREG(info.st_mode) &&
        (info.st_size == 0 || (pread(lock->fd, mark, strlen(MARK), 0) == (ssize_t)strlen(MARK) &&
                               strcmp(mark, MARK) == 0)))
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_FILE,
                     "%s: is not the lock of a run, whose name it has: move it away", lock->path);
}

static enum snug_status open_file(struct run_lock *lock, bool make, struct file_faults *faults,
                                  struct snug_error *err)
{
    /* for writing: over NFS it is no exclusive lock otherwise; O_NONBLOCK: a FIFO is refused, not waited for */
    int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (make ? O_CREAT : 0);
    TRY(file_count_read(lock->path, faults, err));
    lock->fd = open(lock->path, flags, 0666);
    if (lock->fd < 0 && errno == ELOOP)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: is a link, where the lock of the run should be: remove it",
                         lock->path);
    if (lock->fd < 0 && (make || (errno != ENOENT && errno != ENOTDIR)))
        return snug_fail(err, SNUG_IO_ERROR, "%s: cannot lock the run: %s", lock->path,
                         strerror(errno));
    return lock->fd < 0 ? SNUG_OK : is_ours(lock, err);
}

/* errno of flock, 0: it is held. */
static int try_lock(const struct run_lock *lock, struct file_faults *faults)
{
    if (file_count_read(lock->path, faults, NULL) != SNUG_OK)
        return faults->error != 0 ? faults->error : EIO;
    while (flock(lock->fd, LOCK_EX | LOCK_NB) != 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

/* Opens and locks; *again: the file was removed between the two. */
static enum snug_status take_once(struct run_lock *lock, const char *dir, bool make, bool *again,
                                  struct file_faults *faults, struct snug_error *err)
{
    *again = false;
    TRY(open_file(lock, make, faults, err));
    if (lock->fd < 0)
        return SNUG_OK;
    int error = try_lock(lock, faults);
    if (error == EWOULDBLOCK)
        return refuse(lock, dir, err);
    if (error == ENOTSUP || error == ENOLCK || error == ENOSYS)
        return SNUG_OK;
    if (error != 0)
        return snug_fail(err, SNUG_IO_ERROR, "%s: cannot lock the run: %s", lock->path,
                         strerror(error));
    lock->held = has_its_name(lock);
    *again = !lock->held;
    return SNUG_OK;
}

enum snug_status run_lock_take(const char *dir, bool make, struct run_lock **out,
                               struct file_faults *faults, struct snug_error *err)
{
    struct run_lock *lock = calloc(1, sizeof *lock);
    bool again = true;
    *out = NULL;
    if (lock == NULL || (lock->path = path_join(dir, RUN_LOCK_NAME, "")) == NULL) {
        free(lock);
        return snug_fail(err, SNUG_NO_MEMORY, "%s: no memory to lock the run", dir);
    }
    lock->fd = -1;
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < ATTEMPTS && again && status == SNUG_OK; i++) {
        if (lock->fd >= 0)
            close(lock->fd);
        lock->fd = -1;
        status = take_once(lock, dir, make, &again, faults, err);
    }
    if (status == SNUG_OK && again)
        status =
            snug_fail(err, SNUG_IO_ERROR, "%s: its lock is removed as soon as it is made", dir);
    if (status == SNUG_OK && lock->held)
        sign(lock);
    if (status == SNUG_OK && lock->fd >= 0)
        *out = lock;
    else
        lock_free(lock);
    return status;
}

void run_lock_give_back(struct run_lock *lock)
{
    /* without locks nobody knows whose file it is: all remove it, and no one misses it */
    if (lock != NULL && has_its_name(lock))
        unlink(lock->path);
    lock_free(lock);
}
