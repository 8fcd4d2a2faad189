"""Runs a real Kubernetes cluster on one machine, for development and tests. It is not part of the product image.

There are two cluster types:

control plane   etcd, API server, controller manager, scheduler, and simulated GPU nodes. It needs no root. Several
                control planes can run side by side.
node            A control plane plus containerd, kubelet, kube-proxy, DNS and volumes. All processes run in Linux
                namespaces of their own. When process 1 of these namespaces exits, the kernel removes every process,
                mount, interface and firewall rule of the cluster.

The package does not import the product (`gpu_runtime`).
"""
