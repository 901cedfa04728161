# Shared by the workloads of an image that hosts virtual machines (sourced, not run): KVM's modules, and QEMU with a machine inside.
# docs/guides/nested.md describes the parameters.

. /lib/parameters.sh

# The parameters that the kernel command line gives a module, as modprobe takes them: kvm_intel.ept=0.
module_parameters() { echo "$words" | sed -n "s/^$1\.//p" | tr '\n' ' '; }

accel=$(parameter accel kvm)

# inner_default COMMAND: what the machine inside runs if no parameter says it: what the image was made with (nested/build --l2), or the command.
inner_default() { cat /lib/inner 2>/dev/null || echo "$1"; }

# Loads KVM's modules in the variant that tollgate.kvm= names.
load_kvm() {
    [ "$accel" = kvm ] || return 0
    [ ! -d /sys/module/kvm_intel ] || return 0
    variant=$(parameter kvm distribution)
    [ -f "/lib/kvm/$variant/order" ] || fail "tollgate.kvm=$variant: this image has $(ls /lib/kvm | tr '\n' ' ')"
    grep -q '^flags.* vmx' /proc/cpuinfo ||
        fail "KVM cannot be loaded: this processor has no VMX (tollgate.accel=tcg does without)"
    while read -r module; do
        # Words are split here: each is a parameter.
        insmod "/lib/kvm/$variant/$module" $(module_parameters "${module%.ko}") || {
            dmesg | grep -i 'kvm\|vmx' | tail -n 5
            fail "the module $module of $variant cannot be loaded"
        }
    done <"/lib/kvm/$variant/order"
    [ -c /dev/kvm ] || fail "there is no /dev/kvm after loading KVM"
    said=
    for name in ept unrestricted_guest vpid enable_apicv nested enable_shadow_vmcs pml; do
        file=/sys/module/kvm_intel/parameters/$name
        [ ! -r $file ] || said="$said $name=$(cat $file)"
    done
    echo "tollgate: KVM is loaded ($variant):$said"
}

# Each line of the machine inside, with a prefix: what it prints for programs on the host must not be taken for this machine's. Its regions
# of interest are all that this machine does meanwhile.
prefixed() {
    awk -v prefix="$1" '{
        sub(/\r$/, "")
        if ($1 == "tollgate:" && $2 ~ /^(begin|end)$/ && $3 ~ /^[A-Za-z0-9_.-]+$/) system("marker " $2 " " $3)
        print prefix $0
        fflush()
    }'
}

# qemu ARGUMENTS...: QEMU with what all machines here have in common: no devices but those named, the console on standard output.
qemu() {
    if [ "$accel" = kvm ]; then cpu=host; else cpu=max; fi
    # Words of tollgate.qemu= are split: each is an argument.
    qemu-system-x86_64 -accel "$accel" -cpu "$(parameter cpu $cpu)" -no-user-config -nodefaults -display none -no-reboot \
        -serial stdio "$@" $(parameter qemu '') </dev/null
}

# run_linux PROCESSORS MEMORY INITRAMFS COMMANDLINE: boots the kernel inside, and succeeds if its workload does. The machine and the prefix
# of its console are l2 on the first host, l3 on a host inside (tollgate.level=2).
run_linux() {
    machine=l$(($(parameter level 1) + 1))
    whole_command_line "$4" || fail "the command line of $machine is longer than the 2047 bytes that its kernel reads: make tollgate.inner= shorter"
    cat >/tmp/$machine.sh <<END
. /lib/hosting.sh
qemu -smp "\$1" -m "\$2" -kernel /l2/vmlinuz -initrd "\$3" -append "\$4" >/tmp/$machine.fifo
END
    mkfifo /tmp/$machine.fifo
    tee /tmp/$machine.log </tmp/$machine.fifo | prefixed "$machine| " &
    region $machine sh /tmp/$machine.sh "$@"
    status=$?
    wait
    rm /tmp/$machine.fifo
    [ $status = 0 ] || return $status
    status=$(tr -d '\r' </tmp/$machine.log | sed -n 's/^tollgate: workload .*: status \([0-9]*\), up .*/\1/p' | tail -n 1)
    [ -n "$status" ] || { echo "tollgate: $machine did not end its workload"; return 1; }
    return "$status"
}

# run_host WORDS: boots this image again inside, packed anew, so that the machine inside is a host as well; the words go onto its kernel
# command line.
run_host() {
    (cd / && find bin init l2 lib lib64 sbin usr workloads | cpio --quiet -o -H newc >/tmp/self.cpio) || fail "this image cannot be packed"
    inherited=
    for word in level=2 "accel=$accel" "kvm=$(parameter inner-kvm "$(parameter kvm distribution)")"; do inherited="$inherited tollgate.$word"; done
    for word in $words; do case $word in kvm.* | kvm_intel.*) inherited="$inherited $word" ;; esac done
    run_linux "$(parameter cpus 1)" "$(parameter memory 1G)" /tmp/self.cpio \
        "console=ttyS0,115200 panic=-1 $(parameter append quiet)$inherited $1"
}
