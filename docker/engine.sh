#!/bin/sh
# Print the first of docker, podman and buildah that works here: a client may be installed without its engine.
for engine in docker podman buildah; do
    command -v $engine > /dev/null || { tried="${tried-}, no $engine"; continue; }
    if $engine info > /dev/null 2>&1; then
        echo $engine
        exit
    fi
    tried="${tried-}, $engine whose \`$engine info\` fails"
done
echo "there is no working docker, podman or buildah here (found${tried#,})" >&2
exit 1
