/*
 * test_checkpoint.c -- a checkpoint is the old one or the new one, never a mix: every operation of
 * a save fails once, and the process dies once after each.  It is long because all kinds of saves
 * share one bench of faults: single files, shards, and changes from one to the other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "support/files.h"

enum { N_WEIGHTS = 37 };

/* A run whose every number is its generation, so that a mix shows.  The model has n tensors. */
static enum snug_status save_model(const char *dir, int generation, int n, int64_t shard_bytes,
                                   struct file_faults *faults, struct snug_error *err)
{
    float w[N_WEIGHTS], m[N_WEIGHTS];
    double count = generation;
    char state[64];
    for (int i = 0; i < N_WEIGHTS; i++) {
        w[i] = (float)generation;
        m[i] = (float)-generation;
    }
    const struct st_entry model[] = {
        {.name = "w", .dtype = DTYPE_f32, .shape = {1, {N_WEIGHTS}}, .data = w},
        {.name = "a", .dtype = DTYPE_f32, .shape = {1, {N_WEIGHTS}}, .data = w},
        {.name = "b", .dtype = DTYPE_f32, .shape = {1, {1}}, .data = w}};
    const struct st_entry optimizer[] = {
        {.name = "w.m", .dtype = DTYPE_f32, .shape = {1, {N_WEIGHTS}}, .data = m},
        {.name = "count", .dtype = DTYPE_f64, .shape = {0}, .data = &count}};
    const struct checkpoint_file files[] = {{"model.safetensors", model, n},
                                            {"optimizer.safetensors", optimizer, 2}};
    snprintf(state, sizeof state, "{\"step\": %d, \"recipe\": {\"lr\": 0.1}}", generation);
    return checkpoint_save_sharded(dir, files, 2, shard_bytes, state, NULL, faults, err);
}

static enum snug_status save(const char *dir, int generation, struct file_faults *faults,
                             struct snug_error *err)
{
    return save_model(dir, generation, 1, N_WEIGHTS * sizeof(float), faults, err);
}

