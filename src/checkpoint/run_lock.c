/*
 * run_lock.c -- the lock of a run's folder; see run_lock.h.
 *
 * The lock file is opened without following links, and written only if it is empty or starts with
 * MARK.  Any other file of that name is left unchanged.
 */
#include "checkpoint/run_lock.h"

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
        close(lock->fd); /* releases the lock */
    free(lock->path);
    free(lock);
}

/* Does lock->path still name the open file?  The previous holder may have removed it. */
static bool is_still_linked(const struct run_lock *lock)
{
    struct stat open_file, named;
    return fstat(lock->fd, &open_file) == 0 && lstat(lock->path, &named) == 0 &&
           open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

/* Reports who holds the lock.  Called only while another process holds it: after kill -9 the
 * name in the file is out of date. */
static enum snug_status refuse(const struct run_lock *lock, const char *dir, struct snug_error *err)
{
    char text[HOLDER_MAX] = "";
    ssize_t n = pread(lock->fd, text, sizeof text - 1, 0);
    bool is_named = n > 0 && strncmp(text, MARK, strlen(MARK)) == 0;
    text[is_named ? strcspn(text, "\n") : 0] = '\0';
    return snug_fail(
        err, SNUG_BUSY,
        "%s: %s%s is training in this folder: wait until it exits, or choose another --out", dir,
        is_named ? "process " : "another process", is_named ? text + strlen(MARK) : "");
}

/* Writes our process id and host name to the file.  On a full disk the lock is held without it. */
static void write_holder(const struct run_lock *lock)
{
    char host[256] = "", text[HOLDER_MAX];
    if (gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    int n = snprintf(text, sizeof text, MARK "%ld on %s\n", (long)getpid(),
                     host[0] == '\0' ? "this host" : host);
    if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, text, (size_t)n, 0) != n)
        (void)!ftruncate(lock->fd, 0);
}

static enum snug_status check_is_lock_file(const struct run_lock *lock, struct snug_error *err)
{
    struct stat info;
    char mark[sizeof MARK] = "";
    if (fstat(lock->fd, &info) == 0 && S_ISREG(info.st_mode) &&
        (info.st_size == 0 || (pread(lock->fd, mark, strlen(MARK), 0) == (ssize_t)strlen(MARK) &&
                               strcmp(mark, MARK) == 0)))
        return SNUG_OK;
    return snug_fail(err, SNUG_BAD_FILE, "%s: this file is not a snug lock file: move it away",
                     lock->path);
}

static enum snug_status open_file(struct run_lock *lock, bool make, struct file_faults *faults,
                                  struct snug_error *err)
{
    /* O_RDWR: NFS grants an exclusive lock only on a file open for writing.  O_NONBLOCK: refuse a
     * FIFO instead of waiting for it. */
    int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (make ? O_CREAT : 0);
    TRY(file_count_read(lock->path, faults, err));
    lock->fd = open(lock->path, flags, 0666);
    if (lock->fd < 0 && errno == ELOOP)
        return snug_fail(err, SNUG_BAD_FILE,
                         "%s: the lock file of a run must not be a symbolic link: remove it",
                         lock->path);
    if (lock->fd < 0 && (make || (errno != ENOENT && errno != ENOTDIR)))
        return snug_fail(err, SNUG_IO_ERROR, "%s: cannot lock the run: %s", lock->path,
                         strerror(errno));
    return lock->fd < 0 ? SNUG_OK : check_is_lock_file(lock, err);
}

/* Returns 0 if the lock was acquired, else the errno of flock. */
static int try_lock(const struct run_lock *lock, struct file_faults *faults)
{
    if (file_count_read(lock->path, faults, NULL) != SNUG_OK)
        return faults->error != 0 ? faults->error : EIO;
    while (flock(lock->fd, LOCK_EX | LOCK_NB) != 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

/* Opens and locks the file.  Sets *again if the file was removed between the two. */
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
    lock->held = is_still_linked(lock);
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
        return snug_fail(err, SNUG_NO_MEMORY, "%s: out of memory locking the run", dir);
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
        status = snug_fail(err, SNUG_IO_ERROR,
                           "%s: cannot lock the run: another process keeps removing " RUN_LOCK_NAME,
                           dir);
    if (status == SNUG_OK && lock->held)
        write_holder(lock);
    if (status == SNUG_OK && lock->fd >= 0)
        *out = lock;
    else
        lock_free(lock);
    return status;
}

void run_lock_give_back(struct run_lock *lock)
{
    /* on a file system without locks every process removes the file, which does no harm */
    if (lock != NULL && is_still_linked(lock))
        unlink(lock->path);
    lock_free(lock);
}
