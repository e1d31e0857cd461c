# Makes a node's machine its own: node.sh FOLDER INDEX CGROUP. Nothing of it is seen outside, and nothing remains of it.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
# The kubelet has paths that cannot be configured there.
mkdir -p "$1/kubelet" "$1/log" /var/lib/kubelet
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/log" /var/log
mkdir -p /var/log/containers
ip link set lo up
ip address add "10.99.0.$((10 + $2))/24" dev eth0
ip link set eth0 up
ip route add default via 10.99.0.1
echo 1 >/proc/sys/net/ipv4/ip_forward

for hierarchy in /sys/fs/cgroup/*; do
	[ -d "$hierarchy" ] || continue
	group=$hierarchy
	# A new group of cpuset has no processors until it is told.
	for part in $(echo "$3" | tr / ' '); do
		parent=$group group=$group/$part
		mkdir -p "$group"
		for file in cpuset.cpus cpuset.mems; do
			[ ! -e "$group/$file" ] || cat "$parent/$file" >"$group/$file"
		done
	done
done
