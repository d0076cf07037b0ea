# How much a script does: the size and the part that the runner requests; see size.h.  Sourced by scripts.
case ${SNUG_TEST_SIZE:-full} in
small | full) echo "# size: ${SNUG_TEST_SIZE:-full}" ;;
*)
    echo "SNUG_TEST_SIZE is small or full, not \"$SNUG_TEST_SIZE\"" >&2
    exit 2
    ;;
esac
size_is_small() { [ "${SNUG_TEST_SIZE:-full}" = small ]; }
sized() { if size_is_small; then echo "$1"; else echo "$2"; fi; } # SMALL FULL

part=${SNUG_TEST_PART:-1/1}
case $part in
*[!0-9/]* | */ | /*) echo "SNUG_TEST_PART is I/N, not \"$part\"" >&2; exit 2 ;;
esac
# Is item INDEX, from 0, in this part?  Every item is in exactly one.
part_has() { [ $(($1 % ${part#*/})) -eq $((${part%/*} - 1)) ]; } # INDEX
# For scripts in sections: numbers the sections itself.
n_sections=0
next_is_ours() { n_sections=$((n_sections + 1)); part_has $((n_sections - 1)); }
