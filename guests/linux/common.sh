# Shared by the scripts here (sourced, not run): messages, the cache, and packages without installing them.
# Nothing outside `cache` and `out` is written, and nothing needs root.

set -euo pipefail
export LC_ALL=C

linux_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TOLLGATE_PACKAGES:-$linux_dir/cache}
out=$linux_dir/out
# The cache that all users of this machine share, if there is one: packages in it need no download.
shared=${TOLLGATE_CACHE-/var/cache/tollgate}
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

# flavour_of NAME: sets `kind` (cloud or amd64) and `suite` (empty for the system's own) of a kernel that packages have; fails for another name.
flavour_of() {
    local own
    own=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    suite=
    case $1 in
    cloud | amd64) kind=$1 ;;
    backports) kind=cloud suite=$own-backports ;;
    backports-amd64) kind=amd64 suite=$own-backports ;;
    # apt takes nothing from these suites unless it is told to, so they do not change what the other scripts fetch.
    cloud@*-backports | amd64@*-backports | cloud@experimental | amd64@experimental) kind=${1%%@*} suite=${1#*@} ;;
    *) return 1 ;;
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
    local suite=${1:-} apt=$cache/apt file mirror codename own keyring
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/sources.d"
    : >"$apt/status"
    for file in /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list; do
        [ ! -e "$file" ] || ln -sf "$file" "$apt/sources.d/"
    done
    private_apt update >&2 || die "apt-get update failed: is this machine offline? (the lists are kept in $apt)"
    [ -n "$suite" ] || return 0
    codename=${suite%-backports}
    own=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    # A mirror has the suites of all releases beside each other.
    mirror=$(private_apt indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v release="$codename" -v own="$own" '($1 == release || $1 == own) && $2 == "main" { print $3; exit }')
    [ -n "$mirror" ] || die "this system's apt sources have no suite $codename or $own, so there is no $suite beside it"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    if [ -e $keyring ]; then keyring="[signed-by=$keyring]"; else keyring=; fi
    echo "deb $keyring $mirror $suite main" >"$apt/sources.d/zz-$suite.list"
    private_apt update >&2 || die "apt-get update failed for $suite"
}

# shared_package NAME: the package's file in the shared cache, if nobody could have changed it but root, this user and the owner of that cache.
shared_package() {
    local file=$shared/packages/debs/$1 place
    [ -n "$shared" ] && [ -d "$file" ] && [ "$(realpath "$shared/packages")" != "$(realpath "$cache")" ] || return 1
    file=$(compgen -G "$file/*.deb" | head -n 1) && [ -f "$file" ] && [ ! -L "$file" ] && [ -r "$file" ] || return 1
    for place in "$shared" "$shared/packages" "$shared/packages/debs" "$shared/packages/debs/$1" "$file"; do
        case $(stat -L -c %u "$place") in 0 | "$(id -u)" | "$(stat -L -c %u "$shared")") ;; *) return 1 ;; esac
        [ -z "$(find -L "$place" -maxdepth 0 -perm /022)" ] || return 1
    done
    printf '%s\n' "$file"
}

