# Puts the programs that the tests of the network start into the image's `tree`, and adds them to the names in `had`, of which none may be an applet of busybox (sourced by
# `image`, not run). They come from packages. busybox has some of them too, with fewer options, and those of its programs that start others prefer its own applets to programs,
# such as iproute2's ip.

had+=$'\nbin/ip\nbin/tc\nbin/ping\nbin/bridge\nbin/ethtool\nbin/nft'
programs=("jq jq" "tcpdump tcpdump" "socat socat" "iputils-arping arping" "netsniff-ng mausezahn" "conntrack conntrack" "traceroute traceroute" "iperf3 iperf3" "uuid-runtime uuidgen"
    "iptables xtables-nft-multi" "net-tools netstat" "ndisc6 ndisc6" "psmisc killall" "util-linux unshare" "util-linux nsenter" "util-linux taskset" "util-linux setsid")
wholes=(coreutils grep sed findutils procps)

# put_program PACKAGE NAME FILE: that file of a package, under a name.
put_program() {
    had+=$'\n'bin/$2
    install -m 755 "$3" "$tree/bin/$2"
    ! is_program "$3" || add_libraries "$tree" "$1" "$tree/bin/$2"
}
for program in "${programs[@]}"; do
    package=${program%% *} name=${program#* }
    # Some are in /sbin, and some have a name in front of that of the alternative.
    file=$(find "$(unpack_package "$package")" \( -path "*bin/$name" -o -path "*bin/$name.db" \) -type f | head -n 1)
    [ -n "$file" ] || die "$package has no program $name"
    put_program "$package" "$name" "$file"
done
for package in "${wholes[@]}"; do
    for file in $(find "$(unpack_package "$package")" -path '*bin/*' -type f); do put_program "$package" "${file##*/}" "$file"; done
done

# link NAME TO
link() {
    ln -sf "$2" "$tree/bin/$1"
    had+=$'\n'bin/$1
}
link ping6 ping
link traceroute6 traceroute
link pkill pgrep
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do link $name xtables-nft-multi; done
extensions=$(find "$(unpack_package iptables)" -type d -name xtables | head -n 1)
mkdir -p "$tree/${extensions#"$(unpack_package iptables)"/}"
cp "$extensions"/*.so "$tree/${extensions#"$(unpack_package iptables)"/}/"

# Names of protocols and of this machine.
mkdir -p "$tree/etc"
cp "$(unpack_package netbase)"/etc/{protocols,services} "$tree/etc/"
printf '%s localhost\n' 127.0.0.1 ::1 >"$tree/etc/hosts"

# Python, without what is compiled from its sources or only for developers.
python=$(dpkg-deb -f "$(fetch_package python3-minimal)" Pre-Depends | grep -o 'python3\.[0-9]*' | head -n 1)
mkdir -p "$tree/usr/lib"
for package in "lib$python-minimal" "lib$python-stdlib" python3-yaml; do cp -a "$(unpack_package "$package")"/usr/lib/python3* "$tree/usr/lib/"; done
find "$tree"/usr/lib/python3* \( -name test -o -name lib2to3 -o -name ensurepip -o -name 'config-*' \) -prune -exec rm -r {} +
put_program "$python-minimal" "$python" "$(unpack_package "$python-minimal")/usr/bin/$python"
for file in "$tree"/usr/lib/python3/dist-packages/yaml/*.so; do [ ! -f "$file" ] || add_libraries "$tree" python3-yaml "$file"; done
for file in "$tree/usr/lib/$python"/lib-dynload/_ctypes.*.so; do add_libraries "$tree" "lib$python-stdlib" "$file"; done
link python3 "$python"
ln -s ../../bin/python3 "$tree/usr/bin/python3"

# iproute2 of the release that has a newer kernel than this one knows more of that kernel. It has libraries of its own, which are as new.
flavour_of "$label" || suite=
newer=${suite%-backports}
if [ -n "$newer" ] && [ "$newer" != experimental ] && [ "$newer" != "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" ]; then
    from=$(unpack_package iproute2 "$newer")
    for dir in etc/iproute2 usr/share/iproute2 usr/lib/tc; do
        [ ! -d "$from/$dir" ] || { mkdir -p "$tree/$dir" && cp -a "$from/$dir/." "$tree/$dir/"; }
    done
    for name in ip tc bridge ss nstat lnstat devlink; do
        file=$(find "$from" -path "*bin/$name" -type f | head -n 1)
        install -D -m 755 "$file" "$tree/newer/bin/$name"
        add_libraries "$tree/newer" iproute2 "$tree/newer/bin/$name" "$newer"
        printf '#!/bin/busybox sh\nexec /newer/lib64/ld-linux-x86-64.so.2 --library-path /newer/lib /newer/bin/%s "$@"\n' $name >"$tree/bin/$name"
        chmod 755 "$tree/bin/$name"
        had+=$'\n'bin/$name
    done
else
    for name in ss nstat lnstat devlink; do put_program iproute2 $name "$(find "$(unpack_package iproute2)" -path "*bin/$name" -type f | head -n 1)"; done
fi
