/*
 * test_allocated.c -- planned equals allocated, to the byte, and a step allocates nothing.
 *
 * Nothing here trusts the library's own count.  The backend is wrapped, so that its allocations are
 * seen.  malloc, mmap and their relatives are defined in this program, so that every other
 * allocation, by snug or by a library, is seen too.  Allocations are classified by the calling
 * code.  Two libraries make small ones inside a step and free them before it ends:
 *     oneDNN   a map of arguments in every call (from libdnnl, and libstdc++'s operator new)
 *     libgomp  a team for every parallel region of one thread; it keeps the teams of more threads
 *
 * The counters are not atomic: with two threads they may miss some of many, never all.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/decoders.h"
#include "support/files.h"
#include "support/training.h"
#include "train/trainer.h"

#if defined(__SANITIZE_ADDRESS__)
enum { WATCHES = 0 }; /* asan has its own malloc */
#else
enum { WATCHES = 1 };
#endif

/* ---- the watch over malloc and mmap --------------------------------------------------------------- */

enum { LARGE_BYTES = 1 << 20, LIBRARY_MAX_BYTES = 4096, MAX_RANGES = 64, MAX_CALLERS = 8 };

enum owner { OWN, ONEDNN, OPENMP, N_OWNERS };

static const struct {
    const char *file;
    enum owner owner;
} libraries[] = {{"libdnnl", ONEDNN}, {"libstdc++", ONEDNN}, {"libgomp", OPENMP}};

static struct {
    bool on;
    bool in_backend; /* inside the backend's alloc: the arena itself */
    struct {
        int64_t n;
        size_t bytes, largest;
    } by[N_OWNERS];
    size_t largest;     /* single allocation of anybody, the arena apart */
    int64_t live_bytes; /* allocated less freed */
    int64_t n_arena_maps;
    size_t arena_map_bytes;
    struct {
        uintptr_t begin, end;
        enum owner owner;
    } ranges[MAX_RANGES]; /* where the code of the libraries lies */
    int n_ranges;
    const void *callers[MAX_CALLERS]; /* of our own allocations, the first ones */
} watch;

static int find_quant(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size, (void)user;
    for (size_t k = 0; k < sizeof libraries / sizeof *libraries; k++)
        for (int i = 0; i < info->dlpi_phnum && watch.n_ranges < MAX_RANGES; i++)
            if (strstr(info->dlpi_name, libraries[k].file) != NULL &&
                info->dlpi_phdr[i].p_type == PT_LOAD) {
                uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                watch.ranges[watch.n_ranges].begin = begin;
                watch.ranges[watch.n_ranges].end = begin + info->dlpi_phdr[i].p_memsz;
                watch.ranges[watch.n_ranges++].owner = libraries[k].owner;
            }
    return 0;
}

static void watch_begin(void)
{
    memset(&watch, 0, sizeof watch);
    dl_iterate_phdr(find_quant, NULL);
    watch.on = true;
}

static void watch_end(void)
{
    watch.on = false;
}

#if !defined(__SANITIZE_ADDRESS__)
static enum owner owner_of(const void *caller)
{
    for (int i = 0; i < watch.n_ranges; i++)
        if ((uintptr_t)caller >= watch.ranges[i].begin && (uintptr_t)caller < watch.ranges[i].end)
            return watch.ranges[i].owner;
    return OWN;
}

static void count(size_t bytes, const void *caller)
{
    enum owner owner = owner_of(caller);
    if (owner == OWN && watch.by[OWN].n < MAX_CALLERS)
        watch.callers[watch.by[OWN].n] = caller;
    watch.by[owner].n++;
    watch.by[owner].bytes += bytes;
    if (bytes > watch.by[owner].largest)
        watch.by[owner].largest = bytes;
    if (bytes > watch.largest)
        watch.largest = bytes;
}

static void *saw(void *block, size_t bytes, const void *caller)
{
    if (!watch.on || block == NULL)
        return block;
    watch.live_bytes += (int64_t)malloc_usable_size(block);
    count(bytes, caller);
    return block;
}

static void saw_free(void *block)
{
    if (watch.on && block != NULL)
        watch.live_bytes -= (int64_t)malloc_usable_size(block);
}

#define EXPORTED __attribute__((visibility("default"), noinline))
#define CALLER   __builtin_return_address(0)

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *block, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *block);

EXPORTED void *malloc(size_t bytes)
{
    return saw(__libc_malloc(bytes), bytes, CALLER);
}

EXPORTED void *calloc(size_t count, size_t bytes)
{
    return saw(__libc_calloc(count, bytes), count * bytes, CALLER);
}

EXPORTED void *realloc(void *block, size_t bytes)
{
    saw_free(block);
    return saw(__libc_realloc(block, bytes), bytes, CALLER);
}

