/*
 * backend.h -- the interface of a device: a kernel table, and memory for the arena.
 *
 * A kernel is called in three phases.  Planning: workspace_bytes, a function of shapes and of the
 * declared device facts only.  Before the first step: prepare, which may allocate (JIT code,
 * library handles).  In a step: run, which may not allocate.
 */
#ifndef SNUG_EXEC_BACKEND_H
#define SNUG_EXEC_BACKEND_H

#include "ir/kernel_choice.h"
#include "ir/program.h"

struct cpu_isa;
struct device; /* an open device: its streams and library handles */

struct device_facts { /* declared, not measured: a plan can be made on any machine */
    int threads;
    bool reference_only; /* use the plain C reference kernel for every op */
    /* The CPU's instruction set, found when a step is compiled; NULL: found when needed
     * (cpu_isa.h). */
    const struct cpu_isa *isa;
    /* Choose the kernel with the least workspace: for a program that must fit a given arena. */
    bool least_workspace;
    bool nondeterministic; /* sums may change their order from run to run, if that is faster */
    /* Folder of an offload pool that is a file; NULL: the system's folder for temporary files. */
    const char *pool_folder;
    /* The open device, for prepare and run; NULL while planning, and on the CPU. */
    struct device *device;
    struct comm *comm; /* the ranks of this run; NULL for a single rank or while planning */
    struct comm *const *groups; /* groups of them, by enum collective_group; NULL: only all ranks */
    /* Global number of this rank's first micro-batch: random numbers depend on the global
     * number. */
    int first_micro;
};

/* Memory outside the device for offloaded tensors.  Thread-safe. */
struct offload_pool {
    enum snug_status (*read)(struct offload_pool *pool, int64_t at, void *to, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*write)(struct offload_pool *pool, int64_t at, const void *from,
                              int64_t n_bytes, struct snug_error *err);
    void (*close)(struct offload_pool *pool);
};

struct comm;

/* Runs a collective, send or recv op together with the other ranks. */
struct kernel_call;
struct collective_runner {
    enum snug_status (*run)(struct collective_runner *collective_runner,
                            const struct kernel_call *call, struct snug_error *err);
};

struct operand {
    void *data;                  /* NULL if omitted, or in the offload pool */
    const struct tensor *tensor; /* NULL if omitted */
    int64_t pool_offset;         /* offset in the offload pool */
    /* For a view or a prefetched copy: the name of the whole tensor and the index of the first
     * element in it, so that random numbers do not depend on where a tensor is.  NULL: its own. */
    const char *whole_name;
    int64_t whole_from;
};

static inline const char *operand_name(const struct operand *x)
{
    return x->whole_name != NULL ? x->whole_name : x->tensor->name;
}

struct kernel_call {
    const struct op *op;
    const struct device_facts *facts;
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
    void *work;     /* workspace_bytes bytes, 64-byte aligned; NULL if 0 */
    void *prepared; /* the result of prepare */
    bool add;       /* outputs that accumulate: += (true) or = (false) */
    /* Number of the micro-batch, from 0 over all ranks.  A recorded run is replayed for other
     * micro-batches, so GPU kernels read scalars[SCALAR_micro] instead and add op->micro. */
    int micro;
    void *stream;                                /* the device's; NULL on the CPU */
    struct offload_pool *pool;                   /* NULL if nothing is offloaded */
    struct collective_runner *collective_runner; /* NULL for a single rank */
};

/* For update kernels: does the op have all states that its rule needs? */
static inline enum snug_status update_check_states(const struct kernel_call *call, int n_states,
                                                   struct snug_error *err)
{
    for (int j = 0; j < n_states; j++)
        if (update_n_states(call->op) != n_states || call->in[UPDATE_STATES + 2 * j].data == NULL)
            return snug_fail(err, SNUG_BAD_PROGRAM, "update of \"%s\": the rule has %d states",
                             call->in[UPDATE_WEIGHT].tensor->name, n_states);
    return SNUG_OK;
}

