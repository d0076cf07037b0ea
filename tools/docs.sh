#!/usr/bin/env bash
# Checks the documents against the program, or updates them.
# usage: tools/docs.sh [--write] [FILE...]      FILE: README.md, docs/*.md, docs/snug.1; all of them if none
#
# The program generates two parts of a Markdown file:
#   - a block that begins with "```console exact": each line "$ COMMAND" is run and followed by its output.
#     Commands whose bytes depend on the number of threads must give --threads;
#   - the lines between <!-- generated: NAME --> and <!-- end: NAME -->: lists from `snug help` and `snug ops`.
# docs/snug.1 is docs/snug.1.in with its @NAME@ lines replaced (tools/man.awk).
#
# Without --write, prints the differences and exits with 1 if there are any.  SNUG sets the program (./snug).
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
snug=$(realpath "${SNUG:-./snug}") || exit 1
export LC_ALL=C.UTF-8
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/work" "$tmp/home" && ln -s "$snug" "$tmp/work/snug" || exit 1
write=no
[ "${1:-}" != --write ] || { write=yes; shift; }
[ $# -gt 0 ] || set -- README.md docs/*.md docs/snug.1

fail() {
    echo "docs.sh: $*" >&2
    exit 1
}

# The output must not depend on this machine: no measured rates, no data, the base instruction level.
run_command() { # COMMAND
    local status
    (cd "$tmp/work" && exec env -i PATH="$tmp/work:/usr/bin:/bin" HOME="$tmp/home" LC_ALL="$LC_ALL" \
        SNUG_CPU_LEVEL=base OMP_WAIT_POLICY=passive timeout 60 bash -c "$1" 2>&1 </dev/null)
    status=$?
    case $status in
    124 | 126 | 127 | 13[0-9]) fail "$file: \"$1\" exited with status $status" ;;
    esac
}

# ---- lists ------------------------------------------------------------------------------------

in_lines() { # formats names from standard input as `a`, `b`, ... in lines of at most 110 columns
    awk '{ name = "`" $1 "`"; if (NR > 1) line = line ","
           if (length(line) + length(name) + 2 > 110) { print line; line = "" }
           line = line (line == "" ? "" : " ") name }
         END { print line }'
}

commands() {
    echo '```'
    "$snug" help | awk '/^  snug / { print substr($0, 3); begun = 1 } /^$/ && begun { exit }'
    echo '```'
}

flags() {
    echo '| flag | values, the default first | |'
    echo '|---|---|---|'
    "$snug" help plan | awk -f tools/man.awk -v form=table
}

generate() { # NAME
    case $1 in
    models | optimizers | data-sets) "$snug" help "$1" | in_lines ;;
    ops) "$snug" ops | tail -n +2 | in_lines ;;
    commands | flags) "$1" ;;
    *) fail "$file: unknown list \"$1\"; use models, optimizers, data-sets, commands, flags or ops" ;;
    esac
}

# ---- Markdown ---------------------------------------------------------------------------------

render() { # FILE
    local line before='' state=text name='' command
    while IFS= read -r line; do
        case $state:$line in
        'text:```console exact') state=block; printf '%s\n' "$line" ;;
        'text:<!-- generated: '*' -->')
            state=list
            printf '%s\n' "$line"
            name=${line#<!-- generated: }
            name=${name% -->}
            generate "$name"
            ;;
        text:*) printf '%s\n' "$line" ;;
        "list:<!-- end: $name -->") state=text; printf '%s\n' "$line" ;;
        list:*) ;;
        'block:```') state=text; printf '%s\n' "$line" ;;
        'block:$ '*)
            [ -n "$before" ] || [ "$n_commands" -eq 0 ] || echo
            n_commands=$((n_commands + 1))
            printf '%s\n' "$line"
            command=${line#'$ '}
            while [ "${command%\\}" != "$command" ] && IFS= read -r line; do
                printf '%s\n' "$line"
                command=${command%\\}$line
            done
            run_command "$command"
            ;;
        block:*) ;;
        esac
        [ "$state" = block ] && [ "$line" != '```console exact' ] || n_commands=0
        before=$line
    done <"$1"
    [ "$state" = text ] || fail "$1: a $state is not closed"
}

# ---- the man page -----------------------------------------------------------------------------

man_page() {
    local line command commands_all
    commands_all=$("$snug" help | sed -nE 's/^  snug ([a-z]+) .*/\1/p' | awk '$1 != "help" && !seen[$1]++')
    while IFS= read -r line; do
        case $line in
        @synopsis@) for command in $commands_all; do "$snug" help "$command"; done | awk -f tools/man.awk -v form=synopsis ;;
        @commands@)
            for command in $commands_all; do
                printf '.SS snug %s\n' "$command"
                "$snug" help "$command" | awk -f tools/man.awk -v form=command
            done
            ;;
        @models@) "$snug" help models | awk -f tools/man.awk -v form=list ;;
        @optimizers@) "$snug" help optimizers | awk -f tools/man.awk -v form=list ;;
        @data-sets@) "$snug" help data-sets | awk -f tools/man.awk -v form=list ;;
        @recipe@) "$snug" help plan | awk -f tools/man.awk -v form=recipe ;;
        @*@) fail "docs/snug.1.in: unknown placeholder $line" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done <docs/snug.1.in | sed "s/@VERSION@/$("$snug" --version | sed -n '1s/snug //p')/"
}

# ---- all of them ------------------------------------------------------------------------------

differ=0
for file in "$@"; do
    case $file in
    docs/snug.1) man_page >"$tmp/new" || exit 1 ;;
    *) render "$file" >"$tmp/new" || exit 1 ;;
    esac
    cmp -s "$file" "$tmp/new" && continue
    if [ $write = yes ]; then
        cat "$tmp/new" >"$file" && echo "written: $file"
    else
        diff -u --label "$file" --label "$file, generated" "$file" "$tmp/new"
        differ=1
    fi
done
[ $differ -eq 0 ] || echo "docs.sh: run tools/docs.sh --write to update them"
exit $differ
