#!/usr/bin/env bash
# 20 steps of gpt-nano on 2, 3 and 4 ranks, with every scheme: the losses match one rank, and ddp and ZeRO have the
# same bits.  Small: on 3 ranks, in 4 steps.
#
# parts: 1 (small), 3 (full)
#
# usage: [SNUG=./snug] tests/ranks/test_nano.sh       The output is TAP.
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/ranks.bash"

n_steps=$(sized 4 20)
nano="gpt-nano --batch 12 --seq 2 --steps $n_steps"
# shellcheck disable=SC2086
check "gpt-nano on one rank" alone nano1 $nano
for n_ranks in $(sized 3 "2 3 4"); do
    next_is_ours || continue
    for how in ddp ps zero1 zero2 zero3; do
        dir=nano-$how-$n_ranks
        # shellcheck disable=SC2046,SC2086
        check "gpt-nano, $how on $n_ranks ranks" ranks "$first" $n_ranks $dir $nano $(flags_of $how)
        check "$how on $n_ranks: the losses of one rank" near $dir nano1 "$n_steps"
        check "$how on $n_ranks: allocated as planned on every rank" as_planned $dir $n_ranks
        case $how in zero*) check "$how on $n_ranks: the bits of ddp" same $dir nano-ddp-$n_ranks ;; esac
        [ $how = ddp ] || rm -rf $dir
    done
done
rm -rf nano-*
finish
