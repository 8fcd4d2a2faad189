"""Code that several controllers share: pod templates, drift detection, pod failures, status and child updates.

Only `apply`, `sync_children` and `status_writer` call the Kubernetes API. All other modules do no I/O. The code of one
kind is in `gpu_unit`, `gpu_storage` or `stock_pool`.
"""