# Downloads a package into the cache, once, and prints the file's path. A suite takes it from there (by our own lists).
fetch_package() {
    local package=$1 suite=${2:-} dir=$cache/debs/$1${2:+@$2} found
    found=$(compgen -G "$dir/*.deb" || true)
    if [ -z "$found" ] && [ -z "${refresh:-}" ] && found=$(shared_package "$1${suite:+@$suite}"); then
        rm -rf "$dir.part"
        mkdir -p "$dir.part"
        cp "$found" "$dir.part/"
        rm -rf "$dir"
        mv "$dir.part" "$dir"
        found=$dir/${found##*/}
    fi
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

# find_in_tree TREE NAME: the file of that name in the tree's directories for programs and libraries, if it is there.
find_in_tree() {
    local dir
    for dir in bin usr/bin lib64 usr/lib64 lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu; do
        if [ -e "$1/$dir/$2" ]; then
            echo "$1/$dir/$2"
            return
        fi
    done
    return 1
}

# find_needed PACKAGE NAME [SUITE]: the package that holds a file which a program of PACKAGE is linked with, and the file. It is in the package
# itself or in one that it depends on.
find_needed() {
    local package found
    for package in "$1" $(dpkg-deb -W --showformat '${Pre-Depends},${Depends}' "$(fetch_package "$1" ${3:-})" | tr ',' '\n' | sed 's/^ *//;s/[ (|:].*//;/^\(lib\|zlib\)/!d'); do
        if found=$(find_in_tree "$(unpack_package "$package" ${3:-})" "$2"); then
            echo "$package $found"
            return
        fi
    done
    die "neither $1 nor a package that it depends on has $2"
}

# add_libraries ROOT PACKAGE ELF [SUITE]: the program's interpreter (by its full path) and the closure of its needed libraries (in /lib,
# where ld.so looks by default).
add_libraries() {
    local root=$1 wanted to found
    for wanted in $(readelf -lW "$3" | sed -n 's/.*interpreter: \(.*\)\]/\1/p') \
        $(readelf -d "$3" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        case $wanted in
        /*) to=$root$wanted ;;
        ld-linux*) continue ;;
        *) to=$root/lib/$wanted ;;
        esac
        [ ! -e "$to" ] || continue
        found=$(find_needed "$2" "${wanted##*/}" ${4:-})
        install -D -m 755 "${found#* }" "$to"
        add_libraries "$root" "${found%% *}" "$to" ${4:-}
    done
}

# kernel_named NAME: finds a kernel (see `kernel --help`) and sets `label`, which stands for it in names of files, `image`, `modules` (the directory of its
# modules; empty if it has none) and `release`.
kernel_named() {
    label=$("$linux_dir/kernel" --label "$1")
    image=$("$linux_dir/kernel" "$1")
    modules=$("$linux_dir/kernel" --modules "$1")
    release=$(cat "$cache/kernel-$label/release")
}

# take_patch FILE: adds a patch to the array `patches`, by its full path.
take_patch() {
    [ -f "${1:-}" ] || die "--patch needs a file; there is none at '${1:-}'"
    patches+=("$(realpath "$1")")
}

# find_module MODULES NAME: prints the file of a kernel's module. Names vary between - and _ in places. A module in the directory `patched` (of modules
# that were built with changes) is taken in place of the kernel's own.
find_module() {
    local file
    if [ -n "${patched:-}" ] && [ -f "$patched/$2.ko" ]; then
        echo "$patched/$2.ko"
        return
    fi
    file=$(find "$1/kernel/" -name "${2//_/[-_]}.ko*" | head -n 1)
    [ -n "$file" ] && echo "$file"
}

# has_module MODULES NAME: succeeds if the kernel has the module, or its contents within itself.
has_module() { [ -n "$1" ] && { find_module "$1" "$2" >/dev/null || grep -qs "/${2//_/[-_]}\.ko" "$1/modules.builtin"; }; }

# add_module MODULES TO NAME: copies a module of a kernel, and what it depends on, into the directory TO, whose file `order` lists
# them as they must be loaded. Files may be compressed.
add_module() {
    local modules=$1 to=$2 name=$3 file dependency
    if grep -qsx "$name.ko" "$to/order"; then return; fi
    if ! file=$(find_module "$modules" "$name"); then
        if grep -qs "/${name//_/[-_]}\.ko" "$modules/modules.builtin"; then return; fi
        case $name in crc32c*) return 0 ;; esac # newer kernels have it as a library
        die "the kernel has no module $name"
    fi
    mkdir -p "$to"
    case $file in
    *.xz) need xz && xz -dc "$file" >"$to/$name.ko" ;;
    *.zst) need zstd && zstd -qdc "$file" >"$to/$name.ko" ;;
    *.gz) gzip -dc "$file" >"$to/$name.ko" ;;
    *.ko) cp -L "$file" "$to/$name.ko" ;;
    *) die "cannot unpack $file" ;;
    esac
    # A tree that was just built has modules with all that a debugger wants.
    if readelf -SW "$to/$name.ko" | grep -q '\.debug_info'; then objcopy --strip-debug "$to/$name.ko"; fi
    objcopy -O binary --only-section=.modinfo "$to/$name.ko" "$to/$name.info"
    for dependency in $(tr '\0' '\n' <"$to/$name.info" | sed -n 's/^depends=//p' | tr ',-' ' _'); do
        add_module "$modules" "$to" "$dependency"
    done
    rm "$to/$name.info"
    echo "$name.ko" >>"$to/order"
}

# is_program FILE: succeeds if the file is a program for this processor.
is_program() { [ "$(head -c 4 "$1" | od -An -tx1 | tr -d ' ')" = 7f454c46 ]; }

# add_host_libraries ROOT FILE: the host's libraries that a program needs, at their places. A static program needs none.
add_host_libraries() {
    local library
    need ldd
    for library in $(ldd "$2" 2>/dev/null | grep -o '/[^ ]*' || true); do
        [ -e "$1$library" ] || { mkdir -p "$1${library%/*}" && cp -L "$library" "$1$library"; }
    done
}

# add_program ROOT FILE NAME: a file of the user, in /bin under a name, with the host's libraries if it is a program.
add_program() {
    install -D -m 755 "$2" "$1/bin/$3"
    ! is_program "$2" || add_host_libraries "$1" "$2"
}

# build_net_tools DIR: the programs of net/tools, one executable with a link for each name.
build_net_tools() {
    local tool
    gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -no-pie -s -Wl,--build-id=none -o "$1/nettools" "$linux_dir"/net/tools/*.c ||
        die "cannot build net/tools (a static C library and the kernel's headers are needed; on Debian: libc6-dev)"
    for tool in $(sed -n 's/.*{"\([a-z]*\)", [a-z]*_main}.*/\1/p' "$linux_dir/net/tools/main.c"); do ln -s nettools "$1/$tool"; done
}

