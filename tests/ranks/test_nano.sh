#!/usr/bin/env bash
# 20 steps of gpt-nano on 2, 3 and 4 ranks, by every scheme: the losses of one rank, and among ddp and ZeRO
# the same bits.
#
# usage: [SNUG=./snug] tests/ranks/test_nano.sh       The output is TAP.
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/ranks.bash"

nano="gpt-nano --batch 12 --seq 2 --steps 20"
# shellcheck disable=SC2086
check "gpt-nano on one rank" alone nano1 $nano
for n_ranks in 2 3 4; do
    for how in ddp ps zero1 zero2 zero3; do
        dir=nano-$how-$n_ranks
        # shellcheck disable=SC2046,SC2086
        check "gpt-nano, $how on $n_ranks ranks" ranks "$first" $n_ranks $dir $nano $(flags_of $how)
        check "$how on $n_ranks: the losses of one rank" near $dir nano1 20
        check "$how on $n_ranks: allocated as planned on every rank" as_planned $dir $n_ranks
        case $how in zero*) check "$how on $n_ranks: the bits of ddp" same $dir nano-ddp-$n_ranks ;; esac
        [ $how = ddp ] || rm -rf $dir
    done
done
rm -rf nano-*
finish
