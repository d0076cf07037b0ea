/*
 * test_collectives.c -- collectives against a plain sum, with threads as ranks: every dtype, ragged
 * ranges, owners, fewer elements than ranks, buckets smaller than the data.  Also with tensors that
 * are accessed through copies, each of which is delayed as long as possible.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>

#include "comm/comm.h"

enum { RANKS_MOST = 5, TENSORS = 3 };

/* ---- ranks that are threads ------------------------------------------------------------------ */

struct room { /* a place for one message from each rank to each other */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const struct comm_message *sent[RANKS_MOST][RANKS_MOST]; /* from, to; NULL: none */
};

struct thread_rank {
    struct comm comm; /* first: the two are cast into each other */
    struct room *room;
    struct comm_message messages[2 * RANKS_MOST];
};

static void put(struct room *room, int from, const struct comm_message *m)
{
    while (room->sent[from][m->peer] != NULL)
        pthread_cond_wait(&room->changed, &room->mutex);
    room->sent[from][m->peer] = m;
    pthread_cond_broadcast(&room->changed);
}

static void take(struct room *room, int to, const struct comm_message *m)
{
    while (room->sent[m->peer][to] == NULL)
        pthread_cond_wait(&room->changed, &room->mutex);
    const struct comm_message *from = room->sent[m->peer][to];
    assert_int_equal(from->n_bytes, m->n_bytes); /* both sides expect the same */
    memcpy(m->data, from->data, (size_t)m->n_bytes);
    room->sent[m->peer][to] = NULL;
    pthread_cond_broadcast(&room->changed);
}

/* Puts everything, takes everything, and leaves when all that it put was taken. */
static enum snug_status transfer(struct comm *comm, const struct comm_message *messages, int n,
                                 struct snug_error *err)
{
    struct room *room = ((struct thread_rank *)comm)->room;
    (void)err;
    pthread_mutex_lock(&room->mutex);
    for (int i = 0; i < n; i++)
        if (!messages[i].receives)
            put(room, comm->rank, &messages[i]);
    for (int i = 0; i < n; i++)
        if (messages[i].receives)
            take(room, comm->rank, &messages[i]);
    for (int to = 0; to < comm->n_ranks; to++)
        while (room->sent[comm->rank][to] != NULL)
            pthread_cond_wait(&room->changed, &room->mutex);
    pthread_mutex_unlock(&room->mutex);
    return SNUG_OK;
}

static const struct comm_table table = {.name = "threads",
                                        .transfer = transfer,
                                        .all_reduce = collect_all_reduce,
                                        .reduce_scatter = collect_reduce_scatter,
                                        .all_gather = collect_all_gather};

/* ---- copies that are late -------------------------------------------------------------------- */

enum { LATE_MOST = 4 * RANKS_MOST * TENSORS };

struct late_copy {
    void *to;
    const void *from;
    int64_t n_bytes;
    enum dtype added; /* else: DTYPE_COUNT */
};

struct late_reach {
    struct comm_staging reach; /* first: the two are cast into each other */
    struct late_copy copies[LATE_MOST];
    int n;
};

static enum snug_status put_off(struct comm_staging *reach, struct late_copy copy)
{
    struct late_reach *late = (struct late_reach *)reach;
    if (late->n == LATE_MOST)
        return SNUG_NO_MEMORY;
    late->copies[late->n++] = copy;
    return SNUG_OK;
}

static enum snug_status late_get(struct comm_staging *reach, void *bucket, const void *tensor,
                                 int64_t n_bytes, struct snug_error *err)
{
    (void)err;
    return put_off(reach, (struct late_copy){bucket, tensor, n_bytes, DTYPE_COUNT});
}

static enum snug_status late_put(struct comm_staging *reach, void *tensor, const void *bucket,
                                 int64_t n_bytes, struct snug_error *err)
{
    (void)err;
    return put_off(reach, (struct late_copy){tensor, bucket, n_bytes, DTYPE_COUNT});
}

static enum snug_status late_add(struct comm_staging *reach, enum dtype dtype, void *tensor,
                                 const void *bucket, int64_t n_elems, struct snug_error *err)
{
    (void)err;
    int64_t n_bytes = n_elems * (int64_t)dtype_bytes(dtype);
    return put_off(reach, (struct late_copy){tensor, bucket, n_bytes, dtype});
}

static enum snug_status late_wait(struct comm_staging *reach, struct snug_error *err)
{
    struct late_reach *late = (struct late_reach *)reach;
    (void)err;
    for (int i = 0; i < late->n; i++) {
        const struct late_copy *copy = &late->copies[i];
        enum dtype dtype = copy->added;
        if (dtype == DTYPE_COUNT)
            memcpy(copy->to, copy->from, (size_t)copy->n_bytes);
        for (int64_t k = 0; dtype != DTYPE_COUNT && k < copy->n_bytes / (int64_t)dtype_bytes(dtype);
             k++)
            dtype_store(dtype, copy->to, k,
                        dtype_load(dtype, copy->to, k) + dtype_load(dtype, copy->from, k));
    }
    late->n = 0;
    return SNUG_OK;
}

