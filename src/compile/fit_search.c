/*
 * fit_search.c -- choose the fastest candidate that fits, changing training as little as possible.
 *
 * A tier is one combination of the keys that change training: state bits, master, LoRA and the bits
 * of its base.  Tiers are ordered from no change to the most.  The search takes the first tier in
 * which something fits.  If lack of memory makes that one slow, some later tiers are tried for
 * speed: they must be faster by a tenth, or by three hundredths once a tier is chosen that changes
 * training anyway.  4-bit states, LoRA and its base change so much that they are used only if
 * nothing else fits.  A tier whose smallest candidates are over the budget is skipped at once.
 *
 * A tier has four axes: micro-batch, checkpoint, update, offload.  All but the first only add time,
 * so the time without them is a lower bound.  Candidates that are slow to price are priced only if
 * their bound is below the time of the best candidate so far:
 *   1. every micro-batch with nothing else changed;
 *   2. with in-backward updates and offload;
 *   3. those that do not fit, with each fixed checkpointing;
 *   4. the most promising of them with --checkpoint auto, which plans many times;
 *   5. only if nothing fits yet: auto and all, for the largest and the smallest micro-batch.
 * After each stage the candidates that may win are placed, the fastest first, until one really
 * fits.  Bounds change between stages, never inside one, so the result does not depend on the
 * threads.
 */
#include "compile/fit.h"

#include <stdlib.h>

/* Candidates priced in stage 4, and in tiers that are only tried for speed. */
enum { AUTO_MAX = 6, AUTO_LATER = 2 };
static const double NO_GUESS = 1e300;
/* How many times faster a tier must be to replace an earlier one: the user's own, or one that
 * changes training already. */
static const double WORTH = 1.1, WORTH_FURTHER = 1.03;

/* Ordered by how much they change training: a judgement, not a measurement.  States are averages
 * over many steps, so their rounding errors average out; without a master copy every weight update
 * is rounded; 4 bits are coarse.  A frozen base in fewer bits makes sense with LoRA only,
 * the user's or ours.  LoRA comes last because it does not train the matrices at all.  Its states
 * are so small that fewer bits would not help. */
static const struct tier {
    const char *state_bits, *master, *lora, *lora_base; /* NULL: the user's own */
    bool may_be_faster; /* tried for speed even if an earlier tier fits */
} tiers[] = {
    {NULL, NULL, NULL, NULL, false},   {"16", NULL, NULL, NULL, true},
    {"8", NULL, NULL, NULL, true},     {NULL, "none", NULL, NULL, false},
    {"16", "none", NULL, NULL, false}, {"8", "none", NULL, NULL, true},
    {"4", NULL, NULL, NULL, false},    {"4", "none", NULL, NULL, false},
    {NULL, NULL, NULL, "8", false},    {NULL, NULL, NULL, "4", false},
    {NULL, NULL, "16", NULL, false},   {NULL, NULL, "16", "8", false},
    {NULL, NULL, "16", "4", false},
};
enum { N_TIERS = sizeof tiers / sizeof *tiers };

struct search {
    struct fit *fit;
    int first, n; /* candidates of the tier */
    int best;     /* the best that is placed and fits, or -1 */
    int auto_max; /* at most so many with --checkpoint auto, which is slow to price */
    int *list;    /* to be priced together; has space for the whole tier */
    int n_list;
};

/* ---- candidates of a tier
 * ---------------------------------------------------------------------- */

/* Sets a value of the choice.  False if the axis lacks it, or if it is the user's own. */
static bool choose(const struct fit *fit, enum fit_axis_id axis, const char *value, int *choice)
{
    choice[axis] = value == NULL ? 0 : fit_find_value(fit, axis, value);
    return value == NULL || choice[axis] > 0;
}

