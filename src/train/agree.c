/*
 * agree.c -- check that all ranks train the same thing.
 *
 * Every rank reads its own flags and its own files.  Before anything is allocated, each rank
 * compares all settings that affect the result with those of rank 0, line by line.  A difference is
 * reported by name instead of showing up as a loss that nobody can explain.  Threads may differ:
 * results do not depend on them.
 */
#include "train/agree.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

static bool may_differ(const char *line)
{
    static const char *const keys[] = {"threads = ", "memory = ", "target = ", "network = "};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strncmp(line, keys[i], strlen(keys[i])) == 0)
            return true;
    return false;
}

static void add_recipe(const struct snug_trainer *t, struct text *out)
{
    struct text all = {0};
    char *rest = NULL;
    recipe_write(&t->recipe, &all);
    for (char *line = all.data == NULL ? NULL : strtok_r(all.data, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        if (!may_differ(line))
            text_add(out, "%s\n", line);
    out->failed |= all.failed;
    text_free(&all);
}

/* The model's name and a hash of its forward program. */
static enum snug_status add_model(const struct snug_trainer *t, struct text *out,
                                  struct snug_error *err)
{
    struct program prog = {0};
    struct text text = {0};
    TRY(model_forward(t->model, MODEL_FOR_LOSS, 1, 0, &prog, err));
    program_dump(&prog, &text);
    text_add(out, "model = %s (%016llx)\n", t->model->name,
             (unsigned long long)rng_hash_string(text_part(out, &text)));
    text_free(&text);
    program_free(&prog);
    return SNUG_OK;
}

static enum snug_status describe(const struct snug_trainer *t, struct text *out,
                                 struct snug_error *err)
{
    text_add(out, "version = %s\n", snug_version());
    TRY(add_model(t, out, err));
    text_add(out, "data = %s (%016llx)\n", t->data_spec == NULL ? "random" : t->data_spec,
             t->data == NULL ? 0ull : (unsigned long long)data_fingerprint(t->data));
    text_add(out, "steps = %lld\nout = %s\nresume = %d\n", (long long)t->n_steps,
             t->out == NULL ? "none" : t->out, t->options.resume);
    add_recipe(t, out);
    return out->failed ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
}

/* Fails with the first line in which the two differ. */
static enum snug_status compare(const char *own, const char *first, struct snug_error *err)
{
    while (*own != '\0' || *first != '\0') {
        size_t n = strcspn(own, "\n"), m = strcspn(first, "\n");
        if (n != m || strncmp(own, first, n) != 0)
            return snug_fail(err, SNUG_MISMATCH,
                             "ranks differ: this rank has %.*s, rank 0 has %.*s; start all ranks "
                             "with the same flags and data",
                             n < 200 ? (int)n : 200, own, m < 200 ? (int)m : 200, first);
        own += n + (own[n] == '\n');
        first += m + (first[m] == '\n');
    }
    return SNUG_OK;
}

enum snug_status trainer_agree(const struct snug_trainer *t, struct snug_error *err)
{
    enum { LONGEST = 1 << 16 };
    struct text own = {0};
    char *first = calloc(1, LONGEST);
    enum snug_status status =
        first == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : describe(t, &own, err);
    if (status == SNUG_OK && t->comm->rank == 0)
        strncpy(first, own.data, LONGEST - 1);
    if (status == SNUG_OK)
        status = comm_broadcast(t->comm, 0, first, LONGEST, err);
    if (status == SNUG_OK)
        status = compare(own.data, first, err);
    text_free(&own);
    free(first);
    return status == SNUG_OK ? comm_barrier(t->comm, err) : status;
}

enum snug_status agree_on_any(struct comm *comm, bool *flag, struct snug_error *err)
{
    double any = *flag ? 1 : 0;
    TRY(comm_max(comm, &any, err));
    *flag = any != 0;
    return SNUG_OK;
}
