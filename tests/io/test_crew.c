/*
 * test_crew.c -- several writers of one file: the bytes are those of a single writer, a wrong write
 * is found when the checkpoint is read, and any failure leaves the old checkpoint or the new one.
 *
 * The crew here is this process with a second descriptor, which writes every shared tensor in two
 * parts, the later one first.  tests/ranks tests real ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "support/files.h"

enum { N_WEIGHTS = 37 };

enum mistake { NONE, WRONG_PLACE, WRONG_CRC, PARTS_SWAPPED, PART_FORGOTTEN };

struct crew {
    struct st_crew crew;
    bool comes, leaves_open;
    enum mistake mistake;
    struct file_faults *faults;
    int fd, n_begun, n_ended;
    const char *path;
    const struct st_entry *placed;
    int n;
    int64_t data_begin;
};

static enum snug_status begin(struct st_crew *crew, int fd, const char *path,
                              const struct st_entry *placed, int n, int64_t data_begin, bool *comes,
                              struct snug_error *err)
{
    struct crew *c = (struct crew *)crew;
    const struct st_entry *last = &placed[n - 1];
    (void)err;
    assert_int_equal(lseek(fd, 0, SEEK_END), data_begin + last->offset_bytes + last->n_bytes);
    c->n_begun++;
    *comes = c->comes;
    if (!c->comes)
        return SNUG_OK;
    c->path = path;
    c->placed = placed;
    c->n = n;
    c->data_begin = data_begin;
    c->fd = open(path, O_WRONLY);
    assert_true(c->fd >= 0);
    return SNUG_OK;
}

static enum snug_status write_part(struct crew *c, const struct st_entry *entry, int64_t from,
                                   int64_t n_bytes, int64_t shift, uint32_t *crc,
                                   struct snug_error *err)
{
    return file_write_at(c->fd, c->path, (const char *)entry->data + from, n_bytes,
                         c->data_begin + entry->offset_bytes + from + shift, crc, c->faults, err);
}

static enum snug_status write_both(struct crew *c, const struct st_entry *entry, uint32_t *crc,
                                   struct snug_error *err)
{
    int64_t half = entry->n_bytes / 3, rest = entry->n_bytes - half;
    int64_t shift = c->mistake == WRONG_PLACE ? -4 : 0;
    uint32_t low = 0, high = 0;
    TRY(write_part(c, entry, half, rest, shift, &high, err));
    if (c->mistake == PART_FORGOTTEN)
        low = file_crc32(0, entry->data, (size_t)half);
    else
        TRY(write_part(c, entry, 0, half, 0, &low, err));
    *crc = c->mistake == PARTS_SWAPPED ? file_crc32_join(high, low, half)
                                       : file_crc32_join(low, high, rest);
    *crc ^= c->mistake == WRONG_CRC;
    return SNUG_OK;
}

static enum snug_status end(struct st_crew *crew, uint32_t *crcs, struct snug_error *err)
{
    struct crew *c = (struct crew *)crew;
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < c->n && status == SNUG_OK; i++)
        if (c->placed[i].shared)
            status = write_both(c, &c->placed[i], &crcs[i], err);
    if (!c->leaves_open)
        close(c->fd);
    c->n_ended++;
    return status;
}

static struct crew make_crew(enum mistake mistake)
{
    return (struct crew){.crew = {begin, end}, .comes = true, .mistake = mistake, .fd = -1};
}

/* Every number is the generation or a place near it; not all is the crew's. */
static enum snug_status save(const char *dir, int generation, struct crew *crew,
                             struct file_faults *faults, struct snug_error *err)
{
    float w[N_WEIGHTS], m[N_WEIGHTS];
    double count = generation;
    char state[64];
    for (int i = 0; i < N_WEIGHTS; i++) {
        w[i] = (float)(generation + i);
        m[i] = (float)(generation - i);
    }
    const struct st_entry model[] = {
        {.name = "w", .dtype = DTYPE_f32, .shape = {1, {N_WEIGHTS}}, .data = w, .shared = true},
        {.name = "own", .dtype = DTYPE_f32, .shape = {1, {N_WEIGHTS}}, .data = m},
        {.name = "none", .dtype = DTYPE_f32, .shape = {1, {0}}, .data = w, .shared = true}};
    const struct st_entry optimizer[] = {
        {.name = "w.m", .dtype = DTYPE_f32, .shape = {1, {N_WEIGHTS}}, .data = m, .shared = true},
        {.name = "count", .dtype = DTYPE_f64, .shape = {0}, .data = &count, .shared = true}};
    const struct checkpoint_file files[] = {{"model.safetensors", model, 3},
                                            {"optimizer.safetensors", optimizer, 2}};
    snprintf(state, sizeof state, "{\"step\": %d}", generation);
    if (crew != NULL)
        crew->faults = faults;
    return checkpoint_save(dir, files, 2, state, crew == NULL ? NULL : &crew->crew, faults, err);
}

