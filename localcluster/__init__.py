"""A real Kubernetes on one machine, for development and tests. Never shipped.

Two shapes:

control plane   etcd, API server, controller manager, scheduler, and simulated GPU nodes. Needs no root; any number
                of them run side by side.
node            the same plus containerd, kubelet, kube-proxy, DNS and volumes, all inside namespaces of their own, so
                that ending one process takes every process, mount, interface and firewall rule with it.
"""
