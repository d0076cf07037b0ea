# snug -- `make` builds ./snug, libsnug.a and libsnug.so; `make help` lists the other targets.

MODE    ?= release
PREFIX  ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/.*SNUG_VERSION_STRING "\(.*\)"/\1/p' include/snug.h)
SOMAJOR := $(firstword $(subst ., ,$(VERSION)))

BUILD := build/$(MODE)
# V=1 prints the full commands.
ifeq ($(V),1)
  say := @true
  run :=
else
  say := @printf '  %-5s %s\n'
  run := @
endif

# Use all cores unless -j is given.
ifeq ($(MAKELEVEL)$(filter -j% --jobserver%,$(MAKEFLAGS)),0)
  MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif

# build/config.mk holds what configure found.  These goals compile nothing themselves, and some of
# them must run on a machine that has no compiler yet, so they do not run configure.
PLAIN_GOALS := setup test test-all demo layers format format-check clean help uninstall
ifneq ($(filter-out $(PLAIN_GOALS),$(or $(MAKECMDGOALS),all)),)
  -include build/config.mk
endif

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wvla -Werror -Wno-override-init
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc $(CONFIG_CPPFLAGS)
CFLAGS   += -std=c11 -g -fPIC -fvisibility=hidden $(WARNINGS) $(CONFIG_OPENMP)
LDLIBS   += $(CONFIG_LIBS)
ifeq ($(MODE),release)
  CFLAGS += -O2 -fno-math-errno
else ifeq ($(MODE),debug)
  CFLAGS += -O0 -DSNUG_DEBUG
else ifeq ($(MODE),asan)
  CFLAGS += -O1 -DSNUG_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else
  $(error MODE is release, debug or asan, not "$(MODE)")
endif

# The fast kernels are compiled once per instruction level.  The level is chosen at run time.
# Functions begin at cache lines, so that the speed of a loop does not depend on what is linked before it.
LOOP_FLAGS       := -O3 -falign-functions=64
SIMD_FLAGS       := $(LOOP_FLAGS) -fno-trapping-math -fno-signed-zeros -fassociative-math -ffp-contract=fast
LEVEL_FLAGS_base :=
LEVEL_FLAGS_v3   := -march=x86-64-v3
LEVEL_FLAGS_v4   := -march=x86-64-v4 -mprefer-vector-width=512

# Matmuls and attention on AMX tiles.  They are compiled with the AMX instructions if the compiler
# supports them, and with plain C emulation of the tiles so that every machine can test them.
# emulated_v4 uses AVX-512 around the tile instructions, as the real one does.
AMX_FLAGS_amx         := $(LEVEL_FLAGS_v4) -mamx-tile -mamx-bf16 -mavx512bf16
AMX_FLAGS_emulated    := -DSNUG_AMX_EMULATED
AMX_FLAGS_emulated_v4 := -DSNUG_AMX_EMULATED $(LEVEL_FLAGS_v4) -mavx512bf16
AMX_COPIES := emulated $(if $(CONFIG_AMX),emulated_v4 amx)

