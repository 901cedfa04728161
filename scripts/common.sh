# Shared by the scripts here (sourced, not run).

set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tollgate=${TOLLGATE:-$root/target/release/tollgate}
linux=$root/guests/linux

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

need_tollgate() { [ -x "$tollgate" ] || die "no $tollgate: run 'make build' first (or set TOLLGATE)"; }

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# The options of Bochs for one run: disk image, console (a file or FIFO), log, memory in MB, processors. No throttling
# (sync=none); `ips` only sets how fast the guest's clock goes against its instructions.
bochs_config() {
    local image=$1 console=$2 log=$3 memory=$4 cpus=$5 firmware vga
    firmware=$(. "$linux/common.sh" && unpack_package bochsbios)/usr/share/bochs/BIOS-bochs-latest || return
    vga=$(. "$linux/common.sh" && unpack_package vgabios)/usr/share/vgabios/vgabios-stdvga.bin || return
    cat <<EOF
config_interface: textconfig
display_library: rfb, options="timeout=0"
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
megs: $memory
romimage: file=$firmware
vgaromimage: file=$vga
ata0-master: type=disk, path=$image, mode=flat
boot: disk
cpu: model=corei7_skylake_x, count=$cpus, ips=60000000, reset_on_triple_fault=0
clock: sync=none, time0=946684800
com1: enabled=1, mode=file, dev=$console
log: $log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
EOF
}