static void read_all_equal(struct checkpoint *checkpoint, const char *name, double expected)
{
    struct safetensors *st = checkpoint_find(checkpoint, name);
    struct snug_error err = {0};
    assert_non_null(st);
    for (int k = 0; k < safetensors_count(st); k++) {
        const struct st_entry *entry = safetensors_entry(st, k);
        char values[8 * N_WEIGHTS];
        assert_int_equal(safetensors_read(st, entry, values, &err), SNUG_OK);
        double wanted = entry->dtype == DTYPE_f64 ? -expected : expected;
        for (int64_t i = 0; i < entry->n_bytes / (int64_t)dtype_bytes(entry->dtype); i++)
            assert_true(dtype_load(entry->dtype, values, i) == wanted);
    }
    enum snug_status status = checkpoint_verify(checkpoint, name, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(status, SNUG_OK);
}

/* The generation that is in the folder; the test fails if it is not whole. */
static int load(const char *dir)
{
    struct checkpoint *checkpoint;
    struct snug_error err = {0};
    int generation;
    enum snug_status status = checkpoint_open(dir, &checkpoint, &err);
    if (status != SNUG_OK)
        fail_msg("cannot open: %s", err.message);
    assert_int_equal(
        sscanf(checkpoint_state(checkpoint), "{\"step\":%d,\"recipe\":{\"lr\":0.1", &generation),
        1);
    read_all_equal(checkpoint, "model.safetensors", generation);
    read_all_equal(checkpoint, "optimizer.safetensors", -generation);
    assert_null(checkpoint_find(checkpoint, "other"));
    checkpoint_close(checkpoint);
    return generation;
}

static void test_every_failure(void **state)
{
    (void)state;
    for (int crash = 0; crash < 2; crash++) {
        char dir[FILES_PATH_MAX];
        struct snug_error err = {0};
        int n_injected = 0, n_old = 0, n_new = 0, generation = 1;
        files_make_dir(dir);
        assert_int_equal(save(dir, generation, NULL, &err), SNUG_OK);
        assert_int_equal(load(dir), 1);
        for (int64_t n = 1;; n++) {
            struct file_faults faults = {.fail_at = n, .crash = crash};
            int before = generation;
            enum snug_status status = save(dir, before + 1, &faults, &err);
            generation = load(dir);
            if (status == SNUG_OK) {
                assert_int_equal(generation, before + 1);
                break;
            }
            assert_int_equal(status, SNUG_IO_ERROR);
            n_injected++;
            n_old += generation == before;
            n_new += generation == before + 1;
            assert_true(generation == before || generation == before + 1);
        }
        assert_true(n_injected >= 15);
        assert_true(n_old >= 8 && n_new >= 2); /* both sides of the instant that decides */
        files_remove_dir(dir);
    }
}

/* Generation 2, of which only state.json has reached its place: the process died right after. */
static void save_cut_off(const char *dir)
{
    enum { N_AFTER = 3 }; /* two renames and a sync follow */
    struct snug_error err = {0};
    struct file_faults faults = {0};
    assert_int_equal(save(dir, 1, NULL, &err), SNUG_OK);
    assert_int_equal(save(dir, 1, &faults, &err), SNUG_OK);
    faults = (struct file_faults){.fail_at = faults.calls - N_AFTER + 1, .crash = true};
    assert_int_equal(save(dir, 2, &faults, &err), SNUG_IO_ERROR);
    assert_int_equal(load(dir), 2);
    assert_int_equal(access(files_path(dir, "model.safetensors.new"), F_OK), 0);
    assert_int_equal(access(files_path(dir, "optimizer.safetensors.new"), F_OK), 0);
}

/* Killed after state.json was replaced, then killed at every operation of the save after that. */
static void test_crash_after_crash(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    int n_injected = 0;
    (void)state;
    for (int64_t n = 1;; n++) {
        files_make_dir(dir);
        save_cut_off(dir);
        struct file_faults faults = {.fail_at = n, .crash = true};
        enum snug_status status = save(dir, 3, &faults, &err);
        int generation = load(dir);
        assert_true(generation == 2 || generation == 3);
        assert_int_equal(save(dir, 4, NULL, &err), SNUG_OK); /* and it goes on from there */
        assert_int_equal(load(dir), 4);
        assert_int_not_equal(access(files_path(dir, "model.safetensors.new"), F_OK), 0);
        files_remove_dir(dir);
        if (status == SNUG_OK)
            break;
        n_injected++;
    }
    assert_true(n_injected >= 15);
}

/* ---- a checkpoint that cannot be read is not written over ---- */

static void make_folder(const char *path)
{
    assert_int_equal(mkdir(path, 0777), 0);
}
static void make_link_to_itself(const char *path)
{
    assert_int_equal(symlink(path, path), 0);
}
static void make_broken_text(const char *path)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"step\": 2, ", file);
    assert_int_equal(fclose(file), 0);
}