struct kernel {
    enum op_kind kind;
    const char *name; /* "reference", "avx512", "onednn"... */
    /* NULL: supports every case of the op. */
    bool (*supports)(const struct program *prog, const struct op *op);
    size_t (*workspace_bytes)(const struct program *prog, const struct op *op,
                              const struct device_facts *facts); /* NULL: none */
    /* True if output 0 must not alias an input although the op allows it.  NULL: it may alias. */
    bool (*no_alias)(const struct program *prog, const struct op *op);
    /* For ops with an optional column sum of output 0 (dsum): does the kernel compute it almost for
     * free?  NULL: no. */
    bool (*sums_columns)(const struct program *prog, const struct op *op);
    enum snug_status (*prepare)(const struct program *prog, const struct op *op,
                                const struct device_facts *facts, void **prepared,
                                struct snug_error *err); /* NULL: nothing to prepare */
    void (*release)(void *prepared);
    enum snug_status (*run)(const struct kernel_call *call, struct snug_error *err);
    /* Runs the first of n consecutive calls of this kernel, together with as many of the following
     * as it can batch; *n_run is their number.  NULL: one call at a time. */
    enum snug_status (*run_several)(const struct kernel_call *calls, int n, int *n_run,
                                    struct snug_error *err);
};

typedef const struct kernel *kernels_fn(int *n_kernels); /* returns a family of kernels */

/* The kernels of a backend are numbered from 1, through all its families.  Returns kernel `number`,
 * or NULL. */
static inline const struct kernel *kernels_at(kernels_fn *const *families, int n_families,
                                              int number)
{
    int left = number - 1;
    for (int f = 0; f < n_families && left >= 0; f++) {
        int n_kernels = 0;
        const struct kernel *kernels = families[f](&n_kernels);
        if (left < n_kernels)
            return &kernels[left];
        left -= n_kernels;
    }
    return NULL;
}

/* The number of the first kernel of the kind in families [begin, end) that supports the op, or 0.
 * With prog NULL, `supports` is not asked. */
static inline int kernels_find(kernels_fn *const *families, int begin, int end,
                               const struct program *prog, const struct op *op, enum op_kind kind)
{
    int n_before = 0;
    for (int f = 0; f < end; f++) {
        int n_kernels = 0;
        const struct kernel *kernels = families[f](&n_kernels);
        for (int i = 0; f >= begin && i < n_kernels; i++)
            if (kernels[i].kind == kind &&
                (prog == NULL || kernels[i].supports == NULL || kernels[i].supports(prog, op)))
                return n_before + i + 1;
        n_before += n_kernels;
    }
    return 0;
}

struct run_modes { /* the calling thread's modes before run_begin, for run_end to restore */
    int threads;
    bool dynamic_threads;
    unsigned float_mode;
};

struct device_limits { /* the device's peak rates, per second */
    double f32_flops;
    double bf16_flops; /* with tile instructions (AMX, tensor cores); 0 if there are none */
    /* copy and update (in place) count bytes read plus bytes written.  An update stores to the
     * lines it has just read, so no op moves bytes faster. */
    double read_bytes, copy_bytes, update_bytes;
};

/* Communication from device to device without the host (NCCL).  Every rank must have a device of
 * its own.  Work is enqueued on the stream of the call, like a kernel. */
struct direct; /* a communicator of the device's library */
enum { DIRECT_ID_BYTES = 128, DEVICE_TEXT_MAX = 96 };
struct direct_hooks {
    /* Is the library available?  text: its name ("NCCL 2.27.3"), or why not. */
    bool (*find)(char text[DEVICE_TEXT_MAX]);
    /* Called by one rank, which sends the id to all others before any of them opens. */
    enum snug_status (*make_id)(unsigned char id[DIRECT_ID_BYTES], struct snug_error *err);
    enum snug_status (*open)(struct device *device, const unsigned char id[DIRECT_ID_BYTES],
                             int rank, int n_ranks, struct direct **direct, struct snug_error *err);
    /* all_reduce, reduce_scatter, all_gather; call->work has work_bytes bytes on all ranks */
    enum snug_status (*run)(struct direct *direct, const struct kernel_call *call,
                            int64_t work_bytes, struct snug_error *err);
    /* Sends bytes to one rank and receives bytes from another; a size of 0 skips that direction. */
    enum snug_status (*pass)(struct direct *direct, int to, const void *out, int64_t out_bytes,
                             int from, void *in, int64_t in_bytes, void *stream,
                             struct snug_error *err);
    /* Has any enqueued work failed?  Does not wait. */
    enum snug_status (*check)(struct direct *direct, struct snug_error *err);
    /* Ends work in flight, finished or not.  After this only close may be called. */
    void (*abort)(struct direct *direct);
    void (*close)(struct direct *direct); /* after all recordings with collectives are freed */
};

