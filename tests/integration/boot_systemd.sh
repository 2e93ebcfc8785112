#!/usr/bin/env bash
# boot_systemd.sh [--share DIR]… BUILD_DIR COMMAND [ARGUMENT…]: boots this machine's systemd as the first process of fresh
# namespaces, over a throw-away copy of the root file system into which BUILD_DIR was installed, runs COMMAND inside and takes
# all of it down. A shared DIR is seen inside, read-only, under its own name. Ends with COMMAND's status, with 77 where
# this machine does not allow it. Nothing outside is changed.
set -euo pipefail
shares=()
while [ "$1" = --share ]; do shares+=("$(readlink -f "$2")"); shift 2; done
build=$(readlink -f "$1"); shift
skip() { echo "boot_systemd: $1" >&2; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"
for tool in unshare nsenter chroot systemctl dbus-daemon; do command -v $tool >/dev/null || skip "$tool is missing"; done
[ -x /lib/systemd/systemd ] || skip "systemd is missing"

stage=$(mktemp -d /var/tmp/ellm-boot.XXXXXX)
mkdir "$stage/space" "$stage/new"

# Runs as the first process of the namespaces: makes the root, installs, becomes systemd.
cat >"$stage/first" <<'FIRST'
#!/usr/bin/env bash
set -euo pipefail
stage=$1 build=$2 new=$1/new
shift 2
mount --make-rprivate /
mount -t tmpfs -o size=4g none "$stage/space"
mkdir "$stage/space/changes" "$stage/space/work"
mount -t overlay none -o "lowerdir=/,upperdir=$stage/space/changes,workdir=$stage/space/work" "$new"
rm -rf "$new/etc/ellm" "$new/var/lib/ellm"
mount -t proc proc "$new/proc"
mount -t sysfs sysfs "$new/sys"
mount -t cgroup2 none "$new/sys/fs/cgroup"
mount -t tmpfs none "$new/run"
mount -t tmpfs none "$new/tmp"
mount --rbind /dev "$new/dev"
for share in "$@"; do
  mkdir -p "$new$share"
  mount --bind "$share" "$new$share"
  mount -o remount,bind,ro "$new$share"
done
ip link set lo up 2>/dev/null || true
DESTDIR=$new cmake --install "$build" >"$stage/install.log"
cat >"$new/etc/systemd/system/ellm-boot.target" <<UNIT
[Unit]
Description=What the tests need
Wants=systemd-journald.service dbus.socket
After=systemd-journald.service dbus.socket
UNIT
exec chroot "$new" /usr/bin/env -i container=ellm-boot PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --unit=ellm-boot.target --show-status=no --log-level=notice --log-target=console
FIRST

unshare --pid --fork --kill-child --mount --uts --ipc --net --cgroup bash "$stage/first" "$stage" "$build" "${shares[@]}" >"$stage/log" 2>&1 &
outside=$!
finish() {
  kill -KILL "$outside" 2>/dev/null || true
  wait "$outside" 2>/dev/null || true
  rm -rf "$stage"
}
trap finish EXIT

first=
enter() {
  nsenter --target "$first" --pid --mount --uts --ipc --net --cgroup --root="/proc/$first/root" --wd="/proc/$first/root" \
    /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
for _ in $(seq 150); do
  kill -0 "$outside" 2>/dev/null || break
  first=$(pgrep -P "$outside" | head -n 1 || true)
  if [ -n "$first" ] && [ "$(cat "/proc/$first/comm" 2>/dev/null)" = systemd ] &&
      enter systemctl is-active --quiet ellm-boot.target 2>/dev/null; then
    status=0
    enter "$@" || status=$?
    exit "$status"
  fi
  sleep 0.1
done
tail -n 20 "$stage/log" >&2
grep -qE 'Operation not permitted|Permission denied|wrong fs type' "$stage/log" && skip "these namespaces are not allowed here"
echo "boot_systemd: systemd did not come up" >&2
exit 1
