# Functions shared by the scripts here (sourced, not run).

set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tollgate=${TOLLGATE:-$root/target/release/tollgate}
linux=$root/guests/linux

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Prints the options of `tollgate run` for the fast model of time, unless these options choose a model, a clock or a backend.
fast_model() { case " $* " in *' --model'* | *' --clock'* | *' --backend'*) ;; *) echo --model flat ;; esac }

need_tollgate() { [ -x "$tollgate" ] || die "no $tollgate: run 'make build' first (or set TOLLGATE)"; }

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# Prints a warning if other programs use this machine's processors, which makes times unreliable.
warn_of_load() {
    local load processors
    read -r load _ </proc/loadavg
    processors=$(nproc)
    ! awk -v busy="$load" -v all="$processors" 'BEGIN { exit !(busy > all / 2) }' ||
        echo "${0##*/}: the load is $load on $processors processors: times will be off" >&2
}

# Reads console lines and writes each with the microsecond at which it arrived.
stamp() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do printf '%s %s\n' "${EPOCHREALTIME/./}" "${line%$'\r'}"; done
}

# watch PID LIMIT PEAK CPU: keeps the largest resident size (kB) of a process in the file PEAK while it runs, writes lines
# "TIME USED" to the file CPU, both in microseconds: the time of the host, and the processor time that all threads of the
# process have used. Ends the process after LIMIT seconds.
watch() {
    local pid=$1 until=$((SECONDS + $2)) key value tick=$((1000000 / $(getconf CLK_TCK))) state
    while [ -r "/proc/$pid/status" ]; do
        while read -r key value _; do
            if [ "$key" = VmHWM: ]; then echo "$value" >"$3"; fi
        done 2>/dev/null <"/proc/$pid/status" || true
        # The name of the program, in parentheses, may contain spaces; the fields after it are numbered from 3.
        if read -r state 2>/dev/null <"/proc/$pid/stat"; then
            read -ra state <<<"${state##*) }"
            echo "${EPOCHREALTIME/./} $(((state[11] + state[12]) * tick))" >>"$4"
        fi
        [ $SECONDS -lt $until ] || kill "$pid" 2>/dev/null || true
        sleep 0.1
    done
}

# run_machine NAME COMMAND...: runs a machine whose console is its standard output (Bochs writes it into
# $work/bochs.console directly). Ends the machine after $limit seconds. Leaves in $work: NAME.log, the console's lines,
# each with the microsecond at which it arrived; NAME.start and NAME.stop, microseconds; NAME.peak, kB; NAME.cpu, see
# watch; NAME.err.
run_machine() {
    local name=$1 console=$work/$1.console output=$work/$1.console status=0 machine reader watcher
    shift
    [ "$name" != bochs ] || output=$work/bochs.out
    rm -f "$console" "$work/$name.peak" "$work/$name.cpu"
    mkfifo "$console"
    stamp <"$console" >"$work/$name.log" &
    reader=$!
    echo "${0##*/}: $name ..." >&2
    echo "${EPOCHREALTIME/./}" >"$work/$name.start"
    "$@" </dev/null >"$output" 2>"$work/$name.err" &
    machine=$!
    watch $machine "$limit" "$work/$name.peak" "$work/$name.cpu" &
    watcher=$!
    wait $machine || status=$?
    echo "${EPOCHREALTIME/./}" >"$work/$name.stop"
    # A machine that failed before it opened its console leaves the reader waiting for a writer.
    : <>"$console"
    if [ ! -s "$work/$name.log" ]; then kill $reader 2>/dev/null || true; fi
    wait $reader $watcher 2>/dev/null || true
    workload_done "$name" || {
        echo "${0##*/}: $name did not finish the workload (status $status); its last lines:" >&2
        tail -n 5 "$work/$name.log" "$work/$name.err" >&2
    }
}

# Succeeds if the console of a machine shows that its workload ended well.
workload_done() { grep -q 'tollgate: workload .*: status 0' "$work/$1.log"; }

# Prints a machine's memory use as lines "NAME BYTES": its peak, and the other figures of `tollgate run --json`.
memory_of() {
    local figures
    figures=$(sed -n 's/.*"memory":{\([^}]*\)}.*/\1/p' "$work/$1.err" | tr -d '"' | tr ',:' '\n ')
    if [ -n "$figures" ]; then
        echo "$figures"
    elif [ -s "$work/$1.peak" ]; then
        echo "peak $(($(<"$work/$1.peak") * 1024))"
    fi
}

# Converts tables to Markdown; their columns are two or more spaces apart, with an empty line between tables.
as_markdown() {
    awk -F '  +' '
        /^$/ { heading = 0; print; next }
        NF < 2 { print; next }
        {
            row = rule = "|"
            for (i = 1; i <= NF; i++) { row = row " " $i " |"; rule = rule (i == 1 ? "---|" : "---:|") }
            print row
        }
        !heading { heading = 1; print rule }'
}

# Sets the arguments of QEMU (TCG) for a Linux guest: memory in MB, processors, kernel, initramfs, command line.
qemu_arguments() {
    printf '%s\0' -accel tcg -cpu max -m "$1" -smp "$2" -nodefaults -display none -no-reboot -serial stdio \
        -kernel "$3" -initrd "$4" -append "$5"
}

# Writes the options of Bochs for one run: disk image, console (a file or FIFO), log, memory in MB, processors.
# Throttling is off (sync=none); `ips` only sets the speed of the guest's clock relative to its instructions.
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