/* Only generation 2's .new files are left of it; one file at a time is put out of reach. */
static void test_out_of_reach(void **state)
{
    static const struct {
        const char *name, *file;
        void (*replace)(const char *path);
        const char *words;
    } rows[] = {
        {"state is a folder", "state.json", make_folder, "not a regular file"},
        {"state links to itself", "state.json", make_link_to_itself, "cannot open it"},
        {"state is cut short", "state.json", make_broken_text, "not valid JSON"},
        {"new model is a folder", "model.safetensors.new", make_folder, "not a regular file"},
        {"new model links to itself", "model.safetensors.new", make_link_to_itself,
         "cannot open it"},
        {"new model is cut short", "model.safetensors.new", make_broken_text, "header"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[FILES_PATH_MAX];
        struct snug_error err = {0};
        files_make_dir(dir);
        save_cut_off(dir);
        assert_int_equal(rename(files_path(dir, rows[i].file), files_path(dir, "aside")), 0);
        rows[i].replace(files_path(dir, rows[i].file));
        enum snug_status status = save(dir, 3, NULL, &err);
        if (status != SNUG_BAD_FILE || strstr(err.message, rows[i].words) == NULL ||
            strstr(err.message, "nothing was saved") == NULL)
            fail_msg("case '%s': status %d, '%s'", rows[i].name, status, err.message);
        assert_int_equal(remove(files_path(dir, rows[i].file)), 0);
        assert_int_equal(rename(files_path(dir, "aside"), files_path(dir, rows[i].file)), 0);
        assert_int_equal(load(dir), 2);
        assert_int_equal(save(dir, 3, NULL, &err), SNUG_OK); /* and it goes on once it is back */
        assert_int_equal(load(dir), 3);
        files_remove_dir(dir);
    }
}

/* Every read and write of the save after it fails once. */
static void test_failure_after_crash(void **state)
{
    enum snug_status status = SNUG_IO_ERROR;
    int n_injected = 0;
    (void)state;
    for (int64_t n = 1; status != SNUG_OK; n++) {
        char dir[FILES_PATH_MAX];
        struct snug_error err = {0};
        struct file_faults faults = {.fail_at = n};
        files_make_dir(dir);
        save_cut_off(dir);
        status = save(dir, 3, &faults, &err);
        int generation = load(dir);
        assert_true(status == SNUG_OK ? generation == 3 : generation == 2 || generation == 3);
        n_injected += status != SNUG_OK;
        files_remove_dir(dir);
    }
    assert_true(n_injected >= 20);
}

/* No file can be opened at all: as when a process has as many open as it may. */
static void test_no_descriptors(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct rlimit before, none;
    (void)state;
    files_make_dir(dir);
    save_cut_off(dir);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum snug_status status = save(dir, 3, NULL, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_not_equal(status, SNUG_OK);
    assert_non_null(strstr(err.message, "state.json: cannot open it: Too many open files"));
    assert_int_equal(load(dir), 2);
    files_remove_dir(dir);
}

/* ---- shards ---- */

/* The limits of three shards, of two, and of one file. */
static const int64_t shard_limits[] = {1, N_WEIGHTS * sizeof(float) + 4, 4096};
static const int shard_counts[] = {3, 2, 1};

static bool has_file(const char *dir, const char *name)
{
    return access(files_path(dir, name), F_OK) == 0;
}

static void check_shards(const char *dir, int n)
{
    for (int of = 2; of <= 3; of++)
        for (int i = 1; i <= of; i++) {
            char name[64];
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", i, of);
            assert_int_equal(has_file(dir, name), of == n);
        }
    assert_int_equal(has_file(dir, "model.safetensors"), n == 1);
    assert_int_equal(has_file(dir, "model.safetensors.index.json"), n > 1);
}

/* The number of shards changes from save to save.  Other programs find them by the index. */
static void test_shards(void **state)
{
    static const int order[] = {0, 0, 1, 2, 1, 0, 2, 0};
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct safetensors *st;
    (void)state;
    files_make_dir(dir);
    for (int i = 0; i < (int)(sizeof order / sizeof *order); i++) {
        assert_int_equal(save_model(dir, i + 1, 3, shard_limits[order[i]], NULL, &err), SNUG_OK);
        assert_int_equal(load(dir), i + 1);
        check_shards(dir, shard_counts[order[i]]);
        assert_int_equal(safetensors_open_folder(dir, &st, &err), SNUG_OK);
        assert_int_equal(safetensors_count(st), 3);
        safetensors_close(st);
    }
    size_t n_bytes;
    char *index = files_read(files_path(dir, "model.safetensors.index.json"), &n_bytes);
    assert_non_null(strstr(index, "\"total_size\": 300"));
    assert_non_null(strstr(index, "\"a\": \"model-00002-of-00003.safetensors\""));
    free(index);
    files_remove_dir(dir);
}

/* Every operation of a save that changes the number of shards fails, or is the process's last. */
static void test_shards_every_failure(void **state)
{
    (void)state;
    for (int row = 0; row < 12; row++) {
        int from = row / 2 % 3, to = (from + 1 + row / 6) % 3;
        bool is_done = false;
        for (int64_t n = 1; !is_done; n++) {
            char dir[FILES_PATH_MAX];
            struct snug_error err = {0};
            struct file_faults faults = {.fail_at = n, .crash = row % 2 == 0};
            files_make_dir(dir);
            assert_int_equal(save_model(dir, 1, 3, shard_limits[from], NULL, &err), SNUG_OK);
            enum snug_status status = save_model(dir, 2, 3, shard_limits[to], &faults, &err);
            int now = load(dir);
            assert_true(now == 1 || now == 2);
            assert_int_equal(checkpoint_settle(dir, NULL, &err), SNUG_OK);
            assert_int_equal(load(dir), now);
            assert_true(now == 1 || shard_counts[to] == 1 ||
                        has_file(dir, "model.safetensors.index.json"));
            assert_int_equal(save_model(dir, 3, 3, shard_limits[to], NULL, &err), SNUG_OK);
            assert_int_equal(load(dir), 3);
            is_done = faults.calls < n; /* nothing failed; not every failed removal is reported */
            if (is_done) {
                assert_int_equal(status, SNUG_OK);
                assert_true(n > 15);
                check_shards(dir, shard_counts[to]);
            }
            files_remove_dir(dir);
        }
    }
}

/* A damaged shard is found; one that is missing is named. */
static void test_broken_shards(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct checkpoint *checkpoint;
    (void)state;
    files_make_dir(dir);
    assert_int_equal(save_model(dir, 1, 3, 1, NULL, &err), SNUG_OK);
    const char *path = files_path(dir, "model-00002-of-00003.safetensors");
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(1, file), 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(checkpoint_open(dir, &checkpoint, &err), SNUG_OK);
    assert_int_equal(checkpoint_verify(checkpoint, "model.safetensors", &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "model-00002-of-00003.safetensors: the file is damaged"));
    checkpoint_close(checkpoint);
    assert_int_equal(remove(files_path(dir, "model-00002-of-00003.safetensors")), 0);
    assert_int_equal(checkpoint_open(dir, &checkpoint, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "model-00002-of-00003.safetensors: cannot open it"));
    files_remove_dir(dir);
}

/* The same with a real process and a real kill, at varying times; a slow or busy disk gets more time
 * until some saves are done. */
static void test_kill(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    int last = 1;
    useconds_t longest = 2000;
    (void)state;
    files_make_dir(dir);
    assert_int_equal(save(dir, last, NULL, &err), SNUG_OK);
    for (int round = 0; round < 30 || last < 10; round++) {
        pid_t child = fork();
        assert_true(child >= 0 && round < 300);
        if (child == 0)
            for (int generation = last + 1;; generation++)
                if (save(dir, generation, NULL, NULL) != SNUG_OK)
                    _exit(1);
        int ended;
        usleep(500 + (useconds_t)round * 1370 % longest);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &ended, 0), child);
        assert_true(WIFSIGNALED(ended));
        int now = load(dir);
        assert_true(now >= last);
        if (now == last && longest < 100000)
            longest *= 2;
        last = now;
    }
    files_remove_dir(dir);
}

