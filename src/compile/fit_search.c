/*
 * fit_search.c -- the choice: the fastest that fits, and that changes training no more than it gains.
 *
 * Knobs that change what is learned are turned if they are allowed and if they must be, or if they
 * bring a step that is faster by a tenth where want of memory costs that much.  Once they are turned,
 * going further needs less: three hundredths.  Their combinations are tiers, from none to the most; three
 * of them are looked at for speed.  4 bits and LoRA change so much
 * that they are turned only where nothing else fits.  A tier whose smallest candidates are over the room
 * is left at once.
 *
 * Inside a tier there are four axes: micro-batch, checkpoint, update, offload.  All but the first
 * only add time.  So the time without them is a lower bound, and what is dear to price is priced only
 * where its bound is below the time of the best found so far:
 *   1. every micro-batch as it is;
 *   2. with the update and offload;
 *   3. those that do not fit, with each fixed checkpointing;
 *   4. the most promising of them with checkpoint auto, which plans many times;
 *   5. only if nothing fits yet: auto and all, for the largest and the smallest micro-batch.
 * After each stage what may be the best is placed, the fastest first, until one really fits.  Bounds
 * change between stages and not inside one, so what is priced does not depend on the threads.
 */
#include "compile/fit.h"

#include <stdlib.h>

enum { AUTO_MAX = 6, AUTO_LATER = 2 }; /* of the fourth stage, and of tiers looked at for speed */
static const double NO_GUESS = 1e300;
/* How much faster a tier is that takes an earlier one's place: the user's own, or one that changes
 * training already. */
static const double WORTH = 1.1, WORTH_FURTHER = 1.03;

/* By how much they change training: a judgement, not a measurement.  States are averages over many
 * steps, and so are the errors of rounding them; without a master every update of a weight is rounded;
 * 4 bits are coarse.  LoRA comes last: it does not train the matrices at all.  Its states are so small
 * that no tier of it has fewer bits. */
static const struct tier {
    const char *state_bits, *master, *lora; /* NULL: the user's own */
    bool is_looked_at;                      /* for a faster step, though an earlier tier fits */
} tiers[] = {
    {NULL, NULL, NULL, false},   {"16", NULL, NULL, true},    {"8", NULL, NULL, true},
    {NULL, "none", NULL, false}, {"16", "none", NULL, false}, {"8", "none", NULL, true},
    {"4", NULL, NULL, false},    {"4", "none", NULL, false},  {NULL, NULL, "16", false},
};
enum { N_TIERS = sizeof tiers / sizeof *tiers };

struct search {
    struct fit *fit;
    int first, n; /* candidates of the tier */
    int best;     /* that is placed and fits, or -1 */
    int auto_max; /* candidates with checkpoint auto, which are dear */
    int *list;    /* to be priced together; room for the whole tier */
    int n_list;
};

/* ---- candidates of a tier ---------------------------------------------------------------------- */

/* Sets a value of the choice; false: there is no such value, or it is the user's own. */
static bool choose(const struct fit *fit, enum fit_axis_id axis, const char *value, int *choice)
{
    choice[axis] = value == NULL ? 0 : fit_find_value(fit, axis, value);
    return value == NULL || choice[axis] > 0;
}

/* The first candidate of a tier; -1: something in it is not allowed. */
static int first_of_tier(const struct fit *fit, const struct tier *tier)
{
    int choice[FIT_N_AXES] = {0};
    bool is_there = choose(fit, FIT_STATE_BITS, tier->state_bits, choice) &&
                    choose(fit, FIT_MASTER, tier->master, choice) &&
                    choose(fit, FIT_LORA, tier->lora, choice);
    return is_there ? fit_index(fit, choice) : -1;
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

/* Can a candidate be better than the best?  It takes at least as long as `plain`, on which it is
 * built. */
static bool may_win(const struct search *s, int index, int plain)
{
    if (s->best < 0 || !is_possible(s, plain))
        return true;
    int pace = fit_pace(at(s, plain)->seconds), best = fit_pace(at(s, s->best)->seconds);
    return pace != best ? pace < best : index < s->best;
}

/* A setting is a micro-batch, update and offload.  Where a knob has no effect (the update in backward
 * when gradients add up over micro-batches), two have one price; the simpler one stands for both. */
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

/* Places what may be better than the best, the fastest first. */
static enum snug_status settle(struct search *s, struct snug_error *err)
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
    return settle(s, err);
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

/* With each of these checkpointings, the settings that may win and do not fit without. */
static void list_checkpoints(struct search *s, const int *checkpoints, int n)
{
    const struct fit_axis *axes = s->fit->axes;
    for (int m = 0; m < axes[FIT_MICRO_BATCH].n_values; m++)
        for (int u = 0; u < axes[FIT_UPDATE].n_values; u++)
            for (int o = 0; o < axes[FIT_OFFLOAD].n_values; o++) {
                int plain = candidate(s, m, 0, u, o);
                if (!is_possible(s, plain) || fit_fits(s->fit, plain) ||
                    has_simpler_twin(s, m, u, o))
                    continue; /* or the stage before has seen that it cannot win */
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

/* What auto may take: between two fixed checkpointings of its setting of which one fits and one does
 * not, in proportion to the bytes.  A guess: it says what is tried first, and decides nothing else. */
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

/* The best guesses come to the front of the list; the rest is dropped, and so is what fits with no
 * fixed checkpointing: auto would do nearly all the work twice. */
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

/* Largest and smallest micro-batch with every update and offload. */
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

/* The candidates with which a tier is smallest, for one checkpointing: the smallest micro-batch, or one
 * large one, with which gradients need not add up, updated at the end or in backward.  Activations
 * that are offloaded have a buffer on their way, so without it too. */
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
    bool must_fit = s->auto_max == AUTO_MAX; /* not only looked at for speed */
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

/* Of all that were priced, and placed. */
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

/* The last tier in which all that the user trains is still trained: no other such tier is smaller. */
static int last_full_tier(const struct fit *fit)
{
    int last = N_TIERS - 1;
    while (last > 0 && (tiers[last].lora != NULL || first_of_tier(fit, &tiers[last]) < 0))
        last--;
    return last;
}

/* Nothing fits in the first tier: where to go on.  If the last full tier has no hope, beyond it. */
static enum snug_status next_tier(struct search *s, int *next, struct snug_error *err)
{
    bool hopeless;
    int last = last_full_tier(s->fit);
    s->first = first_of_tier(s->fit, &tiers[last]);
    TRY(is_hopeless(s, &hopeless, err));
    *next = hopeless ? last + 1 : 1;
    return SNUG_OK;
}

/* The least time of the tier if memory were no matter; its micro-batches are priced. */
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

/* Where want of memory costs as much as a tier must be worth: from the tier after the one that fits on,
 * another may take its place. */
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
        if (s->first < 0 || !tiers[i].is_looked_at)
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

/* Of the last tier without LoRA and the one with. */
enum snug_status fit_find_smallest(struct fit *fit, struct snug_error *err)
{
    struct search s;
    TRY(begin_search(fit, &s, err));
    const int looked_at[] = {last_full_tier(fit), N_TIERS - 1};
    enum snug_status status = SNUG_OK;
    for (int i = 0; i < 2 && status == SNUG_OK; i++) {
        bool hopeless;
        s.first = first_of_tier(fit, &tiers[looked_at[i]]);
        if (s.first >= 0)
            status = is_hopeless(&s, &hopeless, err);
    }
    free(s.list);
    return status == SNUG_OK ? take_smallest(fit, err) : status;
}