EXPORTED void *memalign(size_t alignment, size_t bytes)
{
    return saw(__libc_memalign(alignment, bytes), bytes, CALLER);
}

EXPORTED void *aligned_alloc(size_t alignment, size_t bytes)
{
    return saw(__libc_memalign(alignment, bytes), bytes, CALLER);
}

EXPORTED int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    void *made = saw(__libc_memalign(alignment, bytes), bytes, CALLER);
    if (made == NULL)
        return ENOMEM;
    *block = made;
    return 0;
}

EXPORTED void free(void *block)
{
    saw_free(block);
    __libc_free(block);
}

EXPORTED void *mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset)
{
    if (watch.on && watch.in_backend) {
        watch.n_arena_maps++;
        watch.arena_map_bytes += bytes;
    } else if (watch.on && access != PROT_NONE) { /* which are addresses, and no memory */
        count(bytes, CALLER);
    }
    return (void *)syscall(SYS_mmap, at, bytes, access, flags, fd, offset);
}
#endif

/* ---- the backend, wrapped ---------------------------------------------------------------------------- */

static struct {
    const struct backend *real;
    int n_alloc, n_release;
    size_t alloc_bytes, release_bytes;
    void *block;
} arena;

static void *counted_alloc(size_t bytes)
{
    arena.n_alloc++;
    arena.alloc_bytes += bytes;
    watch.in_backend = true;
    arena.block = arena.real->alloc(bytes);
    watch.in_backend = false;
    return arena.block;
}

static void counted_release(void *block, size_t bytes)
{
    assert_ptr_equal(block, arena.block);
    arena.n_release++;
    arena.release_bytes += bytes;
    arena.real->release(block, bytes);
}

static struct backend counted_backend(const struct backend *real)
{
    struct backend counted = *real;
    memset(&arena, 0, sizeof arena);
    arena.real = real;
    counted.alloc = counted_alloc;
    counted.release = counted_release;
    return counted;
}

/* ---- planned = allocated --------------------------------------------------------------------------- */

static const struct {
    const char *model, *sizes;
    int64_t n_parameters;
    bool small; /* quick enough to run a step of every combination */
} models[] = {
    /* 784 x 512 + 512 + 512 x 512 + 512 + 512 x 10 + 10 */
    {"mlp", "batch=4", 669706, true},
    /* (V + P) C + L (12 C^2 + 13 C) + 2 C */
    {"gpt-nano", "batch=4 seq=16", (256 + 256) * 384 + 6 * (12 * 384 * 384 + 13 * 384) + 2 * 384,
     true},
    {"gpt2", "batch=4 seq=64", (50257 + 1024) * 768 + 12 * (12 * 768 * 768 + 13 * 768) + 2 * 768,
     false},
};
static const struct {
    const char *name;
    int64_t bytes, master_bytes;
} precisions[] = {{"fp32", 4, 0}, {"bf16", 2, 4}, {"fp16", 2, 4}};
static const struct {
    const char *name;
    int64_t state_bytes;
} optimizers[] = {{"adamw", 8}, {"sgd", 0}};
static const int micro_batches[] = {1, 4};

#define LENGTH(array) (sizeof(array) / sizeof *(array))
enum {
    N_COMBINATIONS =
        LENGTH(models) * LENGTH(precisions) * LENGTH(micro_batches) * LENGTH(optimizers)
};

struct combination {
    size_t model, precision, micro, optimizer;
};

static struct combination combination(size_t i)
{
    struct combination c = {
        .model = i / 12, .precision = i / 4 % 3, .micro = i / 2 % 2, .optimizer = i % 2};
    return c;
}

static void check_ledger(const struct compiled_step *s, const snug_recipe *recipe,
                         struct combination c, const char *keys)
{
    struct snug_ledger l;
    struct snug_error err;
    compiled_step_ledger(s, recipe, &l);
    int64_t n = models[c.model].n_parameters;
    int64_t sum =
        l.parameters + l.gradients + l.optimizer + l.activations + l.temporary + l.fragmentation;
    int64_t states = optimizers[c.optimizer].state_bytes + precisions[c.precision].master_bytes;
    if (l.n_parameters != n || l.parameters != n * precisions[c.precision].bytes ||
        l.optimizer != n * states || sum != l.total || l.total != s->plan.arena_bytes ||
        l.fragmentation < 0 || l.gradients <= 0)
        fail_msg(
            "%s %s: parameters %lld in %lld bytes, optimizer %lld, six kinds %lld, total %lld, "
            "arena %lld",
            models[c.model].model, keys, (long long)l.n_parameters, (long long)l.parameters,
            (long long)l.optimizer, (long long)sum, (long long)l.total,
            (long long)s->plan.arena_bytes);
    must(plan_check(&s->prog, s->plan.offset, s->plan.arena_bytes, s->backend->alignment, &err),
         &err);
}