struct recording; /* the work of a section on all streams, to be replayed (a CUDA graph) */

/* For a backend whose arena is not host memory: only its kernels and copies touch it.  Work is
 * enqueued on streams, which run in order; events synchronize streams. */
struct device_hooks {
    int (*count)(void); /* visible to this process; if 0, open returns the reason */
    enum snug_status (*open)(int number, struct device **device, struct snug_error *err);
    void (*close)(struct device *device);
    /* Its name, and its bus address: the same text in every process. */
    void (*identify)(struct device *device, char name[DEVICE_TEXT_MAX],
                     char place[DEVICE_TEXT_MAX]);
    int (*number)(struct device *device);   /* the number it was opened with */
    void (*use)(struct device *device);     /* makes it the calling thread's current device */
    void *(*stream)(struct device *device); /* kernels */
    /* copies from the offload pool, recvs and collectives */
    void *(*copy_stream)(struct device *device);
    /* copies to the offload pool, and sends to the neighbouring stages */
    void *(*evict_stream)(struct device *device);
    void *(*far_stream)(struct device *device); /* sends to other stages */
    /* Waits for all streams.  A failure of earlier work is reported here at the latest. */
    enum snug_status (*synchronize)(struct device *device, struct snug_error *err);
    /* Are all streams done?  Does not wait. */
    enum snug_status (*is_done)(struct device *device, bool *done, struct snug_error *err);

    /* Pinned host memory; NULL on failure. */
    void *(*alloc_host)(size_t bytes);
    void (*release_host)(void *block);
    /* Enqueued on the kernel stream.  Host memory must be from alloc_host and stay valid until
     * done. */
    enum snug_status (*push)(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*pull)(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*clear)(struct device *device, void *to, int64_t n_bytes,
                              struct snug_error *err);
    /* For collectives through the host, enqueued on the copy stream: copy in either direction, add
     * (to += from, both on the device); finish_copies makes the host wait for them. */
    enum snug_status (*copy)(struct device *device, void *to, const void *from, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*add)(struct device *device, enum dtype dtype, void *to, const void *from,
                            int64_t n_elems, struct snug_error *err);
    enum snug_status (*finish_copies)(struct device *device, struct snug_error *err);
    enum snug_status (*set_scalar)(struct device *device, double *at, double value,
                                   struct snug_error *err);
    /* Synchronous; any host memory, any thread. */
    enum snug_status (*read)(struct device *device, const void *from, void *to, int64_t n_bytes,
                             struct snug_error *err);
    enum snug_status (*write)(struct device *device, void *to, const void *from, int64_t n_bytes,
                              struct snug_error *err);

    enum snug_status (*event_make)(void **event, struct snug_error *err);
    void (*event_free)(void *event);
    enum snug_status (*event_record)(void *event, void *stream, struct snug_error *err);
    enum snug_status (*event_wait)(void *stream, void *event, struct snug_error *err);
    enum snug_status (*event_finish)(void *event, struct snug_error *err); /* the host waits */
    enum snug_status (*event_is_done)(void *event, bool *done, struct snug_error *err);
    double (*event_seconds)(void *begin, void *end); /* both must be done */