/* The first candidate of a tier, or -1 if the tier needs something that is not allowed. */
static int first_of_tier(const struct fit *fit, const struct tier *tier)
{
    int choice[FIT_N_AXES] = {0};
    bool is_allowed = choose(fit, FIT_STATE_BITS, tier->state_bits, choice) &&
                      choose(fit, FIT_MASTER, tier->master, choice) &&
                      choose(fit, FIT_LORA, tier->lora, choice) &&
                      choose(fit, FIT_LORA_BASE, tier->lora_base, choice) &&
                      (tier->lora_base == NULL || tier->lora != NULL || fit->recipe.lora > 0);
    return is_allowed ? fit_index(fit, choice) : -1;
}

static int candidate(const struct search *s, int micro, int checkpoint, int update, int offload)
{
    const int choice[FIT_N_AXES] = {micro, checkpoint, update, offload};
    return s->first + fit_index(s->fit, choice);
}

static const struct fit_candidate *at(const struct search *s, int index)
{
    return &s->fit->candidates[index];
}

static bool is_possible(const struct search *s, int index)
{
    return at(s, index)->is_priced && at(s, index)->is_possible;
}

/* Can a candidate beat the best?  It takes at least as long as `plain`, the same without extras. */
static bool may_win(const struct search *s, int index, int plain)
{
    if (s->best < 0 || !is_possible(s, plain))
        return true;
    int pace = fit_pace(at(s, plain)->seconds), best = fit_pace(at(s, s->best)->seconds);
    return pace != best ? pace < best : index < s->best;
}

/* A setting is a micro-batch, update and offload.  If a flag has no effect (in-backward updates
 * when gradients accumulate over micro-batches), two settings have the same price; we use the
 * simpler. */
static bool has_simpler_twin(const struct search *s, int micro, int update, int offload)
{
    const struct fit_candidate *own = at(s, candidate(s, micro, 0, update, offload));
    for (int u = 0; u <= update; u++)
        for (int o = 0; o <= offload; o++) {
            const struct fit_candidate *other = at(s, candidate(s, micro, 0, u, o));
            if (other != own && other->is_priced && other->is_possible &&
                other->seconds == own->seconds && other->least_bytes == own->least_bytes)
                return true;
        }
    return false;
}

/* ---- the stages ------------------------------------------------------------------------------ */

static bool is_better(const struct search *s, int a, int b)
{
    return b < 0 || fit_is_better(s->fit, a, b);
}

/* Places the candidates that may beat the best, the fastest first. */
static enum snug_status place_promising(struct search *s, struct snug_error *err)
{
    for (;;) {
        int next = -1;
        for (int i = s->first; i < s->first + s->n; i++)
            if (fit_fits(s->fit, i) && is_better(s, i, s->best) && is_better(s, i, next))
                next = i;
        if (next < 0)
            return SNUG_OK;
        TRY(fit_place(s->fit, &next, 1, err));
        if (fit_fits(s->fit, next) && is_better(s, next, s->best))
            s->best = next;
    }
}

static enum snug_status price_listed(struct search *s, struct snug_error *err)
{
    TRY(fit_price(s->fit, s->list, s->n_list, err));
    s->n_list = 0;
    return place_promising(s, err);
}

static enum snug_status price_micro_batches(struct search *s, struct snug_error *err)
{
    for (int m = 0; m < s->fit->axes[FIT_MICRO_BATCH].n_values; m++)
        s->list[s->n_list++] = candidate(s, m, 0, 0, 0);
    return price_listed(s, err);
}

static enum snug_status price_settings(struct search *s, struct snug_error *err)
{
    const struct fit_axis *axes = s->fit->axes;
    for (int m = 0; m < axes[FIT_MICRO_BATCH].n_values; m++)
        for (int u = 0; u < axes[FIT_UPDATE].n_values; u++)
            for (int o = 0; o < axes[FIT_OFFLOAD].n_values; o++)
                if (may_win(s, candidate(s, m, 0, u, o), candidate(s, m, 0, 0, 0)))
                    s->list[s->n_list++] = candidate(s, m, 0, u, o);
    return price_listed(s, err);
}

