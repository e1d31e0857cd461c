# Plugs a node into the switch: link.sh INDEX PID-OF-THE-NODE.
ip link add "node-$1" type veth peer name eth0 netns "$2"
ip link set "node-$1" master switch up
ip route replace "10.98.$1.0/24" via "10.99.0.$((10 + $1))"
