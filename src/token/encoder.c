/*
 * encoder.c -- encodes texts with several threads.
 *
 *     text -> added tokens, and segments between them
 *     segment -> normalized -> normalized added tokens, and what is between them -> words -> ids
 *
 * Threads take jobs of about JOB_BYTES: several short texts, or a part of a long one.  A long text
 * is cut where the same words come out: a newline before a letter (words never cross it), or, for
 * metaspace, a space after a letter.  Not if an added token could lie across the cut, or look
 * beyond.
 */
#include "token/encoder.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "token/normalize.h"
#include "token/word_cache.h"

enum { JOB_BYTES = 1 << 17 };

struct worker { /* of a thread */
    struct word_cache cache;
    struct bpe_scratch scratch;
    struct buffer normalized, prefixed;
};

struct encoder {
    const struct tokenizer *t;
    int threads;
    struct worker *workers;
};

/* A part of a text: between cuts, and then between added tokens. */
struct part {
    const char *text;
    size_t n;
    bool begins_text; /* nothing is before it */
    bool begins;      /* nothing, or an added token, is before it; else a cut */
    bool is_followed; /* a cut is after it, so a letter follows */
    bool specials;
};

/* ---- words ---------------------------------------------------------------------------------- */

static bool encode_word(const struct tokenizer *t, struct worker *w, const char *word, size_t n,
                        struct token_ids *ids)
{
    size_t n_ids, before = ids->n;
    uint64_t hash = token_hash(word, n);
    const int32_t *known = word_cache_find(&w->cache, word, n, hash, &n_ids);
    if (known == NULL) {
        if (!bpe_word(&t->bpe, &w->scratch, word, n, ids))
            return false;
        word_cache_add(&w->cache, word, n, hash, ids->data + before, ids->n - before);
        return true;
    }
    if (!token_ids_reserve(ids, n_ids))
        return false;
    memcpy(ids->data + ids->n, known, n_ids * sizeof *known);
    ids->n += n_ids;
    return true;
}

static bool encode_words(const struct tokenizer *t, struct worker *w, const char *text, size_t n,
                         bool is_followed, struct token_ids *ids)
{
    for (size_t at = 0, length; at < n; at += length) {
        length = split_word(t->spec.split, t->unicode, text + at, n - at, is_followed);
        if (!encode_word(t, w, text + at, length, ids))
            return false;
    }
    return true;
}

/* ---- segments ------------------------------------------------------------------------------- */

/* What is between two added tokens, or after the last. */
static struct part between(const struct part *part, size_t begin, size_t end)
{
    struct part piece = *part;
    piece.text += begin;
    piece.n = end > begin ? end - begin : 0; /* two tokens may share spaces */
    piece.begins_text = part->begins_text && begin == 0;
    piece.begins = part->begins || begin > 0;
    return piece;
}

/* A normalized text without added tokens. */
static bool encode_plain(const struct tokenizer *t, struct worker *w, struct part part,
                         struct token_ids *ids)
{
    struct buffer *out = &w->prefixed;
    out->n = 0;
    if (t->spec.metaspace && !t->spec.metaspace_normalizes) {
        if (!add_metaspaces(&t->spec, part.text, part.n, part.begins_text, part.begins, out))
            return false;
        part.text = out->data, part.n = out->n;
    } else if (t->spec.space_prefix && part.begins && part.n > 0 && part.text[0] != ' ') {
        if (!buffer_add(out, " ", 1) || !buffer_add(out, part.text, part.n))
            return false;
        part.text = out->data, part.n = out->n;
    }
    return encode_words(t, w, part.text, part.n, part.is_followed, ids);
}

/* A text between added tokens that are found before it is normalized. */
static bool encode_segment(const struct tokenizer *t, struct worker *w, struct part part,
                           struct token_ids *ids)
{
    struct buffer *out = &w->normalized;
    if (part.n == 0)
        return true;
    if (tokenizer_normalizes(t, part.text, part.n)) {
        out->n = 0;
        if (!tokenizer_normalize(t, part.text, part.n, part.begins, out))
            return false;
        part.text = out->data, part.n = out->n;
    }
    size_t at = 0;
    struct added_match match = {0};
    while (added_tokens_find(&t->added_normalized, t->unicode, part.text, match.next, at, part.n,
                             part.specials, &match)) {
        struct part plain = between(&part, at, match.begin);
        plain.is_followed = false;
        if (!encode_plain(t, w, plain, ids) || !token_ids_add(ids, match.id))
            return false;
        at = match.end;
    }
    return encode_plain(t, w, between(&part, at, part.n), ids);
}

