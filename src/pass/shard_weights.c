/*
 * shard_weights.c -- ZeRO 3: every rank stores a shard of each weight and gathers the whole weight
 * only while a layer uses it.
 *
 * Consecutive body ops that use weights of one layer form a visit.  The layer's weights are
 * gathered into temporaries, which are freed after the visit's last op.  The gather is issued one
 * visit ahead, so that it overlaps with the compute of the previous layer:
 *
 *     gather 0, gather 1 | layer 0;   gather 2 | layer 1;   gather 3 | layer 2 ...
 *
 * The backward half visits and gathers the layers once more.  Layers are recognized by weight
 * names: the prefix up to the first number ("h.3"), or up to the last dot.
 */
#include "pass/layer_name.h"
#include "pass/shard.h"

#include <stdlib.h>
#include <string.h>

struct visit {
    int first, last;      /* ops */
    int begin, n_weights; /* its weights are used[begin .. begin + n_weights) */
};

struct visits {
    struct sharding *s;
    struct visit *visits;
    int n_visits, capacity;
    int *used;           /* indices of weights, visit after visit */
    tensor_id *gathered; /* for each of them, its temporary */
    int n_used, used_capacity, gathered_capacity;
    int *in_visit; /* per weight: its last index in `used`, possibly of an earlier visit */
};

/* The length of the layer's name in a weight's name; without a number, all but the last part. */
static size_t layer_length(const char *name)
{
    size_t numbered = layer_name_length(name);
    const char *last = strrchr(name, '.');
    return numbered > 0 ? numbered : last == NULL ? strlen(name) : (size_t)(last - name);
}

static bool is_same_layer(const char *a, const char *b)
{
    size_t n = layer_length(a);
    return n == layer_length(b) && strncmp(a, b, n) == 0;
}

static int first_weight_of(const struct sharding *s, const struct op *op)
{
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != TENSOR_NONE && s->of_weight[op->in[k]] >= 0)
            return s->of_weight[op->in[k]];
    return -1;
}

static const char *name_of(const struct sharding *s, int weight)
{
    return s->prog->tensors[s->weights[weight].weight].name;
}

static enum snug_status add_visit(struct visits *v, int i)
{
    void *grown = v->visits;
    if (!array_grow(&grown, &v->capacity, v->n_visits + 1, sizeof *v->visits))
        return shard_no_memory(v->s);
    v->visits = grown;
    v->visits[v->n_visits++] = (struct visit){.first = i, .last = i, .begin = v->n_used};
    return SNUG_OK;
}

/* The gathered tensor of a weight in the current visit, added on first use. */
static enum snug_status use_weight(struct visits *v, int weight, tensor_id *gathered)
{
    struct sharding *s = v->s;
    struct visit *visit = &v->visits[v->n_visits - 1];
    if (v->in_visit[weight] >= visit->begin) {
        *gathered = v->gathered[v->in_visit[weight]];
        return SNUG_OK;
    }
    void *used = v->used, *ids = v->gathered;
    bool grown = array_grow(&used, &v->used_capacity, v->n_used + 1, sizeof *v->used);
    v->used = used;
    grown = grown && array_grow(&ids, &v->gathered_capacity, v->n_used + 1, sizeof(tensor_id));
    v->gathered = ids;
    if (!grown)
        return shard_no_memory(s);
    const struct shared_weight *w = &s->weights[weight];
    struct tensor t = {TENSOR_INIT, .dtype = s->prog->tensors[w->weight].dtype,
                       .role = ROLE_temporary, .shape = w->shape};
    t.name = arena_format(s->env->scratch, "gathered.%s", name_of(s, weight));
    if (t.name == NULL)
        return shard_no_memory(s);
    TRY(program_add_tensor(s->prog, &t, gathered, s->env->err));
    program_link(s->prog, *gathered, LINK_gathered, w->weight);
    v->in_visit[weight] = v->n_used;
    v->used[v->n_used] = weight;
    v->gathered[v->n_used++] = *gathered;
    visit->n_weights++;
    return SNUG_OK;
}

static enum snug_status find_visits(struct visits *v)
{
    struct sharding *s = v->s;
    int layer = -1;
    for (int i = 0; i < program_body_end(s->prog); i++) {
        int weight = first_weight_of(s, &s->prog->ops[i]);
        if (weight < 0)
            continue;
        if (layer < 0 || !is_same_layer(name_of(s, layer), name_of(s, weight)))
            TRY(add_visit(v, i));
        layer = weight;
        v->visits[v->n_visits - 1].last = i;
        for (int k = 0; k < s->prog->ops[i].n_in; k++) {
            tensor_id id = s->prog->ops[i].in[k], gathered;
            if (id == TENSOR_NONE || s->of_weight[id] < 0)
                continue;
            TRY(use_weight(v, s->of_weight[id], &gathered)); /* adds tensors, but no ops */
            s->prog->ops[i].in[k] = gathered;
        }
    }
    return SNUG_OK;
}

static enum snug_status append_gather(struct visits *v, int visit)
{
    if (visit >= v->n_visits)
        return SNUG_OK;
    const struct visit *at = &v->visits[visit];
    for (int i = at->begin; i < at->begin + at->n_weights; i++) {
        const struct shared_weight *w = &v->s->weights[v->used[i]];
        TRY(bucket_put(v->s, OP_all_gather, w->weight_piece, v->gathered[i], w->cut, ACC_no,
                       false));
    }
    return bucket_flush(v->s);
}

static enum snug_status append_all(struct visits *v)
{
    struct program *prog = v->s->prog;
    int at = 0;
    for (int i = 0; i < prog->n_ops; i++) {
        rewriter_reach(&v->s->rw, i);
        if (at < v->n_visits && v->visits[at].first == i) {
            if (at == 0)
                TRY(append_gather(v, 0));
            TRY(append_gather(v, ++at));
        }
        TRY(rewriter_copy(&v->s->rw, i));
    }
    TRY(rewriter_finish(&v->s->rw, SNUG_OK));
    v->s->rw = rewriter_begin(prog, "shard", v->s->env->err); /* gradients come next */
    return SNUG_OK;
}

enum snug_status shard_gather(struct sharding *s)
{
    struct visits v = {.s = s};
    v.in_visit = arena_alloc(s->env->scratch, ((size_t)s->n_weights + 1) * sizeof(int));
    if (v.in_visit == NULL)
        return shard_no_memory(s);
    for (int i = 0; i < s->n_weights; i++) {
        struct shared_weight *w = &s->weights[i];
        v.in_visit[i] = -1;
        w->weight_piece = w->own.count > 0 ? w->weight : TENSOR_NONE;
        shard_in_place(s, w->weight, w->own.from, w->own.count);
    }
    enum snug_status status = find_visits(&v);
    if (status == SNUG_OK)
        status = append_all(&v);
    free(v.visits);
    free(v.used);
    free(v.gathered);
    return status;
}
