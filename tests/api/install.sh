#!/usr/bin/env bash
# An installed snug works: the program runs, a C and a C++ program build with pkg-config against the
# shared library, and uninstall leaves no file behind.  Small: without the CUDA plugin.
set -eu
cd "$(dirname "$0")/../.."
. tests/support/size.bash
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix=$tmp/usr
make --no-print-directory install $(sized CONFIG_NVCC= "") PREFIX="$prefix" >/dev/null

version=$(sed -n 's/.*SNUG_VERSION_STRING "\(.*\)"/\1/p' include/snug.h)
"$prefix/bin/snug" --version | grep -qF "$version"
[ "$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --modversion snug)" = "$version" ]

cat >"$tmp/use.c" <<'END'
#include <snug.h>
#include <string.h>
int main(void)
{
    return strcmp(snug_version(), SNUG_VERSION_STRING) != 0;
}
END
flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs snug)
# shellcheck disable=SC2086 -- flags is a list
"${CC:-cc}" -Wall -Werror "$tmp/use.c" $flags -o "$tmp/use"
LD_LIBRARY_PATH=$prefix/lib "$tmp/use"
if command -v c++ >/dev/null; then
    # shellcheck disable=SC2086
    c++ -Wall -Werror -x c++ "$tmp/use.c" -x none $flags -o "$tmp/use++"
    LD_LIBRARY_PATH=$prefix/lib "$tmp/use++"
fi

make --no-print-directory uninstall PREFIX="$prefix" >/dev/null
left=$(find "$prefix" ! -type d)
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
