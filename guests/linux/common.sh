# Shared by the scripts here (sourced, not run): messages, the cache, and packages without installing them.
# Nothing outside `cache` and `out` is written, and nothing needs root.

set -euo pipefail
export LC_ALL=C

linux_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$linux_dir/cache
out=$linux_dir/out
mkdir -p "$cache/debs" "$out"

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || die "'$tool' is not installed; on Debian: apt-get install $(package_of "$tool")"
    done
}

package_of() {
    case $1 in
    apt-get) echo apt ;;
    dpkg-deb) echo dpkg ;;
    readelf | objcopy) echo binutils ;;
    mke2fs | debugfs) echo e2fsprogs ;;
    flock) echo util-linux ;;
    xz) echo xz-utils ;;
    *) echo "$1" ;;
    esac
}

# One script at a time works on the cache; the second waits, then finds everything made.
lock_cache() {
    need flock
    exec 9>"$cache/.lock"
    flock 9
}

# apt with lists of our own under the cache, for systems whose lists are missing or stale. The sources are the system's;
# `private_apt_setup SUITE` adds one more suite of the same mirror (for backports).
private_apt() {
    apt-get -qq -o Dir::State="$cache/apt/state" -o Dir::State::status="$cache/apt/status" -o Dir::Cache="$cache/apt/cache" \
        -o Dir::Etc::SourceParts="$cache/apt/sources.d" -o APT::Sandbox::User=root -o Acquire::Languages=none \
        -o Acquire::Retries=2 "$@"
}

private_apt_setup() {
    local suite=${1:-} apt=$cache/apt file mirror codename keyring
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/sources.d"
    : >"$apt/status"
    for file in /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list; do
        [ ! -e "$file" ] || ln -sf "$file" "$apt/sources.d/"
    done
    private_apt update >&2 || die "apt-get update failed: is this machine offline? (the lists are kept in $apt)"
    [ -n "$suite" ] || return 0
    codename=${suite%-backports}
    mirror=$(private_apt indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="$codename" '$1 == release && $2 == "main" { print $3; exit }')
    [ -n "$mirror" ] || die "this system's apt sources have no suite $codename, so there is no $suite beside it"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    if [ -e $keyring ]; then keyring="[signed-by=$keyring]"; else keyring=; fi
    echo "deb $keyring $mirror $suite main" >"$apt/sources.d/zz-$suite.list"
    private_apt update >&2 || die "apt-get update failed for $suite"
}

# Downloads a package into the cache, once, and prints the file's path. A suite takes it from there (by our own lists).
fetch_package() {
    local package=$1 suite=${2:-} dir=$cache/debs/$1${2:+@$2} found
    found=$(compgen -G "$dir/*.deb" || true)
    if [ -z "$found" ]; then
        need apt-get dpkg-deb
        say "fetching $package${suite:+ from $suite}"
        rm -rf "$dir.part"
        mkdir -p "$dir.part"
        if [ -n "$suite" ]; then
            [ -e "$cache/apt/sources.d/zz-$suite.list" ] || private_apt_setup "$suite"
            (cd "$dir.part" && private_apt download -t "$suite" "$package" >&2) ||
                die "cannot download $package from $suite: offline, or not in this system's apt sources"
        elif ! (cd "$dir.part" && apt-get -qq -o APT::Sandbox::User=root download "$package" >/dev/null 2>&1); then
            private_apt_setup
            (cd "$dir.part" && private_apt download "$package" >&2) ||
                die "cannot download $package: offline, or not in this system's apt sources"
        fi
        rm -rf "$dir"
        mv "$dir.part" "$dir"
        found=$(compgen -G "$dir/*.deb") || die "apt-get downloaded no $package"
    fi
    printf '%s\n' "$found"
}

# Unpacks a package's file tree into a directory of the cache, once, and prints the directory.
unpack_package() {
    local deb dir
    deb=$(fetch_package "$@")
    dir=$cache/unpacked/$(basename "$deb" .deb)
    if [ ! -d "$dir" ]; then
        rm -rf "$dir.part"
        mkdir -p "$dir.part"
        dpkg-deb -x "$deb" "$dir.part" || die "cannot unpack $deb; remove it and try again"
        mv "$dir.part" "$dir"
    fi
    printf '%s\n' "$dir"
}

# Writes the tree as an initramfs: sorted names, owner 0, one timestamp, so that equal trees give equal bytes. Not
# compressed: a software processor copies faster than it inflates.
pack_initramfs() {
    local tree=$1 to=$2
    find "$tree" -exec touch -h -d @0 {} +
    (cd "$tree" && find . -mindepth 1 | sort | cpio --quiet --reproducible -o -H newc -R 0:0) >"$to.part"
    mv "$to.part" "$to"
}
