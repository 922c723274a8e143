#!/bin/sh
# Install Python packages into a virtual environment: packages.sh PYTHON [pip's arguments]
#
# If TensorFlow has no release for this Python, pip installs a release candidate with keras-nightly. keras-nightly and
# keras use the same folder, so that imports would mix both. This script removes keras-nightly and keeps keras.
set -eu
python=$1; shift
"$python" -m pip install --quiet --disable-pip-version-check "$@"
version() { "$python" -c "from importlib.metadata import version; print(version('$1'))" 2> /dev/null; }
if nightly=$(version keras-nightly); then
    keras=$(version keras)
    "$python" -m pip uninstall --quiet --disable-pip-version-check --yes keras-nightly
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "keras==$keras"
    echo "TensorFlow $(version tensorflow-cpu || version tensorflow || echo '(none)') for $("$python" -V) brought" \
         "keras-nightly $nightly into the folder of keras. keras $keras replaces it: a combination that Keras has not" \
         "released"
fi