static bool encode_part(const struct tokenizer *t, struct worker *w, const struct part *part,
                        struct token_ids *ids)
{
    size_t at = 0;
    struct added_match match = {0};
    while (added_tokens_find(&t->added, t->unicode, part->text, match.next, at, part->n,
                             part->specials, &match)) {
        struct part segment = between(part, at, match.begin);
        segment.is_followed = false;
        if (!encode_segment(t, w, segment, ids) || !token_ids_add(ids, match.id))
            return false;
        at = match.end;
    }
    return encode_segment(t, w, between(part, at, part->n), ids);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

struct job {
    int first, n;      /* texts */
    size_t begin, end; /* of the text, if n is 1 */
    struct token_ids ids;
};

struct jobs {
    struct job *data;
    int n, capacity;
};

static bool add_job(struct jobs *jobs, struct job job)
{
    if (!array_grow((void **)&jobs->data, &jobs->capacity, jobs->n + 1, sizeof job))
        return false;
    jobs->data[jobs->n++] = job;
    return true;
}

static bool is_cut(const struct tokenizer *t, const char *text, size_t at)
{
    return t->spec.metaspace ? text[at] == ' ' && is_ascii_letter(text[at - 1])
                             : text[at - 1] == '\n' && is_ascii_letter(text[at]);
}

/* The first place from `at` on where the text may be cut; its end if there is none. */
static size_t cut_from(const struct tokenizer *t, const struct token_text *text, size_t at)
{
    while (at < text->n && !is_cut(t, text->data, at))
        at++;
    return at;
}

size_t encoder_cut(const struct encoder *e, const char *text, size_t n)
{
    size_t at = e->t->can_cut && n > 0 ? n - 1 : 0;
    while (at > 0 && !is_cut(e->t, text, at))
        at--;
    return at;
}

static bool add_long_text(const struct tokenizer *t, const struct token_text *text, int index,
                          struct jobs *jobs)
{
    for (size_t at = 0, end; at < text->n; at = end) {
        bool cuts = t->can_cut && text->n - at > 2 * JOB_BYTES;
        end = cuts ? cut_from(t, text, at + JOB_BYTES) : text->n;
        if (!add_job(jobs, (struct job){.first = index, .n = 1, .begin = at, .end = end}))
            return false;
    }
    return true;
}

static bool make_jobs(const struct tokenizer *t, const struct token_text *texts, int n,
                      struct jobs *jobs)
{
    for (int i = 0; i < n;) {
        if (texts[i].n > JOB_BYTES) {
            if (!add_long_text(t, &texts[i], i, jobs))
                return false;
            i++;
            continue;
        }
        struct job job = {.first = i, .end = texts[i].n};
        size_t n_bytes = 0;
        for (; i < n && n_bytes <= JOB_BYTES && texts[i].n <= JOB_BYTES; i++) {
            n_bytes += texts[i].n;
            job.n++;
        }
        if (!add_job(jobs, job))
            return false;
    }
    return true;
}

/* Writes ends of the texts within the job. */
static bool run_job(const struct tokenizer *t, struct worker *w, struct job *job,
                    const struct token_text *texts, bool specials, size_t *ends)
{
    for (int i = job->first; i < job->first + job->n; i++) {
        const struct token_text *text = &texts[i];
        size_t begin = job->n == 1 ? job->begin : 0, end = job->n == 1 ? job->end : text->n;
        struct part part = {.text = text->data + begin,
                            .n = end - begin,
                            .begins_text = begin == 0 && !text->continues,
                            .begins = begin == 0 && !text->continues,
                            .is_followed = end < text->n || text->goes_on,
                            .specials = specials};
        if (!encode_part(t, w, &part, &job->ids))
            return false;
        if (job->n > 1)
            ends[i] = job->ids.n;
    }
    return true;
}

/* Appends the ids of all jobs in order. */
static bool join_jobs(const struct jobs *jobs, struct token_ids *ids, size_t *ends)
{
    for (int k = 0; k < jobs->n; k++) {
        const struct job *job = &jobs->data[k];
        if (!token_ids_reserve(ids, job->ids.n))
            return false;
        for (int i = job->first; i < job->first + job->n; i++)
            ends[i] = ids->n + (job->n > 1 ? ends[i] : job->ids.n);
        if (job->ids.n > 0)
            memcpy(ids->data + ids->n, job->ids.data, job->ids.n * sizeof *ids->data);
        ids->n += job->ids.n;
    }
    return true;
}

enum snug_status encoder_encode(struct encoder *e, const struct token_text *texts, int n,
                                bool specials, struct token_ids *ids, size_t *ends,
                                struct snug_error *err)
{
    for (int i = 0; i < n; i++)
        if (texts[i].n > INT32_MAX / 2)
            return snug_fail(err, SNUG_UNSUPPORTED,
                             "a text of %zu bytes is too long to be encoded: split it at 1 GB",
                             texts[i].n);
    struct jobs jobs = {0};
    bool done = make_jobs(e->t, texts, n, &jobs);
    int n_jobs = done ? jobs.n : 0;
#pragma omp parallel for schedule(dynamic) num_threads(e->threads) reduction(&& : done)
    for (int k = 0; k < n_jobs; k++)
        done = run_job(e->t, &e->workers[omp_get_thread_num()], &jobs.data[k], texts, specials,
                       ends) &&
               done;
    done = done && join_jobs(&jobs, ids, ends);
    for (int k = 0; k < jobs.n; k++)
        free(jobs.data[k].ids.data);
    free(jobs.data);
    return done ? SNUG_OK : snug_fail(err, SNUG_NO_MEMORY, "out of memory while encoding text");
}

enum snug_status encoder_new(const struct tokenizer *t, int threads, struct encoder **encoder,
                             struct snug_error *err)
{
    struct encoder *e = calloc(1, sizeof *e);
    *encoder = e;
    if (e != NULL) {
        *e = (struct encoder){.t = t, .threads = threads < 1 ? 1 : threads};
        e->workers = calloc((size_t)e->threads, sizeof *e->workers);
    }
    if (e != NULL && e->workers != NULL)
        return SNUG_OK;
    encoder_free(e);
    *encoder = NULL;
    return snug_fail(err, SNUG_NO_MEMORY, "out of memory for %d encoders", threads);
}

void encoder_free(struct encoder *e)
{
    for (int i = 0; e != NULL && e->workers != NULL && i < e->threads; i++) {
        word_cache_free(&e->workers[i].cache);
        bpe_scratch_free(&e->workers[i].scratch);
        free(e->workers[i].normalized.data);
        free(e->workers[i].prefixed.data);
    }
    if (e != NULL)
        free(e->workers);
    free(e);
}
