#!/usr/bin/env bash
# The man page and the help screens name the same commands and flags.
set -eu
cd "$(dirname "$0")/../.."
snug=${SNUG:-./snug}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export LC_ALL=C

commands=$("$snug" help | sed -nE 's/^  snug ([a-z]+) .*/\1/p' | sort -u)
for command in $commands; do
    grep -qE "^\\\\fBsnug $command\\\\fR" docs/snug.1 || { echo "docs/snug.1 lacks: snug $command"; exit 1; }
    [ "$command" = help ] || "$snug" help "$command"
done | grep -oE '(^|[ (])--[a-z][a-z-]*' | grep -oE -- '--[a-z-]+' | sort -u >"$tmp/help"
sed 's/\\-/-/g' docs/snug.1 | grep -oE -- '--[a-z][a-z-]*' | sort -u >"$tmp/man"
echo --name >>"$tmp/help" # the man page's own example of a flag
echo --version >>"$tmp/help"
sort -u -o "$tmp/help" "$tmp/help"
sort -u -o "$tmp/man" "$tmp/man"
if ! diff "$tmp/help" "$tmp/man" >"$tmp/diff"; then
    echo "< only in snug help, > only in docs/snug.1"
    cat "$tmp/diff"
    exit 1
fi