/* ---- one case -------------------------------------------------------------------------------- */

struct one_case {
    int n_ranks;
    enum dtype dtype;
    int64_t n_elems[TENSORS];
    struct cut cut;
};

static const struct one_case cases[] = {
    {1, DTYPE_f32, {5, 1, 70}, {1, CUT_OVER_ALL}},
    {2, DTYPE_f32, {127, 1, 3}, {1, CUT_OVER_ALL}},
    {3, DTYPE_f32, {1, 2, 8003}, {1, CUT_OVER_ALL}},
    {5, DTYPE_f32, {1, 1, 1}, {1, CUT_OVER_ALL}},
    {4, DTYPE_f32, {1000, 3, 257}, {256, CUT_OVER_ALL}},
    {3, DTYPE_f32, {1000, 3, 257}, {1, 2}},
    {4, DTYPE_f32, {2000003, 3, 500000}, {1, CUT_OVER_ALL}}, /* more than a bucket */
    {2, DTYPE_f32, {3000000, 1, 1}, {1, 0}},
    {3, DTYPE_f64, {127, 1, 3}, {1, CUT_OVER_ALL}},
    {4, DTYPE_bf16, {127, 1, 1031}, {1, CUT_OVER_ALL}},
    {3, DTYPE_f16, {127, 1, 1031}, {1, CUT_OVER_ALL}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* A number that a sum in another order would round differently. */
static double value_of(int rank, int tensor, int64_t i)
{
    double size = rank % 2 == 0 ? 1.0 : 3e4;
    return size * (double)((i * 7919 + tensor * 31 + rank * 101) % 2003 - 1001) / 997;
}

static double sum_of(const struct one_case *c, int tensor, int64_t i)
{
    double wide = 0;
    float sum = 0;
    uint64_t number = 0;
    for (int rank = 0; rank < c->n_ranks; rank++) {
        dtype_store(c->dtype, &number, 0, value_of(rank, tensor, i));
        double x = dtype_load(c->dtype, &number, 0);
        sum = rank == 0 ? (float)x : sum + (float)x;
        wide = rank == 0 ? x : wide + x;
    }
    dtype_store(c->dtype, &number, 0, c->dtype == DTYPE_f64 ? wide : (double)sum);
    return dtype_load(c->dtype, &number, 0);
}

struct worker {
    struct thread_rank rank;
    const struct one_case *c;
    pthread_t thread;
    int64_t n_wrong;
    bool is_afar;
    struct late_reach late;
};

static void count_wrong(struct worker *w, double is, double should)
{
    w->n_wrong += !(is == should);
}

static void check_all_reduce(struct worker *w, struct comm_tensor *t, void *work)
{
    const struct one_case *c = w->c;
    for (int k = 0; k < TENSORS; k++)
        t[k].piece = NULL;
    (void)table.all_reduce(&w->rank.comm, t, TENSORS, work, NULL);
    for (int k = 0; k < TENSORS; k++)
        for (int64_t i = 0; i < t[k].n_elems; i++)
            count_wrong(w, dtype_load(c->dtype, t[k].whole, i), sum_of(c, k, i));
}

/* The sums in pieces, twice: set, then added to; and gathered again. */
static void check_pieces(struct worker *w, struct comm_tensor *t, void *work)
{
    const struct one_case *c = w->c;
    struct comm *comm = &w->rank.comm;
    uint64_t number = 0;
    (void)table.reduce_scatter(comm, t, TENSORS, false, work, NULL);
    (void)table.reduce_scatter(comm, t, TENSORS, true, work, NULL);
    w->n_wrong += w->late.n; /* when a call returns nothing is left to do */
    (void)table.all_gather(comm, t, TENSORS, work, NULL);
    for (int k = 0; k < TENSORS; k++)
        for (int64_t i = 0; i < t[k].n_elems; i++) {
            dtype_store(c->dtype, &number, 0, 2 * sum_of(c, k, i));
            count_wrong(w, dtype_load(c->dtype, t[k].whole, i), dtype_load(c->dtype, &number, 0));
        }
}

static void fill(const struct worker *w, struct comm_tensor *t)
{
    for (int k = 0; k < TENSORS; k++)
        for (int64_t i = 0; i < t[k].n_elems; i++)
            dtype_store(w->c->dtype, t[k].whole, i, value_of(w->rank.comm.rank, k, i));
}

static void *run_rank(void *argument)
{
    struct worker *w = argument;
    const struct one_case *c = w->c;
    struct comm_tensor t[TENSORS];
    size_t width = dtype_bytes(c->dtype);
    w->late.reach = (struct comm_staging){late_get, late_put, late_add, late_wait};
    for (int k = 0; k < TENSORS; k++) {
        struct cut_range own = cut_of(c->cut, c->n_elems[k], c->n_ranks, w->rank.comm.rank);
        t[k] = (struct comm_tensor){.dtype = c->dtype, .n_elems = c->n_elems[k], .cut = c->cut};
        t[k].staging = w->is_afar ? &w->late.reach : NULL;
        t[k].whole = malloc((size_t)c->n_elems[k] * width);
        t[k].piece = own.count > 0 ? malloc((size_t)own.count * width) : NULL;
    }
    void *work = malloc((size_t)comm_work_bytes(t, TENSORS, c->n_ranks));
    void *pieces[TENSORS] = {t[0].piece, t[1].piece, t[2].piece};
    fill(w, t);
    check_pieces(w, t, work);
    fill(w, t);
    check_all_reduce(w, t, work);
    w->n_wrong += w->late.n;
    for (int k = 0; k < TENSORS; k++) {
        free(t[k].whole);
        free(pieces[k]);
    }
    free(work);
    return NULL;
}

static void check_cases(bool is_afar)
{
    for (int i = 0; i < N_CASES; i++) {
        struct room room = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                            .changed = PTHREAD_COND_INITIALIZER};
        struct worker workers[RANKS_MOST] = {0};
        int64_t n_wrong = 0;
        for (int r = 0; r < cases[i].n_ranks; r++) {
            workers[r].c = &cases[i];
            workers[r].is_afar = is_afar;
            workers[r].rank = (struct thread_rank){
                .comm = {.table = &table, .rank = r, .n_ranks = cases[i].n_ranks}, .room = &room};
            workers[r].rank.comm.messages = workers[r].rank.messages;
            assert_int_equal(pthread_create(&workers[r].thread, NULL, run_rank, &workers[r]), 0);
        }
        for (int r = 0; r < cases[i].n_ranks; r++) {
            pthread_join(workers[r].thread, NULL);
            n_wrong += workers[r].n_wrong;
        }
        if (n_wrong > 0)
            fail_msg("case %d: %lld elements are wrong", i, (long long)n_wrong);
    }
}

static void test_sums(void **state)
{
    (void)state;
    check_cases(false);
}

static void test_sums_of_tensors_afar(void **state)
{
    (void)state;
    check_cases(true);
}

/* Two groups of the same ranks at once, one of them in another order: each sums over its own. */
static void *run_in_group(void *argument)
{
    static const int groups[2][3] = {{4, 0, 2}, {1, 3}};
    struct worker *w = argument;
    int own = w->rank.comm.rank % 2, n = own == 0 ? 3 : 2;
    double mine = 1 << w->rank.comm.rank, sum = 0;
    struct comm *group;
    struct comm_tensor t = {
        .whole = &mine, .dtype = DTYPE_f64, .n_elems = 1, .cut = {1, CUT_OVER_ALL}};
    if (comm_open_group(&w->rank.comm, groups[own], n, &group, NULL) != SNUG_OK)
        return w;
    void *work = malloc((size_t)comm_work_bytes(&t, 1, n));
    for (int i = 0; i < n; i++)
        sum += 1 << groups[own][i];
    count_wrong(w, group->n_ranks, n);
    count_wrong(w, groups[own][group->rank], w->rank.comm.rank);
    (void)group->table->all_reduce(group, &t, 1, work, NULL);
    count_wrong(w, mine, sum);
    free(work);
    comm_close(group, true);
    return NULL;
}

static void test_groups(void **state)
{
    struct room room = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct worker workers[RANKS_MOST] = {0};
    (void)state;
    for (int r = 0; r < RANKS_MOST; r++) {
        workers[r].rank = (struct thread_rank){
            .comm = {.table = &table, .rank = r, .n_ranks = RANKS_MOST}, .room = &room};
        workers[r].rank.comm.messages = workers[r].rank.messages;
        assert_int_equal(pthread_create(&workers[r].thread, NULL, run_in_group, &workers[r]), 0);
    }
    for (int r = 0; r < RANKS_MOST; r++) {
        void *failed;
        pthread_join(workers[r].thread, &failed);
        assert_null(failed);
        assert_int_equal(workers[r].n_wrong, 0);
    }
}

/* Ranges follow each other, leave nothing out, and differ by one unit at most. */
static void test_cuts(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 127, 8003, 7500000000, INT64_C(100000000000000000)};
    static const int64_t units[] = {1, 128, 256};
    static const int ranks[] = {1, 2, 3, 64, 1024};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t u = 0; u < sizeof units / sizeof *units; u++)
            for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
                struct cut cut = {units[u], CUT_OVER_ALL};
                int64_t at = 0, least = INT64_MAX, most = 0;
                for (int rank = 0; rank < ranks[r]; rank++) {
                    struct cut_range range = cut_of(cut, sizes[s], ranks[r], rank);
                    if (range.count > 0)
                        assert_int_equal(range.from, at);
                    assert_int_equal(range.from % units[u], 0);
                    at += range.count;
                    least = range.count < least ? range.count : least;
                    most = range.count > most ? range.count : most;
                }
                assert_int_equal(at, sizes[s]);
                assert_true(most - least < 2 * units[u]);
            }
    assert_int_equal(cut_of((struct cut){1, 2}, 10, 3, 2).count, 10);
    assert_int_equal(cut_of((struct cut){1, 2}, 10, 3, 1).count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts), cmocka_unit_test(test_sums),
                                       cmocka_unit_test(test_sums_of_tensors_afar),
                                       cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
