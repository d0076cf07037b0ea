/*
 * emulate.cc -- blocks as sets of fibers, and streams that execute work at once.  See emulate.h.
 *
 * The threads of a block are resumed one after another; each runs until it waits or ends.  When all
 * remaining threads of a block wait at __syncthreads, or all of a warp at a shuffle, they are
 * released.  If no thread can continue, the kernel is wrong and the process aborts with a message.
 *
 * The state is global to the process: a lock serializes launches, as if there were one GPU.
 */
#include "base/dtype.h"
#include "cuda/emulation/emulate.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 512 << 10 };
#else
enum { STACK_BYTES = 128 << 10 };
static void __sanitizer_start_switch_fiber(void **, const void *, size_t)
{
}
static void __sanitizer_finish_switch_fiber(void *, const void **, size_t *)
{
}
#endif

enum { THREADS_MOST = 1024, WARP_THREADS = 32, SLOT_BYTES = 32 };

dim3 threadIdx, blockIdx, blockDim, gridDim;

/* ---- fibers --------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Saves the callee-saved registers on the current stack and continues on the other one. */
extern "C" void emulated_switch(void **save, void *load);
__asm__(".text\n.globl emulated_switch\n.hidden emulated_switch\nemulated_switch:\n"
        "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, (%rdi); mov %rsi, %rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret\n"
        ".section .note.GNU-stack,\"\",@progbits\n.text\n");
struct context {
    void *stack_pointer;
};
static void context_make(struct context *c, unsigned char *stack, void (*begin)(void))
{
    void **top = (void **)(stack + STACK_BYTES - 56); /* the alignment after a call */
    top[0] = nullptr;
    top[-1] = (void *)begin;
    c->stack_pointer = top - 7;
}
static void context_switch(struct context *from, struct context *to)
{
    emulated_switch(&from->stack_pointer, to->stack_pointer);
}
#else
#include <ucontext.h>
struct context {
    ucontext_t state;
};
static void context_make(struct context *c, unsigned char *stack, void (*begin)(void))
{
    getcontext(&c->state);
    c->state.uc_stack.ss_sp = stack;
    c->state.uc_stack.ss_size = STACK_BYTES;
    c->state.uc_link = nullptr;
    makecontext(&c->state, begin, 0);
}
static void context_switch(struct context *from, struct context *to)
{
    swapcontext(&from->state, &to->state);
}
#endif

enum fiber_state { FRESH, READY, AT_BARRIER, AT_SHUFFLE, ENDED };

struct fiber {
    struct context context;
    enum fiber_state state;
    dim3 thread;
    int n_shuffles;
    void *fake_stack; /* for asan */
};

/* The values published by the lanes of a warp, for this shuffle and the previous one: a lane that
 * is ahead by one does not overwrite what others still read. */
struct warp_slots {
    unsigned char bytes[2][WARP_THREADS][SLOT_BYTES];
    int shuffle_number[2][WARP_THREADS]; /* the number of the shuffle */
};

static struct {
    std::mutex lock;
    struct fiber fibers[THREADS_MOST];
    struct warp_slots warps[THREADS_MOST / WARP_THREADS];
    unsigned char *stacks;
    struct context scheduler;
    void *scheduler_fake_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    int now, n_threads; /* the running fiber; threads per block */
    const std::function<void()> *thread;
    unsigned char *shared;
    long n_launches;
} gpu;

static void fail(const char *why)
{
    fprintf(stderr, "emulated kernel: %s, block %u, thread %d\n", why, blockIdx.x, gpu.now);
    abort();
}

static void leave_fiber(enum fiber_state state)
{
    struct fiber *f = &gpu.fibers[gpu.now];
    f->state = state;
    __sanitizer_start_switch_fiber(state == ENDED ? nullptr : &f->fake_stack, gpu.scheduler_stack,
                                   gpu.scheduler_stack_bytes);
    context_switch(&f->context, &gpu.scheduler);
    __sanitizer_finish_switch_fiber(f->fake_stack, nullptr, nullptr);
}

static void fiber_begin(void)
{
    __sanitizer_finish_switch_fiber(nullptr, &gpu.scheduler_stack, &gpu.scheduler_stack_bytes);
    (*gpu.thread)();
    leave_fiber(ENDED);
}

static void resume(int i)
{
    struct fiber *f = &gpu.fibers[i];
    unsigned char *stack = gpu.stacks + (size_t)i * STACK_BYTES;
    if (f->state == FRESH)
        context_make(&f->context, stack, fiber_begin);
    gpu.now = i;
    threadIdx = f->thread;
    __sanitizer_start_switch_fiber(&gpu.scheduler_fake_stack, stack, STACK_BYTES);
    context_switch(&gpu.scheduler, &f->context);
    __sanitizer_finish_switch_fiber(gpu.scheduler_fake_stack, nullptr, nullptr);
}

/* Releases threads [begin, end) if all that have not ended wait in `state`; returns true if any was
 * released. */
