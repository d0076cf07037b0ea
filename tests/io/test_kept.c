/*
 * test_kept.c -- kept checkpoints: whatever is called step-N is whole, wherever a disk fails or a process dies.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "io/kept.h"
#include "support/files.h"

enum { KEEP = 3, STEPS_MOST = 100 };
static const char *const names[] = {"state.json", "model.safetensors", "adapter/a.json"};
enum { N_NAMES = sizeof names / sizeof *names };

/* Files of a step, as a save leaves them: new ones in the place of the old. */
static void write_run(const char *dir, int64_t step)
{
    char text[32];
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(text, sizeof text, "%s of %lld", names[i], (long long)step);
        (void)unlink(files_path(dir, names[i]));
        files_write_text(dir, names[i], text);
    }
}

static enum snug_status keep(const char *dir, int64_t step, struct file_faults *faults,
                             struct snug_error *err)
{
    TRY(kept_add(dir, step, names, N_NAMES, faults, err));
    return kept_trim(dir, step, KEEP, faults, err);
}

static void assert_whole(const char *dir, int64_t step)
{
    char name[96], want[32];
    size_t n;
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(name, sizeof name, "checkpoints/step-%06lld/%s", (long long)step, names[i]);
        snprintf(want, sizeof want, "%s of %lld", names[i], (long long)step);
        char *text = files_read(files_path(dir, name), &n);
        assert_string_equal(text, want);
        free(text);
    }
}

/* All that are called step-N are whole.  Returns how many; *n_strays: what has another name. */
static int count_whole(const char *dir, int *n_strays)
{
    int n = 0;
    DIR *folder = opendir(files_path(dir, "checkpoints"));
    *n_strays = 0;
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        long long step;
        char rest[8] = "";
        if (entry->d_name[0] == '.')
            continue;
        if (sscanf(entry->d_name, "step-%lld%7s", &step, rest) == 1) {
            assert_whole(dir, step);
            n++;
        } else {
            ++*n_strays;
        }
    }
    if (folder != NULL)
        closedir(folder);
    return n;
}

static void make_run(char dir[FILES_PATH_MAX])
{
    files_make_dir(dir);
    files_make_subdir(dir, "adapter");
}

static void test_last_ones_stay(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    int n_strays;
    (void)state;
    make_run(dir);
    for (int64_t step = 10; step <= 70; step += 10) {
        write_run(dir, step);
        assert_int_equal(keep(dir, step, NULL, &err), SNUG_OK);
        assert_int_equal(count_whole(dir, &n_strays), step / 10 < KEEP ? step / 10 : KEEP);
        assert_int_equal(n_strays, 0);
        assert_true(kept_has(dir, step));
    }
    struct stat own, kept;
    assert_int_equal(stat(files_path(dir, "model.safetensors"), &own), 0);
    assert_int_equal(stat(files_path(dir, "checkpoints/step-000070/model.safetensors"), &kept), 0);
    assert_int_equal(own.st_ino, kept.st_ino); /* no room is taken twice */

    write_run(dir,
              55); /* a run that was taken back: 60 and 70 are no part of it, and are not lost */
    assert_int_equal(keep(dir, 55, NULL, &err), SNUG_OK);
    assert_int_equal(count_whole(dir, &n_strays), 4);
    assert_true(kept_has(dir, 50) && kept_has(dir, 55) && kept_has(dir, 70));
    write_run(dir, 60); /* made again */
    assert_int_equal(keep(dir, 60, NULL, &err), SNUG_OK);
    assert_int_equal(count_whole(dir, &n_strays), 4);
    files_write_text(dir, "checkpoints/notes", "not ours");
    files_make_subdir(dir, "checkpoints/step-by-step");
    write_run(dir, 80);
    assert_int_equal(keep(dir, 80, NULL, &err), SNUG_OK);
    assert_int_equal(count_whole(dir, &n_strays), KEEP);
    assert_int_equal(n_strays, 2);
    files_remove_dir(dir);
}

/* The process dies, or the disk fails, at every operation of the fifth: the three before it or the three with
 * it are there, whole, and the next one clears up. */
static void test_every_failure(void **state)
{
    int n_injected = 0;
    (void)state;
    for (int crash = 0; crash < 2; crash++)
        for (int64_t at = 1;; at++) {
            char dir[FILES_PATH_MAX];
            struct snug_error err = {0};
            struct file_faults faults = {.fail_at = at, .crash = crash, .error = ENOSPC};
            int n_strays;
            assert_true(at < 1000);
            make_run(dir);
            for (int64_t step = 1; step <= 4; step++) {
                write_run(dir, step);
                assert_int_equal(keep(dir, step, NULL, &err), SNUG_OK);
            }
            write_run(dir, 5);
            enum snug_status status = keep(dir, 5, &faults, &err);
            assert_true(status == SNUG_OK || status == SNUG_IO_ERROR);
            n_injected += faults.calls >= at;
            assert_true(count_whole(dir, &n_strays) >= KEEP);
            assert_true(kept_has(dir, 3) && kept_has(dir, 4));
            for (int64_t step = 5; step <= 6; step++) { /* what was cut off is made again */
                write_run(dir, step);
                assert_int_equal(keep(dir, step, NULL, &err), SNUG_OK);
                assert_int_equal(count_whole(dir, &n_strays), KEEP);
                assert_int_equal(n_strays, 0);
            }
            files_remove_dir(dir);
            if (faults.calls < at)
                break;
        }
    assert_true(n_injected > 30);
}

static void test_planted(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    (void)state;
    make_run(dir);
    files_make_subdir(dir, "elsewhere");
    files_make_subdir(dir, "elsewhere/step-000001");
    assert_int_equal(symlink("elsewhere", files_path(dir, "checkpoints")), 0);
    write_run(dir, 9);
    assert_int_equal(keep(dir, 9, NULL, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "checkpoints: is not a folder"));
    assert_int_equal(access(files_path(dir, "elsewhere/step-000001"), F_OK), 0);
    assert_int_not_equal(access(files_path(dir, "elsewhere/step-000009"), F_OK), 0);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_ones_stay),
        cmocka_unit_test(test_every_failure),
        cmocka_unit_test(test_planted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
