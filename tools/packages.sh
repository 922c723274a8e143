#!/bin/sh
# Install Python packages into a virtual environment: packages.sh PYTHON [pip's arguments]
#
# Where no release of TensorFlow is for this Python, pip takes a release candidate, which brings keras-nightly: the same
# folder as keras, so that a mixture of both would be imported. keras is what stays.
set -eu
python=$1; shift
"$python" -m pip install --quiet --disable-pip-version-check "$@"
version() { "$python" -c "from importlib.metadata import version; print(version('$1'))" 2> /dev/null; }
if nightly=$(version keras-nightly); then
    keras=$(version keras)
    "$python" -m pip uninstall --quiet --disable-pip-version-check --yes keras-nightly
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "keras==$keras"
    echo "TensorFlow $(version tensorflow-cpu || version tensorflow || echo '(none)') for $("$python" -V) brought" \
         "keras-nightly $nightly into the folder of keras: keras $keras is there in its place, a combination that its" \
         "makers have not released"
fi
