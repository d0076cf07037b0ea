#!/bin/sh
# Finds the libraries that snug can use and writes them to OUTPUT as make variables.
# usage: tools/configure.sh CC OUTPUT      SNUG_WITHOUT="onednn lapack zlib openmp cuda mpi" disables some.
set -eu
cc=$1
out=$2
probe_dir=$(mktemp -d)
trap 'rm -rf "$probe_dir"' EXIT

# probe NAME CODE FLAGS...: does a program with this code compile and link?
probe() {
    name=$1
    code=$2
    shift 2
    case " ${SNUG_WITHOUT:-} " in *" $name "*) return 1 ;; esac
    printf '%s\n' "$code" >"$probe_dir/probe.c"
    "$cc" "$probe_dir/probe.c" -o "$probe_dir/probe" "$@" 2>/dev/null
}

cppflags=
libs=
found=
missing=

use() { # NAME MACRO LIBS
    found="$found $1"
    [ -z "$2" ] || cppflags="$cppflags -D$2"
    libs="$libs $3"
}

if ! command -v ${cc%% *} >/dev/null; then
    echo "configure: compiler \"$cc\" not found; install one with: make setup, or set CC" >&2
    exit 1
fi
if ! probe jansson '#include <jansson.h>
int main(void) { return json_object() == 0; }' -ljansson; then
    echo "configure: jansson not found; install it with: tools/setup.sh (Debian: libjansson-dev)" >&2
    exit 1
fi
use jansson '' -ljansson
if probe openmp 'int main(void) { return 0; }' -fopenmp; then use openmp SNUG_OPENMP ''; openmp=-fopenmp; else missing="$missing openmp"; openmp=-Wno-unknown-pragmas; fi
if probe zlib '#include <zlib.h>
int main(void) { return zlibVersion() == 0; }' -lz; then use zlib SNUG_ZLIB -lz; else missing="$missing zlib"; fi
if probe onednn '#include <oneapi/dnnl/dnnl.h>
int main(void) { return dnnl_version() == 0; }' -ldnnl; then use onednn SNUG_ONEDNN -ldnnl; else missing="$missing onednn"; fi
# LAPACK: eigenvectors for shampoo, caspr and soap.  It is loaded at run time, so nothing is linked here.
if probe lapack '#include <dlfcn.h>
int main(void) { return dlopen(0, RTLD_NOW) == 0; }' -ldl; then use lapack SNUG_LAPACK -ldl
else missing="$missing lapack"; fi
# MPI: for several ranks.  Each MPI found gets a plugin; nothing else is linked with MPI.
mpi=
mpi_compilers=
use_mpi() { # NAME COMPILER WORD-IN-ITS-HEADER
    case " $mpi ${SNUG_WITHOUT:-} " in *" $1 "* | *" mpi "*) return 0 ;; esac
    command -v "$2" >/dev/null || return 0
    printf '#include <mpi.h>\n#ifndef %s\n#error another\n#endif\nint main(void) { return MPI_Finalize(); }\n' "$3" >"$probe_dir/probe.c"
    "$2" "$probe_dir/probe.c" -o "$probe_dir/probe" 2>/dev/null || return 0
    mpi="$mpi $1"
    mpi_compilers="$mpi_compilers
CONFIG_MPICC_$1 := $2"
}
for mpicc in mpicc.openmpi mpicc; do use_mpi openmpi $mpicc OPEN_MPI; done
for mpicc in mpicc.mpich mpicc; do use_mpi mpich $mpicc MPICH_VERSION; done
found="$found$mpi"
[ -n "$mpi" ] || missing="$missing mpi"
levels=base
if probe x86 'int main(void) { return __builtin_cpu_supports("avx2"); }' -march=x86-64-v3; then levels="$levels v3"; fi
if probe x86 'int main(void) { return __builtin_cpu_supports("avx512f"); }' -march=x86-64-v4; then levels="$levels v4"; fi

# AMX: the instructions of src/cpu/amx/amx_tiles.h, for the files in src/cpu/amx only.
amx=
case "$levels" in *v4*)
if probe amx '#include <sys/syscall.h>
int main(void) { __asm__ volatile("tdpbf16ps %tmm0, %tmm1, %tmm2"); return SYS_arch_prctl; }' -mamx-tile -mamx-bf16 -mavx512bf16; then amx=amx; cppflags="$cppflags -DSNUG_AMX"; fi
;; esac

# CUDA: nvcc for the kernels, and the libraries that the plugin links.
nvcc=
cuda=
cublaslt=
cudnn=
case " ${SNUG_WITHOUT:-} " in *" cuda "*) ;; *)
nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null || :)
;; esac
if [ -n "$nvcc" ]; then
    cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    if probe cublaslt '#include <cublasLt.h>
int main(void) { return cublasLtGetVersion() == 0; }' -I"$cuda/include" -L"$cuda/lib64" -lcublasLt; then cublaslt=cublaslt; fi
    if probe cudnn '#include <cudnn.h>
int main(void) { return cudnnGetVersion() == 0; }' -I"$cuda/include" -L"$cuda/lib64" -lcudnn; then cudnn=cudnn; fi
fi
if [ -n "$cublaslt" ] && [ -n "$cudnn" ]; then
    found="$found cuda"
else
    nvcc=
    missing="$missing cuda"
fi

for level in $levels; do cppflags="$cppflags -DSNUG_LEVEL_$level"; done

mkdir -p "$(dirname "$out")"
cat >"$out.tmp" <<END
# written by tools/configure.sh; delete this file to configure again
CONFIG_FOUND := $found
CONFIG_MISSING := $missing
CONFIG_CPPFLAGS := $cppflags
CONFIG_LIBS := $libs -lm
CONFIG_OPENMP := $openmp
CONFIG_LEVELS := $levels
CONFIG_AMX := $amx
CONFIG_NVCC := $nvcc
CONFIG_CUDA := $cuda
CONFIG_MPI := $mpi$mpi_compilers
END
mv "$out.tmp" "$out"
echo "configure: found$found; missing:${missing:- nothing}; instruction levels: $levels${amx:+ }$amx"
