#!/bin/sh
# check_symbols.sh NAMESPACE OBJECT…: an ISA level's objects export functions of their own namespace and nothing weak. A weak
# symbol (an inline function, a template of std) may be the copy that the linker keeps for the whole program, with
# instructions that an older CPU does not have.
set -eu
namespace=$1
shift
[ $# -gt 0 ] || { echo "no objects of level $namespace"; exit 1; }
bad=0 exported=0
for object; do
  symbols=$(nm -C --defined-only --extern-only "$object")
  exported=$((exported + $(printf '%s\n' "$symbols" | grep -c " T ellm::kernels::$namespace::" || true)))
  if printf '%s\n' "$symbols" | grep -v '^$' | grep -v "^[0-9a-f]* T ellm::kernels::$namespace::"; then
    echo "^ exported by $object"
    bad=1
  fi
done
[ "$exported" -ge 1 ] || { echo "no function of $namespace: is this the right list of objects?"; exit 1; }
exit $bad