# All files of a folder are compiled in the same way.  The folders listed here are used only as
# noted; all others belong to the library (CONTRIBUTING.md describes each folder).
CLI_DIRS     := src/cli
SIMD_DIRS    := src/cpu/simd#        once per instruction level
AMX_DIRS     := src/cpu/amx#         once per entry of AMX_COPIES
MPI_DIRS     := src/comm/mpi#        one plugin per MPI
CUDA_DIRS    := src/cuda src/cuda/kernels src/cuda/attention src/cuda/optim# the CUDA plugin, and its emulation for tests
CUDA_LIB     := src/cuda/lib#        the plugin: calls cuBLASLt, cuDNN, NCCL
CUDA_EMU     := src/cuda/emulation#  the emulation of these libraries and of CUDA
# The part of the CUDA backend that plans need is in both the library and the plugin.
CUDA_PLAN    := src/cuda/dispatch
LIB_DIRS     := $(filter-out $(CLI_DIRS) $(SIMD_DIRS) $(AMX_DIRS) $(MPI_DIRS) $(CUDA_DIRS) $(CUDA_LIB) $(CUDA_EMU), \
                  $(patsubst %/,%,$(sort $(dir $(wildcard src/*/*.c src/*/*/*.c)))))
sources       = $(sort $(wildcard $(foreach d,$(1),$(addprefix $(d)/*.,$(2)))))

LIB_SRC      := $(call sources,$(LIB_DIRS),c)
SIMD_SRC     := $(call sources,$(SIMD_DIRS),c)
AMX_SRC      := $(call sources,$(AMX_DIRS),c)
CLI_SRC      := $(call sources,$(CLI_DIRS),c)
MPI_SRC      := $(call sources,$(MPI_DIRS),c)
DISPATCH_SRC := $(call sources,$(CUDA_PLAN),c)
PLUGIN_SRC   := $(DISPATCH_SRC) $(call sources,$(CUDA_DIRS) $(CUDA_LIB),c cu)
EMULATED_SRC := $(call sources,$(CUDA_DIRS) $(CUDA_EMU),c cu cc)
# One plugin per MPI, next to the program.  The program loads the one whose mpirun started it.
PLUGINS      := $(CONFIG_MPI:%=libsnug_%.so)

LIB_OBJ      := $(LIB_SRC:%.c=$(BUILD)/%.o) \
                $(foreach l,$(CONFIG_LEVELS),$(SIMD_SRC:%.c=$(BUILD)/%.$(l).o)) \
                $(foreach l,$(AMX_COPIES),$(AMX_SRC:%.c=$(BUILD)/%.$(l).o))
CLI_OBJ      := $(CLI_SRC:%.c=$(BUILD)/%.o)
PLUGIN_OBJ   := $(addprefix $(BUILD)/plugin/,$(addsuffix .o,$(PLUGIN_SRC)))
EMULATED_OBJ := $(addprefix $(BUILD)/emulated/,$(addsuffix .o,$(EMULATED_SRC)))
EMULATED_DISPATCH := $(addprefix $(BUILD)/emulated/,$(addsuffix .o,$(DISPATCH_SRC)))
# dispatch calls functions of base and ir; the plugin links its own hidden copy of them.
PLUGIN_LIB   := $(BUILD)/libsnug.a

TEST_SRC     := $(filter-out $(if $(CONFIG_NVCC),,tests/cudnn/%),$(sort $(wildcard tests/*/test_*.c)))
# The emulated CUDA threads are fibers with their own stacks, which asan does not support.  The op
# cases have guard bytes around every tensor instead.
ASAN_SRC     := $(filter-out tests/cuda/% tests/cudnn/%,$(TEST_SRC))
TEST_BIN     := $(patsubst %.c,$(BUILD)/%,$(if $(filter asan,$(MODE)),$(ASAN_SRC),$(TEST_SRC)))
TEST_LIB     := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/support/*.c)))
TEST_SCRIPTS := $(sort $(wildcard tests/*/*.sh))
BENCH_SRC    := $(sort $(wildcard bench/*.c))
BENCH_LIB    := $(BUILD)/tests/support/opcase.o $(BUILD)/tests/support/oprun.o
BENCH_BIN    := $(BENCH_SRC:%.c=$(BUILD)/%)
EXAMPLE_SRC  := $(sort $(wildcard examples/*.c))
EXAMPLE_BIN  := $(EXAMPLE_SRC:%.c=$(BUILD)/%)

ifeq ($(MODE),release)
all: snug libsnug.a libsnug.so $(if $(CONFIG_NVCC),libsnug_cuda.so) $(PLUGINS)
else
all: $(BUILD)/snug $(BUILD)/libsnug.a $(PLUGINS:%=$(BUILD)/%)
endif
.DEFAULT_GOAL := all

# ---- building ---------------------------------------------------------------------------------

snug libsnug.a libsnug.so libsnug_cuda.so $(PLUGINS): %: $(BUILD)/%
	@cp $< $@.tmp && mv $@.tmp $@

build/config.mk: tools/configure.sh
	@tools/configure.sh "$(CC)" $@

# Rewritten only if the flags change; then everything is recompiled.
FLAGS := $(CC) $(CPPFLAGS) $(CFLAGS) $(LOOP_FLAGS) $(SIMD_FLAGS) $(foreach l,base v3 v4,$(LEVEL_FLAGS_$(l))) \
         $(AMX_FLAGS_amx) $(AMX_FLAGS_emulated_v4)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS)' >$@.$$$$; if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

$(BUILD)/libsnug.a: $(LIB_OBJ)
	$(say) AR $@
	@rm -f $@
	$(run)$(AR) rcs $@ $^
$(BUILD)/libsnug.so: $(LIB_OBJ)
	$(say) LINK $@
	$(run)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libsnug.so.$(SOMAJOR) -o $@ $^ $(LDLIBS)
$(PLUGINS:%=$(BUILD)/%): $(BUILD)/libsnug_%.so: $(MPI_SRC) src/comm/mpi_plugin.h build/config.mk
	@mkdir -p $(@D)
	$(say) LINK $@
	$(run)$(CONFIG_MPICC_$*) $(CPPFLAGS) -std=c11 -g -O2 -fPIC -fvisibility=hidden -Wall -Wextra \
	    -Wno-stringop-overflow -DSNUG_MPI_NAME='"$(if $(filter openmpi,$*),Open MPI,MPICH)"' -shared -o $@ $(MPI_SRC)
$(BUILD)/snug: $(CLI_OBJ) $(BUILD)/libsnug.a
	$(say) LINK $@
	$(run)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/%.o: %.c build/config.mk $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC $<
	$(run)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

define SIMD_RULE
$(BUILD)/$(SIMD_DIRS)/%.$(1).o: $(SIMD_DIRS)/%.c build/config.mk $(BUILD)/flags
	@mkdir -p $$(@D)
	$(say) CC '$$< ($(1))'
	$(run)$(CC) $(CPPFLAGS) $(CFLAGS) $(SIMD_FLAGS) $(LEVEL_FLAGS_$(1)) -DSNUG_LEVEL=$(1) \
	    -MMD -MP -c -o $$@ $$<
endef
$(foreach l,base v3 v4,$(eval $(call SIMD_RULE,$(l))))

define AMX_RULE
$(BUILD)/$(AMX_DIRS)/%.$(1).o: $(AMX_DIRS)/%.c build/config.mk $(BUILD)/flags
	@mkdir -p $$(@D)
	$(say) CC '$$< ($(1))'
	$(run)$(CC) $(CPPFLAGS) $(CFLAGS) $(LOOP_FLAGS) $(AMX_FLAGS_$(1)) -DSNUG_TILES=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach l,amx emulated emulated_v4,$(eval $(call AMX_RULE,$(l))))

# ---- the CUDA plugin, and its emulation --------------------------------------------------------

CUDA_ARCHS := $(foreach a,80 89 90,-gencode arch=compute_$(a),code=sm_$(a)) \
              -gencode arch=compute_90,code=compute_90
CUDA_LIBS  := -lcudart_static -lcublasLt -lcudnn -ldl -lrt -lpthread
# Some headers have pragmas for nvcc that the host compiler does not know.
CUDA_FLAGS := -std=c++17 -O3 --expt-relaxed-constexpr \
              -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-unknown-pragmas
EMULATED_FLAGS := -std=c++17 $(filter-out -std=c11 -Wno-override-init -Wconversion -Wshadow,$(CFLAGS)) \
                  -ffp-contract=off

$(filter %.c.o,$(PLUGIN_OBJ)): $(BUILD)/plugin/%.c.o: %.c build/config.mk $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC '$< (plugin)'
	$(run)$(CC) $(CPPFLAGS) -DSNUG_CUDA_PLUGIN -isystem $(CONFIG_CUDA)/include $(CFLAGS) -MMD -MP -c -o $@ $<
$(filter %.cu.o,$(PLUGIN_OBJ)): $(BUILD)/plugin/%.cu.o: %.cu build/config.mk $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) NVCC $<
	$(run)$(CONFIG_NVCC) $(CPPFLAGS) -DSNUG_CUDA_PLUGIN $(CUDA_FLAGS) $(CUDA_ARCHS) -MMD -MP -c -o $@ $<
$(BUILD)/libsnug_cuda.so: $(PLUGIN_OBJ) $(PLUGIN_LIB)
	$(say) LINK $@
	$(run)$(CXX) $(filter-out -std=c11,$(CFLAGS)) $(LDFLAGS) -shared -Wl,--exclude-libs,ALL -Wl,-z,defs -o $@ $^ \
	    -L$(CONFIG_CUDA)/lib64 -Wl,-rpath,$(CONFIG_CUDA)/lib64 $(CUDA_LIBS) -lm

$(filter %.c.o,$(EMULATED_OBJ) $(EMULATED_DISPATCH)): $(BUILD)/emulated/%.c.o: %.c build/config.mk $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC '$< (emulated)'
	$(run)$(CC) $(CPPFLAGS) -DSNUG_CUDA_EMULATED $(CFLAGS) -MMD -MP -c -o $@ $<
$(filter-out %.c.o,$(EMULATED_OBJ)): $(BUILD)/emulated/%.o: % build/config.mk $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CXX '$< (emulated)'
	$(run)$(CXX) $(CPPFLAGS) -DSNUG_CUDA_EMULATED $(EMULATED_FLAGS) -MMD -MP -c -o $@ -x c++ $<

# The same tests linked with the real kernels, for a machine with a GPU.
GPU_TESTS    := $(addprefix test_cuda_,ops attention attention_reads bits exec update sums ranks gemm)
GPU_TEST_BIN := $(addprefix $(BUILD)/gpu/tests/cuda/,$(GPU_TESTS))
$(GPU_TEST_BIN): $(BUILD)/gpu/%: $(BUILD)/%.o $(TEST_LIB) $(PLUGIN_OBJ) $(BUILD)/libsnug.a
	@mkdir -p $(@D)
	$(say) LINK $@
	$(run)$(CXX) $(filter-out -std=c11,$(CFLAGS)) $(LDFLAGS) -o $@ $^ -lcmocka \
	    -L$(CONFIG_CUDA)/lib64 -Wl,-rpath,$(CONFIG_CUDA)/lib64 $(CUDA_LIBS) $(LDLIBS)

# Kernels with planted bugs that compute-sanitizer must find.
PLANTED := $(BUILD)/gpu/tests/cuda/planted
$(PLANTED): tests/cuda/planted.cu src/cuda/kernels/device.h build/config.mk $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) NVCC $<
	$(run)$(CONFIG_NVCC) $(CPPFLAGS) $(CUDA_FLAGS) $(CUDA_ARCHS) -o $@ $<

# An emulated plugin, for tests on machines without a GPU.  It is slow.
$(BUILD)/libsnug_cuda_emulated.so: $(EMULATED_DISPATCH) $(EMULATED_OBJ) $(PLUGIN_LIB)
	$(say) LINK $@
	$(run)$(CXX) $(filter-out -std=c11,$(CFLAGS)) $(LDFLAGS) -shared -Wl,--exclude-libs,ALL -Wl,-z,defs \
	    -o $@ $^ -lm

# Tests of the CUDA backend are linked with the emulation.
$(filter $(BUILD)/tests/cuda/%,$(TEST_BIN)): %: %.o $(TEST_LIB) $(EMULATED_OBJ) $(BUILD)/libsnug.a
	$(say) LINK $@
	$(run)$(CXX) $(filter-out -std=c11,$(CFLAGS)) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(BUILD)/tests/cuda/test_cuda_oracle: private LDFLAGS += -Wl,--wrap=backend_cpu
$(BUILD)/tests/cuda/test_tuning_cache: private LDFLAGS += -Wl,--wrap=realloc -Wl,--wrap=fopen

# Checks our graphs with the real cuDNN, which is given a fake GPU.
GRAPH_OBJ := $(patsubst %,$(BUILD)/plugin/src/cuda/lib/%.c.o,cudnn_graph cudnn_plan attention_cudnn conv_cudnn)
GRAPH_WRAPS := $(foreach f,CreateDescriptor SetAttribute GetAttribute Finalize DestroyDescriptor,-Wl,--wrap=cudnnBackend$(f))
$(BUILD)/tests/cudnn/test_graphs.o: private CPPFLAGS += -isystem $(CONFIG_CUDA)/include -DSNUG_CUDA_PLUGIN \
    -DCUDA_STUB='"$(CONFIG_CUDA)/lib64/stubs/libcuda.so"'
$(BUILD)/tests/cudnn/test_graphs: %: %.o $(GRAPH_OBJ) $(BUILD)/libsnug.a
	$(say) LINK $@
	$(run)$(CC) $(CFLAGS) $(LDFLAGS) $(GRAPH_WRAPS) -o $@ $^ -lcmocka -L$(CONFIG_CUDA)/lib64 \
	    -Wl,-rpath,$(CONFIG_CUDA)/lib64 -lcudnn $(LDLIBS)

# Checks our NCCL declarations against its header and library.
$(BUILD)/tests/cudnn/test_nccl.o: private CPPFLAGS += -isystem $(CONFIG_CUDA)/include -DSNUG_CUDA_PLUGIN
$(BUILD)/tests/cudnn/test_nccl: %: %.o $(BUILD)/plugin/src/cuda/lib/nccl_load.c.o
	$(say) LINK $@
	$(run)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka -Wl,-rpath,$(CONFIG_CUDA)/lib64 -ldl

# Every tests/*/test_*.c is one cmocka program.
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_LIB) $(BUILD)/libsnug.a
	$(say) LINK $@
	$(run)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)
