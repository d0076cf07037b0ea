#!/usr/bin/env bash
# Builds snug for arm64 in plain C (no oneDNN, no assembler) and runs its unit tests under qemu.
# usage: tools/check-arm64.sh            the quick tests and some op cases: minutes
#        tools/check-arm64.sh PART...    tests whose path contains a PART; "tests" is all: an hour
#
# For Debian and Ubuntu.  Needs these packages: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user.
# The script downloads the arm64 packages of jansson, zlib and cmocka with apt-get and unpacks them under
# build/arm64, where it also builds everything else.  It installs nothing and does not change the system's
# package lists.
set -eu
cd "$(dirname "$0")/.."
dir=$PWD/build/arm64
root=$dir/root
triplet=aarch64-linux-gnu
export LC_ALL=C

missing=
command -v $triplet-gcc >/dev/null || missing="$missing gcc-$triplet libc6-dev-arm64-cross"
command -v qemu-aarch64 >/dev/null || missing="$missing qemu-user"
if [ -n "$missing" ]; then
    echo "check-arm64: cross compiler or emulator missing; run: apt-get install$missing" >&2
    exit 1
fi

# apt for arm64, with its own package lists and state.
apt_arm64() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$dir/apt/state" \
        -o Dir::State::status="$dir/apt/status" -o Dir::Cache="$dir/apt/cache" "$@"
}

fetch_libraries() {
    mkdir -p "$dir/apt/state/lists/partial" "$dir/apt/cache/archives/partial" "$dir/debs" "$root"
    : >"$dir/apt/status"
    apt_arm64 update
    (cd "$dir/debs" && apt_arm64 download libjansson4 libjansson-dev zlib1g zlib1g-dev libcmocka0 \
        libcmocka-dev)
    for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$root"; done
    # the links in usr/lib that -lz and the like use may point to /lib
    [ -e "$root/lib" ] && cp -rn "$root/lib/." "$root/usr/lib/"
    touch "$dir/fetched"
}
[ -e "$dir/fetched" ] || fetch_libraries

# A compiler wrapper that finds the downloaded libraries, so that CC is one word.
printf '#!/bin/sh\nexec %s-gcc -isystem %s/usr/include -isystem %s/usr/include/%s -L%s/usr/lib/%s "$@"\n' \
    $triplet "$root" "$root" $triplet "$root" $triplet >"$dir/cc"
chmod +x "$dir/cc"

# Build a copy of the tree, to leave this machine's build alone.
tree=$dir/tree
mkdir -p "$tree"
git ls-files -co --exclude-standard -z | tar --null --ignore-failed-read -T - -cf - | tar -xf - -C "$tree"
make -C "$tree" --no-print-directory CC="$dir/cc" AR=$triplet-ar MODE=release all tests-bin

# run-tests.sh runs programs: wrap each test in a script that starts qemu.
wrappers=
add() { # TEST NAME FLAGS...
    test=$tree/build/release/$1
    wrapper=$dir/run/$2
    shift 2
    mkdir -p "$(dirname "$wrapper")"
    printf '#!/bin/sh\nexec qemu-aarch64 -L /usr/%s -E LD_LIBRARY_PATH=%s/usr/lib/%s %s %s\n' \
        $triplet "$root" $triplet "$test" "$*" >"$wrapper"
    chmod +x "$wrapper"
    wrappers="$wrappers $wrapper"
}

slow='tests/ops/test_ops tests/ops/test_threads tests/train/test_allocated tests/train/test_bench'
for source in $(git ls-files 'tests/*/test_*.c'); do
    name=${source%.c}
    if [ $# -eq 0 ]; then
        case " $slow " in *" $name "*) ;; *) add "$name" "$name" ;; esac
    fi
    for part in "$@"; do
        case $name in *"$part"*) add "$name" "$name" && break ;; esac
    done
done
if [ $# -eq 0 ]; then
    for case in act attention embedding cross_entropy linear_in_out mse layernorm accumulate cast take_row \
        sum_squares update_; do
        add tests/ops/test_ops "tests/ops/$case" -c "$case"
    done
fi
cd "$tree"
# shellcheck disable=SC2086 # a list of words
TEST_SECONDS=${TEST_SECONDS:-7200} tools/run-tests.sh $wrappers
