#!/bin/sh
# Print a Python 3.11 to 3.14 that can make virtual environments, or say in one line what to install.
# PYTHON=/path/to/python overrides the search.
wanted='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
version='import sys; print(".".join(map(str, sys.version_info[:3])))'
venv_package='import sys; print("python%d.%d-venv" % sys.version_info[:2])'
install="install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.12) or name one with PYTHON=/path/to/python3"

if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11 python3.14 python
fi
problem="found no Python that runs"
[ -n "${PYTHON:-}" ] && problem="PYTHON=$PYTHON does not run"
seen=
for candidate in "$@"; do
    path=$(command -v "$candidate" 2>/dev/null) || continue
    found=$("$path" -c "$version" 2>/dev/null) || continue
    if ! "$path" -c "$wanted"; then
        [ -z "$seen" ] && problem="$path is Python $found"
        seen=${seen:-version}
    elif ! "$path" -c 'import ensurepip, venv' 2>/dev/null; then
        [ "$seen" != venv ] && problem="$path (Python $found) has no venv (Debian, Ubuntu: apt-get install $("$path" -c "$venv_package"))"
        seen=venv
    else
        echo "$path"
        exit 0
    fi
done
echo "kvlab needs Python 3.11 to 3.14 with venv, but $problem: $install" >&2
exit 1
