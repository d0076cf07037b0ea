# shellcheck shell=bash
# Sourced by tests of what the program says: check runs it once and compares its words.

n=0
failed=0 # the exit status of the script

# NAME STATUS WORDS|WORDS ARGUMENTS: snug ($snug) exits so and says all the words on either stream, however the lines
# are broken.  "!": nothing on standard error.  "!WORDS": does not say them.
check() {
    n=$((n + 1))
    # shellcheck disable=SC2086,SC2154 # arguments are words; the script sets snug
    "$snug" $4 >out 2>err </dev/null
    local status=$? missing said
    said=$(cat err out | tr -s ' \n' ' ')
    missing=$(printf '%s\n' "$3" | tr '|' '\n' | while IFS= read -r word; do
        case $word in
        '!') [ ! -s err ] || echo silence ;;
        '!'*) case $said in *"${word#!}"*) echo "silence about \"${word#!}\"" ;; esac ;;
        *) case $said in *"$word"*) ;; *) echo "\"$word\"" ;; esac ;;
        esac
    done)
    if [ $status -eq "$2" ] && [ -z "$missing" ]; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1: exit status $status; lacks $missing"
        sed 's/^/#     /' err
        # shellcheck disable=SC2034 # read by the script
        failed=1
    fi
}
