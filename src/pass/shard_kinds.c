/*
 * shard_kinds.c -- group ranks whose programs have the same sizes, to find the highest peak.
 *
 * Ranks that own equally many elements of every weight run the same ops on tensors of the same
 * sizes.  They are one kind, and one plan holds for all of them.  Elementwise updates give few
 * kinds for any number of ranks.  An optimizer that needs whole matrices can make every rank its
 * own kind.
 *
 * If there are more than RANK_KINDS_MAX kinds, we merge those that own the same sizes in different
 * layers.  The first and the last of them stay, whose gradients complete last and first.  If there
 * are still too many, those with the largest loads stay.
 *
 * cost:  O(weights x ranks + kinds^2)
 */
#include "pass/shard.h"

struct kind {
    int rank;
    uint64_t sizes; /* hash of the sizes it owns, independent of which weights have them */
    int64_t load;
};

static uint64_t add_to_hash(uint64_t hash, int64_t value)
{
    hash = (hash ^ (uint64_t)value) * UINT64_C(0x9e3779b97f4a7c15); /* the golden ratio */
    return hash ^ hash >> 29;
}

/* Returns a hash of the element counts of all weights.  kind->sizes hashes only those it owns. */
static uint64_t hash_rank(const struct sharding *s, int rank, struct kind *kind)
{
    uint64_t exact = 1;
    kind->rank = rank;
    kind->sizes = 1;
    for (int i = 0; i < s->n_weights; i++) {
        const struct shared_weight *w = &s->weights[i];
        int64_t count =
            cut_of(w->cut, shape_elems(&w->shape), s->env->config.ranks.n_ranks, rank).count;
        exact = add_to_hash(exact, count);
        for (int k = 0; count > 0 && k < w->shape.n_dims; k++)
            kind->sizes = add_to_hash(kind->sizes, w->shape.dim[k]);
        if (count > 0)
            kind->sizes = add_to_hash(kind->sizes, -count);
    }
    return exact;
}

/* Of kinds with the same sizes, keeps the first and the last. */
static int merge_layers(struct kind *kinds, int n)
{
    int n_left = 0;
    for (int i = 0; i < n; i++) {
        bool before = false, after = false;
        for (int j = 0; j < n_left && !before; j++)
            before = kinds[j].sizes == kinds[i].sizes;
        for (int j = i + 1; j < n && !after; j++)
            after = kinds[j].sizes == kinds[i].sizes;
        if (!before || !after)
            kinds[n_left++] = kinds[i];
    }
    return n_left;
}

static void drop_least(struct kind *kinds, int *n)
{
    int least = 0;
    for (int i = 1; i < *n; i++)
        if (kinds[i].load < kinds[least].load)
            least = i;
    for (int i = least; i + 1 < *n; i++)
        kinds[i] = kinds[i + 1];
    --*n;
}

enum snug_status shard_find_kinds(struct sharding *s, const int64_t *loads)
{
    int n_ranks = s->env->config.ranks.n_ranks, n = 0;
    struct kind *kinds = arena_zeros(s->env->scratch, (size_t)n_ranks, sizeof *kinds);
    uint64_t *seen = arena_zeros(s->env->scratch, (size_t)n_ranks, sizeof *seen);
    if (kinds == NULL || seen == NULL)
        return shard_no_memory(s);
    for (int rank = 0; rank < n_ranks; rank++) {
        uint64_t exact = hash_rank(s, rank, &kinds[n]);
        kinds[n].load = loads[rank];
        bool is_new = true;
        for (int i = 0; i < n && is_new; i++)
            is_new = seen[i] != exact;
        seen[n] = exact;
        n += is_new;
    }
    if (n > RANK_KINDS_MAX)
        n = merge_layers(kinds, n);
    while (n > RANK_KINDS_MAX)
        drop_least(kinds, &n);
    s->env->results.n_rank_kinds = n;
    for (int i = 0; i < n; i++)
        s->env->results.rank_kinds[i] = kinds[i].rank;
    return SNUG_OK;
}