static bool exists(const char *dir)
{
    struct snug_error err = {0};
    bool is_there;
    assert_int_equal(checkpoint_exists(dir, &is_there, &err), SNUG_OK);
    return is_there;
}

static void test_first_save_fails(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct checkpoint *checkpoint;
    struct file_faults faults = {.fail_at = 3};
    (void)state;
    files_make_dir(dir);
    assert_false(exists(dir));
    assert_int_equal(save(dir, 1, &faults, &err), SNUG_IO_ERROR);
    assert_false(exists(dir));
    assert_int_equal(checkpoint_open(dir, &checkpoint, &err), SNUG_BAD_FILE);
    assert_non_null(strstr(err.message, "no saved run here"));
    assert_int_not_equal(access(files_path(dir, "model.safetensors.new"), F_OK), 0);
    assert_int_equal(save(dir, 1, NULL, &err), SNUG_OK);
    assert_true(exists(dir));
    files_remove_dir(dir);
}

static void test_same_numbers_same_bytes(void **state)
{
    char a[FILES_PATH_MAX], b[FILES_PATH_MAX];
    struct snug_error err = {0};
    (void)state;
    files_make_dir(a);
    files_make_dir(b);
    assert_int_equal(save(a, 1, NULL, &err), SNUG_OK);
    assert_int_equal(save(a, 2, NULL, &err), SNUG_OK);
    assert_int_equal(save(b, 2, NULL, &err), SNUG_OK);
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    for (size_t i = 0; i < 3; i++) {
        size_t a_bytes, b_bytes;
        char *in_a = files_read(files_path(a, names[i]), &a_bytes);
        char *in_b = files_read(files_path(b, names[i]), &b_bytes);
        assert_int_equal(a_bytes, b_bytes);
        assert_memory_equal(in_a, in_b, a_bytes);
        free(in_a);
        free(in_b);
    }
    files_remove_dir(a);
    files_remove_dir(b);
}

