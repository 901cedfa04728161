# A bare-metal program inside, on QEMU's machine under KVM: tollgate.program= is its file in /bin, and tollgate.inner= its command line.
. /lib/hosting.sh
load_kvm
region inside sh -c '. /lib/hosting.sh; qemu -m "$(parameter memory 128M)" -device isa-debug-exit,iobase=0xf4,iosize=0x4 -kernel "/bin/$(parameter program kernel-x86_64.elf)" -append "$(parameter inner "")"' >/tmp/output
status=$?
prefixed 'l2| ' </tmp/output
# The debug exit's status is twice the program's, and one.
[ "$status" = 1 ] || { echo "tollgate: the program inside ended with $status"; exit 1; }
