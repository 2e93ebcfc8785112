#!/usr/bin/env bash
# systemd.sh BUILD_DIR: the installed units under a real systemd (boot_systemd.sh), with the models that there are.
set -euo pipefail
here=$(readlink -f "$(dirname "$0")")
data=${ELLM_TEST_DATA:-}
[ -n "$data" ] || { echo "systemd.sh: ELLM_TEST_DATA is unset" >&2; exit 77; }
material=$(mktemp -d /var/tmp/ellm-units.XXXXXX)
trap 'rm -rf "$material"' EXIT
cp "$here/protocol.py" "$here/systemd_units.py" "$data/models/stories260K.gguf" "$material"
arguments=("$material/stories260K.gguf")
# The catalogue's smallest model, where it has been pulled.
for folder in /var/lib/ellm/models "${XDG_DATA_HOME:-$HOME/.local/share}/ellm/models"; do
  [ -f "$folder/smollm2.gguf" ] || continue
  cp "$folder/smollm2.gguf" "$data/text/kjv.txt.gz" "$material"
  arguments+=("$material/smollm2.gguf" "$material/kjv.txt.gz")
  break
done
"$here/boot_systemd.sh" --share "$material" "$1" python3 -B "$material/systemd_units.py" "${arguments[@]}"
