/*
 * test_retained.c -- kept checkpoints: every folder named step-N is complete, wherever a disk fails or
 * a process dies.
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

#include "checkpoint/retained.h"
#include "checkpoint/run_lock.h"
#include "support/files.h"

enum { KEEP = 3, STEPS_MOST = 100 };
static const char *const names[] = {"state.json", "model.safetensors", "adapter/a.json"};
enum { N_NAMES = sizeof names / sizeof *names };

static void text_of(int file, int64_t step, char text[64])
{
    if (file == 0)
        snprintf(text, 64, "{\"step\": %lld}", (long long)step);
    else
        snprintf(text, 64, "%s of %lld", names[file], (long long)step);
}

/* Files of a step, as a save leaves them: new ones in the place of the old. */
static void write_run(const char *dir, int64_t step)
{
    char text[64];
    for (int i = 0; i < N_NAMES; i++) {
        text_of(i, step, text);
        (void)unlink(files_path(dir, names[i]));
        files_write_text(dir, names[i], text);
    }
}

static enum snug_status keep(const char *dir, int64_t step, struct file_faults *faults,
                             struct snug_error *err)
{
    TRY(retained_add(dir, step, names, N_NAMES, faults, err));
    return retained_trim(dir, step, KEEP, faults, err);
}

static void assert_whole(const char *dir, int64_t step)
{
    char name[96], want[64];
    size_t n;
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(name, sizeof name, "checkpoints/step-%06lld/%s", (long long)step, names[i]);
        text_of(i, step, want);
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
        assert_true(retained_has(dir, step));
    }
    struct stat own, kept;
    assert_int_equal(stat(files_path(dir, "model.safetensors"), &own), 0);
    assert_int_equal(stat(files_path(dir, "checkpoints/step-000070/model.safetensors"), &kept), 0);
    assert_int_equal(own.st_ino, kept.st_ino); /* no room is taken twice */

    write_run(dir,
              55); /* a run that was taken back: 60 and 70 are no part of it, and are not lost */
    assert_int_equal(keep(dir, 55, NULL, &err), SNUG_OK);
    assert_int_equal(count_whole(dir, &n_strays), 4);
    assert_true(retained_has(dir, 50) && retained_has(dir, 55) && retained_has(dir, 70));
    write_run(dir, 60); /* recomputed */
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
            assert_true(retained_has(dir, 3) && retained_has(dir, 4));
            for (int64_t step = 5; step <= 6; step++) { /* what was cut off is recomputed */
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
    assert_int_equal(retained_check_home(dir, &err),
                     SNUG_BAD_FILE); /* before anything is trained */
    assert_non_null(strstr(err.message, "checkpoints: --keep does not follow symbolic links"));
    assert_int_equal(keep(dir, 9, NULL, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "checkpoints: --keep does not follow symbolic links"));
    assert_int_equal(access(files_path(dir, "elsewhere/step-000001"), F_OK), 0);
    assert_int_not_equal(access(files_path(dir, "elsewhere/step-000009"), F_OK), 0);
    assert_int_equal(unlink(files_path(dir, "checkpoints")), 0);
    assert_int_equal(retained_check_home(dir, &err), SNUG_OK);
    files_write_text(dir, "checkpoints", "a file");
    assert_int_equal(retained_check_home(dir, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "checkpoints: --keep needs this path"));
    files_remove_dir(dir);
}

static void keep_steps(const char *dir, int64_t first, int64_t last)
{
    struct snug_error err = {0};
    for (int64_t step = first; step <= last; step += 10) {
        write_run(dir, step);
        assert_int_equal(keep(dir, step, NULL, &err), SNUG_OK);
    }
}

/* Somebody trains in step-10, and has trained in step-20: neither is removed or replaced. */
static void test_runs_of_others(void **state)
{
    char dir[FILES_PATH_MAX], inner[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct run_lock *lock;
    (void)state;
    make_run(dir);
    keep_steps(dir, 10, 30);
    snprintf(inner, sizeof inner, "%s", files_path(dir, "checkpoints/step-000010"));
    assert_int_equal(run_lock_take(inner, true, &lock, NULL, &err), SNUG_OK);
    assert_int_equal(unlink(files_path(dir, "checkpoints/step-000020/state.json")), 0);
    files_write_text(dir, "checkpoints/step-000020/state.json", "{\"step\": 25}");
    files_write_text(dir, "checkpoints/step-000020/metrics.jsonl", "mine");
    keep_steps(dir, 40, 80);
    assert_true(retained_has(dir, 10) && retained_has(dir, 20) && !retained_has(dir, 30));
    assert_whole(dir, 10);
    files_write_text(dir, "checkpoints/step-000010/metrics.jsonl", "mine");
    write_run(dir, 20); /* the run was taken back, and comes by here again */
    assert_int_equal(retained_add(dir, 20, names, N_NAMES, NULL, &err), SNUG_OK);
    write_run(dir, 10);
    assert_int_equal(retained_add(dir, 10, names, N_NAMES, NULL, &err), SNUG_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(access(files_path(dir, i == 0 ? "checkpoints/step-000010/metrics.jsonl"
                                                       : "checkpoints/step-000020/metrics.jsonl"),
                                F_OK),
                         0);
    assert_int_not_equal(access(files_path(dir, "checkpoints/step-000010.new"), F_OK), 0);
    run_lock_give_back(lock);
    keep_steps(dir, 90, 90); /* unchanged, and nobody is in it any more */
    assert_true(!retained_has(dir, 10) && retained_has(dir, 20));
    files_remove_dir(dir);
}

static void test_which_folders_are_kept(void **state)
{
    static const struct {
        const char *name;
        bool is_kept;
    } cases[] = {{"checkpoints/step-000010", true},
                 {"checkpoints/step-000010/", true},
                 {"link", true},
                 {"checkpoints/step-000099", true},
                 {"checkpoints/step-000010/adapter", false},
                 {"checkpoints", false},
                 {"checkpoints/step-by-step", false},
                 {"other/step-000010", false},
                 {"copy/checkpoints/step-000010", false},
                 {"", false}};
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    (void)state;
    make_run(dir);
    keep_steps(dir, 10, 10);
    assert_int_equal(symlink("checkpoints/step-000010", files_path(dir, "link")), 0);
    files_make_subdir(dir, "other");
    files_make_subdir(dir, "other/step-000010");
    files_make_subdir(dir, "copy"); /* which is no run */
    files_make_subdir(dir, "copy/checkpoints");
    files_make_subdir(dir, "copy/checkpoints/step-000010");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool is_kept = !cases[i].is_kept;
        assert_int_equal(retained_is_one(files_path(dir, cases[i].name), &is_kept, &err), SNUG_OK);
        assert_int_equal(is_kept, cases[i].is_kept);
    }
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_ones_stay),
        cmocka_unit_test(test_every_failure),
        cmocka_unit_test(test_planted),
        cmocka_unit_test(test_runs_of_others),
        cmocka_unit_test(test_which_folders_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