# fetch_headers LABEL: the packages of the headers of the kernel that `kernel_named` has found: sets `suite`, `version`, `compiler` (the one that the
# distribution's kernel was made with, which need not be installed) and the array `headers`.
fetch_headers() {
    local depends common kbuild first wanted
    flavour_of "$1" || suite=
    version=$(cat "$cache/kernel-$1/version" 2>/dev/null || true)
    wanted=linux-headers-$release${version:+=$version}
    first=$(fetch_package "$wanted" $suite) ||
        die "the package of the headers of $release${version:+ $version} cannot be had, without which no module can be built for it; give a tree in which the kernel was built"
    version=${version:-$(dpkg-deb -f "$first" Version)}
    depends=$(dpkg-deb -f "$first" Depends)
    # A dependency of the headers' package, by the beginning of its name, in the version that it wants if that is one.
    dependency() { { grep -o "$1[^ ,]*" <<<"$depends" || true; } | head -n 1; }
    common=$(dependency 'linux-headers-[^ ,]*-common')
    kbuild=$(dependency linux-kbuild-)
    compiler=$(dependency linux-compiler-gcc- | sed 's/linux-compiler-\(gcc-[0-9]*\)-.*/\1/')
    [ -n "$common" ] && [ -n "$kbuild" ] || die "linux-headers-$release does not name what it needs: $depends"
    compiler=${compiler:-$(dependency 'gcc-[0-9]')}
    compiler=${compiler%-for-host}
    compiler=${compiler:-gcc}
    headers=("$first" "$(fetch_package "$common" $suite)" "$(fetch_package "$kbuild" $suite)")
}

# unpack_headers: unpacks what fetch_headers has found into the cache, once, and sets `headers_dir`, in which modules are built. The
# packages refer to each other by links relative to /usr, except for one line of the kernel's Makefile.
unpack_headers() {
    local tree=$cache/headers-$release deb
    headers_dir=$tree/usr/src/linux-headers-$release
    if [ "$(printf '%s\n' "$tree" "${headers[@]##*/}")" != "$(cat "$tree/packages" 2>/dev/null)" ]; then
        rm -rf "$tree"
        mkdir -p "$tree"
        for deb in "${headers[@]}"; do dpkg-deb -x "$deb" "$tree" || die "cannot unpack $deb; remove it and try again"; done
        [ -f "$headers_dir/Makefile" ] || die "the headers' package has no $headers_dir/Makefile"
        sed -i "s|^include /usr/src/|include $tree/usr/src/|" "$headers_dir/Makefile"
        printf '%s\n' "$tree" "${headers[@]##*/}" >"$tree/packages"
    fi
}

# Writes the tree as an initramfs: sorted names, owner 0, one timestamp, so that equal trees give equal bytes. Not
# compressed: a software processor copies faster than it inflates.
pack_initramfs() {
    local tree=$1 to=$2
    find "$tree" -exec touch -h -d @0 {} +
    (cd "$tree" && find . -mindepth 1 | sort | cpio --quiet --reproducible -o -H newc -R 0:0) >"$to.part"
    mv "$to.part" "$to"
}

# make_ext4 TREE IMAGE SIZE: makes a disk image with the tree. mke2fs takes times and identifiers from the environment and options, so equal trees give equal images;
# the owner of the files, root, is set afterwards, for users other than root.
make_ext4() {
    local tree=$1 image=$2 timestamp=1 uuid=746f6c6c-6761-4e65-8000-726f6f746673 fields
    find "$tree" -exec touch -h -d @$timestamp {} +
    truncate -s "$3" "$image"
    E2FSPROGS_FAKE_TIME=$timestamp SOURCE_DATE_EPOCH=$timestamp mke2fs -q -F -t ext4 -L tollgate -U $uuid \
        -E hash_seed=$uuid,root_owner=0:0,lazy_itable_init=0 -d "$tree" "$image" || die "mke2fs cannot make the image"
    fields=$(printf 'sif "/%%P" %s\\n' 'uid 0' 'gid 0' 'ctime @1' 'atime @1' 'crtime @1')
    find "$tree" -mindepth 1 -printf "$fields" | sort >"$image.owners"
    E2FSPROGS_FAKE_TIME=$timestamp debugfs -w -f "$image.owners" "$image" >/dev/null 2>"$image.log" ||
        die "debugfs cannot set the owners: $(cat "$image.log")"
    rm "$image.owners" "$image.log"
}

# make_disk_initramfs MODULES TOOLS FILE NAME...: makes an initramfs that loads those modules and mounts the disk root=: the tools as /init, and the modules in
# loading order.
make_disk_initramfs() {
    local modules=$1 tools=$2 file=$3 module
    shift 3
    mkdir -p "$file.tree"/{bin,modules,dev,proc,sys,tmp}
    cp "$tools" "$file.tree/bin/tollgate-tools"
    ln -s bin/tollgate-tools "$file.tree/init"
    for module in "$@"; do add_module "$modules" "$file.tree/modules" "$module"; done
    pack_initramfs "$file.tree" "$file"
    rm -r "$file.tree"
}