/* A file in a folder inside the run is as safe as the others. */
static enum snug_status save_inside(const char *dir, float value, struct file_faults *faults,
                                    struct snug_error *err)
{
    const struct st_entry part = {
        .name = "w", .dtype = DTYPE_f32, .shape = {1, {1}}, .data = &value};
    const struct checkpoint_file file = {"inside/part.safetensors", &part, 1};
    return checkpoint_save(dir, &file, 1, "{}", NULL, faults, err);
}

static float load_inside(const char *dir)
{
    struct checkpoint *checkpoint;
    struct snug_error err = {0};
    float value = 0;
    if (checkpoint_open(dir, &checkpoint, &err) != SNUG_OK)
        fail_msg("cannot open: %s", err.message);
    struct safetensors *st = checkpoint_find(checkpoint, "inside/part.safetensors");
    assert_non_null(st);
    assert_int_equal(safetensors_read(st, safetensors_find(st, "w"), &value, &err), SNUG_OK);
    assert_int_equal(checkpoint_verify(checkpoint, "inside/part.safetensors", &err), SNUG_OK);
    checkpoint_close(checkpoint);
    return value;
}

static void test_folder_inside(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    float now = 1;
    int n_injected = 0, n_old = 0;
    files_make_dir(dir);
    files_make_subdir(dir, "inside");
    assert_int_equal(save_inside(dir, now, NULL, &err), SNUG_OK);
    for (int64_t n = 1;; n++) {
        struct file_faults faults = {.fail_at = n, .crash = true};
        float before = now;
        enum snug_status status = save_inside(dir, before + 1, &faults, &err);
        now = load_inside(dir);
        assert_true(now == before || now == before + 1);
        n_old += now == before;
        if (status == SNUG_OK)
            break;
        n_injected++;
    }
    assert_true(n_injected >= 10 && n_old >= 4 && n_old < n_injected);
    files_remove_dir(dir);
}

