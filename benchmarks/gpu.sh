#!/usr/bin/env bash
# All GPU measurements on one GPU, in about 30 minutes (38 at most): bash benchmarks/gpu.sh [precision]
# Writes benchmarks/results/{clipping,memory,sampling}-<gpu>.md, and prints what must hold. Precision: bf16 (default), or fp16 on a
# V100, which has no bf16. A part that runs out of its time leaves the tables that it has finished.
set -euo pipefail
cd "$(dirname "$0")/.."
precision=${1:-bf16}
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
limited() { timeout "$@" || echo "stopped after $1 s or failed: ${*:2}" >&2; }
common=(--device cuda --precision "$precision")

# 1. What must hold: GPT-2 small, eager and compiled, at its best micro-batch, against ordinary and Hugging Face's (10 min)
limited 720 "$python" -m benchmarks.clipping "${common[@]}" --compile --sizes gpt2 --lengths 64 \
    --micro-batch 16 32 64 128 256 --micro-batches 2 --repeats 7 --warmup 3 --seconds 8 --skip Opacus
# 2. Memory: the logits are most of it at T = 128; gpt2-large with the arithmetic (3 min)
limited 240 "$python" -m benchmarks.memory "${common[@]}" --compile --sizes gpt2 --lengths 64 128 --micro-batch 32
limited 180 "$python" -m benchmarks.memory "${common[@]}" --append --sizes gpt2-large --lengths 128 --micro-batch 16 \
    --skip "Opacus f" "Opacus e"
# 3. Opacus, on one micro-batch (3 min)
limited 240 "$python" -m benchmarks.clipping "${common[@]}" --append --sizes gpt2 --lengths 64 --micro-batch 32 \
    --repeats 5 --seconds 8 --rows Opacus
# 4. The other sizes and lengths (8 min)
limited 300 "$python" -m benchmarks.clipping "${common[@]}" --append --sizes gpt2 --lengths 32 128 \
    --micro-batch 32 128 256 --repeats 5 --seconds 5 --rows Doppel --skip "Doppel, with noise"
limited 300 "$python" -m benchmarks.clipping "${common[@]}" --append --sizes gpt2-medium gpt2-large --lengths 64 \
    --micro-batch 32 128 --repeats 5 --seconds 6 --rows Doppel --skip "Doppel, with noise"
# 5. Sampling, against generate at its best batch size (5 min)
# shellcheck disable=SC2046
limited 300 "$python" -m benchmarks.sampling --device cuda $([ "$precision" = bf16 ] && echo --bf16) --num-samples 512 \
    --repeats 3 --sizes 64 128 256 512

echo 'Must hold at the best micro-batch (throughput, last column): Doppel or Doppel, fused head by ordinary >= 0.90;'
echo 'Doppel, compiled or CUDA graphs by its compiled baseline >= 0.95; the best of Doppel by Hugging Face eager >= 1.05;'
echo 'peak memory of Doppel by ordinary <= 1.05, with the fused head <= 0.6.'
grep -h -E '^\| gpt2, T = 64: Doppel' benchmarks/results/clipping-[!c]*.md || true
grep -h -E '^\| Doppel' benchmarks/results/memory-[!c]*.md || true
