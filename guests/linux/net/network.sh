# Shared by the workloads of an image with network devices (sourced, not run).

fail() {
    echo "tollgate: $*"
    exit 1
}

# The shell has programs of these names within it.
ip() { /bin/ip "$@"; }
ping() { /bin/ping "$@"; }
tc() { /bin/tc "$@"; }

# The value of a variable of that name, of a word of the kernel command line, tollgate.NAME=VALUE, or a default. Variables are for what a machine
# that has booted already is told to do: `by=ovs sh /workloads/forward`.
parameter() {
    local word
    eval "word=\${$1-}"
    [ -z "$word" ] || { echo "$word" && return; }
    for word in $(cat /proc/cmdline); do
        case $word in "tollgate.$1="*) echo "${word#*=}" && return ;; esac
    done
    echo "$2"
}

load_drivers() {
    local module
    for module in $(cat /lib/net/order 2>/dev/null); do
        grep -q "^${module%.ko} " /proc/modules || insmod "/lib/net/$module" || fail "cannot load $module"
    done
}

# Loads a part of the kernel, with what it needs.
load() {
    local part module
    for part in "$@"; do
        for module in $(cat "/lib/net/$part/order" 2>/dev/null); do
            grep -q "^$(echo "${module%.ko}" | tr - _) " /proc/modules || insmod "/lib/net/$part/$module" || fail "cannot load $module"
        done
    done
}

unload_drivers() {
    local module
    for module in $(sed '1!G;h;$!d' /lib/net/order); do rmmod "${module%.ko}" || fail "cannot unload $module"; done
}

# The interrupts of receive queue N of a device go to processor N.
spread_interrupts() {
    local number irq
    for number in $(seq 0 $(($2 - 1))); do
        for irq in $(sed -n "s/^ *\([0-9]*\):.*\(virtio[0-9]*-input\.$number\|$1-TxRx-$number\)\$/\1/p" /proc/interrupts); do
            echo "$number" >"/proc/irq/$irq/smp_affinity_list" || fail "interrupt $irq of queue $number stays where it is"
        done
    done
}

# use_queues SIDE DEVICE: switches on tollgate.queues=N queues of a device and sets `queues` to their number. Without that, a virtio device uses all that it
# has; the driver of the 82599 has switched on as many as there are processors, and says that there could be 63.
use_queues() {
    local shown=$($1 ethtool -l "$2" | sed -n 's/^Combined:[[:space:]]*//p') most current
    most=${shown%%[!0-9]*} current=${shown##*[!0-9]}
    [ "$most" -lt 63 ] || most=$current
    queues=$(parameter queues "$most")
    [ "$queues" -eq "$current" ] || $1 ethtool -L "$2" combined "$queues" || fail "no $queues queues"
    await_link "$1" "$2"
}

# warn_of_one_queue DEVICE QUEUES: says so if all datagrams have come to one of several queues because the device hashes no ports. The 82599's driver asks for no ports of UDP,
# because fragments have none, so that flows between the same two addresses share a queue.
warn_of_one_queue() {
    [ "$2" -gt 1 ] && ethtool -i "$1" | grep -q '^driver: ixgbe$' || return 0
    ! ethtool -n "$1" rx-flow-hash udp4 2>/dev/null | grep -q 'L4 bytes' || return 0
    [ "$(ethtool -S "$1" | grep -c 'rx_queue_[0-9]*_packets: [1-9][0-9][0-9][0-9]')" -gt 1 ] ||
        echo "tollgate: warning: all datagrams came to one of $2 queues: the hash of $1 has no ports of UDP; rss=ports (ethtool -N $1 rx-flow-hash udp4 sdfn) adds them, and vary=addresses of the generator varies what it has"
}

# await_link SIDE DEVICE
await_link() {
    local turn
    for turn in $(seq 50); do
        ! $1 ethtool "$2" | grep -q 'Link detected: yes' || return 0
        sleep 0.1
    done
    fail "$2 has no link"
}

# Two network namespaces, each with one of the two NICs on the bridge.
two_sides() {
    local side nic=0
    for side in left right; do
        ip netns add $side || fail "no network namespace"
        ip link set eth$nic netns $side
        ip -n $side link set lo up
        ip -n $side addr add 10.0.0.$((nic + 1))/24 dev eth$nic
        ip -n $side link set eth$nic up || fail "eth$nic does not come up"
        nic=$((nic + 1))
    done
}
left() { ip netns exec left "$@"; }
right() { ip netns exec right "$@"; }
