# The commands that guests/tests lets gdb execute with guests/bare/switch: break, step, read memory, watch,
# reverse, and continue to the end.
set pagination off
set confirm off
set width 0
break second_task
continue
print "stopped in", (void *) $rip
delete
stepi 4
x/1gx &second
watch *(unsigned long *) 0x8000000000
continue
continue
reverse-continue
info registers rip
reverse-continue
delete
reverse-stepi
tbreak switch_task
continue
monitor walk 0x8000000000
monitor ledger 3
thread apply all print $cr3 != 0
continue