$(BUILD)/tests/%.o: private CPPFLAGS += -Itests
# Compiled with the same flags as the code under test.
$(BUILD)/tests/ops/test_lanes.o: private CFLAGS += $(if $(filter v4,$(CONFIG_LEVELS)),$(LEVEL_FLAGS_v4))
# Passes vectors wider than registers by value, but only within this file.
$(BUILD)/tests/ops/test_simd_gemm.o: private CFLAGS += -Wno-psabi

# The whole program, with every allocating function wrapped so that the test can make it fail.
ALLOCATORS := malloc calloc realloc strdup strndup getline __getdelim fopen fdopen opendir realpath mmap \
              pthread_create gzdopen
FAULT_OBJ  := $(patsubst %,$(BUILD)/tests/fault/%.o,allocations trees snug_main)
$(BUILD)/tests/fault/snug_main.o: src/cli/main.c build/config.mk $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC '$< (tests)'
	$(run)$(CC) $(CPPFLAGS) $(CFLAGS) -Dmain=snug_main -MMD -MP -c -o $@ $<
$(BUILD)/tests/fault/test_no_memory: %: %.o $(FAULT_OBJ) $(filter-out %/main.o,$(CLI_OBJ)) $(TEST_LIB) \
        $(BUILD)/libsnug.a
	$(say) LINK $@
	$(run)$(CC) $(CFLAGS) $(LDFLAGS) $(ALLOCATORS:%=-Wl,--wrap=%) -o $@ $^ -lcmocka $(LDLIBS)

