# Shared by the workloads of a disk with Debian (sourced, not run).

export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true LANG=C
packages=/usr/lib/tollgate/packages

fail() {
    echo "tollgate: $*"
    exit 1
}

# The value of a word of the kernel command line, tollgate.NAME=VALUE, or a default. Commas stand for spaces.
parameter() {
    local word
    for word in $(cat /proc/cmdline); do
        case $word in "tollgate.$1="*) echo "${word#*=}" | tr , ' ' && return ;; esac
    done
    echo "$2"
}

# What an init system would mount, and the date if the command line has one.
begin() {
    mkdir -p /dev/pts /dev/shm
    mountpoint -q /dev/pts || mount -t devpts devpts /dev/pts || fail "no /dev/pts"
    mountpoint -q /run || mount -t tmpfs tmpfs /run || fail "no /run"
    [ -z "$(parameter date "")" ] || date -s "@$(parameter date "")" || fail "the date cannot be set"
}

# Installs the packages whose files are on the disk, as debootstrap does in its second stage: first those that the scripts of others need.
set_up() {
    local package
    [ -d $packages ] || return 0
    echo "tollgate: dpkg installs the packages, which happens once"
    ln -sf mawk /usr/bin/awk
    touch /etc/fstab
    for package in base-passwd base-files dpkg libc6 perl-base mawk debconf; do
        dpkg --force-depends --force-unsafe-io --install $packages/$package.deb || fail "$package cannot be installed"
    done
    dpkg --force-depends --force-unsafe-io --unpack $packages/*.deb || fail "the packages cannot be unpacked"
    dpkg --force-unsafe-io --configure -a || fail "the packages cannot be configured"
    rm -r $packages
    sync
}

# An address by DHCP, and the network's name servers.
connect() {
    ip link set lo up
    ip link set eth0 up || fail "eth0 does not come up: --net user makes it"
    udhcpc -i eth0 -n -q || fail "no lease"
}
