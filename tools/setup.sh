#!/bin/sh
# Installs missing packages that snug needs to build and test; does nothing if all are installed.
# usage: tools/setup.sh [--lint]      --lint: also clang-format, clang-tidy and cppcheck
#
# On Debian and Ubuntu it uses apt-get, with sudo unless root, and asks no questions.  Elsewhere it only prints what
# to install.  It changes nothing else on the machine.
set -eu
cd "$(dirname "$0")/.."

lint=no
case "${1:-}" in
'') ;;
--lint) lint=yes ;;
*)
    echo "usage: tools/setup.sh [--lint]" >&2
    exit 2
    ;;
esac

cc=${CC:-cc}
command -v "$cc" >/dev/null 2>&1 || cc=gcc

has_command() { command -v "$1" >/dev/null 2>&1; }
has_header() { echo "#include <$1>" | "$cc" -E -xc - >/dev/null 2>&1; }
# cmocka.h needs four headers before it
has_cmocka() {
    printf '#include <%s>\n' stdarg.h stddef.h stdint.h setjmp.h cmocka.h |
        "$cc" -E -xc - >/dev/null 2>&1
}

is_offered() { apt-cache show "$1" >/dev/null 2>&1; }
has_gemm() { has_header oneapi/dnnl/dnnl.h; }

links() { echo 'int main(void) { return 0; }' | "$cc" -xc - -o /dev/null "$@" >/dev/null 2>&1; }
has_lapack() { links -lopenblas || links -llapack -lblas; }

# One MPI is enough to build and test several ranks; if both are packaged, both are installed.
has_openmpi() { has_command mpicc.openmpi || mpicc -showme:version >/dev/null 2>&1; }
has_mpich() { has_command mpicc.mpich || mpichversion >/dev/null 2>&1; }

# need PACKAGE WHY CHECK...: records the package if the check fails
packages=
reasons=
need() {
    package=$1
    why=$2
    shift 2
    "$@" && return 0
    packages="$packages $package"
    reasons="$reasons  $package: $why
"
}

find_missing() {
    packages=
    reasons=
    need gcc "the C compiler" has_command "$cc"
    need g++ "the C++ compiler, for kernels that the tests emulate" has_command "${CXX:-g++}"
    need libc6-dev "the C library's headers" has_header stdlib.h
    need make "runs the build" has_command make
    need pkg-config "link flags of libsnug for other programs; a test uses it" has_command pkg-config
    need libjansson-dev "JSON: plans, configs, checkpoints" has_header jansson.h
    need zlib1g-dev "compressed data sets, checksums" has_header zlib.h
    need libcmocka-dev "the unit tests" has_cmocka
    need libdnnl-dev "oneDNN: fast matmuls" has_gemm
    need libopenblas-dev "LAPACK: eigenvectors for shampoo, caspr and soap" has_lapack
    if has_command apt-get; then # optional: only several ranks need MPI
        if is_offered libopenmpi-dev; then
            need libopenmpi-dev "Open MPI: several ranks" has_openmpi
            need openmpi-bin "mpirun" has_openmpi
        elif ! has_openmpi && ! has_mpich; then
            echo "setup: no MPI package is available here; several ranks will not be built or tested"
        fi
        if is_offered libmpich-dev; then
            need libmpich-dev "MPICH: several ranks" has_mpich
            need mpich "its mpirun" has_mpich
        fi
    fi
    if [ "$lint" = yes ]; then
        need clang-format "make format" has_command clang-format
        need clang-tidy "make lint" has_command clang-tidy
        need cppcheck "make lint" has_command cppcheck
    fi
}

find_missing
[ -n "$packages" ] || exit 0

printf 'setup: missing packages:\n%s' "$reasons"

if ! has_command apt-get; then
    echo "setup: there is no apt-get here; install the equivalents of:$packages" >&2
    exit 1
fi
root=
if [ "$(id -u)" -ne 0 ]; then
    if ! has_command sudo; then
        echo "setup: not root, and sudo is not installed; run as root: apt-get install$packages" >&2
        exit 1
    fi
    root=sudo
fi

apt() { $root env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null; }

for package in $packages; do
    if ! is_offered "$package"; then
        echo "setup: apt-get update (the package lists do not contain $package)"
        apt update >/dev/null || echo "setup: apt-get update failed; continuing" >&2
        break
    fi
done
case " $packages " in
*' libdnnl-dev '*)
    if ! is_offered libdnnl-dev; then
        echo "setup: libdnnl-dev is not available here; matmuls will use snug's own loops"
        packages=$(echo " $packages " | sed 's/ libdnnl-dev / /')
    fi
    ;;
esac

install_all() { # shellcheck disable=SC2086 -- a list of packages
    apt install -y --no-install-recommends $packages
}
echo "setup: ${root:+sudo }apt-get install$packages"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! install_all >"$log" 2>&1; then
    echo "setup: that failed; trying again after apt-get update"
    apt update >/dev/null || true
    if ! install_all >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "setup: apt-get could not install$packages; its last lines are above" >&2
        exit 1
    fi
fi
rm -f build/config.mk # written before the libraries were installed; make configures again

cc=${CC:-cc}
find_missing
if [ -n "$packages" ]; then
    printf 'setup: installed, but still not found:\n%s' "$reasons" >&2
    exit 1
fi
echo "setup: done"