    /* Work enqueued between begin and end is recorded, not run. */
    enum snug_status (*record_begin)(struct device *device, struct snug_error *err);
    enum snug_status (*record_end)(struct device *device, struct recording **recording,
                                   struct snug_error *err);
    enum snug_status (*replay)(struct device *device, struct recording *recording,
                               struct snug_error *err);
    void (*recording_free)(struct recording *recording);

    int64_t (*used_bytes)(void); /* of the device's memory, by all processes */
    const struct direct_hooks *direct;
    int64_t (*memory_bytes)(int number); /* total memory, without opening the device; 0: unknown */
};

struct backend {
    const char *version; /* a plugin's; first member, so that any version of snug can read it */
    const char *name;
    int alignment; /* of every tensor in the arena, bytes */
    /* The number of the kernel for this op, from 1, or 0 if the backend has none.  Numbers are the
     * same in the library and in a plugin of the same version.  Called when a step is compiled; the
     * op stores the result. */
    int (*choose)(const struct program *prog, const struct op *op,
                  const struct device_facts *facts);
    void *(*alloc)(size_t bytes); /* allocates the arena; pages untouched; NULL on failure */
    void (*release)(void *block, size_t bytes);
    const struct device_hooks *hooks; /* NULL: the arena is host memory */
    const char *pool_place;           /* where the offload pool is, in a few words */
    /* Opens a zeroed offload pool.  All bytes are reserved now, so lack of space fails here. */
    enum snug_status (*open_pool)(const struct device_facts *facts, int64_t n_bytes,
                                  struct offload_pool **pool, struct snug_error *err);
    /* Around every run of kernels: run_begin sets thread count and float modes, run_end restores
     * the caller's. */
    struct run_modes (*run_begin)(const struct device_facts *facts);
    void (*run_end)(const struct device_facts *facts, const struct run_modes *modes);
    /* Measures for about a second; allocates.  False if out of memory. */
    bool (*measure)(const struct device_facts *facts, struct device_limits *limits);
    const struct kernel *(*kernel)(int number); /* by the number from choose; NULL if none */
};

/* The kernel that a backend chooses for an op; NULL if it has none. */
static inline const struct kernel *backend_choose(const struct backend *backend,
                                                  const struct program *prog, const struct op *op,
                                                  const struct device_facts *facts)
{
    return backend->kernel(backend->choose(prog, op, facts));
}

/* The same, with what the kernel needs from the plan. */
static inline struct kernel_choice backend_choice(const struct backend *backend,
                                                  const struct program *prog, const struct op *op,
                                                  const struct device_facts *facts)
{
    struct kernel_choice choice = {backend->choose(prog, op, facts), 0, false};
    const struct kernel *kernel = backend->kernel(choice.kernel);
    if (kernel != NULL && kernel->workspace_bytes != NULL)
        choice.workspace_bytes = kernel->workspace_bytes(prog, op, facts);
    if (kernel != NULL && kernel->no_alias != NULL)
        choice.no_alias = kernel->no_alias(prog, op);
    return choice;
}

/* src/cpu/cpu_backend.c */
const struct backend *backend_cpu(void);

/* src/cuda/dispatch/kernel_table.c */
/* The CUDA backend as far as planning needs it: kernels and alignment.  alloc is NULL;
 * exec/plugin.h loads the backend that runs. */
const struct backend *backend_cuda_table(void);
const char *backend_cuda_kernels(enum op_kind kind); /* for `snug ops` */

/* The rest: src/cpu/cpu_backend.c.
 *
 * For `snug ops`: the name of the fast kernel of a kind on this CPU; "" if there is none. */
const char *backend_cpu_simd_kernels(enum op_kind kind);
bool backend_cpu_has_reference(enum op_kind kind);
/* One line per library: "oneDNN 2.6.3 (avx512 cap)", "OpenMP 4.5", "isa avx512"... */
struct text;
void backend_cpu_describe(struct text *out);
/* The instructions that kernels use: those the CPU has and SNUG_CPU_LEVEL allows. */
const struct cpu_isa *backend_cpu_isa(void);
/* As text, for cache keys: "v4", "v4 and amx". */
const char *backend_cpu_isa_name(const struct cpu_isa *isa);

#endif