# Like the tests, the benchmarks run the shipped kernels.
$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BENCH_LIB) $(BUILD)/libsnug.a
	$(say) LINK $@
	$(run)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/bench/%.o: private CPPFLAGS += -Itests

# Examples include the public header only.
$(BUILD)/examples/%: examples/%.c $(BUILD)/libsnug.a include/snug.h
	@mkdir -p $(@D)
	$(say) CC $<
	$(run)$(CC) -Iinclude $(CFLAGS) $(LDFLAGS) -o $@ $< $(BUILD)/libsnug.a $(LDLIBS)

tests-bin: $(TEST_BIN) $(if $(filter release,$(MODE)),$(BUILD)/libsnug_cuda_emulated.so)
bench-bin: $(BENCH_BIN)
examples: $(EXAMPLE_BIN)
.SECONDARY:

-include $(EMULATED_OBJ:.o=.d) $(EMULATED_DISPATCH:.o=.d) $(PLUGIN_OBJ:.o=.d) $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TEST_LIB:.o=.d) $(TEST_SRC:%.c=$(BUILD)/%.d) \
         $(BENCH_SRC:%.c=$(BUILD)/%.d) $(FAULT_OBJ:.o=.d)

# ---- testing and the demo ----------------------------------------------------------------------

setup:
	@tools/setup.sh

