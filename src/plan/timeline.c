/*
 * timeline.c -- the bytes of each role at every op of a step.
 *
 * Tensors that reuse a block in place have it one after the other: its bytes count as the role of
 * the newest tensor.  So for each block we walk its tensors in the order of their first ops, and
 * each counts until the next one starts.
 */
#include "plan/timeline.h"

#include <stdlib.h>

struct chains { /* the tensors of each block, sorted by alive_from */
    int *first; /* per block, or -1 */
    int *next;  /* per tensor; -1 for the last */
};

static bool make_chains(const struct program *prog, const struct plan *plan, struct chains *c)
{
    c->first = malloc(((size_t)plan->n_blocks + 1) * sizeof *c->first);
    c->next = malloc(((size_t)plan->n_tensors + 1) * sizeof *c->next);
    if (c->first == NULL || c->next == NULL)
        return false;
    for (int i = 0; i < plan->n_blocks; i++)
        c->first[i] = -1;
    for (int i = 0; i < plan->n_tensors; i++) {
        if (plan->block_of[i] < 0 || prog->tensors[i].base != TENSOR_NONE)
            continue;
        int *link = &c->first[plan->block_of[i]];
        while (*link >= 0 && plan->alive_from[*link] < plan->alive_from[i])
            link = &c->next[*link];
        c->next[i] = *link;
        *link = i;
    }
    return true;
}

enum snug_status plan_timeline(const struct program *prog, const struct plan *plan,
                               struct timeline_point *points, struct snug_error *err)
{
    struct chains chains = {NULL, NULL};
    bool ok = make_chains(prog, plan, &chains);
    int n_points = prog->n_ops > 0 ? prog->n_ops : 1;
    for (int i = 0; i < n_points; i++)
        points[i] = (struct timeline_point){0};
    for (int block = 0; block < plan->n_blocks && ok; block++)
        for (int t = chains.first[block]; t >= 0; t = chains.next[t]) {
            int after = chains.next[t];
            int end = after >= 0 ? plan->alive_from[after] : plan->alive_to[t] + 1;
            enum role role = prog->tensors[t].role;
            points[plan->alive_from[t]].bytes[role] += plan->blocks[block].bytes;
            if (end < n_points)
                points[end].bytes[role] -= plan->blocks[block].bytes;
        }
    for (int i = 0; i < n_points; i++) /* so far each point holds a difference: sum them up */
        for (int role = 0; role < ROLE_COUNT; role++) {
            points[i].bytes[role] += i > 0 ? points[i - 1].bytes[role] : 0;
            points[i].total += points[i].bytes[role];
        }
    free(chains.first);
    free(chains.next);
    return ok ? SNUG_OK
              : snug_fail(err, SNUG_NO_MEMORY, "timeline: no memory for %d ops", prog->n_ops);
}