static bool release(int begin, int end, enum fiber_state state)
{
    int n_waiting = 0;
    for (int i = begin; i < end; i++) {
        if (gpu.fibers[i].state != state && gpu.fibers[i].state != ENDED)
            return false;
        n_waiting += gpu.fibers[i].state == state;
    }
    for (int i = begin; i < end; i++)
        if (gpu.fibers[i].state == state)
            gpu.fibers[i].state = READY;
    return n_waiting > 0;
}

static bool release_waiting(void)
{
    bool any = release(0, gpu.n_threads, AT_BARRIER);
    for (int begin = 0; begin < gpu.n_threads; begin += WARP_THREADS) {
        int end = begin + WARP_THREADS < gpu.n_threads ? begin + WARP_THREADS : gpu.n_threads;
        any = release(begin, end, AT_SHUFFLE) || any;
    }
    return any;
}

static void run_block(bool backward)
{
    for (int i = 0; i < gpu.n_threads; i++) {
        struct fiber *f = &gpu.fibers[i];
        f->state = FRESH;
        f->n_shuffles = 0;
        f->thread = dim3((unsigned)i % blockDim.x, (unsigned)i / blockDim.x % blockDim.y,
                         (unsigned)i / blockDim.x / blockDim.y);
    }
    memset(gpu.warps, 0xff, sizeof gpu.warps);
    for (int n_left = gpu.n_threads; n_left > 0;) {
        for (int k = 0; k < gpu.n_threads; k++) {
            int i = backward ? gpu.n_threads - 1 - k : k;
            if (gpu.fibers[i].state != FRESH && gpu.fibers[i].state != READY)
                continue;
            resume(i);
            n_left -= gpu.fibers[i].state == ENDED;
        }
        if (n_left > 0 && !release_waiting())
            fail("some threads wait at a barrier or shuffle that others never reach");
    }
}

/* Checks each dimension separately: their product may wrap around. */
static bool is_within(dim3 sides, unsigned most_x, unsigned most_y, unsigned most_z)
{
    return sides.x > 0 && sides.y > 0 && sides.z > 0 && sides.x <= most_x && sides.y <= most_y &&
           sides.z <= most_z;
}