# There are two tiers of tests (docs/testing.md).  `test` runs every test at its small size, in the
# release build, without nvcc.  `test-all` runs every test at full size, the unit tests also in the
# asan build, and the tests that need the CUDA plugin.  Stamps keep it from repeating what `test` has
# already passed.
TEST_BEGUN  = TEST_BEGIN=$$(date +%s) && export TEST_BEGIN
RUN_TESTS   = SNUG=$(CURDIR)/snug TEST_STAMPS=build/stamps tools/run-tests.sh
# An empty CONFIG_NVCC leaves out the CUDA plugin.  All other objects and programs are the same.
WITHOUT_CUDA := CONFIG_NVCC=

test:
	@tools/setup.sh
	@$(TEST_BEGUN); $(MAKE) --no-print-directory MODE=release $(WITHOUT_CUDA) all tests-bin examples && \
	    $(MAKE) --no-print-directory $(WITHOUT_CUDA) run-tests-small
run-tests-small:
	@SNUG_TEST_SIZE=small TEST_BUDGET=480 TEST_NAME='make test' $(RUN_TESTS) tools/layers.sh \
	    $(TEST_SRC:%.c=build/release/%) $(EXAMPLE_SRC:%.c=build/release/%) $(TEST_SCRIPTS)

test-all:
	@tools/setup.sh
	@$(TEST_BEGUN); $(MAKE) --no-print-directory MODE=release all tests-bin examples && \
	    $(MAKE) --no-print-directory MODE=asan tests-bin && \
	    $(MAKE) --no-print-directory run-tests-full