static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};

/* The generation that is in the folder; -1: it is damaged, and that was said. */
static int load(const char *dir)
{
    struct checkpoint *checkpoint;
    struct snug_error err = {0};
    int generation;
    enum snug_status status = checkpoint_open(dir, &checkpoint, &err);
    if (status != SNUG_OK)
        fail_msg("cannot open: %s", err.message);
    assert_int_equal(sscanf(checkpoint_state(checkpoint), "{\"step\":%d", &generation), 1);
    for (int i = 0; i < 2 && status == SNUG_OK; i++)
        status = checkpoint_verify(checkpoint, names[i], &err);
    assert_true(status == SNUG_OK || strstr(err.message, "damaged") != NULL);
    checkpoint_close(checkpoint);
    return status == SNUG_OK ? generation : -1;
}

static void assert_same_files(const char *a, const char *b)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t a_bytes, b_bytes;
        char *in_a = files_read(files_path(a, names[i]), &a_bytes);
        char *in_b = files_read(files_path(b, names[i]), &b_bytes);
        assert_int_equal(a_bytes, b_bytes);
        assert_memory_equal(in_a, in_b, a_bytes);
        free(in_a);
        free(in_b);
    }
}

static void test_same_bytes(void **state)
{
    (void)state;
    for (int comes = 0; comes < 2; comes++) {
        char alone[FILES_PATH_MAX], together[FILES_PATH_MAX];
        struct snug_error err = {0};
        struct crew crew = make_crew(NONE);
        crew.comes = comes;
        files_make_dir(alone);
        files_make_dir(together);
        assert_int_equal(save(alone, 2, NULL, NULL, &err), SNUG_OK);
        assert_int_equal(save(together, 1, &crew, NULL, &err), SNUG_OK);
        assert_int_equal(save(together, 2, &crew, NULL, &err), SNUG_OK);
        assert_int_equal(crew.n_begun, 4);
        assert_int_equal(crew.n_ended, comes ? 4 : 0);
        assert_int_equal(load(together), 2);
        assert_same_files(alone, together);
        files_remove_dir(alone);
        files_remove_dir(together);
    }
}

static void test_mistakes(void **state)
{
    static const enum mistake mistakes[] = {WRONG_PLACE, WRONG_CRC, PARTS_SWAPPED, PART_FORGOTTEN};
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        char dir[FILES_PATH_MAX];
        struct snug_error err = {0};
        struct crew crew = make_crew(mistakes[i]);
        files_make_dir(dir);
        assert_int_equal(save(dir, 1, &crew, NULL, &err), SNUG_OK);
        if (load(dir) != -1)
            fail_msg("mistake %d was not noticed", (int)mistakes[i]);
        files_remove_dir(dir);
    }
}

static void test_every_failure(void **state)
{
    (void)state;
    for (int crash = 0; crash < 2; crash++) {
        char dir[FILES_PATH_MAX];
        struct snug_error err = {0};
        struct crew crew = make_crew(NONE);
        int n_old = 0, n_new = 0, generation = 1;
        files_make_dir(dir);
        assert_int_equal(save(dir, 1, &crew, NULL, &err), SNUG_OK);
        for (int64_t n = 1;; n++) {
            struct file_faults faults = {.fail_at = n, .crash = crash};
            int before = generation;
            enum snug_status status = save(dir, before + 1, &crew, &faults, &err);
            generation = load(dir);
            /* that a file which is not there cannot be removed is no failure */
            if (status == SNUG_OK && faults.calls < n)
                break;
            assert_true(generation == before || generation == before + 1);
            n_old += generation == before;
            n_new += generation == before + 1;
        }
        assert_true(n_old >= 15 && n_new >= 2);
        files_remove_dir(dir);
    }
}

/* A writer of a run that was killed may live a little longer than it. */
static void test_late_writer(void **state)
{
    char dir[FILES_PATH_MAX], rubbish[4 * N_WEIGHTS] = {1, 2, 3};
    struct snug_error err = {0};
    struct crew killed = make_crew(NONE), next = make_crew(NONE);
    struct file_faults faults = {.crash = true};
    (void)state;
    files_make_dir(dir);
    killed.leaves_open = true;
    for (faults.fail_at = 1; killed.n_ended == 0; faults.fail_at++) {
        faults.calls = 0; /* until it dies with the file open */
        assert_int_equal(save(dir, 1, &killed, &faults, &err), SNUG_IO_ERROR);
    }
    assert_int_equal(access(files_path(dir, "model.safetensors.new"), F_OK), 0);
    assert_int_equal(save(dir, 2, &next, NULL, &err), SNUG_OK);
    assert_int_equal(pwrite(killed.fd, rubbish, sizeof rubbish, 200), sizeof rubbish);
    close(killed.fd);
    assert_int_equal(load(dir), 2);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_every_failure),
        cmocka_unit_test(test_late_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