void emulated_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread)
{
    std::lock_guard<std::mutex> guard(gpu.lock);
    if (!is_within(grid, INT32_MAX, UINT16_MAX, UINT16_MAX) ||
        !is_within(block, THREADS_MOST, THREADS_MOST, 64) ||
        block.x * block.y * block.z > THREADS_MOST || shared_bytes > (227 << 10))
        fail("the launch exceeds the limits of a GPU");
    if (gpu.stacks == nullptr)
        gpu.stacks = (unsigned char *)mmap(nullptr, (size_t)THREADS_MOST * STACK_BYTES,
                                           PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    gridDim = grid;
    blockDim = block;
    gpu.n_threads = (int)(block.x * block.y * block.z);
    gpu.thread = &thread;
    gpu.shared = (unsigned char *)malloc(shared_bytes + 1);
    bool backward = __builtin_popcountl((unsigned long)gpu.n_launches++) % 2 != 0;
    uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z;
    for (uint64_t k = 0; k < n_blocks; k++) {
        uint64_t i = backward ? n_blocks - 1 - k : k;
        blockIdx = dim3((unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                        (unsigned)(i / grid.x / grid.y));
        memset(gpu.shared, 0xff, shared_bytes); /* NaN, as uninitialized memory might hold */
        run_block(backward);
    }
    free(gpu.shared);
}

void *emulated_shared(void)
{
    return gpu.shared;
}

void __syncthreads(void)
{
    leave_fiber(AT_BARRIER);
}

int emulated_lane(void)
{
    return gpu.now % WARP_THREADS;
}

/* Starts the next shuffle of the warp: publishes this thread's value, waits, and returns the number
 * of the shuffle.  Its parity selects the buffer. */
static int publish(const void *mine, size_t bytes)
{
    int number = gpu.fibers[gpu.now].n_shuffles++, lane = emulated_lane();
    struct warp_slots *slots = &gpu.warps[gpu.now / WARP_THREADS];
    if (bytes > SLOT_BYTES)
        fail("shuffle of more than 32 bytes");
    memcpy(slots->bytes[number % 2][lane], mine, bytes);
    slots->shuffle_number[number % 2][lane] = number;
    leave_fiber(AT_SHUFFLE);
    return number;
}

const void *emulated_shuffle(const void *mine, size_t bytes, int lane)
{
    int number = publish(mine, bytes);
    struct warp_slots *slots = &gpu.warps[gpu.now / WARP_THREADS];
    if (slots->shuffle_number[number % 2][lane] != number)
        lane = emulated_lane();
    return slots->bytes[number % 2][lane];
}

unsigned __ballot_sync(unsigned, int predicate)
{
    int number = publish(&predicate, sizeof predicate);
    struct warp_slots *slots = &gpu.warps[gpu.now / WARP_THREADS];
    unsigned votes = 0;
    for (int lane = 0; lane < WARP_THREADS; lane++) {
        int vote;
        memcpy(&vote, slots->bytes[number % 2][lane], sizeof vote);
        if (slots->shuffle_number[number % 2][lane] == number && vote != 0)
            votes |= 1u << lane;
    }
    return votes;
}

/* Element k of a row of 16 that four lanes hold, two per register: `low` for k < 8, else `high`. */
static float fragment_at(const struct warp_slots *slots, int number, int row, int k, int low,
                         int high, bool is_bf16)
{
    int lane = row * 4 + k % 8 / 2;
    uint32_t words[6];
    memcpy(words, slots->bytes[number % 2][lane], sizeof words);
    uint16_t bits = (uint16_t)(words[k < 8 ? low : high] >> (k % 2 * 16));
    return is_bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void emulated_mma(float d[4], const uint32_t a[4], const uint32_t b[2], bool is_bf16)
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    int number = publish(mine, sizeof mine), lane = emulated_lane();
    const struct warp_slots *slots = &gpu.warps[gpu.now / WARP_THREADS];
    for (int i = 0; i < 4; i++) {
        int column = lane % 4 * 2 + i % 2, upper = i / 2; /* rows lane / 4 and lane / 4 + 8 */
        for (int k = 0; k < 16; k++)
            d[i] += fragment_at(slots, number, lane / 4, k, upper, upper + 2, is_bf16) *
                    fragment_at(slots, number, column, k, 4, 5, is_bf16);
    }
}

/* ---- streams, events, graphs ---------------------------------------------------------------- */

struct emulated_graph {
    std::vector<std::function<void()>> work;
    std::vector<struct emulated_stream *> streams; /* captured into it */
    int n_owners;                                  /* the graph and its executable are one object
                                                    * here */
};
struct emulated_stream {
    struct emulated_graph *capture; /* NULL if work executes at once */
};
struct emulated_event {
    struct emulated_graph *capture;
    double seconds;
};

static size_t allocated_bytes; /* of device memory, for cudaMemGetInfo */
static const size_t device_bytes = (size_t)8 << 30;

void emulated_submit(cudaStream_t stream, std::function<void()> work)
{
    if (stream != nullptr && stream->capture != nullptr)
        stream->capture->work.push_back(work);
    else
        work();
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess                 ? "no error"
           : error == cudaErrorMemoryAllocation ? "out of memory"
                                                : "invalid argument";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

/* SNUG_EMULATED_GPUS sets the number of GPUs, for ranks that need one each. */
cudaError_t cudaGetDeviceCount(int *count)
{
    const char *setting = getenv("SNUG_EMULATED_GPUS");
    *count = setting == nullptr ? 1 : atoi(setting);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

/* As on an H200, except for the number of SMs. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrMultiProcessorCount ? 2 : 227 << 10;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    snprintf(text, (size_t)bytes, "emulated:%d", device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int)
{
    *prop = cudaDeviceProp();
    snprintf(prop->name, sizeof prop->name, "an emulated GPU");
    prop->totalGlobalMem = device_bytes;
    prop->major = 9;
    prop->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = device_bytes;
    *free_bytes = device_bytes - allocated_bytes;
    return cudaSuccess;
}

/* A header before each block stores its size. */
enum { HEADER_BYTES = 256 };

cudaError_t cudaMalloc(void **block, size_t bytes)
{
    void *whole = nullptr;
    if (bytes > device_bytes - allocated_bytes ||
        posix_memalign(&whole, HEADER_BYTES, bytes + HEADER_BYTES) != 0)
        return cudaErrorMemoryAllocation;
    *(size_t *)whole = bytes;
    allocated_bytes += bytes;
    *block = (unsigned char *)whole + HEADER_BYTES;
    memset(*block, 0xff, bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *block)
{
    if (block == nullptr)
        return cudaSuccess;
    void *whole = (unsigned char *)block - HEADER_BYTES;
    allocated_bytes -= *(size_t *)whole;
    free(whole);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **block, size_t bytes, unsigned)
{
    *block = malloc(bytes > 0 ? bytes : 1);
    return *block != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *block)
{
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream)
{
    emulated_submit(stream, [=] { memmove(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    emulated_submit(stream, [=] { memset(to, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = new emulated_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return stream != nullptr && stream->capture != nullptr ? cudaErrorStreamCaptureUnsupported
                                                           : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return cudaStreamSynchronize(stream);
}

/* A stream that waits for a captured stream is captured with it. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (event->capture != nullptr && stream->capture != event->capture) {
        stream->capture = event->capture;
        stream->capture->streams.push_back(stream);
    }
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new emulated_event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    event->seconds = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    event->capture = stream == nullptr ? nullptr : stream->capture;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return event->capture != nullptr ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
{
    *milliseconds = (float)(1e3 * (end->seconds - begin->seconds));
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    stream->capture = new emulated_graph();
    stream->capture->streams.push_back(stream);
    stream->capture->n_owners = 1;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = stream->capture;
    if (*graph == nullptr)
        return cudaErrorInvalidValue;
    for (auto captured : (*graph)->streams)
        captured->capture = nullptr;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    graph->n_owners++;
    *exec = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (--graph->n_owners == 0)
        delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return cudaGraphDestroy(exec);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (stream != nullptr && stream->capture != nullptr)
        return cudaErrorStreamCaptureUnsupported;
    for (auto &work : exec->work)
        work();
    return cudaSuccess;
}