run-tests-full:
	@SNUG_TEST_SIZE=full TEST_BUDGET=3000 TEST_NAME='make test-all' $(RUN_TESTS) tools/layers.sh \
	    $(TEST_SRC:%.c=build/release/%) $(ASAN_SRC:%.c=build/asan/%) $(EXAMPLE_SRC:%.c=build/release/%) $(TEST_SCRIPTS)

# The unit tests of one build only: `make check`, `make check MODE=debug`, `make check ONLY=ir`.
check: all tests-bin
	@tools/run-tests.sh $(foreach t,$(TEST_BIN),$(if $(findstring $(ONLY),$(t)),$(t)))

# Needs a GPU.
test-cuda: all $(GPU_TEST_BIN) $(PLANTED)
	@tools/test-cuda.sh $(BUILD)

# Builds only the program: no plugin, no shared library, no tests.
demo:
	@tools/setup.sh
	@$(MAKE) --no-print-directory MODE=release snug
	@tools/demo.sh

# ---- lint and format ---------------------------------------------------------------------------

layers:
	@tools/layers.sh

LINT_SRC  := $(LIB_SRC) $(SIMD_SRC) $(AMX_SRC) $(CLI_SRC)
# OpenMP is off because clang may lack its omp.h.  The higher instruction levels are off because
# older clangs do not know the names of their features.
LINT_CPP   = $(filter-out -DSNUG_OPENMP -DSNUG_LEVEL_v% -DSNUG_AMX,$(CPPFLAGS)) \
              -DSNUG_LEVEL=base -DSNUG_AMX_EMULATED -DSNUG_TILES=emulated
lint:
	@tools/setup.sh --lint
	@printf '%s\n' $(LINT_SRC) | xargs -P "$$(nproc)" -n 1 sh -c 'clang-tidy --quiet "$$@" -- \
	    -std=c11 -Wno-unknown-pragmas $(LINT_CPP) 2>/dev/null' clang-tidy
	@cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr \
	    --suppress=missingIncludeSystem --suppress=invalidFunctionArg --error-exitcode=1 -j "$$(nproc)" $(LINT_CPP) \
	    --template='{file}:{line}: {severity}: {message} [{id}]' $(LINT_SRC)
	@echo "lint: no findings"

