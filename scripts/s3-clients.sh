#!/bin/sh
# Installs the S3 clients that tests use into a directory of its own: `s3-clients.sh DIR`. Does nothing
# where they are there.
set -eu

dir=${1:?a directory}
clients="awscli==1.45.11 boto3==1.43.11"
if [ "$(cat "$dir/installed" 2>/dev/null)" = "$clients" ]; then
    exit 0
fi
rm -rf "$dir"
python3 -m venv "$dir"
# shellcheck disable=SC2086  # a list of words
"$dir/bin/pip" install --quiet --disable-pip-version-check $clients
echo "$clients" > "$dir/installed"
