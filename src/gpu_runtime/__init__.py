"""GPU Runtime: a control plane that turns a Kubernetes cluster with GPUs into a GPU service."""
