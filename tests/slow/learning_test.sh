#!/usr/bin/env bash
# Trains an example for as long as its page says and looks at what it reached. Minutes each: `make
# test-slow` runs them, `make test` does not. Without the data a test is skipped (77), loudly.
#   learning_test.sh mnist_mlp | mnist_cnn | shakespeare  TANDEM-BINARY
set -euo pipefail
what=$1
tandem=$2
cd "$(dirname "$0")/../.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
skip() {
    echo "SKIPPED: $*"
    exit 77
}
field() { sed -n 's/.*"'"$1"'": *\([-+0-9.eE]*\).*/\1/p' "$scratch/result"; }
# expect NAME VALUE RELATION BAR
expect() {
    echo "$1: $2 (bar: $3 $4)"
    awk -v a="$2" -v r="$3" -v b="$4" 'BEGIN { exit !(r == "<=" ? a + 0 <= b : a + 0 >= b) }'
}
train() {
    local begin=$SECONDS
    "$tandem" train "$@" -q --json --set run.dir="$scratch/runs" >"$scratch/result"
    seconds=$((SECONDS - begin))
    echo "trained in $seconds s"
}
mnist() {
    [ -e examples/data/mnist/train-images-idx3-ubyte ] ||
        tools/get-mnist examples/data/mnist || skip "MNIST is not there and cannot be fetched"
}

case $what in
mnist_mlp)
    mnist
    train examples/02_mnist/job.yaml
    expect "test accuracy after 5 epochs" "$(field test_accuracy)" ">=" 0.978
    ;;
mnist_cnn)
    mnist
    train examples/02_mnist/cnn.yaml
    expect "test accuracy after 5 epochs" "$(field test_accuracy)" ">=" 0.990
    ;;
shakespeare)
    [ -e examples/data/shakespeare.txt ] ||
        skip "put tiny Shakespeare into examples/data/shakespeare.txt: see examples/04_shakespeare/README.md"
    train examples/04_shakespeare/job.yaml
    expect "test loss" "$(field test_loss)" "<=" 1.70
    expect "seconds" "$seconds" "<=" 600
    "$tandem" generate "$scratch"/runs/shakespeare-1 --prompt $'ROMEO:\n' --tokens 1500 --temperature 0.8 >"$scratch/text"
    cat "$scratch/text"
    # Recognisable: speakers in capitals with a colon, in lines of verse, and most words real ones,
    # which here means that they occur in the text that was read.
    speakers=$(grep -cE '^[A-Z][A-Z ]+:$' "$scratch/text" || true)
    words() { tr -cs "A-Za-z'" '\n' | tr '[:upper:]' '[:lower:]' | grep -E '^.{2,}$'; }
    words <examples/data/shakespeare.txt | sort -u >"$scratch/known"
    words <"$scratch/text" >"$scratch/said"
    share=$(grep -cxFf "$scratch/known" "$scratch/said" | awk -v n="$(wc -l <"$scratch/said")" '{ print $1 / n }')
    expect "speakers in 1,500 characters" "$speakers" ">=" 3
    expect "share of words that are words" "$share" ">=" 0.8
    ;;
*)
    echo "learning_test.sh: what is '$what'?" >&2
    exit 2
    ;;
esac
