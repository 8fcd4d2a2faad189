"""Code that several controllers share: pod templates, drift detection, pod failures, status and child updates.

Only `apply`, `sync_children` and `status_writer` call the Kubernetes API. All other modules are pure. Nothing here
belongs to one kind only; see `gpu_unit`, `gpu_storage` and `stock_pool`.
"""