static void test_damage(void **state)
{
    static const struct {
        const char *name, *file, *text; /* NULL: flip the last byte; "": remove */
        const char *words;
    } rows[] = {
        {"model of another save", "model.safetensors", "other",
         "state.json describes another file"},
        {"model cut short", "model.safetensors", "xx", "2 bytes are too few"},
        {"model gone", "optimizer.safetensors", "", "No such file"},
        {"state is not JSON", "state.json", "{", "not valid JSON"},
        {"state without files", "state.json", "{\"step\": 1}", "\"files\" is missing"},
        {"state with a path", "state.json",
         "{\"files\": {\"../m\": {\"bytes\": 1, \"crc32\": \"0\", \"save\": \"0\"}}}",
         "is not valid"},
        {"a name inside that leads out", "state.json",
         "{\"files\": {\"a/../m\": {\"bytes\": 1, \"crc32\": \"0\", \"save\": \"0\"}}}",
         "is not valid"},
        {"a name up from a folder inside", "state.json",
         "{\"files\": {\"a/..\": {\"bytes\": 1, \"crc32\": \"0\", \"save\": \"0\"}}}",
         "is not valid"},
        {"a name from the root", "state.json",
         "{\"files\": {\"/m\": {\"bytes\": 1, \"crc32\": \"0\", \"save\": \"0\"}}}",
         "is not valid"},
        {"state with a bad sum", "state.json",
         "{\"files\": {\"m\": {\"bytes\": 1, \"crc32\": \"xyz\", \"save\": \"0\"}}}",
         "not a hex CRC-32"},
        {"a flipped bit", "model.safetensors", NULL, "damaged: its CRC-32"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char dir[FILES_PATH_MAX], other[FILES_PATH_MAX];
        struct snug_error err = {0};
        struct checkpoint *checkpoint;
        files_make_dir(dir);
        files_make_dir(other);
        assert_int_equal(save(dir, 1, NULL, &err), SNUG_OK);
        assert_int_equal(save(other, 2, NULL, &err), SNUG_OK);
        const char *path = files_path(dir, rows[i].file);
        size_t n_bytes;
        char *whole = files_read(path, &n_bytes);
        if (rows[i].text == NULL) {
            whole[n_bytes - 1] ^= 1;
            files_write(dir, rows[i].file, whole, n_bytes);
        } else if (strcmp(rows[i].text, "other") == 0) {
            assert_int_equal(rename(files_path(other, rows[i].file), path), 0);
        } else if (*rows[i].text == '\0') {
            assert_int_equal(unlink(path), 0);
        } else {
            files_write_text(dir, rows[i].file, rows[i].text);
        }
        free(whole);
        enum snug_status status = checkpoint_open(dir, &checkpoint, &err);
        if (status == SNUG_OK)
            status = checkpoint_verify(checkpoint, "model.safetensors", &err);
        if (status != SNUG_BAD_FILE || strstr(err.message, rows[i].words) == NULL)
            fail_msg("case '%s': %s", rows[i].name, err.message);
        checkpoint_close(checkpoint);
        if (strcmp(rows[i].file, "state.json") == 0) { /* what it was is not known: keep off */
            assert_int_equal(save(dir, 3, NULL, &err), SNUG_BAD_FILE);
            assert_non_null(strstr(err.message, rows[i].words));
            assert_int_equal(unlink(files_path(dir, "state.json")), 0);
        }
        assert_int_equal(save(dir, 3, NULL, &err), SNUG_OK); /* lost weights are written again */
        assert_int_equal(load(dir), 3);
        files_remove_dir(dir);
        files_remove_dir(other);
    }
}

static void test_make_dir(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    struct stat info;
    (void)state;
    files_make_dir(dir);
    assert_int_equal(checkpoint_make_dir(files_path(dir, "a/b/c/"), &err), SNUG_OK);
    assert_int_equal(checkpoint_make_dir(files_path(dir, "a/b/c"), &err), SNUG_OK);
    assert_int_equal(stat(files_path(dir, "a/b/c"), &info), 0);
    files_write_text(dir, "f", "x");
    assert_int_equal(checkpoint_make_dir(files_path(dir, "f"), &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "is a file"));
    assert_int_equal(checkpoint_make_dir(files_path(dir, "f/x"), &err), SNUG_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "cannot create this folder: Not a directory"));
    assert_int_equal(checkpoint_make_dir("", &err), SNUG_BAD_ARGUMENT);
    if (geteuid() != 0) { /* root may write everywhere */
        assert_int_equal(chmod(files_path(dir, "a"), 0555), 0);
        assert_int_equal(checkpoint_make_dir(files_path(dir, "a"), &err), SNUG_BAD_ARGUMENT);
        assert_non_null(strstr(err.message, "cannot write"));
        assert_int_equal(chmod(files_path(dir, "a"), 0755), 0);
    }
    assert_int_equal(checkpoint_write_text(dir, "plan.json", "{}\n", NULL, &err), SNUG_OK);
    size_t n_bytes;
    char *text = files_read(files_path(dir, "plan.json"), &n_bytes);
    assert_string_equal(text, "{}\n");
    free(text);
    files_remove_dir(dir);
}

static void test_bad_state(void **state)
{
    char dir[FILES_PATH_MAX];
    struct snug_error err = {0};
    (void)state;
    files_make_dir(dir);
    assert_int_equal(checkpoint_save(dir, NULL, 0, "[]", NULL, NULL, &err), SNUG_BAD_ARGUMENT);
    assert_int_equal(checkpoint_save(dir, NULL, 0, "{\"files\": 1}", NULL, NULL, &err),
                     SNUG_BAD_ARGUMENT);
    assert_int_equal(checkpoint_save(dir, NULL, 0, "{", NULL, NULL, &err), SNUG_BAD_FILE);
    assert_false(exists(dir));
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_failure),
        cmocka_unit_test(test_crash_after_crash),
        cmocka_unit_test(test_out_of_reach),
        cmocka_unit_test(test_failure_after_crash),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_shards_every_failure),
        cmocka_unit_test(test_broken_shards),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_first_save_fails),
        cmocka_unit_test(test_same_numbers_same_bytes),
        cmocka_unit_test(test_folder_inside),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_make_dir),
        cmocka_unit_test(test_bad_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