FORMATTED = $(shell find src include tests bench examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cc')
format:
	@tools/setup.sh --lint
	@clang-format -i $(FORMATTED)
format-check:
	@tools/setup.sh --lint
	@clang-format --dry-run --Werror $(FORMATTED)

# ---- installing -------------------------------------------------------------------------------

# The program looks for the plugin in ../lib, seen from its own folder.
PLUGIN_INSTALLED := lib/libsnug_cuda.so
INSTALLED := bin/snug include/snug.h lib/libsnug.a lib/libsnug.so.$(VERSION) \
             lib/libsnug.so.$(SOMAJOR) lib/libsnug.so $(PLUGINS:%=lib/%) lib/pkgconfig/snug.pc share/man/man1/snug.1

install: all
	@install -d $(addprefix $(DESTDIR)$(PREFIX)/,$(sort $(dir $(INSTALLED))))
	@install -m 755 snug $(DESTDIR)$(PREFIX)/bin/snug
	@install -m 644 include/snug.h $(DESTDIR)$(PREFIX)/include/snug.h
	@install -m 644 libsnug.a $(DESTDIR)$(PREFIX)/lib/libsnug.a
	@install -m 755 libsnug.so $(DESTDIR)$(PREFIX)/lib/libsnug.so.$(VERSION)
	@$(foreach p,$(PLUGINS),install -m 755 $(p) $(DESTDIR)$(PREFIX)/lib/$(p);)
	@ln -sf libsnug.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libsnug.so.$(SOMAJOR)
	@ln -sf libsnug.so.$(SOMAJOR) $(DESTDIR)$(PREFIX)/lib/libsnug.so
	@printf '%s\n' 'prefix=$(PREFIX)' 'Name: snug' \
	    'Description: train neural networks inside a memory budget' 'Version: $(VERSION)' \
	    'Cflags: -I$${prefix}/include' 'Libs: -L$${prefix}/lib -lsnug' \
	    'Libs.private: $(CONFIG_OPENMP) $(CONFIG_LIBS)' >$(DESTDIR)$(PREFIX)/lib/pkgconfig/snug.pc
	@install -m 644 docs/snug.1 $(DESTDIR)$(PREFIX)/share/man/man1/snug.1
	$(if $(CONFIG_NVCC),@install -m 755 libsnug_cuda.so $(DESTDIR)$(PREFIX)/$(PLUGIN_INSTALLED))
	@echo "installed under $(DESTDIR)$(PREFIX): $(INSTALLED) $(if $(CONFIG_NVCC),$(PLUGIN_INSTALLED))"

uninstall:
	@rm -f $(addprefix $(DESTDIR)$(PREFIX)/,$(INSTALLED) lib/libsnug_openmpi.so lib/libsnug_mpich.so \
	    $(PLUGIN_INSTALLED))
	@echo "removed from $(DESTDIR)$(PREFIX): $(INSTALLED)"

clean:
	rm -rf build snug libsnug.a libsnug.so libsnug_cuda.so libsnug_openmpi.so \
	    libsnug_mpich.so

help:
	@echo 'make                 build ./snug, libsnug.a, libsnug.so (MODE=asan: build/asan)'
	@echo 'make demo            plan, train and sample a small model in 3 minutes'
	@echo 'make test            every test at its small size: at most 8 minutes on 2 cores'
	@echo 'make test-all        every test at full size, asan + ubsan, the CUDA plugin'
	@echo 'make check ONLY=ir   the unit tests of one build whose path contains "ir"'
	@echo 'make test-cuda       test the CUDA backend; needs a GPU and nvcc'
	@echo 'make setup           install what is missing (Debian, Ubuntu); test runs it too'
	@echo 'make bench-bin       build the kernel benchmarks: build/release/bench/*'
	@echo 'make layers          check the includes between folders'
	@echo 'make lint            run clang-tidy and cppcheck'
	@echo 'make format          run clang-format in place; make format-check only checks'
	@echo 'make install         install under DESTDIR/PREFIX (PREFIX=$(PREFIX))'
	@echo 'make uninstall       remove what make install copied there'
	@echo 'make clean           remove everything that was built'
	@echo
	@echo 'V=1 prints the full commands.  -jN sets the number of jobs (default: all cores).'

.PHONY: all tests-bin bench-bin examples setup test test-all test-cuda run-tests-small run-tests-full check demo layers lint format format-check \
        install uninstall clean help FORCE