/* Lists, for each of these checkpointings, the settings that may win and do not fit without it. */
static void list_checkpoints(struct search *s, const int *checkpoints, int n)
{
    const struct fit_axis *axes = s->fit->axes;
    for (int m = 0; m < axes[FIT_MICRO_BATCH].n_values; m++)
        for (int u = 0; u < axes[FIT_UPDATE].n_values; u++)
            for (int o = 0; o < axes[FIT_OFFLOAD].n_values; o++) {
                int plain = candidate(s, m, 0, u, o);
                if (!is_possible(s, plain) || fit_fits(s->fit, plain) ||
                    has_simpler_twin(s, m, u, o))
                    continue; /* not priced: the stage before found that it cannot win */
                for (int i = 0; i < n; i++) {
                    int index = candidate(s, m, checkpoints[i], u, o);
                    if (checkpoints[i] > 0 && may_win(s, index, plain))
                        s->list[s->n_list++] = index;
                }
            }
}

static enum snug_status price_fixed_checkpoints(struct search *s, struct snug_error *err)
{
    const int fixed[] = {fit_find_value(s->fit, FIT_CHECKPOINT, "cheap"),
                         fit_find_value(s->fit, FIT_CHECKPOINT, "every:1")};
    list_checkpoints(s, fixed, 2);
    return price_listed(s, err);
}

/* Guesses the time of auto by interpolating, in bytes, between a fixed checkpointing of the same
 * setting that fits and one that does not.  The guess only decides which candidates are tried. */
static double guess_auto(const struct search *s, int index)
{
    int step = fit_index(s->fit, (int[FIT_N_AXES]){[FIT_CHECKPOINT] = 1});
    int plain = index - step * fit_choice(s->fit, index, FIT_CHECKPOINT);
    int under = -1, over = plain;
    for (int i = 1; i < s->fit->axes[FIT_CHECKPOINT].n_values; i++) {
        int other = plain + i * step;
        if (!is_possible(s, other) || other == index)
            continue;
        if (!fit_fits(s->fit, other) && at(s, other)->total_bytes < at(s, over)->total_bytes)
            over = other;
        else if (fit_fits(s->fit, other) && is_better(s, other, under))
            under = other;
    }
    if (under < 0)
        return NO_GUESS;
    double part = (double)(at(s, over)->total_bytes - fit_room(s->fit)) /
                  (double)(at(s, over)->total_bytes - at(s, under)->total_bytes);
    return at(s, over)->seconds + part * (at(s, under)->seconds - at(s, over)->seconds);
}

/* Keeps the best guesses.  Settings that fit with no fixed checkpointing are dropped too: auto
 * would recompute nearly everything. */
static void keep_best_guesses(struct search *s)
{
    int n_kept = 0;
    for (; n_kept < s->auto_max && n_kept < s->n_list; n_kept++) {
        int best = n_kept;
        for (int i = n_kept + 1; i < s->n_list; i++)
            if (guess_auto(s, s->list[i]) < guess_auto(s, s->list[best]))
                best = i;
        if (guess_auto(s, s->list[best]) >= NO_GUESS)
            break;
        int swapped = s->list[n_kept];
        s->list[n_kept] = s->list[best];
        s->list[best] = swapped;
    }
    s->n_list = n_kept;
}

static enum snug_status price_auto(struct search *s, struct snug_error *err)
{
    int how = fit_find_value(s->fit, FIT_CHECKPOINT, "auto");
    list_checkpoints(s, &how, 1);
    keep_best_guesses(s);
    return price_listed(s, err);
}

/* The largest and the smallest micro-batch, with every update and offload. */
static enum snug_status price_last_resort(struct search *s, const char *checkpoint,
                                          struct snug_error *err)
{
    const struct fit_axis *axes = s->fit->axes;
    int how = fit_find_value(s->fit, FIT_CHECKPOINT, checkpoint);
    int last = axes[FIT_MICRO_BATCH].n_values - 1;
    for (int m = 0; how > 0 && m <= last; m += last > 0 ? last : 1)
        for (int u = 0; u < axes[FIT_UPDATE].n_values; u++)
            for (int o = 0; o < axes[FIT_OFFLOAD].n_values; o++)
                if (!has_simpler_twin(s, m, u, o))
                    s->list[s->n_list++] = candidate(s, m, how, u, o);
    return price_listed(s, err);
}

