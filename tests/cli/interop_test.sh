#!/usr/bin/env bash
# Checkpoints and Python's safetensors package, in both directions: Python finds in a trained checkpoint what
# `tandem inspect` prints, byte for byte; a file that Python wrote can be inspected, hashed, and used to start
# training. Needs build/venv, which tools/setup --test creates.
# shellcheck source=tests/cli/lib.sh
source tests/cli/lib.sh
# shellcheck source=tests/cli/train_lib.sh
source "$source_root/tests/cli/train_lib.sh"
[ -e "$source_root/build/venv/ready" ] ||
    skip "NO PYTHON: build/venv is not there, so NOTHING was compared with Python's safetensors; 'tools/setup --test' makes it"
python=$source_root/build/venv/bin/python3
interop() { "$python" "$source_root/tests/cli/safetensors_interop.py" "$@"; }
make_data 150 data.csv
make_job job.yaml
assert_exit 0 "$TANDEM" train job.yaml -q --set optim.kind=adamw
last=runs/tiny-1/checkpoints/step-000000000015.safetensors

# The tensors according to `inspect --json`, as lines for `safetensors_interop.py check`.
tensors_by_tandem() {
    "$TANDEM" inspect "$1" --json | "$python" -c '
import json, sys
for t in json.load(sys.stdin)["tensors"]:
    print(json.dumps([t["name"], t["dtype"].upper(), t["shape"]]))'
}
tensors_by_python() {
    interop check "$1" | "$python" -c '
import json, sys
for line in list(sys.stdin)[1:]:
    t = json.loads(line)
    print(json.dumps([t["name"], t["dtype"], t["shape"]]))'
}

test_python_reads_our_checkpoint() {
    tensors_by_tandem "$last" >a.txt
    tensors_by_python "$last" >b.txt
    assert_same_files a.txt b.txt "the tensors"
    assert_equal "$(wc -l <a.txt)" 14 "tensors" # 4 parameters, 2 states of each, 2 buffers
    "$TANDEM" inspect "$last" --json | "$python" -c '
import json, sys
print(json.dumps({"metadata": json.load(sys.stdin)["metadata"]}, sort_keys=True))' >a.txt
    interop check "$last" | sed -n 1p >b.txt
    assert_same_files a.txt b.txt "the metadata"
}

test_we_read_what_python_wrote() {
    local way
    for way in make make-odd; do
        interop $way file.safetensors
        tensors_by_tandem file.safetensors >a.txt
        tensors_by_python file.safetensors >b.txt
        assert_same_files a.txt b.txt "the tensors of '$way'"
        assert_exit 0 "$TANDEM" inspect file.safetensors
        assert_contains "$out" "text      line?with \"quotes\" and é"
        assert_exit 0 "$TANDEM" hash file.safetensors
        [[ $out =~ ^[0-9a-f]{64}\ \ file\.safetensors$ ]] || fail "no hash: $out"
        assert_exit 1 "$TANDEM" eval file.safetensors --data data.csv
        assert_contains "$err" "not a checkpoint of Tandem"
    done
}

# The same tensors, written by Python in another way, are the same state (position zero for both).
test_the_hash_is_of_the_tensors() {
    "$python" - "$last" <<'PYTHON'
import sys
import numpy as np
from safetensors.numpy import load_file, save_file
tensors = load_file(sys.argv[1])
save_file(tensors, "copy.safetensors", {"anything": "else"})
save_file(dict(reversed(tensors.items())), "copy2.safetensors")
tensors["fc1.bias"][0] += np.float32(1)
save_file(tensors, "changed.safetensors")
PYTHON
    assert_exit 0 "$TANDEM" hash copy.safetensors copy2.safetensors changed.safetensors
    assert_equal "$(sed -n 1p <<<"$out" | cut -c 1-64)" "$(sed -n 2p <<<"$out" | cut -c 1-64)" "the hash"
    assert_equal "$(cut -c 1-64 <<<"$out" | sort -u | wc -l)" 2 "different states"
}

# Parameters from Python, as f16 and f64 among others, are the initial values of a training run: with a
# learning rate near zero they are almost unchanged at its end.
test_training_from_python() {
    "$python" - <<'PYTHON'
import numpy as np
from safetensors.numpy import save_file
rng = np.random.default_rng(3)
save_file({"fc1.weight": rng.integers(-8, 8, (16, 5)).astype(np.float16),
           "fc1.bias": rng.integers(-8, 8, 16).astype(np.float64),
           "fc2.weight": rng.integers(-8, 8, (3, 16)).astype(np.float32),
           "fc2.bias": np.array([1, 2, 3], dtype=np.float32),
           "input.shift": np.zeros(5, dtype=np.float32),
           "input.scale": np.ones(5, dtype=np.float32)}, "start.safetensors")
PYTHON
    assert_exit 0 "$TANDEM" train job.yaml -q --set model.init_from=start.safetensors --set optim.kind=sgd \
        --set optim.lr=1e-30 --set name=from
    "$python" - runs/from-1/checkpoints/step-000000000015.safetensors <<'PYTHON' || fail "other values"
import sys
import numpy as np
from safetensors.numpy import load_file
start, end = load_file("start.safetensors"), load_file(sys.argv[1])
for name, array in start.items():
    assert end[name].dtype == np.float32, name
    assert np.allclose(end[name], array.astype(np.float64), rtol=0, atol=1e-20), name
PYTHON
    # The model as numpy computes it gives the predictions of tandem.
    "$TANDEM" predict runs/from-1 data.csv --json --top 3 >p.jsonl
    "$python" - runs/from-1/checkpoints/step-000000000015.safetensors <<'PYTHON' || fail "other predictions"
import json, sys
import numpy as np
from safetensors.numpy import load_file
t = {name: array.astype(np.float64) for name, array in load_file(sys.argv[1]).items()}
x = np.loadtxt("data.csv", delimiter=",")[:, :5]
h = np.maximum(((x - t["input.shift"]) * t["input.scale"]) @ t["fc1.weight"].T + t["fc1.bias"], 0)
z = h @ t["fc2.weight"].T + t["fc2.bias"]
p = np.exp(z - z.max(1, keepdims=True))
p /= p.sum(1, keepdims=True)
for i, line in enumerate(open("p.jsonl")):
    for guess in json.loads(line)["top"]:
        assert abs(guess["probability"] - p[i, int(guess["class"])]) < 1e-5, (i, line, p[i])
PYTHON
    assert_equal "$(wc -l <p.jsonl)" 150 "predictions"
}

run_tests "$@"
