# The network of the control plane: a switch for the nodes, and the addresses by which pods know the API server and DNS.
ip link set lo up
ip address add 10.96.0.1/32 dev lo
ip address add 10.96.0.10/32 dev lo
ip link add switch type bridge
ip address add 10.99.0.1/24 dev switch
ip link set switch up
echo 1 >/proc/sys/net/ipv4/ip_forward
