#!/usr/bin/env bash
# The documents match the program: every block marked as exact, every generated list, the man page.
# tools/docs.sh --write updates them.
set -u
cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C.UTF-8
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    local name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then echo "ok $n - $name"; else echo "not ok $n - $name"; cat "$tmp/out"; failed=1; fi
}

is_true() { tools/docs.sh "$1"; }
for file in README.md docs/*.md docs/snug.1; do
    if [ "$file" = docs/snug.1 ] || grep -qE '^(```console exact|<!-- generated: )' "$file"; then
        check "$file is what the program says" is_true "$file"
    fi
done
check "some blocks are marked in README.md" grep -q '^```console exact$' README.md

# Every flag in hand-written text is a flag of the program.
snug=${SNUG:-./snug}
{
    printf '%s\n' --help --version --recipe --name # --name: the man page's own example
    for command in $("$snug" help | sed -nE 's/^  snug ([a-z]+) .*/\1/p' | sort -u); do
        [ "$command" = help ] || "$snug" help "$command"
    done
} | grep -oE -- '--[a-z][a-z-]*' | sort -u >"$tmp/flags"
no_strangers() { # FILE: flags of other programs appear only in lines that call them
    sed 's/\\-/-/g; s/\\f[BIR]//g' "$1" | grep -vE 'mpirun|srun|sbatch|#SBATCH|git |make |curl|cc |tools/|bench/|scontrol' |
        grep -oE -- '(^|[^a-z-])--[a-z][a-z-]*[a-z]' | grep -oE -- '--[a-z-]+' | sort -u | comm -23 - "$tmp/flags" >"$tmp/strangers"
    [ ! -s "$tmp/strangers" ] || { echo "$1 names flags that no command has:"; cat "$tmp/strangers"; return 1; }
}
for file in README.md docs/*.md docs/snug.1.in; do
    case $file in docs/clusters.md | docs/add-*) continue ;; esac # Slurm's flags, example flags
    check "$file names no flag that is not there" no_strangers "$file"
done

# The help of a command lists all of its flags.
helps() { # FILE of the command
    local command flag
    command=$(basename "$1" .c)
    command=${command#cmd_}
    "$snug" help "$command" >"$tmp/help" || return 1
    for flag in $(grep -oE '\.name = "[a-z-]+"' "$1" | cut -d'"' -f2); do
        grep -qE -- "--$flag([^a-z-]|$)" "$tmp/help" || { echo "snug help $command lacks --$flag"; return 1; }
    done
}
for file in src/cli/cmd_*.c; do check "help names the flags of $file" helps "$file"; done

fits() { ! "$snug" help "$1" | grep -E '^.{81}' && [ -n "$("$snug" help "$1")" ]; }
for list in models optimizers data-sets; do check "snug help $list fits 80 columns" fits "$list"; done

# Links between documents are valid.
links_lead() { # FILE
    local link
    grep -oE '\]\([^)#: ]+[)#]' "$1" | sed -E 's/^\]\(//; s/[)#]$//' | while read -r link; do
        [ -e "$(dirname "$1")/$link" ] || { echo "$1: no file $link"; exit 1; }
    done
}
for file in *.md docs/*.md; do check "links of $file" links_lead "$file"; done
echo "1..$n"
exit $failed