/* ---- tiers ----------------------------------------------------------------------------------- */

/* Prices the candidates that may be the smallest of a tier, for one checkpointing.  The micro-batch
 * is the smallest, or the whole batch, which needs no gradient accumulation; updates run at the end
 * or in backward.  Every offload is tried, none included: offloading activations needs a staging
 * buffer. */
static enum snug_status price_corners(struct search *s, const char *checkpoint, bool *one_fits,
                                      struct snug_error *err)
{
    const struct fit_axis *axes = s->fit->axes;
    const int micro[] = {axes[FIT_MICRO_BATCH].n_values - 1, 0};
    const int update[] = {0, axes[FIT_UPDATE].n_values - 1};
    int how = fit_find_value(s->fit, FIT_CHECKPOINT, checkpoint), n = 0;
    int n_offloads = axes[FIT_OFFLOAD].n_values, corners[4 * FIT_VALUES_MAX];
    for (int i = 0; i < 4 * n_offloads; i++) {
        int corner = candidate(s, micro[i % 2], how > 0 ? how : 0, update[i / 2 % 2], i / 4);
        bool is_listed = false;
        for (int j = 0; j < n; j++)
            is_listed = is_listed || corners[j] == corner;
        if (!is_listed)
            corners[n++] = corner;
    }
    TRY(fit_price(s->fit, corners, n, err));
    for (int i = 0; i < n; i++)
        *one_fits = *one_fits || fit_fits(s->fit, corners[i]);
    return SNUG_OK;
}

static enum snug_status is_hopeless(struct search *s, bool *hopeless, struct snug_error *err)
{
    bool one_fits = s->best >= 0;
    if (!one_fits)
        TRY(price_corners(s, "every:1", &one_fits, err));
    if (!one_fits)
        TRY(price_corners(s, "none", &one_fits, err));
    if (!one_fits)
        TRY(price_corners(s, "cheap", &one_fits, err));
    if (!one_fits)
        TRY(price_corners(s, "all", &one_fits, err));
    *hopeless = !one_fits;
    return SNUG_OK;
}

static enum snug_status search_tier(struct search *s, struct snug_error *err)
{
    bool hopeless;
    TRY(price_micro_batches(s, err));
    TRY(is_hopeless(s, &hopeless, err));
    if (hopeless)
        return SNUG_OK;
    TRY(price_settings(s, err));
    TRY(price_fixed_checkpoints(s, err));
    TRY(price_auto(s, err));
    bool must_fit = s->auto_max == AUTO_MAX; /* not only tried for speed */
    if (s->best < 0 && must_fit)
        TRY(price_last_resort(s, "auto", err));
    if (s->best < 0 && must_fit)
        TRY(price_last_resort(s, "all", err));
    return SNUG_OK;
}

static enum snug_status begin_search(struct fit *fit, struct search *s, struct snug_error *err)
{
    *s = (struct search){.fit = fit, .n = fit_tier_size(fit), .best = -1, .auto_max = AUTO_MAX};
    s->list = malloc((size_t)s->n * sizeof *s->list);
    return s->list == NULL ? snug_fail(err, SNUG_NO_MEMORY, "out of memory") : SNUG_OK;
}

/* Takes the smallest of all priced candidates and places it. */
static enum snug_status take_smallest(struct fit *fit, struct snug_error *err)
{
    fit->smallest = -1;
    for (int i = 0; i < fit->n_candidates; i++) {
        const struct fit_candidate *c = &fit->candidates[i];
        if (c->is_priced && c->is_possible &&
            (fit->smallest < 0 || c->total_bytes < fit->candidates[fit->smallest].total_bytes))
            fit->smallest = i;
    }
    if (fit->smallest < 0)
        return snug_fail(err, SNUG_BAD_ARGUMENT, "%s: no recipe can be planned", fit->model->name);
    return fit_place(fit, &fit->smallest, 1, err);
}

/* The last tier that is allowed, of those that add LoRA or of the others; -1 if there is none.  No
 * other one of them is smaller. */
