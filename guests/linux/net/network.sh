# Shared by the workloads of an image with network devices (sourced, not run).

fail() {
    echo "tollgate: $*"
    exit 1
}

# The shell has programs of these names within it.
ip() { /bin/ip "$@"; }
ping() { /bin/ping "$@"; }

# The value of a word of the kernel command line, tollgate.NAME=VALUE, or a default.
parameter() {
    local word
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

unload_drivers() {
    local module
    for module in $(sed '1!G;h;$!d' /lib/net/order); do rmmod "${module%.ko}" || fail "cannot unload $module"; done
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
