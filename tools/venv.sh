#!/usr/bin/env bash
# Bring .venv up to date: tools/venv.sh EXTRA... , for example: tools/venv.sh course test
# Does nothing when what it would install from has not changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python

fingerprint() { # the path is part of it: the project is installed in place, so a moved folder needs a new link
    echo "$PWD $(cat pyproject.toml constraints.txt tools/venv.sh tools/lab_settings.json | cksum)"
}

up_to_date() {
    local extra
    [[ -x $python ]] || return 1
    for extra in "$@"; do
        [[ -f .venv/$extra.stamp && $(<".venv/$extra.stamp") == "$(fingerprint)" ]] || return 1
    done
}

up_to_date "$@" && exit 0

if [[ "$(uname -sm)" == "Darwin x86_64" ]]; then
    echo "kvlab: PyTorch's wheels for Intel Macs end at 2.2, too old: try conda with environment.yml, or Linux in a container" >&2
    exit 1
fi

if ! "$python" -m pip --version >/dev/null 2>&1; then
    base=$(sh tools/find_python.sh)
    echo "kvlab: making .venv with $base"
    "$base" -m venv .venv
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "kvlab: .venv was made with a Python older than 3.11: remove it with 'make clean' and run this again" >&2
    exit 1
fi

extras=$(IFS=,; echo "$*")
echo "kvlab: installing the project with [$extras] into .venv (the first time takes a minute or more)"
rm -f .venv/*.stamp
quiet=()
[[ -t 1 ]] || quiet=(--quiet)
# pip warns about every package that a local index does not list: no news for whoever reads this.
"$python" -m pip install ${quiet[@]+"${quiet[@]}"} --disable-pip-version-check -c constraints.txt -e ".[$extras]" \
    2> >(grep -v "^WARNING: Location '.*' is ignored" >&2)
# At its first start JupyterLab asks whether to fetch news from the network: answered, for this .venv only.
mkdir -p .venv/share/jupyter/lab/settings
cp tools/lab_settings.json .venv/share/jupyter/lab/settings/overrides.json
for extra in "$@"; do
    fingerprint >".venv/$extra.stamp"
done