/* Weights, data and states of zero, as fresh pages are: enough for every kernel to run. */
static void run_step(const struct compiled_step *s, struct exec *exec)
{
    struct snug_error err;
    double *scalars = exec_scalars(exec);
    scalars[SCALAR_loss_scale] = scalars[SCALAR_clip] = 1;
    must(exec_run(exec, NULL, NULL, &err), &err);
    const struct tensor *loss = &s->prog.tensors[s->prog.loss];
    assert_true(isfinite(dtype_load(loss->dtype, exec_data(exec, s->prog.loss), 0)));
    assert_true(scalars[SCALAR_update_count] == 1);
}

static void check_combination(struct combination c, bool run)
{
    char keys[200];
    struct snug_error err;
    struct compiled_step s;
    struct exec *exec = NULL;
    snprintf(keys, sizeof keys, "%s precision=%s micro-batch=%d optimizer=%s threads=1",
             models[c.model].sizes, precisions[c.precision].name, 4 / micro_batches[c.micro],
             optimizers[c.optimizer].name);
    snug_model *model = model_of(models[c.model].model);
    snug_recipe *recipe = recipe_of(keys);
    struct compile_request q = {.model = model, .recipe = recipe, .train = true};
    must(compile_step(&q, &s, &err), &err);
    assert_int_equal(s.prog.n_repeat, micro_batches[c.micro]);
    check_ledger(&s, recipe, c, keys);

    struct backend backend = counted_backend(s.backend);
    watch_begin();
    must(exec_create(&s.prog, &s.plan, &backend, &s.facts, NULL, &exec, &err), &err);
    if (run)
        run_step(&s, exec);
    watch_end();
    size_t planned = (size_t)s.plan.arena_bytes;
    if (arena.n_alloc != 1 || arena.alloc_bytes != planned ||
        exec_allocated_bytes(exec) != s.plan.arena_bytes)
        fail_msg("%s %s: planned %zu bytes, allocated %zu in %d pieces", models[c.model].model,
                 keys, planned, arena.alloc_bytes, arena.n_alloc);
    if (WATCHES && (watch.n_arena_maps != 1 || watch.arena_map_bytes != planned))
        fail_msg("%s %s: planned %zu bytes, mapped %zu in %lld pieces", models[c.model].model, keys,
                 planned, watch.arena_map_bytes, (long long)watch.n_arena_maps);
    if (watch.largest > LARGE_BYTES)
        fail_msg("%s %s: %zu bytes were allocated beside the arena", models[c.model].model, keys,
                 watch.largest);
    exec_free(exec);
    assert_int_equal(arena.n_release, 1);
    assert_int_equal(arena.release_bytes, planned);
    compiled_step_free(&s);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_planned_is_allocated(void **state)
{
    (void)state;
    int n_run = 0;
    for (size_t i = 0; i < N_COMBINATIONS; i++) {
        struct combination c = combination(i);
        bool run = models[c.model].small;
        check_combination(c, run);
        n_run += run;
    }
    assert_int_equal(N_COMBINATIONS, 36);
    print_message("# %d combinations, 0 bytes apart; a step was run in %d\n", N_COMBINATIONS,
                  n_run);
}

/* Under asan malloc is not ours to watch. */
static void skip_unless_watched(void)
{
    const char *reason = NULL;
    if (!WATCHES)
        reason = "asan has its own malloc: the optimized build counts";
    if (reason != NULL) {
        print_message("skip: %s\n", reason);
        skip();
    }
}

/* GPT-2 itself takes gigabytes and seconds: one combination, in the optimized build. */
static void test_step_of_gpt2(void **state)
{
    (void)state;
    skip_unless_watched();
    struct combination c = {.model = 2, .precision = 0, .micro = 0, .optimizer = 1};
    check_combination(c, true);
}

/* ---- no allocation in a step -------------------------------------------------------------------------- */

enum { FIRST_WATCHED = 1, LAST_WATCHED = 4 };

static int watch_steps(const struct snug_metrics *m, void *user)
{
    (void)user;
    if (m->step == FIRST_WATCHED)
        watch_begin();
    else if (m->step == LAST_WATCHED)
        watch_end();
    return 0;
}

static void print_callers(void)
{
    for (int i = 0; i < MAX_CALLERS && i < watch.by[OWN].n; i++) {
        Dl_info info = {0};
        dladdr(watch.callers[i], &info);
        print_message("# allocated by %s, %s + %#zx\n", info.dli_fname,
                      info.dli_sname == NULL ? "" : info.dli_sname,
                      (size_t)((const char *)watch.callers[i] - (const char *)info.dli_fbase));
    }
}

static void check_steps(const char *spec, const char *sizes, const char *precision, int threads)
{
    char keys[200];
    struct snug_error err;
    struct snug_summary summary;
    snug_trainer *trainer = NULL;
    snprintf(keys, sizeof keys, "%s micro-batch=2 threads=%d precision=%s", sizes, threads,
             precision);
    snug_model *model = model_of(spec);
    snug_recipe *recipe = recipe_of(keys);
    struct snug_train_options options = {.data = "random", .steps = LAST_WATCHED, .eval_every = -1};
    must(snug_trainer_open(model, recipe, &options, &trainer, &err), &err);
    must(snug_trainer_run(trainer, watch_steps, NULL, &err), &err);
    print_message("# %s, %s, %d threads: in 3 steps our own: %lld;", spec, precision, threads,
                  (long long)watch.by[OWN].n);
    print_message(" oneDNN: %lld, %zu bytes, at most %zu;", (long long)watch.by[ONEDNN].n,
                  watch.by[ONEDNN].bytes, watch.by[ONEDNN].largest);
    print_message(" OpenMP: %lld, %zu bytes, at most %zu; not freed: %lld bytes\n",
                  (long long)watch.by[OPENMP].n, watch.by[OPENMP].bytes, watch.by[OPENMP].largest,
                  (long long)watch.live_bytes);
    print_callers();
    assert_int_equal(watch.by[OWN].n, 0);
    assert_int_equal(watch.live_bytes, 0);
    assert_in_range(watch.largest, 0, LIBRARY_MAX_BYTES);
    snug_trainer_summary(trainer, &summary);
    assert_int_equal(summary.planned_bytes, summary.allocated_bytes);
    snug_trainer_free(trainer);
    snug_recipe_free(recipe);
    snug_model_free(model);
}

static void test_steps_allocate_nothing(void **state)
{
    (void)state;
    skip_unless_watched();
    for (size_t p = 0; p < LENGTH(precisions); p++) {
        check_steps("mlp", "batch=4", precisions[p].name, 1);
        check_steps("gpt-nano", "batch=4 seq=16", precisions[p].name, 1);
        check_steps("cnn", "batch=4", precisions[p].name, 2);
    }
    check_steps("resnet18:3x8x8,classes=10", "batch=4", "fp32", 2);
    check_steps("vit-tiny:1x28x28,classes=10", "batch=4", "fp32", 1);
    check_steps("gpt-nano", "batch=4 seq=16", "fp32", 2);
    check_steps("gpt-nano", "batch=4 seq=16 dropout=0.1 label-smoothing=0.1", "bf16", 2);
    check_steps("gpt-nano", "batch=4 seq=32 offload=states+activations", "bf16", 2);
    check_steps("gpt-nano", "batch=4 seq=16 lora=2 lora-on=all lora-base=4", "bf16", 2);
}

static void test_steps_of_decoders(void **state)
{
    (void)state;
    char dir[FILES_PATH_MAX];
    skip_unless_watched();
    files_make_dir(dir);
    decoders_write(dir);
    for (int i = 0; decoders_family(i) != NULL; i++)
        for (size_t p = 0; p < LENGTH(precisions); p++)
            check_steps(files_path(dir, decoders_family(i)), "batch=4 seq=16", precisions[p].name,
                        1 + (int)p % 2);
    check_steps(files_path(dir, "qwen3"), "batch=4 seq=16 checkpoint=cheap", "bf16", 2);
    check_steps(files_path(dir, "llama"), "batch=4 seq=16 offload=states+activations", "bf16", 2);
    check_steps(files_path(dir, "qwen2"), "batch=4 seq=16 lora=2 lora-on=all", "bf16", 1);
    check_steps(files_path(dir, "qwen3"), "batch=4 seq=16 lora=2 lora-on=all lora-base=4", "bf16",
                2);
    files_remove_dir(dir);
}

/* The watch itself: it sees what it is meant to see. */
static void test_watch_sees(void **state)
{
    (void)state;
    skip_unless_watched();
    watch_begin();
    char *small = strdup("seen"); /* through libc, as from a library */
    void *volatile large = malloc((size_t)LARGE_BYTES + 1);
    void *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    watch_end();
    assert_int_equal(watch.by[OWN].n, 3);
    assert_int_equal(watch.largest, (size_t)LARGE_BYTES + 1);
    assert_true(watch.live_bytes > LARGE_BYTES);
#if defined(SNUG_ONEDNN)
    assert_in_range(watch.n_ranges, 1, MAX_RANGES);
#endif
    munmap(map, 4096);
    free(large);
    free(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watch_sees),        cmocka_unit_test(test_planned_is_allocated),
        cmocka_unit_test(test_step_of_gpt2),      cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_steps_of_decoders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
