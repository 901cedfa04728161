# Shared by the scripts that build a kernel's modules from its sources with patches (sourced after common.sh): `patched` and `kvm/build`. A kernel of packages is built
# against the packages of its headers, with the distribution's source package of its version; one of a tree, with that tree, which is not changed.

# choose_sources: for the kernel that `kernel_named` has found, sets `headers_dir` (what its build has left for modules), `common` (the sources that this belongs to),
# `compiler`, `version`, `source_deb` (empty for a tree) and `identity`, whose lines are the same if everything else that decides about the outcome is.
choose_sources() {
    local tree series
    tree=$(cat "$cache/kernel-$label/tree" 2>/dev/null || true)
    if [ -n "$tree" ]; then
        headers_dir=$tree common=$tree source_deb= version=$release
        if [ ! -f "$tree/Kbuild" ]; then
            common=$(sed -n 's/^include \(.*\)\/Makefile$/\1/p' "$tree/Makefile")
            [ -f "$common/Kbuild" ] || die "$tree does not name its sources, in which the kernel was built with O="
        fi
        compiler=$(sed -n 's/^CONFIG_CC_VERSION_TEXT="\([^ ]*\).*/\1/p' "$tree/.config")
        if grep -q '^CONFIG_CC_IS_CLANG=y' "$tree/.config"; then die "the kernel of $tree was built with clang; modules with patches are built with gcc alone"; fi
        compiler=${compiler:-gcc}
        need "$compiler"
        [ -f "$tree/Module.symvers" ] || die "$tree has no Module.symvers: is the build complete?"
        identity=$(sha256sum "$tree/Module.symvers" "$tree/.config" "$tree/include/generated/utsrelease.h"; "$compiler" --version)
        return
    fi
    fetch_headers "$label"
    need "$compiler"
    unpack_headers
    common=$(sed -n 's/^include \(.*\)\/Makefile$/\1/p' "$headers_dir/Makefile")
    series=$(grep -o '^[0-9]*\.[0-9]*' <<<"$release")
    # The sources of exactly that kernel.
    source_deb=$(fetch_package "linux-source-$series=$version" $suite) ||
        die "the package of the sources of Linux $version cannot be had, so no module can be built for $release; give a tree in which the kernel was built"
    identity=$(printf '%s\n' "${headers[@]##*/}" "${source_deb##*/}"; "$compiler" --version)
}

# sources_of DIR...: makes the directories of the sources available below `sources`.
sources_of() {
    local dir wanted=()
    if [ -z "$source_deb" ]; then
        sources=$common
        return
    fi
    sources=$cache/unpacked/$(basename "$source_deb" .deb)-parts
    for dir; do [ -d "$sources/$dir" ] || wanted+=("$dir"); done
    [ "${#wanted[@]}" -gt 0 ] || return 0
    say "unpacking ${wanted[*]} of ${source_deb##*/}"
    rm -rf "$sources.part"
    mkdir -p "$sources.part" "$sources"
    dpkg-deb --fsys-tarfile "$source_deb" | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' | xz -dc |
        tar -x -C "$sources.part" --strip-components=1 --wildcards --no-wildcards-match-slash "${wanted[@]/#/linux-source-*/}" ||
        die "cannot unpack ${wanted[*]} of $source_deb: it has no such directory, or is damaged (then remove it and try again)"
    for dir in "${wanted[@]}"; do
        mkdir -p "$(dirname "$sources/$dir")"
        mv "$sources.part/$dir" "$sources/$dir"
    done
    rm -r "$sources.part"
}

# make_work_tree DIR...: makes `work` with a tree in which the modules of those directories can be built: links to what the kernel's build has left, and copies of the directories.
# Files of modules refer to each other by their places in the kernel's tree.
make_work_tree() {
    local dir part
    work=$(mktemp -d "$cache/modules.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/tree/arch" "$work/build"
    cp -as "$common"/{Makefile,include,scripts,tools} "$work/tree/"
    cp -as "$common/arch/x86" "$work/tree/arch/"
    for dir; do
        rm -rf "${work:?}/tree/$dir"
        mkdir -p "$(dirname "$work/tree/$dir")"
        cp -a "$sources/$dir" "$work/tree/$dir"
        # Directories within it have modules of their own, which nobody has changed.
        if [ -f "$work/tree/$dir/Makefile" ]; then sed -i '/^obj-[^=]*=[ \t]*[^ \t]*\/[ \t]*$/d' "$work/tree/$dir/Makefile"; fi
    done
    if [ "$common" = "$headers_dir" ]; then
        rmdir "$work/build"
        ln -s tree "$work/build"
        cp -as "$common"/{.config,Module.symvers} "$work/tree/"
    elif [ -f "$headers_dir/modules.order" ]; then
        mkdir -p "$work/build/arch"
        cp -as "$headers_dir"/{include,scripts,tools,.config,Module.symvers} "$work/build/"
        cp -as "$headers_dir/arch/x86" "$work/build/arch/"
        echo "include $work/tree/Makefile" >"$work/build/Makefile"
    else
        cp -as "$headers_dir"/. "$work/build/"
        rm "$work/build/Makefile"
        echo "include $work/tree/Makefile" >"$work/build/Makefile"
    fi
}

# touched FILE: the files of the kernel's tree that a patch changes, one a line, sorted.
touched() { sed -n 's/^\(---\|+++\) [^/ \t]*\/\([^ \t]*\).*/\2/p' "$@" | sort -u; }

# apply_patch FILE TREE: copies in place of the links what the patch changes, and changes that.
apply_patch() {
    local target
    touched "$1" | while read -r target; do
        if [ -L "$2/$target" ]; then cp --remove-destination "$(readlink -f "$2/$target")" "$2/$target"; fi
    done
    patch -s -d "$2" -p1 --no-backup-if-mismatch <"$1" >"$work/log" || die "${1##*/} does not fit Linux $version: $(tail -n 5 "$work/log")"
}

# make_modules DIR WORD...: builds the modules of a directory of the work tree; the words go to make. The types of the modules for BPF would need a further program, and
# nothing here reads them.
make_modules() {
    local dir=$1
    shift
    make -s -j "$(nproc)" -C "$work/build/" M="$work/tree/$dir" CC="$compiler -ffile-prefix-map=$work/tree/= -ffile-prefix-map=$work/build/=" "$@" CONFIG_DEBUG_INFO_BTF_MODULES= modules \
        </dev/null >"$work/log" 2>&1 || {
        # The work tree goes when the script ends.
        cp "$work/log" "$cache/modules-$release.log"
        die "cannot build the modules of $dir for $release: $(tail -n 15 "$work/log") (all of it: $cache/modules-$release.log)"
    }
}

# keep_module FILE TO: without what differs from build to build.
keep_module() { objcopy --strip-debug --remove-section=.note.gnu.build-id "$1" "$2"; }

# variant_name VARIANT: what a variant of KVM is called: files of patches by their names without directories and endings.
variant_name() { sed 's|[^+]*/||g; s/\.\(patch\|diff\)//g' <<<"$1"; }
