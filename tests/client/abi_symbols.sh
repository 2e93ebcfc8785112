#!/bin/sh
# abi_symbols.sh LIBELLM.SO LIBELLM.MAP: what the library exports is what the version script lists, name for name.
set -eu
exported=$(nm -D --defined-only "$1" | sed -n 's/.* [^A] \(.*\)/\1/p' | sort)
listed=$(sed -n 's/^ *\(ellm_[a-z_]*\);$/\1@@ELLM_1/p' "$2" | sort)
[ "$(echo "$listed" | wc -l)" -gt 10 ]
if [ "$exported" != "$listed" ]; then
  printf 'exported:\n%s\nlisted in %s:\n%s\n' "$exported" "$2" "$listed"
  exit 1
fi
readelf -d "$1" | grep -q 'SONAME.*\[libellm\.so\.1\]'
