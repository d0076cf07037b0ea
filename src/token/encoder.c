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

#include "token/word_cache.h"

enum { JOB_BYTES = 1 << 17 };

static const char metaspace[] = "\xE2\x96\x81";

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

/* A part of a text. */
struct part {
    const char *text;
    size_t n;
    bool begins_text; /* false: a cut is before it */
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

/* Copies the text with U+2581 for spaces, and one before it as the spec says. */
static bool with_metaspaces(const struct tokenizer *t, const char *text, size_t n, bool begins_text,
                            bool begins_segment, struct buffer *out)
{
    bool has_one = n > 0 && (text[0] == ' ' || (n >= 3 && memcmp(text, metaspace, 3) == 0));
    bool prefix = (t->spec.prefix == PREFIX_first && begins_text && !has_one) ||
                  (t->spec.prefix == PREFIX_each && begins_segment && !has_one) ||
                  (t->spec.prefix == PREFIX_in_any_case && begins_segment);
    out->n = 0;
    if (n > 0 && prefix && !buffer_add(out, metaspace, 3))
        return false;
    for (size_t at = 0; at < n;) {
        const char *space = memchr(text + at, ' ', n - at);
        size_t end = space == NULL ? n : (size_t)(space - text);
        if (!buffer_add(out, text + at, end - at) ||
            (space != NULL && !buffer_add(out, metaspace, 3)))
            return false;
        at = end + (space != NULL);
    }
    return true;
}

/* A text between added tokens. */
static bool encode_between(const struct tokenizer *t, struct worker *w, const char *text, size_t n,
                           bool begins_text, bool begins_segment, bool is_followed,
                           struct token_ids *ids)
{
    struct buffer *out = &w->prefixed;
    if (t->spec.metaspace && !t->spec.metaspace_normalizes) {
        if (!with_metaspaces(t, text, n, begins_text, begins_segment, out))
            return false;
        text = out->data, n = out->n;
    } else if (t->spec.space_prefix && begins_segment && n > 0 && text[0] != ' ') {
        out->n = 0;
        if (!buffer_add(out, " ", 1) || !buffer_add(out, text, n))
            return false;
        text = out->data, n = out->n;
    }
    return encode_words(t, w, text, n, is_followed, ids);
}

static bool encode_segment(const struct tokenizer *t, struct worker *w, const char *text, size_t n,
                           bool begins_text, bool begins_segment, const struct part *part,
                           bool is_followed, struct token_ids *ids)
{
    struct buffer *out = &w->normalized;
    if (n == 0)
        return true;
    if (t->spec.nfc && !unicode_is_nfc(t->unicode, text, n)) {
        out->n = 0;
        if (!unicode_nfc(t->unicode, text, n, out))
            return false;
        text = out->data, n = out->n;
    } else if (t->spec.metaspace && t->spec.metaspace_normalizes) {
        if (!with_metaspaces(t, text, n, begins_text, begins_segment, out))
            return false;
        text = out->data, n = out->n;
    }
    size_t at = 0, n_between;
    struct added_match match = {0};
    while (added_tokens_find(&t->added_normalized, t->unicode, text, match.next, at, n,
                             part->specials, &match)) {
        n_between = match.begin > at ? match.begin - at : 0; /* two may share spaces */
        if (!encode_between(t, w, text + at, n_between, begins_text && at == 0,
                            begins_segment || at > 0, false, ids) ||
            !token_ids_add(ids, match.id))
            return false;
        at = match.end;
    }
    return encode_between(t, w, text + at, n - at, begins_text && at == 0, begins_segment || at > 0,
                          is_followed, ids);
}

static bool encode_part(const struct tokenizer *t, struct worker *w, const struct part *part,
                        struct token_ids *ids)
{
    size_t at = 0, n_between;
    struct added_match match = {0};
    while (added_tokens_find(&t->added, t->unicode, part->text, match.next, at, part->n,
                             part->specials, &match)) {
        bool begins = at == 0 && part->begins_text;
        n_between = match.begin > at ? match.begin - at : 0;
        if (!encode_segment(t, w, part->text + at, n_between, begins, begins || at > 0, part, false,
                            ids) ||
            !token_ids_add(ids, match.id))
            return false;
        at = match.end;
    }
    bool begins = at == 0 && part->begins_text;
    return encode_segment(t, w, part->text + at, part->n - at, begins, begins || at > 0, part,
                          part->is_followed, ids);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

struct job {
    int first, n;      /* texts */
    size_t begin, end; /* of the text, if n is 1 */
    struct token_ids ids;
};

struct jobs {
    struct job *data;
    size_t n, capacity;
};

static bool add_job(struct jobs *jobs, struct job job)
{
    if (jobs->n == jobs->capacity) {
        size_t larger = 2 * jobs->capacity + 16;
        struct job *grown = realloc(jobs->data, larger * sizeof *grown);
        if (grown == NULL)
            return false;
        jobs->data = grown;
        jobs->capacity = larger;
    }
    jobs->data[jobs->n++] = job;
    return true;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_cut(const struct tokenizer *t, const char *text, size_t at)
{
    return t->spec.metaspace ? text[at] == ' ' && is_letter(text[at - 1])
                             : text[at - 1] == '\n' && is_letter(text[at]);
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
    for (size_t k = 0; k < jobs->n; k++) {
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
    long n_jobs = done ? (long)jobs.n : 0;
#pragma omp parallel for schedule(dynamic) num_threads(e->threads) reduction(&& : done)
    for (long k = 0; k < n_jobs; k++)
        done = run_job(e->t, &e->workers[omp_get_thread_num()], &jobs.data[k], texts, specials,
                       ends) &&
               done;
    done = done && join_jobs(&jobs, ids, ends);
    for (size_t k = 0; k < jobs.n; k++)
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
