#!/bin/sh
# Sends 20,000 datagrams of 1,000 bytes by eth0, as the row `wait` of net.toml does. udpsend is beside this script:
#   gcc -O2 -static -o udpsend guests/linux/net/tools/*.c
set -e
ip addr add 198.18.0.254/24 dev eth0
ip link set eth0 up
ip neigh replace 198.18.0.2 lladdr 02:00:00:00:00:02 dev eth0
sleep 0.5    # the link comes up
echo 20000 >/sys/class/net/eth0/queues/tx-0/byte_queue_limits/limit_max
exec "${0%/*}/udpsend" -c -s 1000 198.18.0.2 9000 20000
