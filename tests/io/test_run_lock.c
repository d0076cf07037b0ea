/*
 * test_run_lock.c -- one holder at a time, released by kill -9, and only a lock file is ever
 * written.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/run_lock.h"
#include "support/files.h"

static bool has_lock_file(const char *dir)
{
    struct stat info;
    return lstat(files_path(dir, RUN_LOCK_NAME), &info) == 0;
}

/* Refused, with the process and the host of who has it. */
static void assert_busy(const char *dir, bool make, pid_t holder)
{
    struct run_lock *lock;
    struct snug_error err = {0};
    char words[400], host[256] = "";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    snprintf(words, sizeof words, "%s: process %ld on %s is training in this folder", dir,
             (long)holder, host);
    assert_int_equal(run_lock_take(dir, make, &lock, NULL, &err), SNUG_BUSY);
    assert_null(lock);
    assert_non_null(strstr(err.message, words));
}

static void test_one_at_a_time(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct run_lock *lock, *second;
    (void)state;
    files_make_dir(dir);
    assert_int_equal(run_lock_take(dir, false, &lock, NULL, &err), SNUG_OK);
    assert_null(lock);
    assert_false(has_lock_file(dir));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(run_lock_take(dir, true, &lock, NULL, &err), SNUG_OK);
        assert_true(run_lock_is_held(lock));
        assert_busy(dir, true, getpid());
        assert_busy(dir, false, getpid());
        run_lock_give_back(lock);
        assert_false(has_lock_file(dir));
    }
    run_lock_give_back(NULL);
    assert_int_equal(run_lock_take("/there/is/no/such/folder", false, &second, NULL, &err),
                     SNUG_OK);
    assert_null(second);
    files_write_text(dir, "file", "");
    assert_int_equal(run_lock_take(files_path(dir, "file"), false, &second, NULL, &err), SNUG_OK);
    assert_null(second);
    files_remove_dir(dir);
}

static void test_free_after_kill(void **state)
{
    char dir[FILES_PATH_MAX], byte;
    struct snug_error err = {0};
    struct run_lock *lock;
    int ready[2], ended;
    (void)state;
    files_make_dir(dir);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool held =
            run_lock_take(dir, true, &lock, NULL, NULL) == SNUG_OK && write(ready[1], "x", 1) == 1;
        while (held)
            pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    assert_busy(dir, true, child);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFSIGNALED(ended));
    assert_true(has_lock_file(dir));
    assert_int_equal(run_lock_take(dir, false, &lock, NULL, &err), SNUG_OK);
    assert_true(run_lock_is_held(lock));
    assert_busy(dir, true, getpid()); /* the old name is gone */
    run_lock_give_back(lock);
    files_remove_dir(dir);
}

/* A program that the holder starts does not keep the lock. */
static void test_not_inherited(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct run_lock *lock;
    int ended;
    (void)state;
    files_make_dir(dir);
    assert_int_equal(run_lock_take(dir, true, &lock, NULL, &err), SNUG_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* nothing in its list of open files leads there */
        execl("/bin/sh", "sh", "-c", "! ls -l /proc/self/fd /proc/$$/fd | grep -q '/\\.lock'",
              NULL);
        _exit(9);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    run_lock_give_back(lock);
    files_remove_dir(dir);
}

static void test_planted(void **state)
{
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    files_write_text(dir, "dear", "do not write over this");
    for (int how = 0; how < 4; how++) {
        struct snug_error err = {0};
        struct run_lock *lock;
        const char *path = files_path(dir, RUN_LOCK_NAME), *dear = files_path(dir, "dear");
        int planted = how == 0   ? symlink("dear", path)
                      : how == 1 ? link(dear, path)
                      : how == 2 ? mkfifo(path, 0666)
                                 : symlink("not-there", path);
        assert_int_equal(planted, 0);
        assert_int_equal(run_lock_take(dir, true, &lock, NULL, &err), SNUG_BAD_FILE);
        assert_null(lock);
        assert_non_null(
            strstr(err.message, how % 3 == 0 ? "be a symbolic link" : "is not a snug lock"));
        assert_true(has_lock_file(dir));
        assert_int_equal(unlink(files_path(dir, RUN_LOCK_NAME)), 0);
        size_t n;
        char *text = files_read(files_path(dir, "dear"), &n);
        assert_string_equal(text, "do not write over this");
        free(text);
        assert_int_not_equal(access(files_path(dir, "not-there"), F_OK), 0);
    }
    files_remove_dir(dir);
}

/* File systems without locks are used without; other failures are told. */
static void test_without_locks(void **state)
{
    static const struct {
        int error;
        enum snug_status status;
    } rows[] = {{ENOLCK, SNUG_OK}, {EOPNOTSUPP, SNUG_OK}, {ENOSYS, SNUG_OK}, {EIO, SNUG_IO_ERROR}};
    char dir[FILES_PATH_MAX];
    (void)state;
    files_make_dir(dir);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct snug_error err = {0};
        struct run_lock *lock;
        struct file_faults faults = {.fail_at = 2, .error = rows[i].error};
        assert_int_equal(run_lock_take(dir, true, &lock, &faults, &err), rows[i].status);
        assert_int_equal(faults.calls, 2);
        assert_int_equal(lock != NULL, rows[i].status == SNUG_OK);
        assert_false(run_lock_is_held(lock));
        run_lock_give_back(lock);
    }
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_at_a_time), cmocka_unit_test(test_free_after_kill),
        cmocka_unit_test(test_not_inherited), cmocka_unit_test(test_planted),
        cmocka_unit_test(test_without_locks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
