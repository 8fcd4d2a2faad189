"""The activator process.

Every replica dispatches invocations from the INVOKE stream to the DISPATCH subject of their function (`dispatcher`).
Workers pull from there themselves, so a worker that already runs does not depend on the leader.

The leader also scales workers and ends invocations that no worker will run (`invocation_reaper`). `autoscaler` makes
every decision about workers, without I/O: how many a function needs, when a silent worker counts as unhealthy, which
outdated workers are replaced and when, and when the own unit of a function with storages starts and stops. `reconcile`
observes one function and applies the decisions; `worker_lifecycle` creates, drains and deletes one worker;
`worker_liveness` only remembers the last heartbeats.
"""