static int last_tier(const struct fit *fit, bool adds_lora)
{
    int last = N_TIERS - 1;
    while (last >= 0 &&
           ((tiers[last].lora != NULL) != adds_lora || first_of_tier(fit, &tiers[last]) < 0))
        last--;
    return last;
}

/* The tier to try next after nothing fits in the first: the second, or the one after the last that
 * adds no LoRA if that one is hopeless too. */
static enum snug_status next_tier(struct search *s, int *next, struct snug_error *err)
{
    bool hopeless;
    int last = last_tier(s->fit, false);
    s->first = first_of_tier(s->fit, &tiers[last]);
    TRY(is_hopeless(s, &hopeless, err));
    *next = hopeless ? last + 1 : 1;
    return SNUG_OK;
}

/* The shortest time of the tier if memory were unlimited; its micro-batches must be priced. */
static double fastest_plain(const struct search *s)
{
    double least = NO_GUESS;
    for (int m = 0; m < s->fit->axes[FIT_MICRO_BATCH].n_values; m++) {
        int plain = candidate(s, m, 0, 0, 0);
        if (is_possible(s, plain) && at(s, plain)->seconds < least)
            least = at(s, plain)->seconds;
    }
    return least;
}

/* If lack of memory slows the chosen candidate by more than `worth`, tries the later tiers: a
 * faster one may replace it. */
static enum snug_status look_for_faster(struct search *s, struct snug_error *err)
{
    int chosen = s->best, n_done = 0;
    enum snug_status status = SNUG_OK;
    while (n_done < N_TIERS && first_of_tier(s->fit, &tiers[n_done]) != s->first)
        n_done++;
    double worth = n_done == 0 ? WORTH : WORTH_FURTHER;
    if (at(s, chosen)->seconds <= worth * fastest_plain(s))
        return SNUG_OK;
    s->auto_max = AUTO_LATER;
    for (int i = n_done + 1; i < N_TIERS && status == SNUG_OK; i++) {
        s->first = first_of_tier(s->fit, &tiers[i]);
        if (s->first < 0 || !tiers[i].may_be_faster)
            continue;
        s->best = -1;
        status = price_micro_batches(s, err);
        if (status == SNUG_OK && fastest_plain(s) * worth < at(s, chosen)->seconds)
            status = search_tier(s, err);
        if (status == SNUG_OK && s->best >= 0 &&
            at(s, s->best)->seconds * worth < at(s, chosen)->seconds) {
            chosen = s->best;
            worth = WORTH_FURTHER;
        }
    }
    s->best = chosen;
    return status;
}

enum snug_status fit_choose(struct fit *fit, struct snug_error *err)
{
    struct search s;
    TRY(begin_search(fit, &s, err));
    enum snug_status status = search_tier(&s, err);
    int next = N_TIERS;
    if (status == SNUG_OK && s.best < 0)
        status = next_tier(&s, &next, err);
    for (int i = next; i < N_TIERS && s.best < 0 && status == SNUG_OK; i++) {
        s.first = first_of_tier(fit, &tiers[i]);
        if (s.first >= 0)
            status = search_tier(&s, err);
    }
    if (status == SNUG_OK && s.best >= 0)
        status = look_for_faster(&s, err);
    free(s.list);
    fit->chosen = s.best;
    return status == SNUG_OK && s.best < 0 ? take_smallest(fit, err) : status;
}

/* Looks at the last tier that adds LoRA and the last of the others. */
enum snug_status fit_find_smallest(struct fit *fit, struct snug_error *err)
{
    struct search s;
    TRY(begin_search(fit, &s, err));
    const int looked_at[] = {last_tier(fit, false), last_tier(fit, true)};
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < 2 && status == SNUG_OK; i++) {
        bool hopeless;
        s.first = looked_at[i] < 0 ? -1 : first_of_tier(fit, &tiers[looked_at[i]]);
        if (s.first >= 0)
            status = is_hopeless(&s, &hopeless, err);
    }
    free(s.list);
    return status == SNUG_OK ? take_smallest(fit, err) : status;
}
