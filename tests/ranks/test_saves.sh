#!/usr/bin/env bash
# Checkpoints that several ranks write into the same files: the bytes are those that rank 0 would write alone, every
# rank writes, and a failure of one rank leaves the previous checkpoint.
#
# usage: [SNUG=./snug] tests/ranks/test_saves.sh       The output is TAP.
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/ranks.bash"

# Rank 0 has a folder of its own, which the others do not see: everything goes through it.  They have another,
# with a file that has the name and the length of the one that is written, and that must stay as it is.
apart() { # LAUNCHER RANKS DIR FLAGS...
    local launcher=$1 n_ranks=$2 dir=$3 left=others-$3/$3/model.safetensors.new
    shift 3
    mkdir -p "first-$dir" "others-$dir/$dir"
    truncate -s "$(stat -c %s together/model.safetensors)" "$left"
    local run=("$snug" train "$@" --threads 1 --eval-every -1 --quiet --out "$dir")
    timeout 100 "$launcher" -n 1 -wdir "$work/first-$dir" "${run[@]}" \
        : -n $((n_ranks - 1)) -wdir "$work/others-$dir" "${run[@]}" >"$dir.out" 2>&1 &&
        ! tr -d '\0' <"$left" | grep -q . && [ "$(ls "others-$dir/$dir")" = model.safetensors.new ] &&
        mv "first-$dir/$dir" "$dir" || { cat "$dir.out"; return 1; }
}
checksums() { grep -A4 'safetensors"' "$1/state.json"; }
both_ways() { # LAUNCHER RANKS FLAGS...: the same bytes, and valid checksums
    local launcher=$1 n_ranks=$2
    shift 2
    rm -rf together apart
    ranks "$launcher" "$n_ranks" together "$@" && apart "$launcher" "$n_ranks" apart "$@" && same together apart &&
        [ "$(checksums together)" = "$(checksums apart)" ] || { cat together.err; return 1; }
}

# ---- the same bytes ----------------------------------------------------------------------------

small="mlp:784-100-10 --batch 12 --steps 2" # tensors of several pieces, and of less than one
for how in ddp ps zero1 zero2 zero3; do
    # shellcheck disable=SC2046,SC2086
    check "$how on 3 ranks, together and apart" both_ways "$first" 3 $small $(flags_of $how)
done
[ -z "$openmpi" ] || [ -z "$mpich" ] || check "the other MPI" both_ways "$mpich" 3 mlp:784-100-10 --batch 12 --steps 2
check "more ranks than elements" both_ways "$first" 4 mlp:7-5-3 --batch 12 --steps 2 --zero 3
check "an owner for each matrix" both_ways "$first" 2 mlp:784-40-10 --batch 4 --steps 2 --zero 1 --optimizer muon
nano="gpt-nano --batch 4 --micro-batch 1 --seq 2 --steps 1"
# shellcheck disable=SC2086
check "2 stages with 2 ranks each" both_ways "$first" 4 $nano --pipeline 1f1b --stages 2 --zero 1
# shellcheck disable=SC2086
check "3 stages of PipeDream" both_ways "$first" 3 $nano --pipeline pipedream

# Without a learning rate the weights are those of one rank.
still="mlp:784-100-10 --batch 12 --steps 1 --lr 0"
# shellcheck disable=SC2086
check "no learning rate, one rank" alone still1 $still
for how in ddp zero2 zero3; do
    # shellcheck disable=SC2046,SC2086
    check "no learning rate, $how" ranks "$first" 4 still $still $(flags_of $how)
    check "$how: the file of one rank" cmp still/model.safetensors still1/model.safetensors
    rm -rf still
done

# ---- what goes wrong on one rank -----------------------------------------------------------------

# A file size limit for one rank: rank 0 cannot create the file, or another rank cannot write to its end.
cat >limited <<'END'
#!/usr/bin/env bash
trap '' XFSZ
[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}" != "$1" ] || ulimit -f 20000
shift
exec "$@"
END
chmod +x limited
full() { # RANK WORDS FLAGS...: only this rank reports it, and the folder does not change
    local rank=$1 words=$2
    shift 2
    timeout 60 "$first" -n 2 ./limited "$rank" "$snug" train gpt-nano --resume --steps 2 --threads 1 \
        --eval-every -1 --quiet --out run "$@" >full.out 2>&1 && return 1
    [ "$(grep -c '^snug: ' full.out)" -eq 1 ] && grep -q "^snug: rank $rank: run/model.*$words" full.out &&
        same run before && cmp run/state.json before/state.json && ! ls run/*.new 2>/dev/null ||
        { cat full.out; return 1; }
}
check "a run to go on with" ranks "$first" 2 run gpt-nano --batch 4 --seq 2 --steps 1 --zero 3
cp -r run before
check "no room on rank 0" full 0 "cannot set the file size: File too large"
check "no room on rank 1" full 1 "cannot write: File too large"
check "no room on rank 1, which has a share of what all have" full 1 "cannot write: File too large" \
    --zero 0 --parallel ddp

# A byte at a wrong offset, and a checksum of another file.
refused() { # WORDS
    if "$snug" train gpt-nano --resume --steps 2 --threads 1 --quiet --out run >refused.out 2>&1; then return 1; fi
    grep -q "^snug: .*$1" refused.out || { cat refused.out; return 1; }
}
printf 'x' | dd of=run/optimizer.safetensors bs=1 seek=60000000 conv=notrunc status=none
check "a byte that was written wrong" refused "optimizer.*damaged: its CRC-32 is"
cp before/optimizer.safetensors run/
sed -i -E 's/"crc32": "0/"crc32": "1/; t; s/"crc32": "./"crc32": "0/' run/state.json
check "a checksum that was joined wrong" refused "model.*damaged: its CRC-32 is"
cp before/state.json run/
check "nothing is wrong" alone run gpt-nano --resume --steps 2 --zero 0

finish
