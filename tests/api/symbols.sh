#!/usr/bin/env bash
# libsnug.so exports what include/snug.h declares and nothing else.
set -eu
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export LC_ALL=C

nm -D --defined-only libsnug.so | awk '{ print $3 }' | sort >"$tmp/exported"
# A function is declared as: SNUG_API type name(
grep -oE '^SNUG_API [^(]*\(' include/snug.h | sed -E 's/.*[ *]([a-z_0-9]+)\($/\1/' | sort >"$tmp/declared"

stray=$(comm -23 "$tmp/exported" "$tmp/declared")
missing=$(comm -13 "$tmp/exported" "$tmp/declared")
[ -z "$stray" ] || echo "exported but not in snug.h:" $stray
[ -z "$missing" ] || echo "in snug.h but not exported:" $missing
[ -s "$tmp/declared" ] && [ -z "$stray$missing" ]
